"""The space of the template "cuda", SSSRRSRS: all tilings of all axes, times unroll depths and fetch widths.

Tilings are perfect divisors. Extents with poor divisors have tiles in addition that do not divide them (`guards`); the
last of these tiles is guarded.

The loop order, outer to inner, is that of TVM's multi-level tiling: block, vthread, thread | k0 (stage both operands in
shared memory) | k1 | reg_outer | k2 | reg_inner. A spatial axis has five factors (block, vthread, thread, reg_outer,
reg_inner), a reduction axis three (k0, k1, k2).

A point is an integer vector: the factors axis by axis, the unroll depth, a fetch width for each staged tensor, and for
a workload that would not fill the device the split of the reduction (`gpu.split_space`). Only the tables of single axes
are built; the size of the space is exact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from anatune.arguments import check_integer
from anatune.core.accuracy import STANDARD, validate_accuracy
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.access import MAX_INTEGER
from anatune.core.workload.nest import DTYPE_BYTES, Workload
from anatune.errors import SpaceError
from anatune.templates.base.factor import divisors, factorisations
from anatune.templates.base.space import LegalityCheck, Space, SpacePart
from anatune.templates.base.values import check_names, parse_factors
from anatune.templates.cuda.guard_space import axis_tilings
from anatune.templates.cuda.guards import check_covering
from anatune.templates.cuda.rules import MAX_FETCH_BYTES, REDUCTION_LEVELS, SPATIAL_LEVELS, levels_of, staged_tensors
from anatune.templates.gpu.rules import check_formats
from anatune.templates.gpu.split import SPLIT, check_split, num_steps, num_tiles
from anatune.templates.gpu.split_space import split_of_point, split_options, split_part

__all__ = ["MAX_FETCH_BYTES", "REDUCTION_LEVELS", "SPATIAL_LEVELS", "UNROLL_DEPTHS", "GpuSpace", "staged_tensors"]

UNROLL_DEPTHS = (0, 16, 64, 512, 1024)
"""TVM's auto_unroll_max_step values on GPUs. Source: [Ansor] auto_scheduler sketch rules; MetaSchedule's defaults."""


class GpuSpace(Space):
    """All schedules of the template "cuda" for one workload on one GPU.

    Spaces are deterministic and immutable, so that threads may share them.

    Parameters
    ----------
    workload, hardware
        Workload and device.
    is_legal : callable
        Test of the hardware's limits, which the model supplies: (num_points, num_columns) int64 -> (num_points,) bool.
    accuracy : {"standard", "relaxed"}
        Accuracy of the schedules' arithmetic. Atomic sums need "relaxed".
    plain : bool
        Perfect divisors only and no splits, as in the kernels of other tuners.

    Raises
    ------
    SpaceError
        The workload's number formats have no kernel in CUDA C (`gpu.rules.check_formats`).
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
        self.accuracy = validate_accuracy("accuracy", accuracy)
        self.plain = plain
        self.splits: SpacePart | None = None if plain else split_part(workload, hardware, accuracy)
        """Splits of the reduction, or None if the device is full without."""

    @cached_property
    def parts(self) -> tuple[SpacePart, ...]:
        """Factors of the space, in the order of the columns: axes, unroll depth, fetch widths, splits (if any)."""
        parts = super().parts
        position = len(self.axes) + 1 + len(self.staged)
        return parts if self.splits is None else (*parts[:position], self.splits, *parts[position:])

    def _axis(self, axis: str) -> SpacePart:
        return super()._axis(axis) if self.plain else axis_tilings(self.workload, axis, self.levels[axis])

    def microkernel(self, axis: str) -> tuple[tuple[str, ...], ...]:
        """Return the columns whose product is the results of a thread along an axis; () for a reduction axis."""
        return (
            ((f"{axis}.vthread", f"{axis}.reg_outer", f"{axis}.reg_inner"),)
            if self.levels[axis] == SPATIAL_LEVELS
            else ()
        )

    def schedule_of(self, point: Sequence[int] | NDArray[np.int64]) -> Schedule:
        """Return the schedule of one point (a vector in the order of `columns`)."""
        return self.cuda_schedule(self._values(point))

    def cuda_schedule(self, values: Sequence[int]) -> Schedule:
        """Return the schedule of a point's tiles, unroll depth, fetch widths and split. Other columns are left out."""
        unroll, *widths_and_split = values[sum(map(len, self.levels.values())) :]
        widths, split = widths_and_split[: len(self.staged)], tuple(widths_and_split[len(self.staged) :])
        vector = dict(zip(self.staged, widths, strict=True))
        tiles = self._tiles(values)
        options = split_options(split, num_tiles(tiles, self.workload), self.hardware) if split else {}
        return Schedule(self.workload, self.hardware, self.template, tiles, unroll, vector, options)

    @cached_property
    def _first_columns(self) -> tuple[list[int], list[int]]:
        """The columns of the outermost factors, those of spatial axes and those of reduction axes."""
        spatial, reduction = self.workload.spatial_axes, self.workload.reduction_axes
        return (
            [self.columns.index(f"{axis.name}.{SPATIAL_LEVELS[0]}") for axis in spatial],
            [self.columns.index(f"{axis.name}.{REDUCTION_LEVELS[0]}") for axis in reduction],
        )

    def classes(self, macro: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the classes of a macro choice: it with all numbers of consecutive results, and with all fetch widths.

        Parameters
        ----------
        macro : (num_columns,) int64
            A point that has all results of a thread in reg_inner and all iterations of a staging step in k2.
        """
        first_columns, _ = self._first_columns
        inner = _products(tuple(divisors(int(macro[place + 4])) for place in first_columns))
        widths = _products((self.fetch_widths,) * len(self.staged))
        rows = np.tile(macro, (len(inner) * len(widths), 1))
        consecutive = np.repeat(inner, len(widths), axis=0)
        for number, column in enumerate(first_columns):
            rows[:, column + 1] = macro[column + 4] // consecutive[:, number]
            rows[:, column + 4] = consecutive[:, number]
        unroll = self.columns.index("unroll")
        rows[:, unroll + 1 : unroll + 1 + len(self.staged)] = np.tile(widths, (len(inner), 1))
        return rows

    def members(self, row: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return every point of a class, a row of `classes`: all splits of its innermost loops, all unroll depths."""
        spatial, reduction = self._first_columns
        last = [*(place + 4 for place in spatial), *(place + 2 for place in reduction)]
        tables = [factorisations(int(row[place]), 2) for place in last]
        index = _grid((*(len(table) for table in tables), len(self.unroll_depths)))
        points = np.tile(row, (len(index), 1))
        for number, (table, column) in enumerate(zip(tables, last, strict=True)):
            points[:, column - 1 : column + 1] = table[index[:, number]]
        points[:, self.columns.index("unroll")] = np.array(self.unroll_depths)[index[:, -1]]
        return points

    def point_of(self, schedule: Schedule) -> NDArray[np.int64]:
        """Return the integer vector of `schedule`, (len(columns),) int64.

        Raises
        ------
        SpaceError
            The schedule is for another workload or template, or its factors or its split are not in the space.
        """
        self._check_membership(schedule)
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
        """Return the schedule with these factors, which divide or cover the extents. The device may not allow it.

        Parameters
        ----------
        tiles : mapping of str to sequence of int
            Axis -> (block, vthread, thread, reg_outer, reg_inner) or (k0, k1, k2). An axis that is missing runs in its
            outermost loop only.
        unroll : int
            Largest unrolled body in statements, at least 0. It need not be one of `UNROLL_DEPTHS`.
        vector : mapping of str to int, optional
            Staged tensor -> fetch width in elements, 1 for a tensor that is missing.
        split : mapping of str to int, optional
            Options of a split reduction: "split", "whole", "atomic" (`gpu.split`). Without them nothing is split.

        Raises
        ------
        SpaceError
            An axis or tensor is unknown, the number of factors is wrong, or their product does not divide or cover the
            extent.
        """
        if not isinstance(tiles, Mapping) or not (vector is None or isinstance(vector, Mapping)):
            raise SpaceError(
                "schedule: tiles and vector must be mappings, such as tiles={'i': (8, 2, 16, 2, 1)}, vector={'A': 4}"
            )
        check_names("tiles", tiles, self.axes, "axis")
        complete: dict[str, tuple[int, ...]] = {}
        for axis in self.axes:
            levels = self.levels[axis]
            factors = tiles.get(axis, (self.extents[axis],) + (1,) * (len(levels) - 1))
            complete[axis] = parse_factors(axis, factors, levels)
            check_covering(self.workload, axis, complete[axis], levels)
        check_integer("unroll", unroll, 0, MAX_INTEGER)
        check_names("vector", vector or {}, self.staged, "tensor")
        widths = dict.fromkeys(self.staged, 1)
        for tensor, width in (vector or {}).items():
            widths[tensor] = check_integer(f"vector[{tensor!r}]", width, 1, MAX_INTEGER)
        options = dict(split or {})
        check_names("split", options, SPLIT, "option")
        check_split(self.workload, options, num_tiles(complete, self.workload), num_steps(complete, self.workload))
        return Schedule(self.workload, self.hardware, self.template, complete, int(unroll), widths, options)


@lru_cache(maxsize=4096)
def _products(lists: tuple[tuple[int, ...], ...]) -> NDArray[np.int64]:
    """Return all combinations of a number from each list, where the last one changes fastest."""
    choices = list(itertools.product(*lists))
    return np.array(choices, dtype=np.int64).reshape(len(choices), len(lists))


@lru_cache(maxsize=4096)
def _grid(shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the indices of all elements of an array, where the last coordinate changes fastest."""
    return np.stack(np.unravel_index(np.arange(math.prod(shape)), shape), axis=1)
