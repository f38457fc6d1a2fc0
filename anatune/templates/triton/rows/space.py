"""The space of tiles of rows: powers of two, and warps. It is small enough to be evaluated whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from anatune.core.accuracy import STANDARD, checked_accuracy
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.base.space import LegalityCheck, Part, Space, listed
from anatune.templates.base.values import check_names, checked_count, covering_factors
from anatune.templates.triton.rows.rules import LEVELS, OPTIONS, check_supported

__all__ = ["RowSpace"]

_MOST_ROWS = 64
_MOST_COLS = 1 << 15
"""Largest tiles that are tried: 32 warps hold so many columns of a row."""
_LEAST_COLS = 128
_DEFAULT_WARPS = 4


class RowSpace(Space):
    """All schedules of one workload on rows that are tried.

    Guarantees: deterministic; safe to share between threads (immutable).

    Raises
    ------
    SpaceError
        As `check_supported`.
    """

    template = "triton"
    hardware: GpuSpec

    def __init__(
        self, workload: Workload, hardware: GpuSpec, is_legal: LegalityCheck, accuracy: str = STANDARD
    ) -> None:
        self.rows = check_supported(workload, hardware)
        super().__init__(workload, hardware, is_legal)
        self.accuracy = checked_accuracy("accuracy", accuracy)
        self.axes = tuple(LEVELS)
        self.extents = {"rows": self.rows.rows, "cols": self.rows.cols}
        self.levels = {axis: ("tile",) for axis in self.axes}
        most = hardware.compute.max_threads_per_block // hardware.compute.warp_size
        self.choices = {"num_warps": tuple(2**e for e in range(min(32, most).bit_length()))}

    def _axis(self, axis: str) -> Part:
        covering = 1 << (self.extents[axis] - 1).bit_length()
        least, most = (1, _MOST_ROWS) if axis == "rows" else (min(_LEAST_COLS, covering), _MOST_COLS)
        sizes = [least]
        while sizes[-1] < min(most, covering):
            sizes.append(2 * sizes[-1])
        return listed(axis, [f"{axis}.tile"], np.array(sizes, dtype=np.int64)[:, None], f"one of {tuple(sizes)}")

    def schedule_of(self, point: Sequence[int] | NDArray[np.int64]) -> Schedule:
        """Decode one point (a vector in the order of `columns`) into a Schedule."""
        rows, cols, warps = self._values(point)
        return self.schedule({"rows": rows, "cols": cols}, num_warps=warps)

    def point_of(self, schedule: Schedule) -> NDArray[np.int64]:
        """Return the integer vector of `schedule`, (len(columns),) int64.

        Raises
        ------
        SpaceError
            The schedule belongs to another workload or template.
        """
        self._check_own(schedule)
        sizes = [schedule.tiles[axis][-1] for axis in self.axes]
        return np.array([*sizes, schedule.options["num_warps"]], dtype=np.int64)

    def schedule(self, tiles: Mapping[str, int | Sequence[int]], num_warps: int = _DEFAULT_WARPS) -> Schedule:
        """Build the schedule with these tiles; any powers of two are accepted, legal on the device or not.

        Parameters
        ----------
        tiles : mapping of str to int
            "rows", "cols" -> size of the tile; left out: one row, all columns.

        Raises
        ------
        SpaceError
            Unknown index, a value out of range.
        """
        if not isinstance(tiles, Mapping):
            raise SpaceError("schedule: tiles is a mapping, such as tiles={'rows': 1, 'cols': 4096}")
        check_names("tiles", tiles, self.axes, "index")
        complete = {}
        for axis, default in (("rows", 1), ("cols", 1 << (self.rows.cols - 1).bit_length())):
            size = tiles.get(axis, default)
            factors = size if isinstance(size, Sequence) else (size,)
            complete[axis] = covering_factors(axis, factors, ("tile",), self.extents[axis])
        warps = checked_count("num_warps", num_warps, *OPTIONS["num_warps"])
        return Schedule(self.workload, self.hardware, self.template, complete, 0, {}, {"num_warps": warps}).check()
