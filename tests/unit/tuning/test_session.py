"""Tuning sessions on a measurer that computes its times."""

import dataclasses
import json
import os
import re
import signal
import sqlite3

import pytest
from msgspec.structs import replace

import anatune
from anatune.api import model
from anatune.cli import main
from anatune.core.trial import Measurement, Outcome
from anatune.errors import DeviceError, MissingDependencyError, RecordError, RunError, SpaceError, UnknownNameError
from anatune.records.export import import_json_lines, json_lines
from anatune.records.store import RecordStore
from anatune.search.base import make_strategy
from anatune.templates.cpu.program.nest import program_key
from anatune.templates.cpu.program.program import program_of
from anatune.tuning.ending import rank_trials
from anatune.tuning.result import TuningInterrupted
from anatune.tuning.session import StandIns, TuningSession
from anatune.tuning.settings import TuningSettings
from anatune.tuning.tune import tune
from tests.naive_gpu import gpu
from tests.unit.tuning.fakes import HOST, WORKLOAD, failed, session
from tests.wording import refuses


def keys(trials):
    return [trial.schedule.key for trial in trials]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tuning.sqlite"


@pytest.mark.parametrize("strategy", ["model", "random", "grid"])
def test_a_session(strategy):
    made, seen = [], []
    result = session(10, made, strategy=strategy, progress=seen.append).run()
    assert [trial.number for trial in result.trials] == list(range(10))
    assert len(set(keys(result.trials))) == 10
    assert [trial.source for trial in result.trials] == ["plan"] + [strategy] * 9
    plan = anatune.plan(WORKLOAD, made[0].hardware, top_k=1)
    assert result.plan_first is result.trials[0]
    assert result.plan_first.schedule == plan.best
    assert result.plan_first.predicted_s == pytest.approx(plan.predictions[0].time_s)
    assert result.best == rank_trials(result.trials)[0].schedule
    assert result.outcomes == {Outcome.OK: 10}
    assert [one.done for one in seen] == [0, 0, *range(1, 11), 10]
    assert [one.stage for one in seen] == ["plan", "start", *["measure"] * 10, "compare"]
    assert seen[-1].best is result.best_trial
    assert seen[-2].left_s is not None
    assert not made[0].is_open


def test_a_session_that_cannot_measure_leaves_no_file(path):
    def none(*words, **settings):
        raise MissingDependencyError("building kernels needs Apache TVM")

    settings = TuningSettings(trials=3, records=path)
    with pytest.raises(MissingDependencyError):
        TuningSession(WORKLOAD, HOST, settings, stand_ins=StandIns(host=HOST, measurer=none)).run()
    assert not list(path.parent.iterdir())
    session(3, records=path).run()
    before = path.read_bytes()
    with pytest.raises(MissingDependencyError):
        TuningSession(WORKLOAD, HOST, settings, stand_ins=StandIns(host=HOST, measurer=none)).run()
    assert path.read_bytes() == before


def test_a_place_without_room_for_records_is_told_before_anything_is_measured(path):
    made = []
    with pytest.raises(RecordError):
        session(3, made, records=path / "missing" / "tuning.sqlite").run()
    assert not made


def test_the_best_is_measured_against_the_plan():
    made = []
    result = session(10, made).run()
    (compared,) = made[0].compared
    assert result.plan_first.schedule in compared
    assert result.best in compared
    assert result.compare.best == result.best_trial.number
    ratio = result.plan_first.measurement.time_s / result.best_trial.measurement.time_s
    assert result.compare.speedup == pytest.approx(ratio, rel=1e-3)
    assert result.compare.low <= result.compare.speedup <= result.compare.high


