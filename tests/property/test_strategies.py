"""Whatever is asked and told in whatever order: legal, never twice, and a new object told everything goes on alike."""

import math
import zlib

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import anatune
from anatune.api import model
from anatune.core.trial import Measurement, Outcome, Trial
from anatune.search.base import STARTS, STRATEGIES, make_strategy
from bench.replay.table import TableModel

GPU = model(anatune.matmul(16, 32, 48), anatune.hardware("rtx3090"))
MODELS = {
    "gpu": GPU,
    "cpu": model(anatune.matmul(17, 32, 12), anatune.hardware("xeon_gold_6230r")),
    "table": TableModel(GPU, np.unique(GPU.space.sample_points(150, 0), axis=0)),
}
RANKED = {name: made.rank(4).points for name, made in MODELS.items()}
FOREIGN = {name: made.space.sample(6, 8) for name, made in MODELS.items()}

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(1, 9)),
        st.tuples(st.just("tell"), st.integers(1, 9)),
        st.tuples(st.just("foreign"), st.integers(0, 5)),
    ),
    max_size=12,
)


def measured(made, schedule):
    point = made.space.point_of(schedule)
    draw = zlib.crc32(point.tobytes()) / 2**32
    if draw < 0.1:
        return Trial(schedule, Measurement(Outcome.RUN_ERROR, "it would not"))
    seconds = float(made.times(point[None, :])[0][0]) * math.exp(draw)
    return Trial(schedule, Measurement(Outcome.OK, times_s=(seconds, 1.02 * seconds)))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(sorted(STRATEGIES)),
    start=st.sampled_from(STARTS),
    task=st.sampled_from(sorted(MODELS)),
    seed=st.integers(0, 3),
    steps=STEPS,
    order=st.randoms(use_true_random=False),
)
def test_any_history(name, start, task, seed, steps, order):
    made = MODELS[task]

    def new():
        return make_strategy(name, made, seed=seed, start=start, ranked=RANKED[task])

    strategy, told, waiting = new(), [], []
    asked = set()
    for step, number in [*steps, ("ask", 6)]:
        if step == "ask":
            known = {made.program_key(made.space.point_of(trial.schedule)) for trial in told}
            for schedule in strategy.ask(number):
                point = made.space.point_of(schedule)
                key = made.program_key(point)
                assert made.check(point[None, :])[0] == 0
                assert key not in asked | known
                asked.add(key)
                waiting.append(schedule)
        elif step == "tell":
            order.shuffle(waiting)
            trials = [measured(made, schedule) for schedule in waiting[:number]]
            waiting = waiting[number:]
            strategy.tell(trials)
            told += trials
        else:
            trials = [measured(made, FOREIGN[task][number])]
            strategy.tell(trials)
            told += trials
    trials = [measured(made, schedule) for schedule in waiting]
    strategy.tell(trials)
    told += trials
    order.shuffle(told)
    resumed = new()
    for first in range(0, len(told), 4):
        resumed.tell(told[first : first + 4])
    assert [one.key for one in resumed.ask(5)] == [one.key for one in strategy.ask(5)]
