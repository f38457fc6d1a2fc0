"""The spaces of the template "triton": block tiles that are powers of two, and the options of a Triton kernel.

A block of warps computes a tile of block_m x block_n results in steps of block_k. Tiles need not divide the extents:
the last blocks and the last step are masked. A point is an integer vector in the order of `TritonSpace.columns`: the
three sizes, then a value for each option of the device. The space is small enough to be evaluated whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from anatune.arguments import check_integer
from anatune.core.accuracy import STANDARD, validate_accuracy
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import OptionValue, Schedule
from anatune.core.workload.nest import DTYPE_BYTES, Workload
from anatune.templates.base.space import LegalityCheck, Space, SpacePart, table_part
from anatune.templates.base.values import check_names
from anatune.templates.triton.rules import (
    LEAST_TILE,
    LEVELS,
    OPTIONS,
    check_options,
    check_supported,
    is_amd,
    options_of,
)

__all__ = ["MOST_DEPTH", "MOST_TILE", "TileSpace", "TritonSpace", "splits"]

MOST_TILE = 256
MOST_DEPTH = 256
"""Largest block_k in bytes of a row of operands: two lines of 128."""
TILE_RESULTS = 128 * 128
"""Results of a block that is large enough to reuse its operands well."""
LEAST_DEPTH = 256
"""Fewest iterations of k in a part of a split sum."""
MOST_SPLIT = 32
PROMOTED_STEPS = 128
"""Default of "promote". Source: [DeepSeek-V3] Sec. 3.3.2, four wgmma of 32 steps."""


def splits(results: int, depth: int, hardware: GpuSpec) -> tuple[int, ...]:
    """Return the values of split_k in the space. There are several only if tiles do not fill the device."""
    full = hardware.compute.num_sms * TILE_RESULTS
    most = min(MOST_SPLIT, depth // LEAST_DEPTH, 4 * full // max(results, 1))
    return tuple(2**e for e in range(max(1, most).bit_length()))


class TileSpace(Space):
    """The base class of the spaces of all families: a power of two for each index, and a value for each option.

    The constructor of a family's space passes the extents of its axes and sets `choices`. Spaces are deterministic and
    immutable, so that threads may share them.

    Attributes
    ----------
    limits : mapping of str to (int, int)
        Option -> least and largest value.
    defaults : mapping of str to int
        Option -> its value if it is left out; 0 for all other options.
    example : str
        Tiles as a caller writes them, for messages.
    """

    template = "triton"
    hardware: GpuSpec
    limits: ClassVar[Mapping[str, tuple[int, int]]]
    defaults: ClassVar[Mapping[str, int]]
    example: ClassVar[str]

    def __init__(
        self, workload: Workload, hardware: GpuSpec, is_legal: LegalityCheck, extents: Mapping[str, int]
    ) -> None:
        super().__init__(workload, hardware, is_legal)
        self.axes, self.extents = tuple(extents), dict(extents)
        self.levels = {axis: ("tile",) for axis in self.axes}

    def _powers(self, axis: str, least: int, most: int) -> SpacePart:
        """Return the powers of two from `least` up to the first that is at least `most`."""
        sizes = [least]
        while sizes[-1] < most:
            sizes.append(2 * sizes[-1])
        return table_part(axis, [f"{axis}.tile"], np.array(sizes, dtype=np.int64)[:, None], f"one of {tuple(sizes)}")

    def columns_of(self, points: NDArray[np.int64], names: Collection[str]) -> dict[str, NDArray[np.int64]]:
        """Return name -> column of points (num_points, len(columns)), for "block_..." and the options in `names`."""
        columns = dict(zip(self.columns, np.ascontiguousarray(np.atleast_2d(points).T), strict=True))
        sizes = {f"block_{axis}": columns[f"{axis}.tile"] for axis in self.axes}
        return sizes | {name: column for name, column in columns.items() if name in names}

    def schedule_of(self, point: Sequence[int] | NDArray[np.int64]) -> Schedule:
        """Return the schedule of one point (a vector in the order of `columns`)."""
        values = self._values(point)
        options = dict(zip(self.choices, values[len(self.axes) :], strict=True))
        return self.schedule(dict(zip(self.axes, values, strict=False)), **options)

    def point_of(self, schedule: Schedule) -> NDArray[np.int64]:
        """Return the integer vector of `schedule`, (len(columns),) int64.

        Raises
        ------
        SpaceError
            The schedule is for another workload or template.
        """
        self._check_membership(schedule)
        sizes = [schedule.tiles[axis][-1] for axis in self.axes]
        return np.array([*sizes, *(schedule.options[name] for name in self.choices)], dtype=np.int64)

    def _values_of(self, option: str) -> tuple[int, ...]:
        """Return the values of an option in the space."""
        amd = is_amd(self.hardware)
        values: dict[str, tuple[int, ...]] = {
            "num_warps": (1, 2, 4, 8) if amd else (2, 4, 8, 16),
            "num_stages": (1, 2, 3) if amd else (1, 2, 3, 4, 5, 6),
            "descriptors": (0, 1),
            "waves_per_eu": (0,),
            "matrix_instr_nonkdim": (0,),
        }
        return values[option]

    def _default_tile(self, axis: str) -> int:
        return 64

    def _check_options(self, options: Mapping[str, int]) -> None:
        check_names("options", options, tuple(self.choices), "option")

    def schedule(self, tiles: Mapping[str, int | Sequence[int]], **options: int) -> Schedule:
        """Return the schedule with these tiles, which may be any powers of two. The device may not allow it.

        Parameters
        ----------
        tiles : mapping of str to int
            Index of `axes` -> size of a block's tile. An index that is left out has 64 (for rows: one row, all
            columns).
        options : int
            Options of `choices`. Those that are left out have the values of `defaults`.

        Raises
        ------
        SpaceError
            An index or option is unknown, or a value is out of range.
        """
        if isinstance(tiles, Mapping):
            sizes = {**{axis: self._default_tile(axis) for axis in self.axes}, **tiles}
            tiles = {axis: size if isinstance(size, Sequence) else (size,) for axis, size in sizes.items()}
        complete = self._covering(tiles, f"tiles={self.example}", self.extents)  # type: ignore[arg-type]
        self._check_options(options)
        values: dict[str, OptionValue] = {
            name: check_integer(name, options.get(name, self.defaults.get(name, 0)), *self.limits[name])
            for name in self.choices
        }
        return Schedule(self.workload, self.hardware, self.template, complete, 0, {}, values).check()


class TritonSpace(TileSpace):
    """All schedules of products for one workload on one GPU.

    Spaces are deterministic and immutable, so that threads may share them.

    Parameters
    ----------
    workload, hardware
        Workload and device.
    is_legal : callable
        Test of the hardware's limits, which the model supplies: (num_points, num_columns) int64 -> (num_points,) bool.
    accuracy : {"standard", "relaxed"}
        Accuracy of the schedules' arithmetic.

    Raises
    ------
    SpaceError
        The errors of `check_supported`.
    """

    limits = OPTIONS
    defaults = MappingProxyType({"group_m": 8, "split_k": 1, "num_warps": 4, "num_stages": 3})
    example = "{'m': 128, 'n': 128, 'k': 64}"

    def __init__(
        self, workload: Workload, hardware: GpuSpec, is_legal: LegalityCheck, accuracy: str = STANDARD
    ) -> None:
        self.gemm = check_supported(workload, hardware)
        super().__init__(workload, hardware, is_legal, {axis: self.gemm.extents[axis] for axis in LEVELS})
        self.accuracy = validate_accuracy("accuracy", accuracy)
        self.choices = {name: self._values_of(name) for name in options_of(workload, hardware)}

    def _axis(self, axis: str) -> SpacePart:
        extent, most = self.extents[axis], MOST_TILE
        if axis == "k":
            most = MOST_DEPTH // min(2, DTYPE_BYTES[self.workload.dtype])
        return self._powers(axis, LEAST_TILE, min(most, extent))

    def _values_of(self, option: str) -> tuple[int, ...]:
        """Return the values of an option in the space."""
        if option == "split_k":
            results = self.gemm.extents["batch"] * self.extents["m"] * self.extents["n"]
            return splits(results, self.extents["k"], self.hardware)
        values: dict[str, tuple[int, ...]] = {
            "group_m": (1, 4, 8, 16),
            "persistent": (0, 1),
            "promote": (PROMOTED_STEPS,) if self.accuracy == STANDARD else (0, PROMOTED_STEPS),
            "warp_specialize": (0, 1),
        }
        return values[option] if option in values else super()._values_of(option)

    def _check_options(self, options: Mapping[str, int]) -> None:
        check_options(self.workload, self.hardware, options)
