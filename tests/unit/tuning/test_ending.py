"""When a session ends early: near enough to the bound, or nothing better for a while."""

import dataclasses

import pytest

import anatune
from anatune.core.trial import Measurement, Outcome
from anatune.errors import SpaceError
from anatune.measure.place import WorkerState
from anatune.records.store import RecordStore
from anatune.tuning.ending import Ending, is_faster_beyond_noise
from anatune.tuning.settings import TuningSettings
from tests.unit.tuning.fakes import FakeMeasurer, failed, ran, session
from tests.wording import refuses

BOUND_S = 1e-4


def noisy(seconds, *ratios, base=1e-3):
    times = tuple(seconds * ratio for ratio in ratios)
    return Measurement(Outcome.OK, times_s=times, reference_times_s=(base,) * len(times))


def reasons(ending, measurements, asked=None):
    """Return the reason after each trial; `asked` says how many were asked for by then."""
    found = []
    for number, one in enumerate(measurements, start=1):
        ending.add(one, number if asked is None else asked(number))
        found.append(ending.reason)
    return found


def test_a_difference_within_the_noise_is_none():
    steady, other = noisy(1.0, 1.0, 1.001, 0.999), noisy(0.99, 1.0, 1.001, 0.999)
    assert is_faster_beyond_noise(other, steady)
    assert not is_faster_beyond_noise(steady, other)
    assert not is_faster_beyond_noise(noisy(0.996, 1.0, 1.0, 1.0), steady)  # half a per cent is no news
    assert not is_faster_beyond_noise(noisy(0.95, 0.9, 1.0, 1.1), noisy(1.0, 0.9, 1.0, 1.1))
    assert is_faster_beyond_noise(noisy(0.7, 0.9, 1.0, 1.1), noisy(1.0, 0.9, 1.0, 1.1))


def test_the_machines_drift_is_no_gain():
    assert not is_faster_beyond_noise(noisy(0.8, 1.0, 1.0, base=0.8e-3), noisy(1.0, 1.0, 1.0))
    assert is_faster_beyond_noise(
        Measurement(Outcome.OK, times_s=(0.9,)), noisy(1.0, 1.0, 1.0)
    )  # without reference: times


def test_near_enough():
    found = reasons(Ending(BOUND_S, stop_at=0.95), [ran(2e-4), failed(), ran(1.06e-4), ran(1.05e-4), ran(3e-4)])
    assert found == [None, None, None, "stop_at", "stop_at"]
    assert reasons(Ending(BOUND_S, stop_at=1.0), [ran(0.9e-4)]) == ["stop_at"]  # beaten is reached
    assert reasons(Ending(BOUND_S), [ran(1e-5)] * 100) == [None] * 100


def test_patience_counts_from_the_last_better_one():
    times = [ran(1.0), ran(1.1), ran(0.9), failed(), ran(0.899), ran(2.0), ran(0.1)]
    assert reasons(Ending(BOUND_S, patience=3), times)[:6] == [None] * 5 + ["patience"]
    assert reasons(Ending(BOUND_S, patience=2), [failed()] * 3) == [None, "patience", "patience"]
    small_steps = [ran(0.997**n) for n in range(30)]  # each within the noise, together far from it
    assert reasons(Ending(BOUND_S, patience=3), small_steps) == [None] * 30


def test_what_was_on_its_way_does_not_count():
    """With 8 devices 8 more were asked for when the best one came back: none of them could know."""
    times = [ran(1.0), *[ran(1.1)] * 12]
    found = reasons(Ending(BOUND_S, patience=4), times, asked=lambda number: number + 8)
    assert found.index("patience") == 9 + 4 - 1


