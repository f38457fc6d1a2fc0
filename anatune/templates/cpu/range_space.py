"""Schedules of the template "cpu" whose loops one program runs for every extent of an axis.

In such a schedule the whole extent of the ranged axis is in loops of one level: single iterations (any level), or the
calls of microkernels in an L1 tile. So the nests of other extents differ in numbers of iterations only. `schedule_at`
returns the schedule of such an extent. All that is predicted, checked and proven of that schedule holds for the
program.

Notation
--------
most : the largest number of elements along the axis that one call of a microkernel computes.
    It is the option "most.<axis>" of a schedule. Without the option it is the largest size of the calls of the
    schedule, limited by the number of registers. (The kernels of a pair are within that limit; a call without sums can
    exceed it.)
calls : ``ceil(extent / most)``. They share the extent evenly, so their sizes differ by at most one
(`cpu.microkernels.segment_shape`).
"""

from __future__ import annotations

import math

from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.core.workload.ranges import make_ranged_workload
from anatune.errors import SpaceError
from anatune.templates.cpu.microkernels import segment_shape
from anatune.templates.cpu.rules import cpu_of, pair_of, words_of

__all__ = ["calls_of", "check_axis", "most_elements", "runs_for_all", "schedule_at", "sizes_of_calls"]

_TEMPLATE = "cpu"


def check_axis(workload: Workload, axis: str) -> None:
    """Raise SpaceError unless addresses are independent of the extent of `axis`.

    The axis has to be spatial. In every tensor that uses it, it has to be the only index of the outermost dimension.
    """
    spatial = [spatial_axis.name for spatial_axis in workload.spatial_axes]
    if axis not in spatial:
        raise SpaceError(
            f"{workload.operator}: {axis!r:.40} has no range on CPUs, expected one of {', '.join(spatial)}"
        )
    for access in workload.tensors:
        if not access.uses(axis):
            continue
        first, *others = access.indices
        is_alone = len(first) == 1 and first[0].axis == axis and first[0].coefficient == 1 and access.offsets[0] == 0
        is_inner = any(term.axis == axis for terms in others for term in terms)
        if not is_alone or is_inner or access.shape[0] != workload.extents[axis]:
            raise SpaceError(
                f"{workload.operator}: {axis} has no range on CPUs: it is not the outermost dimension of "
                f"{access.tensor}, so that addresses depend on its extent"
            )


def most_elements(schedule: Schedule, axis: str) -> int:
    """Return the largest number of elements along `axis` that one call of a microkernel computes.

    Raises
    ------
    SpaceError
        One program cannot run other extents of `axis`: the template is another one, or the axis is vectorised, in a
        packed form that depends on its extent, or in loops of several levels.
    """
    if schedule.template != _TEMPLATE or "extension" in schedule.options:
        raise SpaceError(f"template {schedule.template} has no ranges, expected {_TEMPLATE} without an extension")
    check_axis(schedule.workload, axis)
    if schedule.options["simd_axis"] == axis:
        raise SpaceError(f"{axis} has no range: the schedule vectorises it")
    factors = schedule.tiles[axis]
    calls, size = calls_of(schedule, axis)
    if sum(factor > 1 for factor in (*factors[:-2], calls * size)) > 1:
        raise SpaceError(f"{axis} has no range: its tiles {factors} are loops of several levels, expected one")
    _check_packed(schedule, axis)
    most = schedule.options.get(f"most.{axis}", size)
    assert isinstance(most, int)
    return min(most, cpu_of(schedule).compute.num_vector_registers)


def runs_for_all(schedule: Schedule, axis: str) -> bool:
    """Return whether one program runs a schedule for all extents of an axis."""
    try:
        return most_elements(schedule, axis) > 0
    except SpaceError:
        return False


def _check_packed(schedule: Schedule, axis: str) -> None:
    """Raise SpaceError unless packed forms can grow with the extent: tile by tile of the ranged axis alone."""
    workload, ahead = schedule.workload, words_of(schedule, "packed_ahead")
    for tensor in words_of(schedule, "packed"):
        access = workload.tensor(tensor)
        others = [
            spatial_axis.name
            for spatial_axis in workload.spatial_axes
            if spatial_axis.name != axis and access.uses(spatial_axis.name)
        ]
        outside = any(factor > 1 for factor in schedule.tiles[axis][:-2])
        if access.uses(axis) and (tensor in ahead or others or outside):
            raise SpaceError(f"{axis} has no range: the packed form of {tensor} depends on its extent")


def calls_of(schedule: Schedule, axis: str) -> tuple[int, int]:
    """Return the number of microkernel calls along an axis in an L1 tile, and the elements of the largest one."""
    pair = pair_of(schedule, axis)
    if pair is None:
        calls, size = schedule.tiles[axis][-2:]
        return calls, size
    return pair[0] + pair[2], max(pair[1], pair[3])


def schedule_at(schedule: Schedule, axis: str, extent: int) -> Schedule:
    """Return the schedule of another extent that the program of `schedule` runs.

    Raises
    ------
    SpaceError
        One program cannot run other extents, see `most_elements`.
    WorkloadError
        The workload does not take such an extent.
    """
    most = most_elements(schedule, axis)
    factors = schedule.tiles[axis]
    options = {name: value for name, value in schedule.options.items() if name != f"pair.{axis}"}
    if extent == 1:  # orders leave out loops of one iteration
        orders = [name for name in options if name.startswith("order.")]
        options |= {name: tuple(word for word in words_of(schedule, name) if word != axis) for name in orders}
    level = next((place for place, factor in enumerate(factors[:-2]) if factor > 1), None)
    if level is not None:
        tiles = tuple(extent if place == level else 1 for place in range(len(factors)))
    else:
        options[f"most.{axis}"] = most
        calls = -(-extent // most)
        tiles = (*(1 for _ in factors[:-2]), calls, extent // calls)
        if extent % calls:
            tiles = (*tiles[:-2], 1, extent)
            options[f"pair.{axis}"] = segment_shape(extent, 1, calls)
    return Schedule(
        make_ranged_workload(schedule.workload, axis, (extent,)).largest,
        schedule.hardware,
        schedule.template,
        {**schedule.tiles, axis: tiles},
        schedule.unroll,
        schedule.vector,
        options,
    )


def sizes_of_calls(extent: int, most: int) -> tuple[int, ...]:
    """Return the sizes in elements of the calls that cover `extent`: one size, or two that differ by one."""
    calls = math.ceil(extent / most)
    return tuple(sorted({extent // calls, -(-extent // calls)}))
