"""Functions that MetaSchedule tunes, as tasks of anatune's: what they compute, their model, and what to try next."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from typing import TypedDict

from anatune import api
from anatune.adapters.logs import measured
from anatune.adapters.metaschedule.objects import RunnerResult, TracedSchedule, measurement_of
from anatune.arguments import shown
from anatune.codegen.compat import TVM_ERRORS, import_tvm, lacks_feature, last_line
from anatune.codegen.tvm.kernel import TASKS, TirTask
from anatune.core.generation import vendor_limit
from anatune.core.hardware.spec import CpuSpec, HardwareSpec
from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement, Outcome, Trial
from anatune.core.workload.nest import Workload
from anatune.errors import AnatuneError, SpaceError
from anatune.measure.named_hardware import HardwareLike
from anatune.search.base import Strategy, make_strategy
from anatune.templates import make_model, tuning_template
from anatune.templates.base.model import Model
from anatune.templates.cpu.model.model import CpuModel
from anatune.tuning.machine import choose_threads
from anatune.untyped import tvm

__all__ = [
    "Proposals",
    "check_cpu",
    "check_device",
    "check_kind",
    "check_target",
    "device_spec",
    "target_from",
    "task_model",
    "task_of",
    "unpacked_model",
]

_INSTEAD = "name the hardware that it is, as hw='rtx3090'"
_log = logging.getLogger(__name__)
_MOST_FAILURES = 100
"""Kernels in a row that cannot be put into the function, after which the search ends."""


def task_of(module: tvm.IRModule, target: tvm.target.Target, hardware: HardwareSpec) -> TirTask:
    """Return what anatune understands of a TVM function.

    Parameters
    ----------
    module : tvm.IRModule
        With one PrimFunc.
    target : tvm.target.Target
        A CPU's "num-cores" are the threads.

    Raises
    ------
    WorkloadError
        It is no function that anatune has kernels for; the message says why.
    """
    return TASKS[hardware.kind](module, int(target.attrs.get("num-cores", 1)))


def target_from(target: tvm.target.Target) -> tvm.target.Target:
    """Return a ``tvm.target.Target``, also of what TVM makes one of: a string, a dictionary.

    Raises
    ------
    SpaceError
        TVM knows no such target.
    """
    made = import_tvm().target.Target
    if isinstance(target, made):
        return target
    try:
        return made(target)
    except TVM_ERRORS as error:
        raise SpaceError(f"target {shown(target)}: {last_line(error)}, expected a tvm.target.Target") from None


def check_target(target: tvm.target.Target, hardware: HardwareSpec) -> None:
    """Raise SpaceError unless `target` is a device such as `hardware`.

    Of a CPU LLVM may have to use the vectors: it would end the process. A GPU's architecture may be another one, see
    `check_kind`.
    """
    check_device(target, hardware)
    if hardware.kind == "cpu" and (lacking := lacks_feature(target, hardware)):
        raise SpaceError(
            f"target {target.attrs.get('mcpu', 'llvm')!s}: LLVM has no {lacking} for it, expected the vectors of "
            f"{hardware.name}; take the target that anatune.adapters.relax.target({hardware.name!r}) returns"
        )


def check_kind(target: tvm.target.Target, hardware: HardwareSpec) -> None:
    """Raise SpaceError unless `target` is a GPU where `hardware` is one, and a CPU where it is one.

    A GPU of another architecture is told once, in the log: limits and times are those of `hardware`.
    """
    keys = () if target is None else tuple(map(str, target.keys))
    wanted = hardware.kind
    if wanted not in keys:
        raise SpaceError(
            f"metaschedule: the target is {_kind(target)}, expected a {wanted.upper()} as {hardware.name} is one; "
            "name the hardware that the target names"
        )
    arch = str(target.attrs.get("arch", ""))
    if wanted == "gpu" and _number(arch) != _number(hardware.arch):
        _tell_once(
            f"metaschedule: the target is of architecture {arch or 'unknown'}, {hardware.name} of {hardware.arch}: "
            f"limits and predictions are those of {hardware.name}"
        )


def _number(arch: str) -> str:
    """Return an architecture without the letters of its variants: sm_90 of sm_90a."""
    return arch.rstrip("abcdefghijklmnopqrstuvwxyz")


@cache
def _tell_once(line: str) -> None:
    _log.warning(line)


def _kind(target: tvm.target.Target) -> str:
    return "missing" if target is None else str(target.kind.name)


def check_device(target: tvm.target.Target, hardware: HardwareSpec) -> None:
    """Raise SpaceError unless `target` is a device of the kind of `hardware`."""
    if hardware.kind == "gpu":
        check_kind(target, hardware)
    else:
        check_cpu(target)


def check_cpu(target: tvm.target.Target) -> None:
    """Raise SpaceError unless `target` is a CPU that LLVM compiles for."""
    if _kind(target) != "llvm":
        raise SpaceError(f"metaschedule: the target is {_kind(target)}, expected llvm (a CPU): {_INSTEAD}")


def task_model(task: TirTask, hardware: HardwareSpec) -> Model:
    """Return the analytical model of a task."""
    if hardware.kind == "gpu":
        return make_model(task.workload, hardware, tuning_template(task.workload, hardware).name)
    return unpacked_model(task.workload, hardware, min(task.threads, choose_threads(hardware, None)))


def unpacked_model(workload: Workload, hardware: CpuSpec, threads: int) -> CpuModel:
    """Return a model where nothing is packed ahead, because TVM's functions take plain tensors."""
    return CpuModel(workload, hardware.with_threads(threads), constants=())


