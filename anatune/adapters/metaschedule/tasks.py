"""The functions that MetaSchedule tunes as tasks of anatune: workload, model, and the next schedules to measure."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from typing import TypedDict

from anatune import api
from anatune.adapters.logs import read_times
from anatune.adapters.metaschedule.objects import RunnerResult, TracedSchedule, measurement_of
from anatune.arguments import quote
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
    "read_target",
    "task_model",
    "task_of",
    "unpacked_model",
]

_INSTEAD = "name the hardware of the target, for example hw='rtx3090'"
_log = logging.getLogger(__name__)
_MOST_FAILURES = 100
"""The number of kernels that may fail to fit the function before the search ends."""


def task_of(module: tvm.IRModule, target: tvm.target.Target, hardware: HardwareSpec) -> TirTask:
    """Return the task of a TVM function: its workload, and how kernels are put into it.

    Parameters
    ----------
    module : tvm.IRModule
        A module with one PrimFunc.
    target : tvm.target.Target
        The target. The "num-cores" of a CPU are the threads.

    Raises
    ------
    WorkloadError
        anatune has no kernels for this function. The message says why.
    """
    return TASKS[hardware.kind](module, int(target.attrs.get("num-cores", 1)))


def read_target(target: tvm.target.Target) -> tvm.target.Target:
    """Return a ``tvm.target.Target``, given as such, as a string or as a dictionary.

    Raises
    ------
    SpaceError
        TVM does not know the target.
    """
    target_class = import_tvm().target.Target
    if isinstance(target, target_class):
        return target
    try:
        return target_class(target)
    except TVM_ERRORS as error:
        raise SpaceError(f"target {quote(target)}: {last_line(error)}, expected a tvm.target.Target") from None


def check_target(target: tvm.target.Target, hardware: HardwareSpec) -> None:
    """Raise SpaceError unless `target` and `hardware` are the same kind of device.

    LLVM has to know the vector instructions of a CPU, because it ends the process otherwise. A GPU's architecture may
    differ, see `check_kind`.
    """
    check_device(target, hardware)
    if hardware.kind == "cpu" and (lacking := lacks_feature(target, hardware)):
        raise SpaceError(
            f"target {target.attrs.get('mcpu', 'llvm')!s}: it has no {lacking}, expected the vector instructions of "
            f"{hardware.name}; use the target that anatune.adapters.relax.target({hardware.name!r}) returns"
        )


def check_kind(target: tvm.target.Target, hardware: HardwareSpec) -> None:
    """Raise SpaceError unless `target` and `hardware` are both GPUs or both CPUs.

    A warning is logged once if the GPUs have different architectures: limits and times are those of `hardware`.
    """
    keys = () if target is None else tuple(map(str, target.keys))
    wanted = hardware.kind
    if wanted not in keys:
        raise SpaceError(
            f"metaschedule: the target is {_target_kind(target)}, expected a {wanted.upper()} like {hardware.name}; "
            "name the hardware of the target"
        )
    arch = str(target.attrs.get("arch", ""))
    if wanted == "gpu" and _base_architecture(arch) != _base_architecture(hardware.arch):
        _warn_once(
            f"metaschedule: the target's architecture is {arch or 'unknown'}, that of {hardware.name} is "
            f"{hardware.arch}; limits and predictions are those of {hardware.name}"
        )


def _base_architecture(arch: str) -> str:
    """Return an architecture without the letter of a variant: sm_90 for sm_90a."""
    return arch.rstrip("abcdefghijklmnopqrstuvwxyz")


@cache
def _warn_once(line: str) -> None:
    _log.warning(line)


def _target_kind(target: tvm.target.Target) -> str:
    return "missing" if target is None else str(target.kind.name)


def check_device(target: tvm.target.Target, hardware: HardwareSpec) -> None:
    """Raise SpaceError unless `target` is of the kind of `hardware` (CPU or GPU)."""
    if hardware.kind == "gpu":
        check_kind(target, hardware)
    else:
        check_cpu(target)


def check_cpu(target: tvm.target.Target) -> None:
    """Raise SpaceError unless `target` is a CPU that LLVM compiles for."""
    if _target_kind(target) != "llvm":
        raise SpaceError(f"metaschedule: the target is {_target_kind(target)}, expected llvm (a CPU); {_INSTEAD}")


def task_model(task: TirTask, hardware: HardwareSpec) -> Model:
    """Return the analytical model of a task."""
    if hardware.kind == "gpu":
        return make_model(task.workload, hardware, tuning_template(task.workload, hardware).name)
    return unpacked_model(task.workload, hardware, min(task.threads, choose_threads(hardware, None)))


def unpacked_model(workload: Workload, hardware: CpuSpec, threads: int) -> CpuModel:
    """Return a model without operands that are packed in advance, because TVM's functions take plain tensors."""
    return CpuModel(workload, hardware.with_threads(threads), constants=())


def device_spec(hw: HardwareLike) -> HardwareSpec:
    """Return the spec of a device that anatune has kernels for.

    Raises
    ------
    SpaceError
        The device is a GPU that is not NVIDIA's.
    """
    spec = api.hardware(hw)
    if limit := vendor_limit(spec):
        raise SpaceError(f"metaschedule: {limit}")
    return spec


class Settings(TypedDict):
    """The arguments of `make_strategy`."""

    name: str
    seed: int
    start: str


class Proposals:
    """The schedules that a strategy of anatune proposes for one function."""

    def __init__(self, task: TirTask, hardware: HardwareSpec, settings: Settings, batch: int) -> None:
        self.task = task
        self.batch = batch
        self.model = task_model(task, hardware)
        self.strategy: Strategy = make_strategy(model=self.model, **settings)
        self.trials_left = 0
        self.per_call = batch
        self._proposed: list[Schedule] = []

    def next(self) -> list[TracedSchedule]:
        """Return the next traced TVM schedules to measure; an empty list ends the search."""
        traced: list[TracedSchedule] = []
        self._proposed = []
        wanted = min(self.batch, self.per_call, self.trials_left)
        failures = 0
        while len(traced) < wanted and failures < _MOST_FAILURES:
            proposed = self.strategy.ask(wanted - len(traced))
            if not proposed:
                break
            for schedule in proposed:
                try:
                    traced.append(self.task.schedule(schedule))
                    self._proposed.append(schedule)
                except AnatuneError as error:  # the strategy learns from failures, too
                    failures += 1
                    self._tell(schedule, Measurement(Outcome.BUILD_ERROR, message=str(error)))
        self.trials_left -= len(traced)
        return traced

    def learn(self, results: Sequence[RunnerResult]) -> None:
        """Tell the strategy the runner's results for the last candidates."""
        for schedule, result in zip(self._proposed, results, strict=False):
            self._tell(schedule, measurement_of(result))
        self._proposed = []

    def remember(self, schedule: Schedule, times_s: Sequence[float]) -> None:
        """Tell the strategy a trial of an earlier run."""
        if schedule.workload == self.task.workload and schedule.hardware == self.model.hardware:
            self._tell(schedule, read_times(times_s, None))

    def _tell(self, schedule: Schedule, measurement: Measurement) -> None:
        self.strategy.tell([Trial(schedule, measurement, source="metaschedule", threads=self.task.threads)])
