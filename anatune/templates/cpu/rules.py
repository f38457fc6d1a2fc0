"""Checks of CPU schedules of nests with microkernels; `cpu.space` describes the options."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import cast

from anatune.core.accuracy import RELAXED, rounding_error
from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.access import is_integer
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.base.values import check_count, check_names, check_tiles
from anatune.templates.cpu.dot import (
    DotGroup,
    check_tile_registers,
    converted_operands,
    dot_group,
    half_additions,
    most_half_terms,
    packable_in_groups,
    pairable_axes,
)
from anatune.templates.cpu.microkernels import pair_calls, segment_shape, simd_lanes, window_axes

__all__ = [
    "ORDER_LEVELS",
    "REDUCTION_LEVELS",
    "SPATIAL_LEVELS",
    "WINDOW_LEVELS",
    "check_cpu",
    "check_formats",
    "check_half_sums",
    "check_tiled",
    "cpu_of",
    "half_sums_accuracy",
    "half_sums_error",
    "lanes_of",
    "levels_of",
    "pair_of",
    "words_of",
]

SPATIAL_LEVELS = ("outer", "l3", "l2", "l1", "register")
ORDER_LEVELS = ("outer", "l3", "l2", "l1")
REDUCTION_LEVELS = ("l3", "l2", "l1", "unroll")
WINDOW_LEVELS = ("l2", "l1", "unroll")


def check_formats(workload: Workload, hardware: CpuSpec) -> None:
    """Raise SpaceError for number formats that no CPU kernel takes.

    Raises
    ------
    SpaceError
        Operands are 8-bit floats or 16 times 8 bits, or sums of int8 become float16 or bfloat16.
    """
    if workload.is_kernel:
        raise SpaceError(
            f"{workload.operator} of {workload.formats} has kernels for GPUs only (template triton), got "
            f"{hardware.name}, a CPU; CPUs take scaled_matmul of float32xint8 and float32xint4 (AVX2 or AVX-512, k a "
            "multiple of 16); choose a GPU with --hw"
        )
    if workload.needs_matrix_units:
        raise SpaceError(
            f"{workload.operator}: {workload.formats} needs the matrix units of GPUs; {hardware.name} takes "
            "float32, float16, bfloat16, int8 and uint8xint8, the last two scaled to float32 or requantized; change "
            "the dtype or choose a GPU with --hw"
        )


def levels_of(workload: Workload) -> dict[str, tuple[str, ...]]:
    """Return axis -> names of its factors, outer to inner."""
    windows = window_axes(workload)
    return {
        axis.name: SPATIAL_LEVELS
        if axis.kind == "spatial"
        else WINDOW_LEVELS
        if axis.name in windows
        else REDUCTION_LEVELS
        for axis in workload.axes
    }


def check_cpu(schedule: Schedule) -> None:
    """Raise SpaceError unless this is a schedule of the template "cpu"."""
    if "extension" in schedule.options:
        check_tiled(schedule)
    else:
        _check(schedule)


def check_tiled(schedule: Schedule) -> None:
    """Raise SpaceError unless this is a schedule on AMX tiles, of the template "amx" or "cpu"."""
    workload, tiles = schedule.workload, schedule.tiles
    dot = _check(schedule, extension="amx")
    assert dot is not None
    simd, lanes = str(schedule.options["simd_axis"]), lanes_of(schedule)
    register = {axis.name: _largest(schedule, axis.name) for axis in workload.spatial_axes}
    vectors = register.pop(simd) if pair_of(schedule, simd) else -(-register.pop(simd) // lanes)
    unrolled = {axis.name: tiles[axis.name][-1] for axis in workload.reduction_axes}
    if unrolled[dot.axis] % dot.size and unrolled[dot.axis] < workload.extents[dot.axis]:
        raise SpaceError(
            f"tiles[{dot.axis!r}] is {tiles[dot.axis]}: expected its last factor to be a multiple of {dot.size}, or "
            f"the whole axis: {dot.instruction} multiplies groups of {dot.size}"
        )
    steps = -(-unrolled.pop(dot.axis) // dot.size)
    vector_operand = workload.tensor(dot.vectors)
    rows = [axis for axis, size in register.items() if size > 1]
    if len(rows) > 1 or any(vector_operand.uses(axis) for axis in rows) or any(size > 1 for size in unrolled.values()):
        raise SpaceError(
            f"a microkernel on AMX tiles has rows along {', '.join(rows) or 'no axis'}, expected along one axis that "
            f"does not index {dot.vectors}; it can unroll {dot.axis} only"
        )
    check_tile_registers(math.prod(register.values()), vectors, steps)


def _largest(schedule: Schedule, axis: str) -> int:
    """Return the elements of an axis that the largest microkernel covers; along the SIMD axis vectors, for a pair."""
    pair = pair_of(schedule, axis)
    return schedule.tiles[axis][-1] if pair is None else max(pair[1], pair[3])


def check_half_sums(schedule: Schedule) -> None:
    """Raise SpaceError unless this is a schedule of the template "fp16_accumulation"."""
    dot, tiles = _check(schedule, extension="fp16"), schedule.tiles
    assert dot is not None
    most, terms = most_half_terms(schedule.workload, dot), math.prod(tiles[dot.axis][-2:])
    if terms > most:
        raise SpaceError(
            f"tiles[{dot.axis!r}] is {tiles[dot.axis]}: a call sums {terms} products along it in half precision, "
            f"expected at most {most}"
        )


def cpu_of(schedule: Schedule) -> CpuSpec:
    """Return the hardware of a schedule, a CpuSpec: `Schedule.check` refuses other kinds for this template."""
    return cast(CpuSpec, schedule.hardware)


def words_of(schedule: Schedule, name: str) -> tuple[str, ...]:
    """Return an option that lists axes or tensors; empty if the schedule lacks it. The schedule was checked before."""
    return cast("tuple[str, ...]", schedule.options.get(name, ()))


def lanes_of(schedule: Schedule) -> int:
    """Return the elements of a vector of a checked schedule."""
    return cast(int, schedule.options["simd_lanes"])


def pair_of(schedule: Schedule, axis: str) -> tuple[int, int, int, int] | None:
    """Return (calls, units, calls, units) of the pair of microkernels along an axis; None if there is no pair."""
    return cast("tuple[int, int, int, int] | None", schedule.options.get(f"pair.{axis}"))


def _check(schedule: Schedule, extension: str = "") -> DotGroup | None:
    """Raise SpaceError unless this is a schedule of such a nest; return how it groups products."""
    workload, hardware, unroll, vector = schedule.workload, cpu_of(schedule), schedule.unroll, schedule.vector
    tiles, options = schedule.tiles, schedule.options
    check_formats(workload, hardware)
    if options.get("extension", "") != extension:
        raise SpaceError(f"option extension is {options.get('extension')!r:.40}, expected {extension!r}")
    levels = levels_of(workload)
    check_tiles(tiles, levels, workload.extents)
    if vector:
        raise SpaceError(f"vector is {dict(vector)!r:.60}, expected none: on CPUs the hardware gives the vector width")
    simd = options.get("simd_axis")
    if not isinstance(simd, str) or simd not in levels:
        raise SpaceError(f"option simd_axis is {simd!r:.40}, expected one of {', '.join(levels)}")
    lanes = simd_lanes(workload, hardware.compute.simd_bits)
    check_count("option simd_lanes", options.get("simd_lanes"), lanes, lanes)
    spatial = {axis.name for axis in workload.spatial_axes}
    dot = dot_group(workload, hardware, simd, extension=extension)
    if extension and dot is None:
        raise SpaceError(f"{hardware.name} has no {extension} instruction for these products along {simd}")
    orders: dict[str, Sequence[str]] = {
        level: [axis for axis, names in levels.items() if level in names and (level != "l1" or axis in spatial)]
        for level in ORDER_LEVELS
    }
    orders["reduction"] = [axis for axis in levels if axis not in spatial]
    pairs = {f"pair.{axis}": axis for axis in pairable_axes(workload, simd, dot)}
    mosts = {f"most.{axis}": axis for axis in spatial if axis != simd}
    valid_names = ("simd_axis", "simd_lanes", *pairs, *(f"order.{level}" for level in orders), "packed", "packed_ahead")
    check_names("options", options, (*valid_names, *mosts, "extension", "parallel"))
    for name, axis in pairs.items():
        if name in options:
            unit = lanes if axis == simd else 1
            _check_pair(name, options[name], tiles[axis], unit, hardware.compute.num_vector_registers)
    for name, axis in mosts.items():
        if name in options:
            pair = pair_of(schedule, axis)
            largest = tiles[axis][-1] if pair is None else max(pair[1], pair[3])
            check_count(f"option {name}", options[name], largest, max(largest, hardware.compute.num_vector_registers))
    for level, axes in orders.items():
        _check_words(f"order.{level}", options.get(f"order.{level}", ()), axes)
    packed = words_of(schedule, "packed")
    _check_words("packed", packed, packable_in_groups(workload, simd, dot))
    if dot is not None and not set(dot.packed) <= set(packed):
        raise SpaceError(
            f"option packed is {packed!r:.60}, expected it to include {', '.join(dot.packed)}: "
            f"{dot.instruction} reads groups of {dot.size}"
        )
    _check_words(
        "packed_ahead", options.get("packed_ahead", ()), [x for x in packed if x not in converted_operands(dot)]
    )
    if not isinstance(options.get("parallel", False), bool):
        raise SpaceError(f"option parallel is {options['parallel']!r:.40}, expected true or false")
    steps = math.prod(tiles[axis][-1] for axis in orders["reduction"] if axis != simd)
    if type(unroll) is not int or unroll != steps:
        raise SpaceError(f"unroll is {unroll!r:.40}, but the unroll factors of tiles multiply to {steps}")
    return dot


def _check_words(name: str, words: object, valid: Collection[str]) -> None:
    """Raise SpaceError unless an option is a tuple of some of the valid names, each at most once."""
    if (
        not isinstance(words, tuple)
        or not all(isinstance(word, str) for word in words)
        or len(set(words)) < len(words)
        or not set(words) <= set(valid)
    ):
        raise SpaceError(
            f"option {name} is {words!r:.60}, expected a tuple of {', '.join(valid) or 'no names'}, each at most once"
        )


def _check_pair(name: str, pair: object, factors: tuple[int, ...], unit: int, largest: int) -> None:
    """Raise SpaceError unless a pair of microkernels covers the segment, which is the innermost factor."""
    segment, covers = factors[-1], False
    if isinstance(pair, tuple) and len(pair) == 4 and all(is_integer(number, 0) for number in pair):
        first, small, second, large = pair
        units, calls = -(-segment // unit), first + second
        covers = calls in pair_calls(segment, unit, largest) and pair == segment_shape(segment, unit, calls)
        covers |= min(first, small, second) > 0 and small < large <= largest and first * small + second * large == units
    if factors[-2] != 1 or not covers:
        shapes = [segment_shape(segment, unit, number) for number in pair_calls(segment, unit, largest)]
        raise SpaceError(
            f"option {name} is {pair!r:.60}, expected (calls, units, calls, units) that cover {segment}, and an l1 "
            f"factor of 1, such as {shapes!s:.80}"
        )


def half_sums_accuracy(schedule: Schedule) -> str:
    """Return the accuracy that sums in float16 need."""
    return RELAXED


def half_sums_error(schedule: Schedule) -> float:
    """Return the largest error that rounding explains, relative to the scale of the result.

    It is that of the sums of a call in float16. The two sums of a lane are also added in float16 before the conversion
    to float32.
    """
    workload = schedule.workload
    dot = dot_group(workload, cpu_of(schedule), str(schedule.options["simd_axis"]), extension="fp16")
    assert dot is not None
    inner = {axis.name: schedule.tiles[axis.name][-2:] for axis in workload.reduction_axes}
    return rounding_error(workload, half_additions=half_additions(workload, dot, inner) + 2)
