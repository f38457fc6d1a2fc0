"""The tensor-core tile space: block, warp and instruction tiles of the matrix product behind a workload.

A block of warps computes block tiles of the fused indices m and n, ``warp x mma`` instructions of 16 x 8 results each;
k is walked in stages of ``mma`` instructions, held in a ring of buffers in shared memory. Tiles need not divide the
extents: the last blocks and the last stage are guarded.

A point is an integer vector in the order of `TensorCoreSpace.columns`. The space is small enough to be evaluated whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.core.accuracy import STANDARD, checked_accuracy
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import OptionValue, Schedule
from anatune.core.workload.access import MAX_INTEGER
from anatune.core.workload.implicit_gemm import implicit_gemm
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.base.space import LegalityCheck, Part, Space
from anatune.templates.base.values import check_names, checked_count, covering_factors
from anatune.templates.gpu.split import SPLIT, check_split
from anatune.templates.gpu.split_space import split_of_point, split_options, split_part
from anatune.templates.tensorcore.rules import INSTRUCTION, LEVELS, STAGES, check_supported, checked_width, fetch_widths

__all__ = ["INSTRUCTION", "LEVELS", "TensorCoreSpace", "check_supported"]

GROUPS = (1, 4, 8, 16)
"""Rows of blocks that are walked together, so that concurrent blocks share operands in L2."""
WARPS = (1, 2, 4, 8)
TILE_RESULTS = 128 * 128
"""Results of a block that reads its operands seldom enough for tensor cores."""
LEAST_DEPTH = 128
"""Iterations of k that a part has at least: eight instructions of 16."""
MOST_BLOCK = 256
"""Largest block tile along m and n, elements."""


class TensorCoreSpace(Space):
    """All tensor-core schedules of one workload on one GPU.

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

    template = "tensorcore"
    hardware: GpuSpec

    def __init__(
        self, workload: Workload, hardware: GpuSpec, is_legal: LegalityCheck, accuracy: str = STANDARD
    ) -> None:
        check_supported(workload, hardware)
        super().__init__(workload, hardware, is_legal)
        self.gemm = implicit_gemm(workload)
        self.axes = ("m", "n", "k")
        self.extents = {axis: self.gemm.extents[axis] for axis in self.axes}
        self.instruction: dict[str, int] = dict(zip(self.axes, INSTRUCTION[workload.dtype], strict=True))
        self.levels = {"m": ("warp", "mma"), "n": ("warp", "mma"), "k": ("mma",)}
        self.staged: tuple[str, ...] = tuple(operand.access.tensor for operand in self.gemm.operands)
        self.widths: dict[str, tuple[int, ...]] = dict(zip(self.staged, fetch_widths(workload).values(), strict=True))
        widths = {f"vector.{tensor}": values for tensor, values in self.widths.items()}
        self.choices = {"stages": STAGES, "group": GROUPS, **widths}
        self.accuracy = checked_accuracy("accuracy", accuracy)
        self.splits: Part | None = split_part(workload, hardware, accuracy, TILE_RESULTS, LEAST_DEPTH)
        """Splits of k; None where the device is full without."""

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The lists that the space is the product of: tiles of m, n, k, the choices, splits where there are any."""
        return super().parts if self.splits is None else (*super().parts, self.splits)

    def _axis(self, axis: str) -> Part:
        return self._tiles_of(axis, self._depths() if axis == "k" else self._warp_tiles(axis))

    def _warp_tiles(self, axis: str) -> list[tuple[int, int]]:
        """Return (warp, mma) pairs: powers of two, and whatever divides the extent; no block is twice too large."""
        size, extent = self.instruction[axis], self.extents[axis]
        most = min(MOST_BLOCK, max(size, 1 << (extent - 1).bit_length()))
        rows = []
        for warps in WARPS:
            for count in range(1, 16 * 8 // size + 1):
                block = warps * count * size
                if block <= most and (count & (count - 1) == 0 or extent % block == 0):
                    rows.append((warps, count))
        return rows

    def _depths(self) -> list[tuple[int]]:
        """Return the instructions along k in a stage: 16 to 128 elements of 16 bits, 8 to 64 of 32 bits."""
        size, extent = self.instruction["k"], self.extents["k"]
        return [(2**e,) for e in range(4) if e == 0 or 2 ** (e - 1) * size < extent]

    def schedule_of(self, point: Sequence[int] | NDArray[np.int64]) -> Schedule:
        """Decode one point (a vector in the order of `columns`) into a Schedule."""
        values = self._values(point)
        stages, group, *rest = values[5:]
        widths, split = rest[: len(self.staged)], tuple(rest[len(self.staged) :])
        plain = self.schedule(self._tiles(values), stages, group, dict(zip(self.staged, widths, strict=True)))
        if not split:
            return plain
        more = split_options(split, self._num_tiles(plain.tiles), self.hardware)
        return msgspec.structs.replace(plain, options=dict(plain.options) | more) if more else plain

    def _num_tiles(self, tiles: Mapping[str, Sequence[int]]) -> int:
        return self.gemm.extents["batch"] * tiles["m"][0] * tiles["n"][0]

    def point_of(self, schedule: Schedule) -> NDArray[np.int64]:
        """Return the integer vector of `schedule`, (len(columns),) int64.

        Raises
        ------
        SpaceError
            The schedule belongs to another workload or template, or its factors or options do not fit the space.
        """
        self._check_own(schedule)
        values = (factor for axis in self.axes for factor in schedule.tiles[axis][1:-1])
        options = (schedule.options[name] for name in ("stages", "group"))
        widths = (schedule.vector[tensor] for tensor in self.staged)
        split = split_of_point(schedule, self._num_tiles(schedule.tiles), listed=self.splits is not None)
        return np.array([*values, *options, *widths, *split], dtype=np.int64)

    def schedule(
        self,
        tiles: Mapping[str, Sequence[int]],
        stages: int = 3,
        group: int = 8,
        vector: Mapping[str, int] | None = None,
        *,
        split: Mapping[str, int] | None = None,
    ) -> Schedule:
        """Build the schedule with these tiles; any sizes are accepted, legal on the device or not.

        Parameters
        ----------
        tiles : mapping of str to sequence of int
            "m" -> (warp, mma), "n" -> (warp, mma), "k" -> (mma,): warps of a block, instructions of a warp, and of a
            stage along k. What is left out is 1.
        stages : int
            Buffers of the ring in shared memory, 1 to 4.
        group : int
            Rows of blocks that are walked together.
        vector : mapping of str to int, optional
            Operand -> fetch width in elements, the widest possible where it is left out.
        split : mapping of str to int, optional
            Options of a split k: "split", "whole", "atomic" (`gpu.split`); nothing is split without.

        Raises
        ------
        SpaceError
            Unknown index or tensor, wrong number of factors, a width that alignment does not allow.
        """
        if not isinstance(tiles, Mapping) or not (vector is None or isinstance(vector, Mapping)):
            raise SpaceError(
                "schedule: tiles and vector are mappings, such as tiles={'m': (2, 4), 'n': (2, 8), 'k': (2,)}"
            )
        check_names("tiles", tiles, self.axes, "index")
        complete: dict[str, tuple[int, ...]] = {}
        for axis, levels in self.levels.items():
            factors = tiles.get(axis, (1,) * len(levels))
            complete[axis] = covering_factors(axis, factors, levels, self.extents[axis], self.instruction[axis])
        checked_count("stages", stages, min(STAGES), max(STAGES))
        widths = {tensor: choices[-1] for tensor, choices in self.widths.items()}
        for tensor, width in (vector or {}).items():
            widths[tensor] = checked_width(tensor, width, self.widths)
        options: dict[str, OptionValue] = {
            "stages": int(stages),
            "group": checked_count("group", group, 1, MAX_INTEGER),
            **(split or {}),
        }
        check_names("split", split or {}, SPLIT, "option")
        check_split(self.workload, options, self._num_tiles(complete), complete["k"][0])
        return Schedule(self.workload, self.hardware, self.template, complete, 0, widths, options)
