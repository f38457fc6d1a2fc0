"""The GPU tile space, SSSRRSRS: every perfect tiling of every loop, times unroll depth and fetch widths.

Extents whose divisors are poor have tiles that do not divide them, too (`guards`): the last one is guarded.

Loop order of the template (outer to inner), as in TVM's multi-level tiling: block, vthread, thread | k0 (stage both
operands in shared memory) | k1 | reg_outer | k2 | reg_inner. A spatial axis has five factors (block, vthread, thread,
reg_outer, reg_inner), a reduction axis three (k0, k1, k2).

A point is an integer vector: the factors axis by axis, then the unroll depth, then one fetch width a staged tensor,
then, where a device is not filled without, how the reduction is split (`split`).
Nothing is materialised beyond the factorisation tables of single axes; the size is exact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from anatune.core.accuracy import STANDARD, checked_accuracy
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.access import MAX_INTEGER
from anatune.core.workload.nest import DTYPE_BYTES, Workload
from anatune.errors import SpaceError
from anatune.templates.base.factor import divisors, factorisations
from anatune.templates.base.space import LegalityCheck, Part, Space
from anatune.templates.base.values import check_names, checked_count, checked_factors
from anatune.templates.cuda.guard_space import axis_tilings
from anatune.templates.cuda.guards import check_covering
from anatune.templates.cuda.rules import (
    MAX_FETCH_BYTES,
    REDUCTION_LEVELS,
    SPATIAL_LEVELS,
    levels_of,
    staged_tensors,
)
from anatune.templates.gpu.rules import check_formats
from anatune.templates.gpu.split import SPLIT, check_split, num_steps, num_tiles
from anatune.templates.gpu.split_space import split_of_point, split_options, split_part

__all__ = ["MAX_FETCH_BYTES", "REDUCTION_LEVELS", "SPATIAL_LEVELS", "UNROLL_DEPTHS", "GpuSpace", "staged_tensors"]

UNROLL_DEPTHS = (0, 16, 64, 512, 1024)
"""TVM's auto_unroll_max_step values on GPUs. Source: [Ansor] auto_scheduler sketch rules; MetaSchedule's defaults."""


class GpuSpace(Space):
    """All schedules of one workload on one GPU.

    Guarantees: deterministic; safe to share between threads (immutable).

    Parameters
    ----------
    workload, hardware
        What is computed, where.
    is_legal : callable
        (num_points, num_columns) int64 -> (num_points,) bool: the hardware's limits, given by the model layer.
    accuracy : {"standard", "relaxed"}
        What the arithmetic of its schedules may need: atomic sums are relaxed.
    plain : bool
        Perfect divisors only, and nothing split: what other tuners' kernels are made of.

    Raises
    ------
    SpaceError
        The workload's number formats are not for GPUs (`gpu.rules.check_formats`).
    """

    template = "cuda"
    hardware: GpuSpec

    def __init__(
        self,
        workload: Workload,
        hardware: GpuSpec,
        is_legal: LegalityCheck,
        accuracy: str = STANDARD,
        *,
        plain: bool = False,
    ) -> None:
        check_formats(workload)
        super().__init__(workload, hardware, is_legal)
        self.levels = levels_of(workload)
        self.staged: tuple[str, ...] = staged_tensors(workload)
        widest = MAX_FETCH_BYTES // DTYPE_BYTES[workload.dtype]
        self.fetch_widths: tuple[int, ...] = tuple(2**e for e in range(widest.bit_length()) if 2**e <= widest)
        self.unroll_depths: tuple[int, ...] = UNROLL_DEPTHS
        self.choices = {"unroll": self.unroll_depths, **{f"vector.{t}": self.fetch_widths for t in self.staged}}
        self.accuracy = checked_accuracy("accuracy", accuracy)
        self.plain = plain
        self.splits: Part | None = None if plain else split_part(workload, hardware, accuracy)
        """Splits of the reduction; None where the device is full without."""

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The lists that the space is the product of: axes, unroll depth, fetch widths, splits where there are any."""
        found = super().parts
        at = len(self.axes) + 1 + len(self.staged)
        return found if self.splits is None else (*found[:at], self.splits, *found[at:])

    def _axis(self, axis: str) -> Part:
        return super()._axis(axis) if self.plain else axis_tilings(self.workload, axis, self.levels[axis])

    def microkernel(self, axis: str) -> tuple[tuple[str, ...], ...]:
        """Return what a thread computes along an axis: its part of the results."""
        return (
            ((f"{axis}.vthread", f"{axis}.reg_outer", f"{axis}.reg_inner"),)
            if self.levels[axis] == SPATIAL_LEVELS
            else ()
        )

    def schedule_of(self, point: Sequence[int] | NDArray[np.int64]) -> Schedule:
        """Decode one point (a vector in the order of `columns`) into a Schedule."""
        return self.plain_schedule(self._values(point))

    def plain_schedule(self, values: Sequence[int]) -> Schedule:
        """Return the schedule of a point's tiles, unroll depth, fetch widths and split."""
        unroll, *rest = values[sum(map(len, self.levels.values())) :]
        widths, split = rest[: len(self.staged)], tuple(rest[len(self.staged) :])
        vector = dict(zip(self.staged, widths, strict=True))
        tiles = self._tiles(values)
        options = split_options(split, num_tiles(tiles, self.workload), self.hardware) if split else {}
        return Schedule(self.workload, self.hardware, self.template, tiles, unroll, vector, options)

    @cached_property
    def _first_columns(self) -> tuple[list[int], list[int]]:
        """The columns of the outermost factors of spatial axes, and of reduction axes."""
        spatial, reduction = self.workload.spatial_axes, self.workload.reduction_axes
        return (
            [self.columns.index(f"{axis.name}.{SPATIAL_LEVELS[0]}") for axis in spatial],
            [self.columns.index(f"{axis.name}.{REDUCTION_LEVELS[0]}") for axis in reduction],
        )

    def classes(self, macro: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return a macro choice with every number of consecutive results along each axis, and every fetch width.

        Parameters
        ----------
        macro : (num_columns,) int64
            A point whose results of a thread, and steps of a stage, are all in the innermost loops.
        """
        places, _ = self._first_columns
        inner = _products(tuple(divisors(int(macro[place + 4])) for place in places))
        widths = _products((self.fetch_widths,) * len(self.staged))
        found = np.tile(macro, (len(inner) * len(widths), 1))
        chunks = np.repeat(inner, len(widths), axis=0)
        for at, place in enumerate(places):
            found[:, place + 1] = macro[place + 4] // chunks[:, at]
            found[:, place + 4] = chunks[:, at]
        unroll = self.columns.index("unroll")
        found[:, unroll + 1 : unroll + 1 + len(self.staged)] = np.tile(widths, (len(inner), 1))
        return found

    def members(self, row: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return every point of a row of `classes`: each split of its innermost loops, and each unroll depth."""
        spatial, reduction = self._first_columns
        last = [*(place + 4 for place in spatial), *(place + 2 for place in reduction)]
        tables = [factorisations(int(row[place]), 2) for place in last]
        index = _grid((*(len(table) for table in tables), len(self.unroll_depths)))
        found = np.tile(row, (len(index), 1))
        for at, (table, place) in enumerate(zip(tables, last, strict=True)):
            found[:, place - 1 : place + 1] = table[index[:, at]]
        found[:, self.columns.index("unroll")] = np.array(self.unroll_depths)[index[:, -1]]
        return found

    def point_of(self, schedule: Schedule) -> NDArray[np.int64]:
        """Return the integer vector of `schedule`, (len(columns),) int64.

        Raises
        ------
        SpaceError
            The schedule belongs to another workload or template, or its factors or split do not fit the space.
        """
        self._check_own(schedule)
        tiles = num_tiles(schedule.tiles, self.workload)
        return np.array(
            [
                *(factor for axis in self.axes for factor in schedule.tiles[axis]),
                schedule.unroll,
                *(schedule.vector.get(tensor, 1) for tensor in self.staged),
                *split_of_point(schedule, tiles, listed=self.splits is not None),
            ]
        )

    def schedule(
        self,
        tiles: Mapping[str, Sequence[int]],
        unroll: int = 0,
        vector: Mapping[str, int] | None = None,
        *,
        split: Mapping[str, int] | None = None,
    ) -> Schedule:
        """Build the schedule with these factors; whatever divides or covers the extents, legal on the device or not.

        Parameters
        ----------
        tiles : mapping of str to sequence of int
            Axis -> (block, vthread, thread, reg_outer, reg_inner) or (k0, k1, k2). An axis that is left out keeps
            its whole extent in the outermost loop.
        unroll : int
            Largest unrolled body in statements, >= 0; any value (other tuners use other lists).
        vector : mapping of str to int, optional
            Staged tensor -> fetch width in elements, 1 where it is left out.
        split : mapping of str to int, optional
            Options of a split reduction: "split", "whole", "atomic" (`gpu.split`); nothing is split without.

        Raises
        ------
        SpaceError
            Unknown axis or tensor, wrong number of factors, a product that neither is the extent nor just covers it.
        """
        if not isinstance(tiles, Mapping) or not (vector is None or isinstance(vector, Mapping)):
            raise SpaceError(
                "schedule: tiles and vector are mappings, such as tiles={'i': (8, 2, 16, 2, 1)}, vector={'A': 4}"
            )
        check_names("tiles", tiles, self.axes, "axis")
        complete: dict[str, tuple[int, ...]] = {}
        for axis in self.axes:
            levels = self.levels[axis]
            factors = tiles.get(axis, (self.extents[axis],) + (1,) * (len(levels) - 1))
            complete[axis] = checked_factors(axis, factors, levels)
            check_covering(self.workload, axis, complete[axis], levels)
        checked_count("unroll", unroll, 0, MAX_INTEGER)
        check_names("vector", vector or {}, self.staged, "tensor")
        widths = dict.fromkeys(self.staged, 1)
        for tensor, width in (vector or {}).items():
            widths[tensor] = checked_count(f"vector[{tensor!r}]", width, 1, MAX_INTEGER)
        options = dict(split or {})
        check_names("split", options, SPLIT, "option")
        check_split(self.workload, options, num_tiles(complete, self.workload), num_steps(complete, self.workload))
        return Schedule(self.workload, self.hardware, self.template, complete, int(unroll), widths, options)


@lru_cache(maxsize=4096)
def _products(lists: tuple[tuple[int, ...], ...]) -> NDArray[np.int64]:
    """Return all choices of one number of each list, the last one fastest."""
    choices = list(itertools.product(*lists))
    return np.array(choices, dtype=np.int64).reshape(len(choices), len(lists))


@lru_cache(maxsize=4096)
def _grid(shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return all places of an array of some shape, the last coordinate fastest."""
    return np.stack(np.unravel_index(np.arange(math.prod(shape)), shape), axis=1)
