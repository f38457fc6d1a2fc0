import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("tvm")

import anatune
from anatune.core.trial import Outcome
from anatune.errors import DeviceError, RunError, SpaceError
from anatune.measure.cpu.measurer import CpuMeasurer
from anatune.measure.run.build_processes import BuildJob, BuildProcesses
from anatune.measure.run.cores import physical_cores, plan_cores
from anatune.measure.run.measurer import Limits
from anatune.measure.run.timing import TimingProtocol
from tests.unit.measure.stand_ins import ENTRIES, WORKLOAD, schedule
from tests.wording import refuses

QUICK = TimingProtocol(sample_s=0.001, reference_s=0.0005, budget_s=0.01)
LIMITS = Limits(build_s=6, run_s=4, memory_bytes=4 << 30)


@pytest.fixture(scope="module")
def hardware():
    return anatune.hardware("amd_ryzen_7950x")  # the stand-in builder does not look at it


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Every session's temporary files must be gone at the end of the test."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield tmp_path
    assert os.listdir(tmp_path) == []


def measurer(hardware, **more):
    more = {"limits": LIMITS, "protocol": QUICK, "entries": ENTRIES, **more}
    return CpuMeasurer(WORKLOAD, hardware, **more)


@pytest.fixture(scope="module")
def shared(hardware, tmp_path_factory):
    """A measurer for tests that need no processes of their own; its temporary files are gone at the end, too."""
    folder = tmp_path_factory.mktemp("shared")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(folder))
        opened = measurer(hardware).__enter__()
    yield opened
    opened.close()
    assert os.listdir(folder) == []


@pytest.fixture
def session(shared):
    """The shared measurer, as after its start."""
    shared.incumbent = None
    return shared


def test_every_fault_is_an_outcome_and_the_others_are_measured(hardware, session):
    faults = {
        "": (Outcome.OK, ""),
        "wrong result": (Outcome.WRONG_RESULT, "C[0, 1] is 3, expected"),
        "changes a constant": (Outcome.WRONG_RESULT, "changed its operand B"),
        "run crashes": (Outcome.RUN_ERROR, "the runner process was killed by SIGSEGV"),
        "run hangs": (Outcome.RUN_TIMEOUT, "run: not finished after 4 s"),
        "fails": (Outcome.RUN_ERROR, "no_such_function"),
        "build hangs in a child": (Outcome.BUILD_TIMEOUT, "build: not finished after 6 s"),
        "build crashes": (Outcome.BUILD_ERROR, "the builder process was killed by SIGSEGV"),
        "build eats memory": (Outcome.BUILD_ERROR, "out of memory"),
        "build fails": (Outcome.BUILD_ERROR, "LLVM says no"),
        "build raises": (Outcome.BUILD_ERROR, "KeyError: 'oops'"),
        "no program": (Outcome.INVALID, "no such tile"),
    }
    asked = [schedule(hardware, fault, number) for number, fault in enumerate([*faults, ""])]
    answers = list(session.measure(asked))
    assert [answer[0] for answer in answers] == asked
    for given, measurement in answers:
        outcome, message = faults[given.options["fault"]]
        assert measurement.outcome is outcome, measurement
        assert message in measurement.message
        assert "\n" not in measurement.message
        assert (measurement.time_s is not None) == (outcome is Outcome.OK)
        assert len(measurement.times_s) == len(measurement.reference_times_s)
        assert (measurement.max_rel_error is not None) == (outcome in (Outcome.OK, Outcome.WRONG_RESULT))


def test_schedules_are_pulled_lazily_and_an_abandoned_session_goes_on(hardware, session):
    pulled = []

    def endless():
        while True:
            pulled.append(schedule(hardware, number=len(pulled)))
            yield pulled[-1]

    answers = session.measure(endless())
    first, measurement = next(answers)
    assert first == pulled[0]
    assert measurement.outcome is Outcome.OK
    assert len(pulled) <= 12
    answers.close()
    again = list(session.measure([schedule(hardware, "wrong result"), schedule(hardware)]))
    assert [answer.outcome for _, answer in again] == [Outcome.WRONG_RESULT, Outcome.OK]
    assert session.incumbent is not None
    assert list(session.measure([])) == []


def test_much_slower_candidates_stop_early(hardware, session):
    (_, first), (_, slow) = session.measure([schedule(hardware), schedule(hardware, "slow")])
    assert not first.stopped_early
    assert slow.stopped_early
    assert len(slow.times_s) == 2


def test_contenders_are_compared_and_bad_ones_have_their_outcome(hardware, session):
    contenders = [schedule(hardware, fault) for fault in ("slow", "", "build fails", "wrong result")]
    list(session.measure(contenders[:2]))
    slow, good, unbuilt, wrong = session.compare(contenders, budget_s=2.0)
    assert session.compare([], budget_s=1.0) == []
    assert slow.stopped_early
    assert not good.stopped_early
    assert good.relative < slow.relative
    assert (unbuilt.outcome, wrong.outcome) == (Outcome.BUILD_ERROR, Outcome.WRONG_RESULT)


