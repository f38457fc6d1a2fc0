"""The space of block tiles: powers of two, and what else a Triton kernel of a product can be told.

A block of warps computes a tile of block_m x block_n results in steps of block_k. Tiles need not divide the extents:
the last blocks and the last step are masked. A point is an integer vector in the order of `TritonSpace.columns`: the
three sizes, then a value for each option of the device. The space is small enough to be evaluated whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from anatune.core.accuracy import STANDARD, checked_accuracy
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import OptionValue, Schedule
from anatune.core.workload.nest import DTYPE_BYTES, Workload
from anatune.errors import SpaceError
from anatune.templates.base.space import LegalityCheck, Part, Space, listed
from anatune.templates.base.values import check_names, checked_count, covering_factors
from anatune.templates.triton.rules import LEVELS, OPTIONS, check_options, check_supported, is_amd, options_of

__all__ = ["TritonSpace"]

LEAST_TILE, MOST_TILE = 16, 256
MOST_DEPTH = 256
"""Largest block_k, bytes of a row of operands: two lines of 128."""
TILE_RESULTS = 128 * 128
"""Results of a block that reads its operands seldom enough."""
LEAST_DEPTH = 256
"""Iterations of k that a part of a split sum has at least."""
MOST_SPLIT = 32
PROMOTED_STEPS = 128
"""Source: [DeepSeek-V3] Sec. 3.3.2, four wgmma of 32 steps."""
_DEFAULTS = {"group_m": 8, "split_k": 1, "num_warps": 4, "num_stages": 3}


class TritonSpace(Space):
    """All schedules of one workload on one GPU that Triton's kernels of products can have.

    Guarantees: deterministic; safe to share between threads (immutable).

    Parameters
    ----------
    workload, hardware
        What is computed, where.
    is_legal : callable
        (num_points, num_columns) int64 -> (num_points,) bool: the hardware's limits, given by the model layer.
    accuracy : {"standard", "relaxed"}
        What the arithmetic of its schedules may need.

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
        self.gemm = check_supported(workload, hardware)
        super().__init__(workload, hardware, is_legal)
        self.accuracy = checked_accuracy("accuracy", accuracy)
        self.axes = tuple(LEVELS)
        self.extents = {axis: self.gemm.extents[axis] for axis in self.axes}
        self.levels = {axis: ("tile",) for axis in self.axes}
        self.choices = {name: self._values_of(name) for name in options_of(workload, hardware)}

    def _axis(self, axis: str) -> Part:
        extent, most = self.extents[axis], MOST_TILE
        if axis == "k":
            most = MOST_DEPTH // min(2, DTYPE_BYTES[self.workload.dtype])
        sizes = [LEAST_TILE]
        while sizes[-1] < min(most, extent):
            sizes.append(2 * sizes[-1])
        return listed(axis, [f"{axis}.tile"], np.array(sizes, dtype=np.int64)[:, None], f"one of {tuple(sizes)}")

    def _values_of(self, option: str) -> tuple[int, ...]:
        """Return the values of an option that are tried."""
        amd = is_amd(self.hardware)
        if option == "split_k":
            return self._splits()
        values: dict[str, tuple[int, ...]] = {
            "group_m": (1, 4, 8, 16),
            "num_warps": (1, 2, 4, 8) if amd else (2, 4, 8, 16),
            "num_stages": (1, 2, 3) if amd else (1, 2, 3, 4, 5, 6),
            "descriptors": (0, 1),
            "persistent": (0, 1),
            "promote": (PROMOTED_STEPS,) if self.accuracy == STANDARD else (0, PROMOTED_STEPS),
            "warp_specialize": (0, 1),
            "waves_per_eu": (0,),
            "matrix_instr_nonkdim": (0,),
        }
        return values[option]

    def _splits(self) -> tuple[int, ...]:
        """Return the parts of k that are tried: more than one only where tiles do not fill the device."""
        results = self.gemm.extents["batch"] * self.extents["m"] * self.extents["n"]
        full = self.hardware.compute.num_sms * TILE_RESULTS
        most = min(MOST_SPLIT, self.extents["k"] // LEAST_DEPTH, 4 * full // max(results, 1))
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
            "m", "n", "k" -> block_m, block_n, block_k; what is left out is 64.
        options : int
            Of `rules.options_of`; left out: group_m=8, split_k=1, num_warps=4, num_stages=3, all others 0.

        Raises
        ------
        SpaceError
            Unknown index or option, a value out of range.
        """
        if not isinstance(tiles, Mapping):
            raise SpaceError("schedule: tiles is a mapping, such as tiles={'m': 128, 'n': 128, 'k': 64}")
        check_names("tiles", tiles, self.axes, "index")
        complete = {}
        for axis in self.axes:
            size = tiles.get(axis, 64)
            factors = size if isinstance(size, Sequence) else (size,)
            complete[axis] = covering_factors(axis, factors, ("tile",), self.extents[axis])
        check_options(self.workload, self.hardware, options)
        values: dict[str, OptionValue] = {}
        for name in self.choices:
            least, most = OPTIONS[name]
            values[name] = checked_count(name, options.get(name, _DEFAULTS.get(name, 0)), least, most)
        return Schedule(self.workload, self.hardware, self.template, complete, 0, {}, values).check()