def device_spec(hw: HardwareLike) -> HardwareSpec:
    """Return the spec of a device that anatune has kernels for.

    Raises
    ------
    SpaceError
        It is a GPU of another vendor than NVIDIA.
    """
    spec = api.hardware(hw)
    if limit := vendor_limit(spec):
        raise SpaceError(f"metaschedule: {limit}")
    return spec


class Settings(TypedDict):
    """Arguments of `make_strategy`."""

    name: str
    seed: int
    start: str


class Proposals:
    """Candidates for one function that anatune understands."""

    def __init__(self, task: TirTask, hardware: HardwareSpec, settings: Settings, batch: int) -> None:
        self.task = task
        self.batch = batch
        self.model = task_model(task, hardware)
        self.strategy: Strategy = make_strategy(model=self.model, **settings)
        self.left = 0
        self.per_call = batch
        self._asked: list[Schedule] = []

    def next(self) -> list[TracedSchedule]:
        """Return traced schedules of TVM's to measure; none: there is nothing left to ask."""
        found: list[TracedSchedule] = []
        self._asked = []
        wanted = min(self.batch, self.per_call, self.left)
        failures = 0
        while len(found) < wanted and failures < _MOST_FAILURES:
            asked = self.strategy.ask(wanted - len(found))
            if not asked:
                break
            for schedule in asked:
                try:
                    found.append(self.task.schedule(schedule))
                    self._asked.append(schedule)
                except AnatuneError as error:  # a candidate that fails is data
                    failures += 1
                    self._tell(schedule, Measurement(Outcome.BUILD_ERROR, message=str(error)))
        self.left -= len(found)
        return found

    def learn(self, results: Sequence[RunnerResult]) -> None:
        """Take in what the runner says of the last candidates."""
        for schedule, result in zip(self._asked, results, strict=False):
            self._tell(schedule, measurement_of(result))
        self._asked = []

    def remember(self, schedule: Schedule, times_s: Sequence[float]) -> None:
        """Take in a trial of an earlier run."""
        if schedule.workload == self.task.workload and schedule.hardware == self.model.hardware:
            self._tell(schedule, measured(times_s, None))

    def _tell(self, schedule: Schedule, measurement: Measurement) -> None:
        self.strategy.tell([Trial(schedule, measurement, source="metaschedule", threads=self.task.threads)])
