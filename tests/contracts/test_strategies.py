"""What every registered search strategy must keep to; registering one is what gets it tested."""

import functools
import math
import zlib

import numpy as np
import pytest

import anatune
from anatune.api import model
from anatune.core.trial import Measurement, Outcome, Trial
from anatune.model.learned.corrected import CorrectedModel
from anatune.model.learned.residual import ResidualModel, ResidualOptions
from anatune.search import neighbours
from anatune.search.base import DEFAULT_STRATEGY, STRATEGIES, Strategy, make_strategy
from anatune.search.strategies.learned import LearnedStrategy
from anatune.templates import make_model
from bench.replay.table import TableModel

pytest.importorskip("lightgbm")

CPU = anatune.hardware("xeon_gold_6230r")
GPU = anatune.hardware("rtx3090")
MATMUL = anatune.matmul(48, 64, 36)
CONV2D = anatune.conv2d(n=1, c=4, h=6, w=6, k=8, r=3, s=3, padding=1)
MODELS = {
    "matmul": model(MATMUL, CPU),
    "conv2d": model(CONV2D, CPU),
    "reduction": model(anatune.reduction((32, 48), axes=(1,)), CPU),
    "gpu matmul": model(anatune.matmul(64, 96, 128), GPU),
    "gpu conv2d": model(CONV2D, GPU),
    "pipelined": make_model(anatune.matmul(32, 64, 48), GPU, "pipelined"),
    "tensor cores": make_model(anatune.matmul(64, 128, 64, dtype="float16"), GPU, "triton"),
}
_RECORDED = model(anatune.matmul(64, 64, 256), GPU)
_DRAWN = MODELS["matmul"].feature_table(MODELS["matmul"].space.sample_points(80, 0))
_RATIOS = np.random.default_rng(0).normal(0.0, 0.3, len(_DRAWN.time_s))
_TREES = ResidualModel(ResidualOptions(num_trees=20, num_leaves=7, num_members=1))
_TREES.fit(_DRAWN.values, _DRAWN.names, _RATIOS, np.arange(len(_RATIOS)) % 2)
MODELS["corrected matmul"] = CorrectedModel(MODELS["matmul"], _TREES)
MODELS["table"] = TableModel(_RECORDED, np.unique(_RECORDED.space.sample_points(600, 0), axis=0))
for _made in MODELS.values():
    _made.rank = functools.cache(_made.rank)  # every new strategy asks for the same ranking, seconds in large spaces
RANKED = {name: made.rank(4).points for name, made in MODELS.items()}
SOME = ("matmul", "gpu conv2d", "tensor cores", "table")
"""What strategies other than the default are tried on: one of each kind of space."""
CASES = [
    (name, "model", task) for name in sorted(STRATEGIES) for task in (MODELS if name == DEFAULT_STRATEGY else SOME)
]
CASES += [(name, "paper", task) for name in sorted(STRATEGIES) for task in ("matmul", "gpu conv2d", "table")]


ONCE_A_STRATEGY = pytest.mark.parametrize(
    "case", [case for case in CASES if case[2] == "matmul"], ids=" ".join, indirect=True
)


@pytest.fixture(autouse=True)
def _fewer_drawn(monkeypatch):
    monkeypatch.setattr(LearnedStrategy, "num_drawn", 2_000)
    monkeypatch.setattr(LearnedStrategy, "num_kept", 200)
    monkeypatch.setattr(neighbours, "_SAMPLES", 4_000)
    monkeypatch.setattr(neighbours, "_CHILDREN", 1_000)


@pytest.fixture(params=CASES, ids=" ".join)
def case(request):
    return request.param


@pytest.fixture
def task(case):
    return case[2]


@pytest.fixture
def new(case):
    """Return a function that makes the strategy, always the same way."""
    return functools.partial(made_new, case)


def made_new(case, seed=0, made=None):
    name, start, task = case
    made = made or MODELS[task]
    ranked = RANKED[task] if made is MODELS[task] else made.rank(1).points
    return make_strategy(name, made, seed=seed, start=start, ranked=ranked)


