"""Results: ranking trials, the final comparison, JSON."""

import json
import math
import random

import pytest

from anatune.core.trial import Measurement, Outcome, Trial
from anatune.tuning.ending import compare_contenders, rank_trials
from tests.unit.records.making import schedule
from tests.unit.tuning.fakes import session


def trial(number, times, references=None, outcome=Outcome.OK):
    return Trial(schedule(number + 1), Measurement(outcome, "", tuple(times), tuple(references or ())), number)


def test_trials_are_ranked_by_the_reference_where_all_have_one():
    slow_minute, fast_minute = trial(0, [2.0], [2.0]), trial(1, [1.5], [1.0])
    assert rank_trials([slow_minute, fast_minute]) == [slow_minute, fast_minute]
    assert rank_trials([slow_minute, trial(1, [1.5])])[0].number == 1
    assert rank_trials([trial(0, [], outcome=Outcome.RUN_ERROR)]) == []


def test_a_clear_winner():
    trials = [trial(0, [1.0]), trial(4, [1.0])]
    measurements = [
        Measurement(Outcome.OK, times_s=(2.0, 2.02, 1.98, 2.01), reference_times_s=(1.0,) * 4, stopped_early=True),
        Measurement(Outcome.OK, times_s=(1.0, 1.01, 0.99, 1.0, 1.0), reference_times_s=(1.0,) * 5),
    ]
    found = compare_contenders(trials, measurements, plan=0)
    assert found.best == 4
    assert found.speedup == pytest.approx(2.0, rel=1e-2)
    assert 1.9 < found.low < found.speedup < found.high < 2.1
    assert found.decided


def test_no_difference():
    measurements = [
        Measurement(Outcome.OK, times_s=(1.0, 1.2, 0.9), reference_times_s=(1.0,) * 3),
        Measurement(Outcome.OK, times_s=(1.1, 0.9, 0.95), reference_times_s=(1.0,) * 3),
    ]
    found = compare_contenders([trial(0, [1.0]), trial(1, [1.0])], measurements, plan=0)
    assert found.low < 1 < found.high
    assert not found.decided


def test_the_plan_wins_or_fails():
    good = Measurement(Outcome.OK, times_s=(1.0,), reference_times_s=(1.0,))
    slow = Measurement(Outcome.OK, times_s=(3.0,), reference_times_s=(1.0,))
    bad = Measurement(Outcome.RUN_ERROR, "gone")
    trials = [trial(0, [1.0]), trial(1, [1.0])]
    assert compare_contenders(trials, [good, slow], plan=0).speedup == 1.0
    assert compare_contenders(trials, [bad, slow], plan=0).speedup is None
    assert compare_contenders(trials, [bad, bad], plan=0) is None
    json.dumps(compare_contenders(trials, [slow, good], plan=0).high)  # one pair: wide, not infinite


def test_the_winner_is_never_slower_than_the_plan():
    """The medians name the other, by luck; the paired test does not."""
    rng = random.Random(0)
    for _ in range(200):
        rounds = [[math.exp(rng.gauss(0.0, 0.05)) for _ in range(9)] for _ in range(3)]
        lengths = [9, rng.choice((3, 5, 9)), rng.choice((3, 5, 9))]
        rng.shuffle(lengths)
        measurements = [
            Measurement(Outcome.OK, times_s=tuple(times[:n]), reference_times_s=(1.0,) * n, stopped_early=n < 9)
            for times, n in zip(rounds, lengths, strict=True)
        ]
        result = compare_contenders([trial(number, [1.0]) for number in range(3)], measurements, plan=2)
        assert result.speedup >= 1.0
        assert result.low <= result.speedup <= result.high


def test_json_holds_everything(tmp_path):
    result = session(4, records=tmp_path / "r.sqlite").run()
    tree = json.loads(result.to_json())
    assert [one["number"] for one in tree["trials"]] == [0, 1, 2, 3]
    assert tree["best"] == result.best_trial.number
    assert tree["plan_first"] == 0
    assert tree["outcomes"] == {"ok": 4}
    assert tree["best_schedule"] == json.loads(result.best.to_json())
    assert tree["compare"]["best"] == tree["best"]
    assert tree["session"] == result.session
    assert tree["trials"][0]["gflop_per_s"] > 0