@pytest.mark.parametrize("threads", [1, 2])
def test_building_and_timing_take_turns_without_a_spare_core(hardware, threads, monkeypatch):
    cores = dict(list(physical_cores().items())[:threads])
    monkeypatch.setattr("anatune.measure.run.measurer.physical_cores", lambda: cores)
    assert not plan_cores(threads, cores).overlap or not cores
    with measurer(hardware, threads=threads) as session:
        answers = list(session.measure(schedule(hardware, number=number) for number in range(7)))
    assert [answer.outcome for _, answer in answers] == [Outcome.OK] * 7
    assert [given.unroll for given, _ in answers] == list(range(7))


def test_the_runners_core_builds_between_runs_and_never_beside_one(hardware, monkeypatch):
    if len(physical_cores()) < 2:
        pytest.skip("one core")
    cores = dict(list(physical_cores().items())[:2])
    monkeypatch.setattr("anatune.measure.run.measurer.physical_cores", lambda: cores)
    with measurer(hardware) as session:
        own, guest = session._builders.workers
        assert guest.process_id is None
        runner, states, until = session._runners[0], [], time.monotonic() + 120
        begin = runner.begin

        def asked():  # until the guest, which has to start first, has built some
            for number in itertools.count():
                if guest._served >= 3 or time.monotonic() > until:
                    return
                yield schedule(hardware, "slow" if number % 3 else "build fails", number)

        def watched(job, incumbent):
            begin(job, incumbent)
            states.append(guest.process_id is not None and state(guest.process_id))

        monkeypatch.setattr(runner, "begin", watched)
        answers = list(session.measure(asked()))
        assert own.process_id is not None
        assert guest._served >= 3
        assert state(guest.process_id) != "T"
    assert [given.unroll for given, _ in answers] == list(range(len(answers)))
    assert set(states) <= {"T", False}
    assert "T" in states


def test_a_guest_that_cannot_start_is_left_out(hardware):
    builders = BuildProcesses(
        "tests.unit.measure.jobs:echo", [()], Limits(), guests=[()], setup="tests.unit.measure.jobs:facts"
    )
    own, guest = builders.workers
    guest.setup = ("tests.unit.measure.jobs:fail", {"kind": "raises"})
    try:
        asked = [BuildJob(schedule(hardware, number=number), Path()) for number in range(3)]
        until = time.monotonic() + 60
        while guest in builders.workers and time.monotonic() < until:
            builders.begin([])
            time.sleep(0.01)
        assert builders.workers == [own]
        assert not own.busy
        builders.begin(asked)
        assert [job.worker for job in asked] == [own, None, None]
    finally:
        builders.kill()
        guest.kill()


def state(process):
    """The letter of a process's state; a signal takes a moment to arrive."""
    for _ in range(1000):
        letter = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        if letter in "TZ":
            return letter
        time.sleep(0.001)
    return letter


def test_wrong_arguments_are_errors(hardware, session):
    with refuses(DeviceError):
        CpuMeasurer(WORKLOAD, anatune.hardware("rtx3090"))
    with refuses(SpaceError):
        CpuMeasurer(WORKLOAD, hardware, threads=0)
    closed = measurer(hardware)
    with refuses(RunError):
        next(closed.measure([schedule(hardware)]))
    with refuses(SpaceError):
        next(session.measure([schedule(hardware, workload=anatune.matmul(4, 4, 4))]))


def test_a_reference_kernel_that_cannot_be_built_is_one_error(hardware):
    with refuses(RunError), measurer(hardware, entries=ENTRIES._replace(reference="no_such_module:function")):
        pass


def test_a_full_disk_is_one_error(hardware, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numpy.save", full)
    with refuses(RunError), measurer(hardware):
        pass


def test_a_killed_session_leaves_no_process(hardware, temporary):
    code = (
        "import os, signal\n"
        "import anatune\n"
        "from anatune.measure.cpu.measurer import CpuMeasurer\n"
        f"from tests.unit.measure.stand_ins import *\n"
        f"hardware = anatune.hardware('{hardware.name}')\n"
        f"session = CpuMeasurer(WORKLOAD, hardware, entries=ENTRIES).__enter__()\n"
        "next(session.measure(schedule(hardware, number=n) for n in range(3)))\n"
        "print(*[w.process_id for w in (*session._builders.workers, session._runners[0].worker)], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    processes = done.stdout.split()
    assert len(processes) >= 2, done.stderr
    subprocess.run(["tail", "-f", "/dev/null", *(f"--pid={process}" for process in processes)], check=False, timeout=30)
    for folder in os.listdir(temporary):  # nobody is left to remove it
        subprocess.run(["rm", "-r", str(temporary / folder)], check=True)
