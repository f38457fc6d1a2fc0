"""Rules of thin schedules: products with a vector or few rows, and long reductions."""

from __future__ import annotations

from collections.abc import Mapping

from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.base.values import check_count, check_cover, check_names
from anatune.templates.gpu.rules import check_formats, gpu_of
from anatune.templates.gpu.split import check_split
from anatune.templates.thin.nest import ThinNest, thin_nest

__all__ = ["DOTS_SINCE", "DTYPES", "LEVELS", "MOST_ROWS", "check_supported", "check_thin", "vectors_of"]

LEVELS: dict[str, tuple[str, ...]] = {
    "n": ("block", "thread", "each", "vector"),
    "k": ("step", "thread", "each", "vector"),
}
"""Factors of the fused indices in ``Schedule.tiles``, outer to inner.

They are blocks (or steps), threads of a block, loads of a thread that are in flight at the same time, and elements of a
load. The vector of elements lies along one of the two indices. Every thread computes all rows (m).
"""
DTYPES = ("float32", "float16", "bfloat16", "int8")
DOTS_SINCE = 6.1
"""Compute capability that sums four products of bytes at once (dp4a). Source: [CUDA-guide]."""
MOST_ROWS = 16
"""Most results of a thread for each element of the big operand."""
LEAST_DEPTH = 32
"""Fewest iterations of a sum that threads can share: a warp."""
LEAST_STREAM = 2**14
"""Fewest elements of the big operand. Fewer are read before a launch has ended, by any kernel."""


def check_supported(workload: Workload, hardware: GpuSpec) -> None:
    """Raise SpaceError unless the template applies.

    Raises
    ------
    SpaceError
        The number formats are not for GPUs or not for this template, or the workload is not a stream: it is no product
        or reduction, has too many rows, too short a sum, or too small an operand.
    """
    check_formats(workload)
    if workload.dtype not in DTYPES:
        raise SpaceError(
            f"{workload.operator}: dtype is {workload.dtype}, expected one of {', '.join(DTYPES)}; leave out the "
            "template thin"
        )
    nest = thin_nest(workload)
    rows, depth = nest.extents["m"], nest.extents["k"]
    for what, got, least, most in (
        ("rows beside the large operand", rows, 1, MOST_ROWS),
        ("iterations of its sum", depth, LEAST_DEPTH, None),
        ("elements of the large operand", nest.streamed, LEAST_STREAM, None),
    ):
        if got < least or (most is not None and got > most):
            limit = f"at least {least}" if most is None else f"at most {most}"
            raise SpaceError(f"{workload.operator} has {got} {what}, expected {limit} for template thin; leave it out")


def vectors_of(nest: ThinNest) -> tuple[int, ...]:
    """Return the numbers of elements of the big operand that one load can have, ascending."""
    return tuple(2**e for e in range(nest.width.bit_length()))


def check_thin(schedule: Schedule) -> None:
    """Raise SpaceError unless this is a schedule of the template "thin"."""
    workload, tiles, options = schedule.workload, schedule.tiles, schedule.options
    check_supported(workload, gpu_of(schedule))
    check_names("options", options, ("split",))
    check_names("vector", schedule.vector, (), "tensor")
    check_count("unroll", schedule.unroll, 0, 0)
    check_names("tiles", tiles, LEVELS, "index")
    nest = thin_nest(workload)
    along, across = ("k", "n") if nest.along_k else ("n", "k")
    check_cover(across, tiles.get(across), LEVELS[across], nest.extents[across], 1)
    check_cover(along, tiles.get(along), LEVELS[along], nest.extents[along])
    _check_inner(tiles, along, nest)
    blocks, steps = (tiles[index][0] for index in LEVELS)  # type: ignore[index]
    check_split(workload, options, nest.extents["batch"] * blocks, steps)


def _check_inner(tiles: Mapping[str, object], along: str, nest: ThinNest) -> None:
    """Raise SpaceError if a number of threads is not a power of two, or vectors are not aligned."""
    for index, factors in tiles.items():
        assert isinstance(factors, tuple)
        if factors[1] & (factors[1] - 1):
            raise SpaceError(f"tiles[{index!r}] has {factors[1]} threads, expected a power of two")
        if index == along and factors[3] not in vectors_of(nest):
            raise SpaceError(
                f"tiles[{index!r}] loads {factors[3]} elements at once, expected one of {vectors_of(nest)}: wider ones "
                "are not aligned"
            )
