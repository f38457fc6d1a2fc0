"""The rules of the templates "cuda" and "pipelined": which workloads they take, and which schedules they allow."""

from __future__ import annotations

from collections.abc import Mapping

from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.access import DTYPE_BYTES
from anatune.core.workload.implicit_gemm import guarded_dimensions
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.base.values import check_count, check_names
from anatune.templates.cuda.guards import check_covering_tiles
from anatune.templates.gpu.rules import check_formats, gpu_of, has_cuda_code
from anatune.templates.gpu.split import SPLIT, check_split, num_steps, num_tiles

__all__ = [
    "ASYNC_SINCE",
    "MAX_FETCH_BYTES",
    "PIPELINE",
    "REDUCTION_LEVELS",
    "SPATIAL_LEVELS",
    "check_cuda",
    "check_pipeline_applies",
    "check_pipeline_option",
    "is_for_cuda",
    "levels_of",
    "pads",
    "pipeline_of",
    "stage_counts",
    "staged_tensors",
]

SPATIAL_LEVELS = ("block", "vthread", "thread", "reg_outer", "reg_inner")
REDUCTION_LEVELS = ("k0", "k1", "k2")
MAX_FETCH_BYTES = 16
"""Widest load or store of a thread (128 bits), from global and from shared memory."""
ASYNC_SINCE = 8.0
"""Least compute capability with copies from global to shared memory that run beside arithmetic (cp.async)."""
PIPELINE = {"stages": 1, "pad": 0}
"""Options of the template "pipelined" and their default values."""


def levels_of(workload: Workload) -> dict[str, tuple[str, ...]]:
    """Return axis -> names of its levels, outer to inner."""
    return {axis.name: SPATIAL_LEVELS if axis.kind == "spatial" else REDUCTION_LEVELS for axis in workload.axes}


def staged_tensors(workload: Workload) -> tuple[str, ...]:
    """Return the operands that are staged in shared memory: all if there is a reduction, else none."""
    return tuple(access.tensor for access in workload.reads) if workload.reduction_axes else ()


def stage_counts(workload: Workload, hardware: GpuSpec) -> tuple[int, ...]:
    """Return the useful numbers of buffers: up to three if every copy can be asynchronous, else up to two."""
    capable = (hardware.compute_capability or 0.0) >= ASYNC_SINCE
    zero_padded = workload.body != "max" or not any(
        any(guarded_dimensions(access, workload)) for access in workload.reads
    )
    return (1, 2, 3) if capable and zero_padded and DTYPE_BYTES[workload.dtype] >= 4 else (1, 2)


def pads(workload: Workload) -> tuple[int, ...]:
    """Return the paddings of rows, in elements: 0, or the width of the widest access, so that vectors stay aligned."""
    return (0, MAX_FETCH_BYTES // DTYPE_BYTES[workload.dtype])


def is_for_cuda(workload: Workload, hardware: GpuSpec) -> bool:
    """Return whether the template "cuda" takes the workload: it has code for its operator and number formats."""
    return has_cuda_code(workload)


def is_for_pipelined(workload: Workload, hardware: GpuSpec) -> bool:
    """Return whether the template "pipelined" applies: "cuda" does, on an NVIDIA GPU, with operands to stage."""
    return has_cuda_code(workload) and hardware.compute_capability is not None and bool(staged_tensors(workload))


def check_pipeline_applies(workload: Workload, hardware: GpuSpec) -> None:
    """Raise SpaceError unless the template "pipelined" takes the workload on this device."""
    check_formats(workload)
    if not is_for_pipelined(workload, hardware):
        is_other = hardware.compute_capability is None
        what = f"{hardware.name} has {hardware.arch}" if is_other else f"{workload.operator} has no reduction"
        raise SpaceError(
            f"template pipelined: {what}, expected an NVIDIA GPU and operands to stage; use the template cuda"
        )


def check_pipeline_option(name: str, value: object, workload: Workload, hardware: GpuSpec) -> int:
    """Return a number of stages or a padding. Raise SpaceError if it is not among the choices."""
    choices = stage_counts(workload, hardware) if name == "stages" else pads(workload)
    if isinstance(value, bool) or value not in choices:
        raise SpaceError(f"{name} is {value!r:.60}, expected one of {', '.join(map(str, choices))}")
    return int(value)  # type: ignore[call-overload, no-any-return]


def pipeline_of(options: Mapping[str, object]) -> tuple[int, int]:
    """Return the stages and the padding of a checked schedule's options."""
    stages, pad = (int(options.get(name, least)) for name, least in PIPELINE.items())  # type: ignore[call-overload]
    return stages, pad


def check_cuda(schedule: Schedule) -> None:
    """Raise SpaceError unless the schedule is one of the template "cuda"."""
    check_names("options", schedule.options, SPLIT, "option")
    _check_tiling(schedule)


def check_pipelined(schedule: Schedule) -> None:
    """Raise SpaceError unless the schedule is one of the template "pipelined"."""
    workload, hardware, options = schedule.workload, gpu_of(schedule), schedule.options
    check_pipeline_applies(workload, hardware)
    check_names("options", options, (*PIPELINE, *SPLIT), "option")
    for name in PIPELINE.keys() & options.keys():
        check_pipeline_option(name, options[name], workload, hardware)
    _check_tiling(schedule)


def _check_tiling(schedule: Schedule) -> None:
    workload, tiles = schedule.workload, schedule.tiles
    check_formats(workload)
    check_covering_tiles(workload, tiles, levels_of(workload))
    check_count("unroll", schedule.unroll, 0)
    check_names("vector", schedule.vector, staged_tensors(workload), "tensor")
    for tensor, width in schedule.vector.items():
        check_count(f"vector[{tensor!r}]", width, 1)
    check_split(workload, schedule.options, num_tiles(tiles, workload), num_steps(tiles, workload))
