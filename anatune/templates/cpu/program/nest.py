"""The loops of a CPU schedule as numbers: steps, extents, and the range that each microkernel call covers.

Notation
--------
loop : one level of one axis: `extent` iterations that each advance the axis by `step` elements.
part : consecutive microkernel calls of one size along one axis. A pair of microkernels has two parts, and a last vector
that is not full has its own.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from anatune.core.frozen import EMPTY
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Access
from anatune.errors import SpaceError
from anatune.templates.cpu.dot import DotGroup, copied_dtypes, dot_group
from anatune.templates.cpu.rules import ORDER_LEVELS, cpu_of, lanes_of, levels_of, pair_of, words_of

__all__ = ["CallGroup", "LoopNest", "NestLoop", "nest_of", "program_key"]


class NestLoop(NamedTuple):
    """A loop of `extent` iterations, each of which advances `axis` by `step` elements."""

    axis: str
    level: str
    extent: int
    step: int


@dataclass(frozen=True)
class CallGroup:
    """A group of `count` calls of `size` elements each, from element `start` of a segment."""

    start: int
    count: int
    size: int


class LoopNest(NamedTuple):
    """The loops around and inside the microkernels of one schedule.

    Attributes
    ----------
    cache : tuple of NestLoop
        Loops of the levels outer, l3 and l2, outer to inner, without those of one iteration.
    num_outer : int
        How many of them are "outer" loops, which are distributed over the cores if the schedule is parallel.
    calls : tuple of str
        Spatial axes in the order of their loops of microkernel calls, outer to inner.
    parts : dict of str to tuple of CallGroup
        Spatial axis -> parts that the calls of one l2 tile cover.
    inner : tuple of NestLoop
        Reduction loops inside the microkernel, outer to inner, without those of one iteration.
    unroll : tuple of NestLoop
        Unrolled reduction loops of the microkernel (level "unroll"), outer to inner.
    simd_axis, lanes
        The vectorised axis and the elements of a vector.
    simd_reduction : bool
        True if the SIMD axis is summed over: accumulators hold partial sums of its lanes.
    tail : int
        The extent of the SIMD axis in the microkernel, if the axis is summed over and vectors do not divide it; else 0.
        Lanes past it are masked.
    group : DotGroup, optional
        The groups of products; the unrolled loop of the axis of the groups then steps from group to group.
    copied_dtypes : mapping of str to str
        Operand that is read from a copy made in each run -> dtype of the copy (`cpu.dot.copied_dtypes`).
    """

    cache: tuple[NestLoop, ...]
    num_outer: int
    calls: tuple[str, ...]
    parts: dict[str, tuple[CallGroup, ...]]
    inner: tuple[NestLoop, ...]
    unroll: tuple[NestLoop, ...]
    simd_axis: str
    lanes: int
    simd_reduction: bool
    tail: int
    group: DotGroup | None = None
    copied_dtypes: Mapping[str, str] = EMPTY

    @property
    def is_partial(self) -> bool:
        """True if sums are completed in several calls: a reduction axis has a loop outside the microkernel."""
        spatial = set(self.parts)
        return any(loop.axis not in spatial for loop in self.cache)

    def flips(self, access: Access) -> bool:
        """Return whether an operand is read with its highest bit flipped; copies hold it flipped."""
        return self.group is not None and self.group.flips and access.tensor == self.group.broadcast

    def segment(self, axis: str) -> int:
        """Return the elements of one register tile, or of all calls of a pair."""
        parts = self.parts[axis]
        return parts[0].size if len(parts) == 1 else sum(part.count * part.size for part in parts)


def _complete_order(order: tuple[str, ...], axes: tuple[str, ...]) -> tuple[str, ...]:
    """Return `order` with the axes that it leaves out in front; their loops have one iteration."""
    return (*(axis for axis in axes if axis not in order), *(axis for axis in order if axis in axes))


def _parts(schedule: Schedule, axis: str, lanes: int, is_simd: bool, calls: int, size: int) -> tuple[CallGroup, ...]:
    pair = pair_of(schedule, axis)
    if pair is None:
        return (CallGroup(0, calls, size),)
    unit = lanes if is_simd else 1
    first, small, second, large = pair
    parts = [CallGroup(0, first, small * unit)] if first else []
    if second:
        parts.append(CallGroup(first * small * unit, second, large * unit))
    over = sum(part.count * part.size for part in parts) - size
    if over:
        last = parts.pop()
        end = last.start + (last.count - 1) * last.size
        if last.count > 1:
            parts.append(replace(last, count=last.count - 1))
        parts.append(CallGroup(end, 1, last.size - over))
    return tuple(parts)


def nest_of(schedule: Schedule) -> LoopNest:
    """Return the loops of a checked schedule of the CPU template."""
    workload = schedule.workload
    lanes = lanes_of(schedule)
    simd = str(schedule.options["simd_axis"])
    spatial = tuple(axis.name for axis in workload.spatial_axes)
    reductions = tuple(axis.name for axis in workload.reduction_axes)
    factors = {
        axis: dict(zip(levels, schedule.tiles[axis], strict=True)) for axis, levels in levels_of(workload).items()
    }

    def step(axis: str, level: str) -> int:
        levels = list(factors[axis])
        return math.prod(factors[axis][inner] for inner in levels[levels.index(level) + 1 :])

    cache: list[NestLoop] = []
    num_outer = 0
    for level in ORDER_LEVELS[:3]:
        axes = tuple(axis for axis in factors if level in factors[axis])
        for axis in _complete_order(words_of(schedule, f"order.{level}"), axes):
            if factors[axis][level] > 1:
                cache.append(NestLoop(axis, level, factors[axis][level], step(axis, level)))
        if level == "outer":
            num_outer = len(cache)
    parts = {
        axis: _parts(schedule, axis, lanes, axis == simd, factors[axis]["l1"], factors[axis]["register"])
        for axis in spatial
    }
    order = _complete_order(words_of(schedule, "order.reduction"), reductions)
    inner = [NestLoop(a, "l1", factors[a]["l1"], step(a, "l1")) for a in order]
    group = dot_group(workload, cpu_of(schedule), simd, extension=str(schedule.options.get("extension", "")))
    if group is not None:
        group = group._replace(unroll=factors[group.axis]["unroll"])
    unroll = [
        NestLoop(a, "unroll", -(-factors[a]["unroll"] // group.size), group.size)
        if group is not None and a == group.axis
        else NestLoop(a, "unroll", factors[a]["unroll"], 1)
        for a in order
        if a != simd
    ]
    tail = 0
    if simd in reductions:
        within = factors[simd]["l1"] * factors[simd]["unroll"]
        vectors = -(-factors[simd]["unroll"] // lanes)
        if f"pair.{simd}" in schedule.options or factors[simd]["unroll"] % lanes:
            tail = within if within % lanes else 0
            vectors = 1
        inner = [loop for loop in inner if loop.axis != simd]
        inner.append(NestLoop(simd, "l1", -(-within // (vectors * lanes)), vectors * lanes))
        unroll.append(NestLoop(simd, "unroll", vectors, lanes))
    return LoopNest(
        cache=tuple(cache),
        num_outer=num_outer,
        calls=_complete_order(words_of(schedule, "order.l1"), spatial),
        parts=parts,
        inner=tuple(loop for loop in inner if loop.extent > 1),
        unroll=tuple(loop for loop in unroll if loop.extent > 1),
        simd_axis=simd,
        lanes=lanes,
        simd_reduction=simd in reductions,
        tail=tail,
        group=group,
        copied_dtypes=copied_dtypes(workload, simd, group, words_of(schedule, "packed_ahead")),
    )


def program_key(schedule: Schedule) -> Hashable:
    """Return a key of all that the generated program depends on, except the workload.

    It is the key of the schedule if the schedule has no program. The text of the program would also be a key, but takes
    10 ms to write.
    """
    try:
        nest = nest_of(schedule.check())
    except SpaceError:
        return schedule.key
    parallel = bool(schedule.options.get("parallel", False))
    return (
        tuple((loop.axis, loop.extent, loop.step) for loop in nest.cache),
        nest.num_outer if parallel else None,
        tuple(axis for axis in nest.calls if len(nest.parts[axis]) > 1 or nest.parts[axis][0].count > 1),
        tuple(nest.parts.items()),
        tuple((loop.axis, loop.extent, loop.step) for loop in nest.inner),
        tuple((loop.axis, loop.extent, loop.step) for loop in nest.unroll),
        (nest.simd_axis, nest.lanes, nest.simd_reduction, nest.tail, nest.group),
        (schedule.options.get("packed"), schedule.options.get("packed_ahead")),
    )
