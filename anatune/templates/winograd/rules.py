"""Rules of Winograd schedules; `winograd.space` describes the options."""

from __future__ import annotations

from anatune.core.accuracy import RELAXED, STANDARD
from anatune.core.hardware.dot import dot_instructions
from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.base.values import check_count, check_cover, check_names
from anatune.templates.cpu.microkernels import simd_lanes
from anatune.templates.cpu.rules import cpu_of
from anatune.templates.winograd.convolution3x3 import Convolution3x3, convolution3x3

__all__ = [
    "INSTRUCTION",
    "LEVELS",
    "OUTPUT_TILES",
    "SPLITS",
    "check_winograd",
    "convolution_on",
    "index_extents",
    "output_tiles",
]

LEVELS: dict[str, tuple[str, ...]] = {
    "p": ("block", "call", "row"),
    "f": ("chunk", "sliver", "vector", "lane"),
    "c": ("step", "unroll"),
}
"""Factors of each index in ``Schedule.tiles``, outer to inner: p counts output tiles, f and c channels."""
OUTPUT_TILES = (2, 4)
"""Rows and columns of an output tile: F(2x2, 3x3) and F(4x4, 3x3)."""
INSTRUCTION = "vpmaddwd"
"""The instruction that multiplies transformed integers."""
SPLITS = ("tiles", "channels")
"""The loops that can be distributed: blocks of tiles, or chunks of output channels."""
ACCURACY = {2: STANDARD, 4: RELAXED}
"""Output tile -> accuracy that its arithmetic needs."""


def convolution_on(workload: Workload, hardware: CpuSpec) -> Convolution3x3:
    """Return the convolution that a workload computes on a CPU.

    Raises
    ------
    SpaceError
        The workload is not such a convolution (`convolution3x3`), or the CPU lacks the instruction for integers.
    """
    convolution = convolution3x3(workload)
    if convolution.is_integer and INSTRUCTION not in dot_instructions(hardware):
        raise SpaceError(
            f"{workload.operator}: {hardware.name} multiplies 8 bits directly, expected a CPU with {INSTRUCTION}; "
            "leave out the template winograd"
        )
    return convolution


def output_tiles(convolution: Convolution3x3) -> tuple[int, ...]:
    """Return the possible output tiles; for integers, those whose transforms are integers."""
    return OUTPUT_TILES[:1] if convolution.is_integer else OUTPUT_TILES


def index_extents(convolution: Convolution3x3, output_tile: int) -> dict[str, int]:
    """Return index -> its extent: output tiles, output channels, input channels."""
    tiles = convolution.num_tiles(output_tile)
    return {"p": tiles, "f": convolution.filters, "c": convolution.channels}


def check_winograd(schedule: Schedule) -> None:
    """Raise SpaceError unless this is a schedule of the template "winograd"."""
    workload, vector, unroll = schedule.workload, schedule.vector, schedule.unroll
    tiles, options = schedule.tiles, schedule.options
    convolution = convolution_on(workload, cpu_of(schedule))
    if vector:
        raise SpaceError(f"vector is {dict(vector)!r:.60}, expected none: on CPUs the hardware gives the vector width")
    check_names("options", options, ("output_tile", "parallel", "split"))
    size, sizes = options.get("output_tile"), output_tiles(convolution)
    if type(size) is not int or size not in sizes:
        raise SpaceError(f"option output_tile is {size!r:.40}, expected one of {sizes}")
    parallel, split = options.get("parallel", False), options.get("split")
    if not isinstance(parallel, bool):
        raise SpaceError(f"option parallel is {parallel!r:.40}, expected true or false")
    if (split not in SPLITS) if parallel else (split is not None):
        expected = f"one of {', '.join(SPLITS)}" if parallel else "none without parallel"
        raise SpaceError(f"option split is {split!r:.40}, expected {expected}")
    check_names("tiles", tiles, LEVELS, "index")
    lanes = simd_lanes(workload, cpu_of(schedule).compute.simd_bits)
    for index, extent in index_extents(convolution, size).items():
        check_cover(index, tiles.get(index), LEVELS[index], extent, lanes if index == "f" else None)
    check_count("unroll", unroll, tiles["c"][-1], tiles["c"][-1])
    group = convolution.group
    if unroll % group or lanes * group % unroll:
        divisor_words = f"an even divisor of {lanes * group}" if group > 1 else f"a divisor of the {lanes} lanes"
        raise SpaceError(f"unroll is {unroll}, expected {divisor_words}: rows of transformed inputs are whole vectors")


def output_tile_of(schedule: Schedule) -> int:
    """Return the rows and columns of the output tile of a schedule."""
    size = schedule.options["output_tile"]
    assert isinstance(size, int)
    return size


def needed_accuracy(schedule: Schedule) -> str:
    """Return the accuracy that the arithmetic of a schedule needs."""
    return ACCURACY[output_tile_of(schedule)]
