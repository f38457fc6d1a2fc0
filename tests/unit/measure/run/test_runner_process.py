"""Measurers with several runner processes, as boards have them."""

import signal

import pytest

pytest.importorskip("tvm")

import anatune
from anatune.core.trial import Outcome
from anatune.errors import RunError
from anatune.measure.cpu.measurer import CpuMeasurer
from anatune.measure.run.measurer import Limits
from anatune.measure.run.runner_process import RunnerProcess
from anatune.measure.run.timing import TimingProtocol
from tests.unit.measure.stand_ins import ENTRIES, WORKLOAD, schedule
from tests.wording import refuses

QUICK = TimingProtocol(sample_s=0.001, reference_s=0.0005, budget_s=0.01)
HARDWARE = anatune.hardware("amd_ryzen_7950x")  # the stand-in builder does not look at it


class Several(CpuMeasurer):
    """Two devices, that is two processes of this machine."""

    def __init__(self, **more):
        limits = Limits(build_s=20, run_s=4, memory_bytes=4 << 30)
        super().__init__(WORKLOAD, HARDWARE, limits=limits, protocol=QUICK, entries=ENTRIES, **more)
        self.refused = []

    def _make_runners(self, environment):
        return [RunnerProcess(self._make_runner(environment), self.limits, name) for name in ("one", "two")]

    def _handle_refusal(self, runner, error):
        self.refused.append((runner.name, str(error)))


def test_a_hanging_kernel_stalls_no_other_device():
    asked = [schedule(HARDWARE, "run hangs"), *(schedule(HARDWARE, number=number) for number in range(5))]
    with Several() as session:
        answers = list(session.measure(asked))
        contest = session.compare(asked[1:3], budget_s=0.2)
    assert {given for given, _ in answers} == set(asked)
    assert len(answers) == len(asked)
    assert answers[0][1].outcome is Outcome.OK, "the one that hangs is not waited for"
    ((hanging, slow),) = [(m.worker, m) for s, m in answers if s == asked[0]]
    assert slow.outcome is Outcome.RUN_TIMEOUT
    others = {m.worker for s, m in answers if s != asked[0]}
    assert {hanging} | others == {"one", "two"}
    assert len({one.worker for one in contest}) == 1


def test_what_a_lost_device_had_is_measured_by_another(monkeypatch):
    begin = RunnerProcess.begin

    def gone(runner, job, incumbent):
        if runner.name == "one" and runner.worker._process is not None:
            runner.worker._process.send_signal(signal.SIGSTOP)  # it might answer before it is killed
        begin(runner, job, incumbent)
        if runner.name == "one":  # its process dies, and no other can be set up
            runner.worker.setup = ("tests.unit.measure.jobs:fail", {"kind": "raises"})
            runner.worker._process.kill()

    monkeypatch.setattr(RunnerProcess, "begin", gone)
    asked = [schedule(HARDWARE, number=number) for number in range(4)]
    with Several() as session:
        answers = list(session.measure(asked))
        assert [name for name, _ in session.refused] == ["one"]
    assert sorted(given.unroll for given, _ in answers) == [0, 1, 2, 3]
    assert {(m.outcome, m.worker) for _, m in answers} == {(Outcome.OK, "two")}


def test_without_any_device_the_last_reason_is_the_error(monkeypatch):
    def refuse(runner):
        raise RunError(f"{runner.name} is no board")

    monkeypatch.setattr(RunnerProcess, "finish_set_up", refuse)
    with refuses(RunError), Several():
        pass