@pytest.mark.parametrize("ahead", [1, 3])
def test_a_session_ends_after_so_many_without_a_better_one(ahead):
    script = {0: ran(1e-3), 1: ran(0.8e-3)} | dict.fromkeys(range(2, 40), ran(0.9e-3))
    made = []
    result = session(40, made, script, ahead=ahead, patience=6).run()
    assert (result.ended, result.patience) == ("patience", 6)
    assert 2 + 6 <= len(result.trials) <= 2 + 6 + 2 * (ahead - 1)
    assert made[0].compared  # the final comparison takes place
    whole = session(len(result.trials), script=script, ahead=ahead).run()
    assert [one.schedule.key for one in whole.trials] == [one.schedule.key for one in result.trials]
    assert whole.ended == "trials"


def test_a_session_ends_near_the_bound_and_says_so():
    bound_s = session(1).run().bound.time_s
    script = dict.fromkeys(range(40), ran(4 * bound_s)) | {5: ran(1.2 * bound_s)}
    again = {"compare": lambda measurer, schedules, budget_s: [failed() for _ in schedules]}
    result = session(40, script=script, ahead=1, stop_at=0.8, **again).run()
    assert (result.ended, len(result.trials)) == ("stop_at", 6)
    assert result.share_of_bound == pytest.approx(1 / 1.2)
    told = result.to_dict()
    assert (told["ended"], told["stop_at"], told["bound"]["time_s"]) == ("stop_at", 0.8, bound_s)
    beaten = session(2, script={0: ran(0.5 * bound_s)}, **again).run()
    assert beaten.share_of_bound == pytest.approx(2.0)


def test_other_ends():
    now = iter(range(1000))
    assert session(50, clock=lambda: float(next(now)), time_limit_s=10.0, ahead=1).run().ended == "time_limit"
    tiny = session(64, strategy="grid")
    target = tiny._setup.target._replace(workload=anatune.matmul(2, 1, 2))
    tiny._setup = dataclasses.replace(tiny._setup, target=target)
    assert tiny.run().ended == "space"


def test_resuming_respects_the_rules_of_the_call(tmp_path):
    path = tmp_path / "tuning.sqlite"
    script = {0: ran(0.8e-3)} | dict.fromkeys(range(1, 40), ran(0.9e-3))
    first = session(40, script=script, ahead=1, records=path, patience=5).run()
    assert len(first.trials) == 6
    made = []
    again = session(40, made, script, ahead=1, records=path, resume=True, patience=5).run()
    assert (again.ended, again.num_resumed, made[0].measured) == ("patience", 6, [])
    longer = session(40, script=dict.fromkeys(range(40), ran(0.9e-3)), ahead=1, records=path, resume=True, patience=8)
    assert (len(longer.run().trials), longer.run().ended) == (9, "patience")
    with RecordStore(path) as store:
        (kept,) = store.sessions()
    assert kept.settings["patience"] == 5
    assert "stop_at" not in kept.settings


def test_many_devices(monkeypatch):
    """Twelve are on their way at once: the session goes on for as many, and ends."""
    monkeypatch.setattr(FakeMeasurer, "workers", lambda self: (WorkerState("a"), WorkerState("b")))
    script = dict.fromkeys(range(90), ran(0.9e-3)) | {0: ran(1e-3), 10: ran(0.8e-3)}
    result = session(90, script=script, ahead=12, patience=6, strategy="random").run()
    assert result.ended == "patience"
    assert 11 + 6 <= len(result.trials) <= 11 + 11 + 6 + 11


def test_wrong_rules():
    for wrong in (0, 1.5, True, "95%", float("nan")):
        with refuses(SpaceError):
            TuningSettings(stop_at=wrong)
    for wrong in (0, -1, 1.0):
        with refuses(SpaceError):
            TuningSettings(patience=wrong)


def test_a_better_one_that_was_on_its_way_takes_an_end_back():
    """Patience runs out while trials are on their way; one of them is better, and the session goes on to all trials."""
    better = {number: ran(1e-3 * 0.9 ** (number // 8)) for number in range(0, 30, 8)}
    script = dict.fromkeys(range(30), ran(2e-3)) | better
    result = session(30, script=script, ahead=4, patience=4).run()
    assert (len(result.trials), result.ended) == (30, "trials")
