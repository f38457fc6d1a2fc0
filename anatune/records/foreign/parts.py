"""What the readers of other tuners' logs share: trials of a log, times, schedules of the CUDA-core templates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from anatune.core.hardware.spec import HardwareSpec
from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement, Outcome, Trial
from anatune.core.workload.nest import DTYPE_BYTES, Workload
from anatune.records.traces import GPU_LEVELS, WRONG_TILES, Json, UnfitError
from anatune.templates.cuda.pipelined_space import PipelinedSpace, stage_counts
from anatune.templates.cuda.space import MAX_FETCH_BYTES, GpuSpace, staged_tensors

__all__ = [
    "DAMAGED",
    "SENTINEL_S",
    "UNROLLED",
    "Foreign",
    "ForeignTrial",
    "Line",
    "gpu_schedule",
    "measured",
    "tvm_measured",
]

SENTINEL_S = 1e9
"""Times from here on stand for failures. Source: TVM's MAX_FLOAT (1e10; 1e9 until 2019), 1e20 of Kernel Tuner's old
caches."""
DAMAGED = "damaged or of an unknown version"
UNROLLED = 512
"""Unroll depth that stands for loops of constant length, which other tuners' kernels unroll whole."""
_TVM_OUTCOMES = {
    1: Outcome.INVALID, 2: Outcome.BUILD_ERROR, 3: Outcome.BUILD_ERROR, 4: Outcome.RUN_ERROR, 5: Outcome.WRONG_RESULT,
    6: Outcome.BUILD_TIMEOUT, 7: Outcome.RUN_TIMEOUT,
}  # fmt: skip
"""TVM's MeasureErrorNo."""


class ForeignTrial(NamedTuple):
    """A trial and what it is of; the schedule's hardware is the device that the log names, or the one given for it."""

    workload: Workload
    trial: Trial


class Foreign(NamedTuple):
    """What a log holds.

    Attributes
    ----------
    kind : str
        Whose log it is, one of `FORMATS`.
    trials : list of ForeignTrial
    left_out : dict of str to int
        Reason -> entries.
    """

    kind: str
    trials: list[ForeignTrial]
    left_out: dict[str, int]


class Line(NamedTuple):
    """What an entry of a log is read to.

    Attributes
    ----------
    schedule : Schedule
        With its workload.
    measurement : Measurement
    threads : int
        Threads of a CPU kernel.
    """

    schedule: Schedule
    measurement: Measurement
    threads: int = 1


def measured(times_s: Sequence[Json], outcome: Outcome | None) -> Measurement:
    """Return a measurement; times that stand for failures are none."""
    times = tuple(float(time) for time in times_s if isinstance(time, int | float))
    if outcome is None and times and all(0.0 < time < SENTINEL_S and math.isfinite(time) for time in times):
        return Measurement(Outcome.OK, times_s=times)
    return Measurement(outcome or Outcome.RUN_ERROR, "recorded as failed")


def tvm_measured(result: Sequence[Json]) -> Measurement:
    """Return the measurement of a TVM result: times, error number, .."""
    number = int(result[1])
    return measured(result[0], _TVM_OUTCOMES.get(number, Outcome.RUN_ERROR) if number else None)


def gpu_schedule(
    workload: Workload,
    hardware: HardwareSpec,
    tiles: Mapping[str, Sequence[int]],
    unroll: int,
    vector: Mapping[str, int],
    stages: int = 1,
) -> Schedule:
    """Return a schedule of the template for CUDA cores, or of the pipelined one where there are several stages.

    Fetch widths that are no access of a thread (3 elements, more than 16 bytes) count as 1.

    Raises
    ------
    UnfitError
        The device is a CPU, factors do not multiply to the extents, or the device has no pipelined template.
    """
    if hardware.kind != "gpu":
        raise UnfitError(f"a GPU schedule, but {hardware.name} is a CPU")
    complete = {axis.name: tuple(int(factor) for factor in tiles[axis.name]) for axis in workload.axes}
    for axis in workload.axes:
        if len(complete[axis.name]) != GPU_LEVELS[axis.kind] or math.prod(complete[axis.name]) != axis.extent:
            raise UnfitError(WRONG_TILES)
    widest = MAX_FETCH_BYTES // DTYPE_BYTES[workload.dtype]
    widths = {}
    for tensor in staged_tensors(workload):
        width = int(vector.get(tensor, 1))
        widths[tensor] = width if width.bit_count() == 1 and width <= widest else 1
    if stages == 1:
        return Schedule(workload, hardware, GpuSpace.template, complete, int(unroll), widths)
    if not hardware.arch.startswith("sm_"):
        raise UnfitError(f"a staging pipeline, which the template has for NVIDIA's devices only, not {hardware.name}")
    counts = stage_counts(workload, hardware)
    if stages not in counts:
        raise UnfitError(f"a staging pipeline of {stages} buffers, the template has up to {counts[-1]} here")
    options = {"stages": stages, "pad": 0}
    return Schedule(workload, hardware, PipelinedSpace.template, complete, int(unroll), widths, {**options})