def measured(schedule, number=0, outcome=Outcome.OK):
    """Measure in a world where the model is wrong by up to a factor of two, in a fixed way."""
    if outcome is not Outcome.OK:
        return Trial(schedule, Measurement(outcome, "it would not"), number)
    made = next(m for m in MODELS.values() if (m.workload, m.hardware) == (schedule.workload, schedule.hardware))
    predicted = float(made.times(made.space.point_of(schedule)[None, :])[0][0])
    noise = zlib.crc32(repr(sorted(schedule.tiles.items())).encode()) / 2**32
    return Trial(schedule, Measurement(outcome, times_s=(predicted * math.exp(0.7 * noise),)), number)


def history(strategy, rounds=4, size=3):
    """Return the trials of some rounds, and what is asked next."""
    trials = []
    for _ in range(rounds):
        told = [measured(schedule, len(trials)) for schedule in strategy.ask(size)]
        strategy.tell(told)
        trials += told
    return trials, keys(strategy.ask(4))


@functools.cache
def lived(case):
    return history(made_new(case))


def keys(schedules):
    return [schedule.key for schedule in schedules]


@ONCE_A_STRATEGY
def test_nothing_asked_for_nothing(new):
    strategy = new()
    assert isinstance(strategy, Strategy)
    assert strategy.ask(0) == []


def test_legal_and_never_twice(new, task):
    strategy, made = new(), MODELS[task]
    asked, open_ = [], []
    for size in (1, 3, 4, 1, 2, 5, 8):
        batch = strategy.ask(size)
        assert len(batch) <= size
        if not batch:  # it wants to be told first
            assert open_
            strategy.tell([measured(schedule) for schedule in open_])
            batch, open_ = strategy.ask(size), []
        asked += batch
        strategy.tell([measured(schedule) for schedule in batch[::2]])  # the others come later
        open_ += batch[1::2]
    points = [made.space.point_of(schedule) for schedule in asked]
    assert all(made.check(point[None, :])[0] == 0 for point in points)
    assert all(made.space.schedule_of(point) == schedule for point, schedule in zip(points, asked, strict=True))
    assert len({made.program_key(point) for point in points}) == len(asked) >= 7


def test_same_seed_same_questions(case, new):
    trials, following = history(new())
    assert keys(trial.schedule for trial in trials) == keys(trial.schedule for trial in lived(case)[0])
    assert following == lived(case)[1]


def test_what_a_resumed_one_asks_depends_on_no_order_and_no_batches_of_telling(case, new):
    """It goes on as if nothing had happened: what was asked last and never came back is asked again."""
    trials, following = lived(case)
    for order, size in ((trials, 1), (trials[::-1], len(trials)), (trials[5:] + trials[:5], 4)):
        strategy = new()
        for first in range(0, len(order), size):
            strategy.tell(order[first : first + size])
        assert keys(strategy.ask(4)) == following


def test_failures_are_data(new):
    strategy = new()
    outcomes = [outcome for outcome in Outcome for _ in range(2)]
    asked = []
    for outcome in outcomes:
        batch = strategy.ask(1)
        asked += batch
        strategy.tell([measured(schedule, outcome=outcome) for schedule in batch])
    assert len(set(keys(asked))) == len(outcomes)


def test_points_never_asked_for(new, task):
    strategy = new()
    others = MODELS[task].space.sample(6, seed=3)
    strategy.tell([measured(schedule) for schedule in others])
    asked = strategy.ask(12)
    assert asked
    assert not set(keys(others)) & set(keys(asked))


def test_trials_of_another_space_change_nothing(new):
    strategy = new()
    stranger = anatune.plan(anatune.matmul(16, 16, 16), CPU, top_k=1).best
    strategy.tell([Trial(stranger, Measurement(Outcome.OK, times_s=(1.0,)))])
    assert keys(strategy.ask(3)) == keys(new().ask(3))


@ONCE_A_STRATEGY
def test_ends_when_the_space_is_used_up(new):
    tiny = model(anatune.matmul(2, 1, 2), CPU)
    strategy = new(seed=1, made=tiny)
    asked = []
    while batch := strategy.ask(7):
        asked += batch
        strategy.tell([Trial(schedule, Measurement(Outcome.OK, times_s=(1.0,))) for schedule in batch])
        assert len(asked) < 10_000
    assert asked
    assert strategy.ask(1) == []
