"""Move the loops of a convolution's schedule to the same convolution with its tensors in other orders."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import OptionValue, Schedule
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates import CPU
from anatune.templates.cpu.rules import ORDER_LEVELS
from anatune.templates.cpu.space import CpuSpace

__all__ = ["move_loops", "swap_rows_and_columns"]

_ROWS, _COLUMNS = "y", "x"


def swap_rows_and_columns(schedule: Schedule) -> Schedule | None:
    """Return a schedule with the tiles of rows and columns swapped; None if images are not square.

    If columns are adjacent in memory and channels are not, a register tile of columns is stored at once, but a tile of
    rows is not.
    """
    extents = schedule.workload.extents
    if schedule.template != CPU.name or extents.get(_ROWS) != extents.get(_COLUMNS, 0):
        return None
    other = {_ROWS: _COLUMNS, _COLUMNS: _ROWS}

    def name(word: str) -> str:
        head, dot, axis = word.rpartition(".")
        return f"{head}{dot}{other.get(axis, axis)}"

    tiles = {axis: schedule.tiles[other.get(axis, axis)] for axis in schedule.tiles}
    options = {name(key) if key.startswith("pair.") else key: value for key, value in schedule.options.items()}
    return _check_or_none(msgspec.structs.replace(schedule, tiles=tiles, options=options))


def move_loops(schedule: Schedule, workload: Workload, hardware: CpuSpec, constants: Sequence[str]) -> Schedule | None:
    """Return a schedule with the same tiles and loops for `workload`; None if it is not legal.

    The elements of a channel block are the innermost part of the channel's loops: a block of the result's channels is a
    part of the register tile, a block of the data's channels a part of the reduction in the microkernel.

    Parameters
    ----------
    schedule : Schedule
        A schedule of the convolution with channels as one axis.
    workload : Workload
        The same convolution; data, result or both may have their channels in blocks.
    hardware : CpuSpec
        The device of the schedule.
    constants : sequence of str
        Operands that may be packed ahead.
    """
    extents = workload.extents
    inner = {axis: f"{axis}i" for axis in schedule.workload.extents if f"{axis}i" in extents}
    if schedule.template != CPU.name:
        moved = Schedule(
            workload, schedule.hardware, schedule.template, schedule.tiles, schedule.unroll, options=schedule.options
        )
        return _check_or_none(moved) if not inner else None
    tiles = dict(schedule.tiles)
    for axis, within in inner.items():
        parts = _split(tiles[axis], extents[within], is_spatial=len(tiles[axis]) == len(ORDER_LEVELS) + 1)
        if parts is None or f"pair.{axis}" in schedule.options:
            return None
        tiles[axis], tiles[within] = parts
    simd = str(schedule.options["simd_axis"])
    options: dict[str, OptionValue] = {**schedule.options, "simd_axis": inner.get(simd, simd)}
    for name in [name for name in options if name.startswith("order.")]:
        order = options[name]
        assert isinstance(order, tuple)
        options[name] = tuple(one for axis in order for one in (str(axis), *_inner_axes(str(axis), inner)))
    space = CpuSpace(workload, hardware, lambda points: points[:, 0] >= 0, constants=constants)
    if space.simd_axis != options["simd_axis"]:
        return None
    for level in ORDER_LEVELS:
        options[f"order.{level}"] = _nearest_order(options[f"order.{level}"], space.orders[level])
    options["order.reduction"] = space.reduction_order
    steps = math.prod(tiles[axis.name][-1] for axis in workload.reduction_axes if axis.name != space.simd_axis)
    moved = Schedule(workload, schedule.hardware, schedule.template, tiles, steps, {}, options)
    return _check_or_none(moved)


def _check_or_none(schedule: Schedule) -> Schedule | None:
    try:
        return schedule.check()
    except SpaceError:
        return None


def _inner_axes(axis: str, inner: Mapping[str, str]) -> tuple[str, ...]:
    return (inner[axis],) if axis in inner else ()


def _nearest_order(order: object, orders: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the possible order with the most axes at the same positions; orders leave out axes of one iteration."""
    assert isinstance(order, tuple)

    def count_matches(candidate: tuple[str, ...]) -> int:
        mine = [axis for axis in order if axis in candidate]
        return sum(left == right for left, right in zip(mine, candidate, strict=False))

    return max(orders, key=count_matches)


def _split(factors: tuple[int, ...], block: int, *, is_spatial: bool) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the factors of the blocks, and those within one, taken from the innermost loops; None: not divisible."""
    block_left = block
    within, outer = [1] * len(factors), list(factors)
    for level in reversed(range(len(factors))):
        part = math.gcd(outer[level], block_left)
        within[level], outer[level] = part, outer[level] // part
        block_left //= part
        if block_left > 1 and outer[level] > 1:
            return None  # a block would begin within a step of a loop
        if is_spatial and block_left > 1:
            return None
    return (tuple(outer), tuple(within)) if block_left == 1 else None
