"""The CPU tile space: a microkernel (or a pair), cache tiles, loop orders, packing and the parallel loop.

The loop nest of a schedule, outer to inner::

    parallel?  for the spatial axes, factor "outer", in options["order.outer"]          chunks of the result
      for all axes, factor "l3", in options["order.l3"]                                 tiles for the L2 cache
        for all axes, factor "l2", in options["order.l2"]                               tiles for the L1 cache
          for the spatial axes, factor "l1", in options["order.l1"]                     calls of the microkernel
            for the reduction axes, factor "l1", in options["order.reduction"]          accumulators stay in registers
              microkernel: factors "register" (spatial), "unroll" (reduction), straight-line code

``Schedule.tiles`` holds, outer to inner, (outer, l3, l2, l1, register) of a spatial axis, (l3, l2, l1, unroll) of a
reduction axis, and (l2, l1, unroll) of a window axis (rx, ry: they only slide a window). The product of the factors is
the extent. ``Schedule.unroll`` is the product of the unroll factors of the reduction axes that are not vectorised.

``Schedule.options``:

========================= ============================================================================================
"simd_axis"               The vectorised axis (a rule of `cpu.microkernels`). Its register (or unroll) factor is in
                          elements: with 16 lanes, 32 are 2 vectors, and 9 are one vector with 7 idle (masked) lanes.
                          The last vector of a segment is masked likewise.
"simd_lanes"              Elements of a vector.
"pair.<axis>"             Two microkernels that share an axis: (calls, units, calls, units), the smaller kernel first.
                          The register factor is then the whole segment they cover, and l1 is 1. Units are rows, or
                          vectors on the SIMD axis: (1, 8, 1, 9) covers 17. The space has pairs whose sizes differ by
                          one. Other pairs, such as (1, 8, 2, 13) for 34, can be built, verified and inspected.
"most.<axis>"             Programs for a range of extents only (`cpu.range_space`): the most elements that one call
                          covers at any extent. The nest does not depend on it.
"order.<level>"           Axes from the outermost to the innermost loop (loops of one iteration need no code).
"packed"                  Operands that are copied into tile order, as contiguous slivers along the loops of the
                          microkernel. A result strided along the SIMD axis is transposed in registers, never packed.
"packed_ahead"            Those of the packed operands that are packed before the run (constants: no cost).
"extension"               "amx": products on AMX tiles, the rows of the register tile in blocks of 16
                          (`cpu.program.amx`). The template "amx" has a space of them. With the template "cpu" they can
                          be built, verified and inspected.
"parallel"                True if the fused "outer" loops are distributed over the cores.
========================= ============================================================================================

A point is a vector of integers: the factors axis by axis, one "pair" column for each axis that can have a pair (the
number of calls, 0 for a single microkernel), the index of the order of each level, one 0/1 for each packable tensor,
and one 0/1 for parallel. The orders of a level are "keep tensor X": the loops that do not index X are innermost, so
that X stays in the cache. Keeping B with j and k outside i is the order of GOTO and BLIS. Keeping the result, with the
reduction inside, is that of TACO'22.
Source: [BLIS] Sec. 3; [TACO22] Sec. 3.3. Only the tables of single axes are in memory; the size is exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from anatune.arguments import check_flag, check_integer, quote
from anatune.core.frozen import EMPTY
from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import OptionValue, Schedule
from anatune.core.workload.access import MAX_INTEGER
from anatune.core.workload.nest import Access, Workload
from anatune.errors import SpaceError
from anatune.templates.base.factor import factorisations
from anatune.templates.base.space import LegalityCheck, Space, SpacePart, table_part, tilings
from anatune.templates.base.values import check_factors, check_names
from anatune.templates.cpu.dot import DotGroup, converted_operands, dot_group, packable_in_groups, pairable_axes
from anatune.templates.cpu.loops import LoopTables, loop_tables
from anatune.templates.cpu.measured import microkernel_shares
from anatune.templates.cpu.microkernels import (
    constant_tensors,
    is_streamed,
    pair_calls,
    segment_shape,
    simd_axis,
    simd_lanes,
    window_axes,
)
from anatune.templates.cpu.rules import (
    ORDER_LEVELS,
    REDUCTION_LEVELS,
    SPATIAL_LEVELS,
    WINDOW_LEVELS,
    check_formats,
    levels_of,
)

__all__ = ["ORDER_LEVELS", "REDUCTION_LEVELS", "SPATIAL_LEVELS", "WINDOW_LEVELS", "CpuSpace"]


class CpuSpace(Space):
    """All schedules of one workload on one CPU.

    Guarantees: deterministic; safe to share between threads (immutable).

    Parameters
    ----------
    workload, hardware
        The computation and the spec of the CPU.
    is_legal : callable
        (num_points, num_columns) int64 -> (num_points,) bool: the limits of the device, which the model knows.
    simd : str, optional
        Vectorise this axis instead of the one that the rule of `cpu.microkernels` chooses.
    constants : sequence of str, optional
        Operands that are fixed before the run, so that packing them costs nothing. Without it, by the rule of
        `cpu.microkernels`.

    Raises
    ------
    SpaceError
        The number formats are for GPUs (`cpu.rules.check_formats`).

    Attributes
    ----------
    simd_axis : str
        The vectorised axis.
    lanes : int
        Elements of a vector register.
    pairable : tuple of str
        Axes that a pair of microkernels can cover: the spatial ones and the SIMD axis.
    packable, packed_ahead, must_pack : tuple of str
        Tensors with a "pack" column; those of them whose packing costs nothing; those that every schedule packs.
    dot : DotGroup, optional
        The groups of products, if one instruction sums several (a rule of `cpu.dot`).
    orders : dict of str to tuple of tuple of str
        Level -> its distinct loop orders, each outer to inner.
    """

    template = "cpu"
    hardware: CpuSpec
    fixed_options: ClassVar[Mapping[str, OptionValue]] = {}
    """Options that all schedules of the space have in addition to those above."""
    most_inner: Mapping[str, int] = EMPTY
    """Reduction axis -> most elements along it in one call of the microkernel, if that is limited."""

    def __init__(
        self,
        workload: Workload,
        hardware: CpuSpec,
        is_legal: LegalityCheck,
        simd: str | None = None,
        constants: Sequence[str] | None = None,
    ) -> None:
        check_formats(workload, hardware)
        super().__init__(workload, hardware, is_legal)
        self.windows: tuple[str, ...] = window_axes(workload)
        self.lanes = simd_lanes(workload, hardware.compute.simd_bits)
        if simd is not None:
            check_names("simd", [simd], self.axes)
        constant_names = constant_tensors(workload) if constants is None else tuple(constants)
        self.simd_axis: str = simd or simd_axis(workload, self.lanes, constant_names)
        self.levels = levels_of(workload)
        spatial = {axis.name for axis in workload.spatial_axes}
        self.dot: DotGroup | None = dot_group(
            workload, hardware, self.simd_axis, extension=str(self.fixed_options.get("extension", ""))
        )
        self.pairable: tuple[str, ...] = pairable_axes(workload, self.simd_axis, self.dot)
        self.packable: tuple[str, ...] = packable_in_groups(workload, self.simd_axis, self.dot)
        self.packed_ahead: tuple[str, ...] = tuple(
            tensor
            for tensor in self.packable
            if tensor in constant_names and tensor not in converted_operands(self.dot)
        )
        streamed = [x.tensor for x in workload.reads if x.tensor in self.packed_ahead and is_streamed(x, workload)]
        self.must_pack: tuple[str, ...] = tuple(dict.fromkeys((*(self.dot.packed if self.dot else ()), *streamed)))
        self.max_kernel: int = hardware.compute.num_vector_registers
        self.orders: dict[str, tuple[tuple[str, ...], ...]] = {
            level: self._level_orders(level, spatial) for level in ORDER_LEVELS
        }
        reductions = [axis.name for axis in workload.reduction_axes]
        self.reduction_order: tuple[str, ...] = (
            *(a for a in reductions if a in self.windows),
            *(a for a in reductions if a not in self.windows),
        )
        self.choices = {
            **{f"order.{level}": tuple(range(len(orders))) for level, orders in self.orders.items()},
            **{f"pack.{tensor}": (1,) if tensor in self.must_pack else (0, 1) for tensor in self.packable},
            "parallel": (0, 1),
        }

    def _level_orders(self, level: str, spatial: set[str]) -> tuple[tuple[str, ...], ...]:
        axes = [
            a
            for a in self.axes
            if (a in spatial or level in ("l3", "l2")) and level in self.levels[a] and self.extents[a] > 1
        ]
        accesses = (*self.workload.reads, self.workload.write)
        return tuple(dict.fromkeys(_order_that_keeps(access, axes) for access in accesses))

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the entries of a point: factors axis by axis, pairs, then the choices."""
        factors = (f"{axis}.{level}" for axis in self.axes for level in self.levels[axis])
        return (*factors, *(f"pair.{axis}" for axis in self.pairable), *self.choices)

    @cached_property
    def loop_tables(self) -> LoopTables:
        """The columns of a point that hold its loops, as tables."""
        return loop_tables(self.levels, self.columns, self.orders, self.reduction_order)

    def _axis(self, axis: str) -> SpacePart:
        """Return the tilings of `axis`. The last column is the calls of a pair if the axis is pairable.

        Single microkernels come first, in lexicographic order, then pairs.
        """
        levels, extent = self.levels[axis], self.extents[axis]
        if axis in self.most_inner:
            most, table = self.most_inner[axis], factorisations(extent, len(levels))
            expected = f"factors whose product is {extent}, at most {most} of it in a call"
            names = [f"{axis}.{level}" for level in levels]
            return table_part(axis, names, table[table[:, -2:].prod(axis=1) <= most], expected)
        if axis not in self.pairable:
            return tilings(axis, levels, extent)
        unpaired = factorisations(extent, len(levels))
        unpaired = np.column_stack([unpaired, np.zeros(len(unpaired), dtype=np.int64)])
        pairs = [
            (*outer, 1, segment, calls)
            for *outer, segment in factorisations(extent, len(levels) - 1).tolist()
            for calls in pair_calls(segment, self._unit(axis), self.max_kernel)
        ]
        table = np.concatenate([unpaired, np.array(pairs, dtype=np.int64).reshape(-1, unpaired.shape[1])])
        columns = [*(f"{axis}.{level}" for level in levels), f"pair.{axis}"]
        expected = f"factors whose product is {extent}, and a pair only if one microkernel does not fit"
        return table_part(axis, columns, table, expected)

    def in_call(self, axis: str, kernel: int) -> bool:
        """Return whether a microkernel may cover (or unroll) `kernel` elements of an axis."""
        return True

    def microkernel(self, axis: str) -> tuple[tuple[str, ...], ...]:
        """Return the innermost factor, and the calls of a pair."""
        pair = ((f"pair.{axis}",),) if axis in self.pairable else ()
        return ((f"{axis}.{self.levels[axis][-1]}",), *pair)

    def lane_shares(self, points: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the share of lanes that hold results; the last vector is masked if the factor does not fill it."""
        axis = self.simd_axis
        # along a reduction axis, a call sums over both inner levels
        inner = self.levels[axis][-1:] if "register" in self.levels[axis] else self.levels[axis][-2:]
        size = points[:, [self.columns.index(f"{axis}.{level}") for level in inner]].prod(axis=1)
        shares: NDArray[np.float64] = size / (-(-size // self.lanes) * self.lanes)
        return shares

    def microkernel_shares(self, points: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """Return the shares that the microkernel table of the spec has for points, see `cpu.measured`."""
        table = self.hardware.microkernels if self.dot is None else None
        return None if table is None else microkernel_shares(table, self, self.simd_axis, self.lanes, points)

    def _unit(self, axis: str) -> int:
        """Return the elements of a unit of the microkernel along an axis: a row or a vector."""
        return self.lanes if axis == self.simd_axis else 1

    def schedule_of(self, point: Sequence[int] | NDArray[np.int64]) -> Schedule:
        """Decode one point (a vector in the order of `columns`) into a Schedule."""
        values = dict(zip(self.columns, self._values(point), strict=True))
        for level in ORDER_LEVELS:
            if values[f"order.{level}"] >= len(self.orders[level]):
                raise SpaceError(
                    f"order.{level} is {values[f'order.{level}']}, expected 0 to {len(self.orders[level]) - 1}"
                )
        tiles = self._tiles(tuple(values.values()))
        options: dict[str, OptionValue] = {"simd_axis": self.simd_axis, "simd_lanes": self.lanes}
        for axis in self.pairable:
            if calls := values[f"pair.{axis}"]:
                options[f"pair.{axis}"] = segment_shape(tiles[axis][-1], self._unit(axis), calls)
        for level in ORDER_LEVELS:
            options[f"order.{level}"] = self.orders[level][values[f"order.{level}"]]
        options["order.reduction"] = self.reduction_order
        options["packed"] = tuple(tensor for tensor in self.packable if values[f"pack.{tensor}"])
        options["packed_ahead"] = tuple(tensor for tensor in self.packed_ahead if values[f"pack.{tensor}"])
        options["parallel"] = bool(values["parallel"])
        options |= self.fixed_options
        return Schedule(self.workload, self.hardware, self.template, tiles, self._unroll(tiles), {}, options)

    def _unroll(self, tiles: Mapping[str, Sequence[int]]) -> int:
        return math.prod(tiles[a.name][-1] for a in self.workload.reduction_axes if a.name != self.simd_axis)

    def lists(self, point: NDArray[np.int64]) -> bool:
        """Return True: every schedule that can be built is in the space."""
        return True

    def point_of(self, schedule: Schedule) -> NDArray[np.int64]:
        """Return the integer vector of `schedule`, (len(columns),) int64.

        Raises
        ------
        SpaceError
            The schedule belongs to another workload or template, or has an option that the space lacks.
        """
        self._check_membership(schedule)
        options = schedule.options
        if (extension := options.get("extension")) != self.fixed_options.get("extension"):
            raise SpaceError(
                f"template {self.template} has no points with option extension {extension!r}, so no model predicts them"
            )
        values = [factor for axis in self.axes for factor in schedule.tiles[axis]]
        for axis in self.pairable:
            pair = options.get(f"pair.{axis}")
            values.append(int(pair[0]) + int(pair[2]) if isinstance(pair, tuple) else 0)
            if values[-1] and pair != segment_shape(schedule.tiles[axis][-1], self._unit(axis), values[-1]):
                raise SpaceError(f"pair.{axis} is {pair}: the space has balanced pairs only, so no model predicts it")
        for level in ORDER_LEVELS:
            order = options.get(f"order.{level}", self.orders[level][0])
            if order not in self.orders[level]:
                raise SpaceError(f"order.{level} is {order!r}, expected one of {self.orders[level]}")
            values.append(self.orders[level].index(order))
        packed = options.get("packed", ())
        values += [int(isinstance(packed, tuple) and tensor in packed) for tensor in self.packable]
        values.append(int(bool(options.get("parallel", False))))
        return np.array(values, dtype=np.int64)

    def schedule(
        self,
        tiles: Mapping[str, Sequence[int]],
        unroll: int = 0,
        vector: Mapping[str, int] | None = None,
        *,
        calls: Mapping[str, int] | None = None,
        keep: Mapping[str, str] | None = None,
        packed: Sequence[str] | None = None,
        parallel: bool = False,
    ) -> Schedule:
        """Build the schedule with these factors; any perfect divisors are accepted, legal on the device or not.

        Parameters
        ----------
        tiles : mapping of str to sequence of int
            Axis -> factors in the order of `levels`. An axis that is left out has its whole extent in its outermost
            loop.
        unroll : int
            0, or the product of the unroll factors in `tiles` (a check, not a choice).
        vector : mapping, optional
            Not used on CPUs: the SIMD width follows from the hardware. Must be empty.
        calls : mapping of str to int, optional
            Axis -> number of microkernel calls that cover its register factor, if that takes a pair.
        keep : mapping of str to str, optional
            Level ("outer", "l3", "l2", "l1") -> tensor that its loops keep in the cache. The default is the first
            operand.
        packed : sequence of str, optional
            Tensors to pack. The default is those that are packed ahead and those that must be packed.
        parallel : bool
            Distribute the "outer" loops over the cores.

        Raises
        ------
        SpaceError
            An axis, tensor or level is unknown, the number of factors is wrong, or their product is not the extent.
        """
        if vector is not None and not (isinstance(vector, Mapping) and not vector):
            raise SpaceError(f"vector is {quote(vector)}, expected none: on CPUs the hardware gives the vector width")
        calls, keep = calls or {}, keep or {}
        for name, argument in (("tiles", tiles), ("calls", calls), ("keep", keep)):
            if not isinstance(argument, Mapping):
                raise SpaceError(f"schedule: {name} is {quote(argument)}, expected a mapping from axes or levels")
        if packed is not None and (isinstance(packed, str) or not isinstance(packed, Sequence)):
            raise SpaceError(f"schedule: packed is {quote(packed)}, expected a sequence of tensor names")
        parallel = check_flag("schedule: parallel", parallel)
        unroll = check_integer("schedule: unroll", unroll, 0, MAX_INTEGER)
        check_names("tiles", tiles, self.axes)
        check_names("calls", calls, self.pairable)
        check_names("keep", keep, ORDER_LEVELS)
        default = tuple(tensor for tensor in self.packable if tensor in (*self.packed_ahead, *self.must_pack))
        chosen = default if packed is None else tuple(packed)
        check_names("packed", chosen, self.packable)
        values: list[int] = []
        for axis, levels in self.levels.items():
            factors = tiles.get(axis, (self.extents[axis],) + (1,) * (len(levels) - 1))
            check_factors(axis, factors, levels, self.extents[axis])
            values += [int(f) for f in factors]
        values += [self._checked_calls(axis, tiles, calls.get(axis, 0)) for axis in self.pairable]
        values += [self._order_number(level, keep.get(level, self.workload.reads[0].tensor)) for level in ORDER_LEVELS]
        values += [int(tensor in chosen) for tensor in self.packable]
        values.append(int(parallel))
        schedule = self.schedule_of(values)
        if unroll and unroll != schedule.unroll:
            raise SpaceError(f"unroll is {unroll}, but the unroll factors of tiles multiply to {schedule.unroll}")
        return schedule

    def _checked_calls(self, axis: str, tiles: Mapping[str, Sequence[int]], calls: object) -> int:
        """Return the number of calls that cover the register factor of an axis; raise SpaceError if no pair has it."""
        num_calls = check_integer(f"calls[{axis!r}]", calls, 0, MAX_INTEGER)
        segment = int(tiles[axis][-1]) if axis in tiles else 1
        possible = pair_calls(segment, self._unit(axis), self.max_kernel)
        if num_calls and (int(tiles[axis][-2]) != 1 or num_calls not in possible):
            raise SpaceError(
                f"calls[{axis!r}] is {num_calls} for a segment of {segment}, expected one of "
                f"{possible or 'none: one microkernel fits'} and an l1 factor of 1"
            )
        return num_calls

    def _order_number(self, level: str, tensor: str) -> int:
        """Return the number of the order whose innermost loops keep a tensor in the cache."""
        accesses = {access.tensor: access for access in (*self.workload.reads, self.workload.write)}
        check_names(f"keep[{level!r}]", [tensor], tuple(accesses))
        axes = [axis for axis in self.axes if axis in self.orders[level][0]]
        return self.orders[level].index(_order_that_keeps(accesses[tensor], axes))


def _order_that_keeps(access: Access, axes: Sequence[str]) -> tuple[str, ...]:
    """Return the order of loops that keeps a tensor in the cache: loops that do not index it are innermost."""
    return (*(axis for axis in axes if access.uses(axis)), *(axis for axis in axes if not access.uses(axis)))
