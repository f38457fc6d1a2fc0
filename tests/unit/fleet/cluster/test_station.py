"""A station of this machine, with the builders of `tests.unit.measure.stand_ins`: schedules that do anything."""

import os
from pathlib import Path

import pytest

pytest.importorskip("tvm", reason="pip install '.[tvm]'")

from anatune.core.trial import Outcome
from anatune.errors import RunError
from anatune.fleet.cluster.messages import BuildRequest, DamagedError, MeasureRequest, SessionSetting
from anatune.fleet.cluster.station import Device, Station
from anatune.measure.run.build_processes import Limits
from tests.machine import host
from tests.unit.fleet.cluster import keyed
from tests.unit.measure import stand_ins
from tests.wording import refuses

LIMITS = Limits(build_s=30.0, run_s=15.0, start_s=120.0)
SESSION = "a" * 32


@pytest.fixture(scope="module")
def hardware():
    return host()


@pytest.fixture(scope="module")
def station(hardware):
    made = Station(
        "here", Device(hardware, {}), 1, entries=lambda hardware: keyed.ENTRIES, limits=LIMITS, compared=False
    )
    yield made
    made.close()
    assert not made._folder.exists()


def request(hardware, schedule=None, number=1):
    return BuildRequest(SESSION, number, hardware, 1, LIMITS, schedule)


def opened(station, hardware, session=SESSION, limits=LIMITS):
    reference = station.build(request(hardware))
    assert reference.packed is not None, reference.trouble
    setting = SessionSetting(session, stand_ins.WORKLOAD, hardware, 1, limits, 0, {})
    station.open(setting, reference.packed)


def measured(station, hardware, fault, number, session=SESSION):
    schedule = stand_ins.schedule(hardware, fault, number)
    built = station.build(request(hardware, schedule))
    if built.packed is None:
        return built
    (measurement,) = station.measure(MeasureRequest(session, number, (schedule,)), [built])
    return measurement


def test_a_worker_survives_whatever_schedules_do(station, hardware):
    opened(station, hardware)
    assert measured(station, hardware, "", 1).outcome is Outcome.OK
    assert measured(station, hardware, "build fails", 2).failure.outcome is Outcome.BUILD_ERROR
    assert measured(station, hardware, "build crashes", 3).failure.outcome is Outcome.BUILD_ERROR
    assert measured(station, hardware, "no program", 4).failure.outcome is Outcome.INVALID
    assert measured(station, hardware, "wrong result", 5).outcome is Outcome.WRONG_RESULT
    assert measured(station, hardware, "run crashes", 6).outcome is Outcome.RUN_ERROR
    again = measured(station, hardware, "", 7)
    assert again.outcome is Outcome.OK
    assert again.relative is not None
    assert again.build_s > 0
    assert station.standing().running == ()
    assert station.standing().sessions == 1


def test_contenders_take_turns_on_what_was_built(station, hardware):
    opened(station, hardware)
    schedules = tuple(stand_ins.schedule(hardware, fault, number) for number, fault in enumerate(["", "slow"]))
    built = [station.build(request(hardware, schedule)) for schedule in schedules]
    fast, slow = station.measure(MeasureRequest(SESSION, 9, schedules, budget_s=0.2), built)
    assert fast.outcome is slow.outcome is Outcome.OK
    assert fast.relative < slow.relative


@pytest.mark.slow
def test_sessions_take_turns_and_two_stay_open(station, hardware):
    sessions = [letter * 32 for letter in "bcd"]
    for number, session in enumerate(sessions):
        opened(station, hardware, session)
        assert measured(station, hardware, "", number, session).outcome is Outcome.OK
    assert [*station._open] == sessions[1:]
    assert measured(station, hardware, "", 7, sessions[0]).outcome is Outcome.OK  # opened again
    for session in (*sessions, SESSION, "unknown"):
        station.forget(session)
    station._run_timed(lambda: None)
    assert station.standing().sessions == 0
    assert not station._open
    with refuses(RunError):
        measured(station, hardware, "", 8, sessions[0])


def test_a_kernel_of_another_schedule_is_not_run(station, hardware):
    opened(station, hardware)
    one, another = (stand_ins.schedule(hardware, "", number) for number in (1, 2))
    built = station.build(request(hardware, one))
    with refuses(DamagedError):
        station.measure(MeasureRequest(SESSION, 1, (another,)), [built])
    assert measured(station, hardware, "", 3).outcome is Outcome.OK


def test_a_full_disk_is_the_workers_trouble(station, hardware, monkeypatch):
    def full(self, *arguments, **more):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Path, "mkdir", full)
    built = station.build(request(hardware, stand_ins.schedule(hardware)))
    assert built.packed is built.failure is None
    assert built.trouble == "its disk failed: No space left on device; free some space there"


def test_a_worker_that_only_builds_measures_nothing(hardware):
    station = Station("builder", None, 1, entries=lambda hardware: keyed.ENTRIES)
    try:
        assert station.description.device is None
        assert station.description.builders == 1
        with refuses(RunError):
            station.open(SessionSetting(SESSION, stand_ins.WORKLOAD, hardware, 1, LIMITS, 0, {}), None)
    finally:
        station.close()


@pytest.mark.slow
def test_the_peak_is_that_of_multiply_adds(hardware, tmp_path):
    from anatune.fleet.cluster.builder import entries_of
    from anatune.fleet.cluster.station import peak_flop_per_s

    found = peak_flop_per_s(hardware, {}, entries_of(hardware), LIMITS, tmp_path)
    lanes = hardware.compute.simd_bits // 32
    assert found > 1e9 * lanes / 8  # more than an eighth of a multiply-add a nanosecond: it ran in vectors


@pytest.mark.slow
def test_a_workload_that_does_not_fit_the_memory_is_refused_in_one_line(station, hardware):
    import anatune

    huge = anatune.matmul(1 << 20, 1 << 20, 1 << 10)
    reference = station.build(request(hardware))
    setting = SessionSetting("f" * 32, huge, hardware, 1, LIMITS, 0, {})
    with refuses(RunError):
        station.open(setting, reference.packed)
    station.forget("f" * 32)