def test_records_and_session_agree_though_the_comparison_turns_the_order(path, capsys):
    def turned(measurer, schedules, budget_s):
        slower = range(len(schedules), 0, -1)  # the last, the plan's own choice, is the fastest now
        return [Measurement(Outcome.OK, times_s=(n * 1e-3,) * 6, reference_times_s=(1e-3,) * 6) for n in slower]

    result = session(10, records=path, compare=turned).run()
    first = rank_trials(result.trials)[0]
    assert result.best != first.schedule
    with RecordStore(path, read_only=True) as store:
        assert store.best(WORKLOAD).trial.schedule == result.best
        (one,) = store.sessions()
        assert store.best(WORKLOAD, session=one).trial.schedule == result.best
        kept = store.trials()
    assert main.main(["records", "best", str(path), "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["tiles"] == result.best.to_dict()["tiles"]
    copy = path.with_name("copy.sqlite")
    with RecordStore(copy) as store:
        import_json_lines(store, json_lines(kept))
        assert store.best(WORKLOAD).trial.schedule == result.best
    later = session(14, records=path, resume=True).run()
    with RecordStore(path, read_only=True) as store:
        assert store.best(WORKLOAD).trial.schedule == later.best


def test_one_trial_is_the_plan():
    made = []
    result = session(1, made).run()
    assert result.best_trial is result.plan_first
    assert result.compare is None
    assert made[0].compared == []


def test_failures_are_outcomes():
    script = {0: failed(), 3: failed(Outcome.RUN_TIMEOUT, "not finished after 10 s")}
    seen = []
    result = session(6, script=script, progress=seen.append).run()
    assert result.outcomes == {Outcome.OK: 4, Outcome.BUILD_ERROR: 1, Outcome.RUN_TIMEOUT: 1}
    assert result.plan_first.measurement.outcome is Outcome.BUILD_ERROR
    assert result.best_trial.measurement.outcome is Outcome.OK
    assert result.compare is None or result.compare.speedup is None
    assert seen[-2].failures == 2


def test_nothing_ran():
    result = session(3, script=dict.fromkeys(range(3), failed())).run()
    assert result.best_trial is None
    with refuses(RunError):
        _ = result.best


def test_every_trial_is_recorded_before_the_next_is_told(path):
    counts = []

    def watch(progress):
        if progress.stage == "measure":
            with RecordStore(path, read_only=True) as store:
                counts.append(len(store.trials()))

    result = session(6, records=path, progress=watch).run()
    assert counts == list(range(1, 7))
    with RecordStore(path, read_only=True) as store:
        records = store.trials()
        (kept,) = store.sessions()
    assert [record.trial for record in records][:6] == result.trials
    assert {record.trial.source for record in records[6:]} == {"compare"}
    assert (kept.id, kept.strategy, kept.threads, kept.hardware) == (result.session, "model", 1, HOST)


def test_resume_equals_an_uninterrupted_session(path, tmp_path):
    whole = session(12, records=tmp_path / "whole.sqlite", ahead=1).run()
    made = []
    session(5, records=path, ahead=1).run()
    result = session(12, made, records=path, resume=True, ahead=1).run()
    assert result.num_resumed == 5
    assert keys(result.trials) == keys(whole.trials)
    assert len(made[0].measured) == 7
    assert made[0].first_incumbent == min(trial.measurement.relative for trial in result.trials[:5])
    with RecordStore(path, read_only=True) as store:
        assert len(store.sessions()) == 1


def test_a_damaged_row_is_named_and_the_session_goes_on_without_it(path):
    first = session(5, records=path).run()
    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER trials_UPDATE")
    connection.execute("UPDATE trials SET result = CAST(x'ff' AS TEXT) WHERE id = 2")
    connection.commit()
    connection.close()
    again = session(7, records=path, resume=True)
    result = again.run()
    assert result.num_resumed == 4
    (line,) = again.damaged
    assert "trial with id 2 is damaged" in line
    numbers = [trial.number for trial in result.trials]
    assert len(set(numbers)) == len(numbers) == 7
    assert set(keys(first.trials)) - set(keys(result.trials)) <= {first.trials[1].schedule.key}


def test_resume_keeps_the_seed_and_the_spec_of_the_session(path):
    import msgspec

    first = session(4, records=path, seed=5, strategy="random").run()
    compute = msgspec.structs.replace(
        HOST.compute,
        clock_hz=HOST.compute.clock_hz * 1.01,
        fp32_peak_flop_per_s=HOST.compute.fp32_peak_flop_per_s * 1.01,
    )
    again = session(6, records=path, resume=True, seed=1, strategy="random")
    detected = msgspec.structs.replace(HOST, compute=compute)  # anew, at another clock
    again._setup = dataclasses.replace(again._setup, target=again._setup.target._replace(hardware=detected))
    result = again.run()
    assert (result.num_resumed, result.seed, result.session, result.hardware) == (4, 5, first.session, HOST)


def test_what_a_session_is_asked_for_does_not_change(path):
    tuning = session(3, records=path)
    asked = tuning._setup
    result = tuning.run()
    assert tuning._setup is asked
    assert (asked.trials, asked.seed, asked.strategy) == (len(result.trials), result.seed, result.strategy)
    with pytest.raises(AttributeError):
        asked.seed = 1


def test_nothing_to_resume_begins_a_session(path):
    session(2, records=path, strategy="random").run()
    result = session(2, records=path, resume=True).run()
    assert result.num_resumed == 0
    with RecordStore(path, read_only=True) as store:
        assert len(store.sessions()) == 2


def test_a_session_that_is_complete_already(path):
    made = []
    first = session(4, records=path).run()
    result = session(4, made, records=path, resume=True).run()
    assert keys(result.trials) == keys(first.trials)
    assert made[0].measured == []
    assert result.best == first.best


def test_interrupted_between_trials_and_resumed(path):
    with pytest.raises(TuningInterrupted) as stop:
        session(8, records=path, script={4: KeyboardInterrupt()}).run()
    kept = stop.value.result
    assert len(kept.trials) == 4
    assert kept.best_trial is not None
    result = session(8, records=path, resume=True).run()
    assert keys(result.trials)[:4] == keys(kept.trials)
    assert len(set(keys(result.trials))) == 8


@pytest.mark.usefixtures("interruptible")
def test_a_signal_while_a_trial_is_recorded_loses_nothing(path, monkeypatch):
    original = RecordStore.append
    count = 0

    def append(self, *arguments):
        nonlocal count
        count += 1
        if count == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, *arguments)

    monkeypatch.setattr(RecordStore, "append", append)
    with pytest.raises(TuningInterrupted) as stop:
        session(8, records=path).run()
    with RecordStore(path, read_only=True) as store:
        assert [record.trial for record in store.trials()] == stop.value.result.trials
    assert len(stop.value.result.trials) == 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_full_disk_keeps_what_was_recorded(path, monkeypatch):
    original = RecordStore.append
    made = []

    def append(self, kept, trial, ran_under=None):
        if trial.number == 3:
            raise RecordError(f"{self.path}: no space left; trial 3 was not recorded")
        return original(self, kept, trial, ran_under)

    monkeypatch.setattr(RecordStore, "append", append)
    with refuses(RecordError):
        session(8, made, records=path).run()
    assert not made[0].is_open
    with RecordStore(path, read_only=True) as store:
        assert len(store.trials()) == 3


def test_programs_that_are_the_same_are_measured_once():
    made = []
    result = session(8, made, program_key=lambda schedule: schedule.tiles["i"]).run()
    tiles = [schedule.tiles["i"] for schedule in made[0].measured]
    assert len(set(tiles)) == len(tiles) == len(result.trials)


@pytest.mark.parametrize("workload", [WORKLOAD, anatune.conv2d(n=1, c=4, h=6, w=6, k=16, r=3, s=3, padding=1)])
def test_equal_keys_are_equal_programs(workload):
    def text(schedule):
        program = program_of(schedule, threads=2)
        return re.sub(r"\b[ot]\d+\b", "loop", program.main), program.llvm, program.packing

    programs = {}
    for strategy in ("random", "grid"):
        for schedule in make_strategy(strategy, model(workload, HOST)).ask(150):
            for parallel in (False, schedule.options["parallel"]):
                changed = replace(schedule, options={**schedule.options, "parallel": parallel})
                programs.setdefault(program_key(changed), []).append(text(changed))
    assert all(one == same[0] for same in programs.values() for one in same)
    assert len({repr(same[0]) for same in programs.values()}) >= 0.98 * len(programs)


def test_a_schedule_without_a_program_has_its_own_key():
    schedule = anatune.plan(WORKLOAD, HOST, top_k=1).best
    assert program_key(schedule) != schedule.key
    broken = replace(schedule, tiles={})
    assert program_key(broken) == broken.key


def test_a_small_space_ends_early():
    from tests.unit.tuning.fakes import FakeMeasurer

    tiny = anatune.matmul(2, 1, 2)
    settings = TuningSettings(trials=64, threads=1, strategy="grid")
    result = TuningSession(tiny, HOST, settings, stand_ins=StandIns(host=HOST, measurer=FakeMeasurer)).run()
    assert 1 <= len(result.trials) < 64


def test_time_budget():
    now = [0.0]

    def clock():
        now[0] += 1.0
        return now[0]

    result = session(50, clock=clock, time_limit_s=10.0, ahead=1).run()
    assert 1 <= len(result.trials) < 12


def test_threads_are_planned_for(monkeypatch):
    monkeypatch.setattr("anatune.tuning.machine.allowed_cores", lambda: 8)
    made = []
    result = session(2, made, threads=4).run()
    assert made[0].threads == 4
    assert made[0].hardware.compute.num_cores == 4
    assert result.hardware == HOST
    assert result.trials[0].threads == 4
    assert result.best.hardware.compute.num_cores == 4


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"trials": 0}, SpaceError),
        ({"trials": 1.5}, SpaceError),
        ({"trials": True}, SpaceError),
        ({"seed": -1}, SpaceError),
        ({"strategy": "dgd2"}, UnknownNameError),
        ({"threads": 0}, SpaceError),
        ({"threads": 10_000}, SpaceError),
        ({"time_limit_s": 0}, SpaceError),
        ({"resume": True}, SpaceError),
        ({"hw": gpu("rtx3090")}, DeviceError),
        ({"hw": anatune.hardware("apple_m3")}, DeviceError),
        ({"hw": 5}, SpaceError),
        ({"workload": "matmul"}, SpaceError),
    ],
)
def test_wrong_arguments_are_one_line(arguments, kind):
    given = {"workload": WORKLOAD, "hw": anatune.hardware("host"), **arguments}
    with refuses(kind) as error:
        tune(**given)
    assert "\n" not in str(error.value)


def test_the_public_name_is_the_function():
    import anatune.tuning.machine

    assert anatune.tune is tune
