"""The rules of attention in the template "triton": attentions and devices that it takes, and legal schedules."""

from __future__ import annotations

from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.gpu.rules import gpu_of
from anatune.templates.triton.attention.problem import AttentionProblem, problem_of
from anatune.templates.triton.instructions import has_descriptors
from anatune.templates.triton.rules import check_multiplied, check_tiles, is_amd

__all__ = ["LEVELS", "MOST_DIM", "OPTIONS", "check_attention", "check_supported", "has_described_keys", "options_of"]

LEVELS: dict[str, tuple[str, ...]] = {"m": ("block", "tile"), "n": ("step", "tile")}
"""Levels in ``Schedule.tiles`` of rows (queries of the heads that share a head of keys) and of keys."""
OPTIONS: dict[str, tuple[int, int]] = {
    "split_kv": (1, 1024),
    "num_warps": (1, 16),
    "num_stages": (1, 8),
    "descriptors": (0, 1),
    "waves_per_eu": (0, 10),
}
"""Option -> least and largest value. "split_kv": parts of the keys, each computed by separate blocks. "descriptors":
keys and values are read with tensor descriptors (TMA)."""
MOST_DIM = 256
_ALIGNMENT = 16


def has_described_keys(problem: AttentionProblem, hardware: GpuSpec) -> bool:
    """Return whether tensor descriptors can copy keys: heads lie in order, and rows are multiples of 16 bytes."""
    aligned = problem.head_dim * problem.element_bytes % _ALIGNMENT == 0
    return has_descriptors(hardware) and not problem.page_size and not problem.strides and aligned


def options_of(problem: AttentionProblem, hardware: GpuSpec) -> tuple[str, ...]:
    """Return the options that a schedule has: those that change the code for this problem and device."""
    described = ("descriptors",) if has_described_keys(problem, hardware) else ()
    return ("split_kv", "num_warps", "num_stages", *described, *(("waves_per_eu",) if is_amd(hardware) else ()))


def check_supported(workload: Workload, hardware: GpuSpec) -> AttentionProblem:
    """Return the problem of a workload. Raise SpaceError unless the template takes it on a device.

    Raises
    ------
    SpaceError
        Operands have different dtypes, no matrix unit multiplies them, or heads are too long.
    """
    if len({read.dtype for read in workload.reads[:3]}) > 1:
        raise SpaceError(f"{workload.operator}: queries, keys and values have different dtypes, expected one")
    problem = problem_of(workload)
    check_multiplied(workload.operator, problem.dtype, hardware)
    if problem.head_dim > MOST_DIM:
        raise SpaceError(
            f"{workload.operator}: head_dim is {problem.head_dim}, expected at most {MOST_DIM}: a block of the kernel "
            "keeps the sums of whole heads"
        )
    return problem


def check_attention(schedule: Schedule) -> None:
    """Raise SpaceError unless the schedule is one of attention."""
    hardware = gpu_of(schedule)
    problem = check_supported(schedule.workload, hardware)
    extents = {"m": problem.rows, "n": problem.seq_kv}
    check_tiles(schedule, LEVELS, extents, options_of(problem, hardware), OPTIONS)
