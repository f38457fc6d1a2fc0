import os
import shutil
import time

import msgspec
import pytest

pytest.importorskip("tvm")
pytest.importorskip("tornado", reason="TVM's tracker needs tornado")

import anatune
from anatune.core.trial import Outcome
from anatune.errors import DeviceError, SpaceError
from anatune.fleet.boards.description import ask_board
from anatune.fleet.boards.measurer import BOARD_ENTRIES, BoardMeasurer
from anatune.measure.run.build_processes import Limits
from anatune.measure.run.timing import TimingProtocol
from tests.board_lab import Lab, missing_for_arm
from tests.unit.measure.stand_ins import WORKLOAD, schedule
from tests.wording import refuses

QUICK = TimingProtocol(sample_s=0.001, reference_s=0.0005, budget_s=0.01)
LIMITS = Limits(build_s=30, run_s=3, memory_bytes=4 << 30)
STAND_INS = BOARD_ENTRIES._replace(builder="tests.unit.measure.stand_ins:build")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with Lab(tmp_path_factory.mktemp("lab")) as started:
        started.python_board("python")
        if shutil.which("cc"):
            started.small_board("small")
        yield started


@pytest.fixture(scope="module")
def boards(lab):
    """Key -> what its board is."""
    return {
        key: ask_board(lab.tracker, key) for key in ("python", "small") if any(key in name for name in lab.processes)
    }


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch, lab):
    """Every session's temporary files must be gone at the end of the test, here and on the boards."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield tmp_path
    assert os.listdir(tmp_path) == []
    until = time.monotonic() + 60
    while [name for name in os.listdir(lab.folder) if name.startswith("board-")]:
        assert time.monotonic() < until
        time.sleep(0.1)


def measurer(lab, board, **more):
    more = {"limits": LIMITS, "protocol": QUICK, "device": board.hardware, **more}
    return BoardMeasurer(more.pop("workload", WORKLOAD), board.hardware, tracker=lab.tracker, key=board.key, **more)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["python", "small"])
def test_every_fault_is_an_outcome_and_the_board_stays(lab, boards, key):
    if key not in boards:
        pytest.skip("there is no C compiler")
    board = boards[key]
    faults = {
        "": (Outcome.OK, ""),
        "wrong result": (Outcome.WRONG_RESULT, "C[0, 1] is 3, expected"),
        "nothing written": (Outcome.WRONG_RESULT, "is NaN or was never written"),
        "changes an operand": (Outcome.WRONG_RESULT, "the kernel changed its operands"),
        "changes a constant": (Outcome.WRONG_RESULT, "the kernel changed packed constants"),
        "writes outside": (Outcome.WRONG_RESULT, "wrote outside its arguments"),
        "fails": (Outcome.RUN_ERROR, "no_such_function"),
        "run crashes": (Outcome.LOST_DEVICE, "the connection is closed; this happened twice"),
        "run hangs": (Outcome.RUN_TIMEOUT, "not finished after 3 s on the board"),
        "build fails": (Outcome.BUILD_ERROR, "LLVM says no"),
    }
    if key == "small":  # what differs: who ends a session's process, and where it runs
        faults = {fault: faults[fault] for fault in ("", "writes outside", "run crashes")}
    asked = [schedule(board.hardware, fault, number) for number, fault in enumerate([*faults, ""])]
    with measurer(lab, board, entries=STAND_INS) as session:
        found = dict(session.measure(asked))
        (state,) = session.workers()
    for one, (fault, (outcome, message)) in zip(asked, faults.items(), strict=False):
        assert found[one].outcome is outcome, (fault, found[one])
        assert message in found[one].message, (fault, found[one])
    assert found[asked[-1]].outcome is Outcome.OK
    assert found[asked[-1]].worker == state.name == board.name
    assert found[asked[-1]].max_rel_error < 1e-6
    assert len(found[asked[-1]].times_s) == len(found[asked[-1]].reference_times_s) >= 2
    assert (state.trials, state.failed, state.state) == (
        len(asked) - ("build fails" in faults),
        sum(one != "" for one in faults) - ("build fails" in faults),
        "ready",
    )
    assert state.environment == board.environment


def test_plans_are_measured_and_compared(lab, boards):
    board = boards["python"]
    workload = anatune.conv2d(1, 16, 9, 9, 32, 3, 3, padding=1, epilogue=("bias", "relu"))
    plan = anatune.plan(workload, board.hardware, threads=2, template="cpu")
    with measurer(lab, board, workload=workload, threads=2) as session:
        found = list(session.measure(plan.schedules[:3]))
        compared = session.compare(plan.schedules[:2], budget_s=1.0)
        other = anatune.plan(WORKLOAD, board.hardware, threads=2, template="cpu")
        session.turn_to(WORKLOAD)  # with the board that it has: there is no other
        found += session.measure(other.schedules[:1])
    assert [one.outcome for _, one in found] == 4 * [Outcome.OK]
    assert [one.outcome for one in compared] == 2 * [Outcome.OK]


@pytest.mark.skipif(bool(missing_for_arm()), reason=missing_for_arm() or "-")
@pytest.mark.slow
def test_an_emulated_board_of_another_processor(lab):
    name = lab.arm_board("arm")
    try:
        board = ask_board(lab.tracker, "arm")
        assert (board.hardware.arch, board.hardware.compute.isa) == ("cortex-a72", "neon")
        assert board.environment.platform.endswith("-aarch64")
        workload = anatune.matmul(24, 40, 32)
        plan = anatune.plan(workload, board.hardware, threads=2, template="cpu")
        with measurer(lab, board, workload=workload, threads=2) as session:
            found = list(session.measure(plan.schedules[:2]))
        assert [one.outcome for _, one in found] == 2 * [Outcome.OK], found
        assert found[0][1].worker == board.name
    finally:
        lab.end(name)


@pytest.mark.slow
def test_another_device_is_refused_in_one_line(lab, boards):
    board = boards["python"]
    other = anatune.hardware("intel_i7_3770")
    with refuses(DeviceError), measurer(lab, board, device=other):
        pass
    assert ask_board(lab.tracker, "python").boards == 1


def test_what_boards_do_not_do(boards):
    board = boards["python"]
    with refuses(SpaceError):
        BoardMeasurer(WORKLOAD, board.hardware, tracker="127.0.0.1:1", key="k", threads=0)
    with refuses(SpaceError):
        BoardMeasurer(WORKLOAD, board.hardware, tracker="127.0.0.1:1", key="k", cold="l3")
    with refuses(DeviceError):
        BoardMeasurer(WORKLOAD, anatune.hardware("a100_sxm"), tracker="127.0.0.1:1", key="k")


@pytest.mark.slow
def test_no_board_is_told_in_one_line(lab, boards):
    board = msgspec.structs.replace(boards["python"], key="nobody")
    with refuses(DeviceError), measurer(lab, board, wait_s=1.0):
        pass
