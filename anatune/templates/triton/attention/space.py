"""The space of attention's tiles: block_m rows, block_n keys a step, warps, stages, parts of the keys.

A point is an integer vector in the order of `AttentionSpace.columns`. The space is small enough to be evaluated whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import OptionValue, Schedule
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.base.space import LegalityCheck, Part, Space, listed
from anatune.templates.base.values import check_names, checked_count, covering_factors
from anatune.templates.triton.attention.rules import LEAST_TILE, LEVELS, OPTIONS, check_supported, options_of
from anatune.templates.triton.rules import is_amd

__all__ = ["AttentionSpace"]

_MOST = {"m": 256, "n": 256}
_LEAST_PART = 128
"""Keys that a part has at least."""
_MOST_SPLIT = 128
_DEFAULTS = {"split_kv": 1, "num_warps": 4, "num_stages": 2}


class AttentionSpace(Space):
    """All schedules of one attention on one GPU.

    Guarantees: deterministic; safe to share between threads (immutable).

    Parameters
    ----------
    workload, hardware
        What is computed, where.
    is_legal : callable
        (num_points, num_columns) int64 -> (num_points,) bool: the hardware's limits, given by the model layer.

    Raises
    ------
    SpaceError
        As `check_supported`.
    """

    template = "triton"
    hardware: GpuSpec

    def __init__(self, workload: Workload, hardware: GpuSpec, is_legal: LegalityCheck) -> None:
        self.problem = check_supported(workload, hardware)
        super().__init__(workload, hardware, is_legal)
        self.axes = tuple(LEVELS)
        self.extents = {"m": self.problem.rows, "n": self.problem.seq_kv}
        self.levels = {axis: ("tile",) for axis in self.axes}
        self.choices = {name: self._values_of(name) for name in options_of(self.problem, hardware)}

    def _axis(self, axis: str) -> Part:
        sizes = [LEAST_TILE]
        while sizes[-1] < min(_MOST[axis], self.extents[axis]):
            sizes.append(2 * sizes[-1])
        return listed(axis, [f"{axis}.tile"], np.array(sizes, dtype=np.int64)[:, None], f"one of {tuple(sizes)}")

    def _values_of(self, option: str) -> tuple[int, ...]:
        """Return the values of an option that are tried."""
        amd = is_amd(self.hardware)
        values: dict[str, tuple[int, ...]] = {
            "split_kv": self._splits(),
            "num_warps": (1, 2, 4, 8) if amd else (2, 4, 8, 16),
            "num_stages": (1, 2) if amd else (1, 2, 3, 4, 5),
            "descriptors": (0, 1),
            "waves_per_eu": (0,),
        }
        return values[option]

    def _splits(self) -> tuple[int, ...]:
        """Return the parts of the keys that are tried: more than one only where tiles do not fill the device."""
        problem, seen = self.problem, min(self.problem.window or self.problem.seq_kv, self.problem.seq_kv)
        tiles = problem.groups * -(-problem.rows // 128)
        most = min(_MOST_SPLIT, seen // _LEAST_PART, 8 * self.hardware.compute.num_sms // tiles)
        return tuple(2**e for e in range(max(1, most).bit_length()))

    def schedule_of(self, point: Sequence[int] | NDArray[np.int64]) -> Schedule:
        """Decode one point (a vector in the order of `columns`) into a Schedule."""
        values = self._values(point)
        options = dict(zip(self.choices, values[len(self.axes) :], strict=True))
        return self.schedule(dict(zip(self.axes, values, strict=False)), **options)

    def point_of(self, schedule: Schedule) -> NDArray[np.int64]:
        """Return the integer vector of `schedule`, (len(columns),) int64.

        Raises
        ------
        SpaceError
            The schedule belongs to another workload or template.
        """
        self._check_own(schedule)
        sizes = [schedule.tiles[axis][-1] for axis in self.axes]
        return np.array([*sizes, *(schedule.options[name] for name in self.choices)], dtype=np.int64)

    def schedule(self, tiles: Mapping[str, int | Sequence[int]], **options: int) -> Schedule:
        """Build the schedule with these tiles; any powers of two are accepted, legal on the device or not.

        Parameters
        ----------
        tiles : mapping of str to int
            "m": block_m, "n": block_n; what is left out is 64.
        options : int
            Of `rules.options_of`; left out: split_kv=1, num_warps=4, num_stages=2, all others 0.

        Raises
        ------
        SpaceError
            Unknown index or option, a value out of range.
        """
        if not isinstance(tiles, Mapping):
            raise SpaceError("schedule: tiles is a mapping, such as tiles={'m': 128, 'n': 64}")
        check_names("tiles", tiles, self.axes, "index")
        check_names("options", options, tuple(self.choices), "option")
        complete = {}
        for axis in self.axes:
            size = tiles.get(axis, 64)
            factors = size if isinstance(size, Sequence) else (size,)
            complete[axis] = covering_factors(axis, factors, ("tile",), self.extents[axis])
        values: dict[str, OptionValue] = {}
        for name in self.choices:
            least, most = OPTIONS[name]
            values[name] = checked_count(name, options.get(name, _DEFAULTS.get(name, 0)), least, most)
        return Schedule(self.workload, self.hardware, self.template, complete, 0, {}, values).check()
