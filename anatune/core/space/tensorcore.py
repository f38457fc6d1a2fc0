"""The tensor-core tile space: block, warp and instruction tiles of the matrix product behind a workload.

A block of warps computes block tiles of the fused indices m and n, ``warp x mma`` instructions of 16 x 8 results each;
k is walked in stages of ``mma`` instructions, held in a ring of buffers in shared memory. Tiles need not divide the
extents: the last blocks and the last stage are guarded.

A point is an integer vector in the order of `TensorCoreSpace.columns`. The space is small enough to be evaluated whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import GpuSpec
from anatune.core.rules.tensorcore import INSTRUCTION, LEVELS, STAGES, check_supported, checked_width, fetch_widths
from anatune.core.rules.values import check_names, checked_count
from anatune.core.schedule import OptionValue, Schedule
from anatune.core.space.sampling import SampledSpace
from anatune.core.templates import TENSORCORE
from anatune.core.workload.access import MAX_INTEGER
from anatune.core.workload.implicit_gemm import implicit_gemm
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError

__all__ = ["INSTRUCTION", "LEVELS", "TensorCoreSpace", "check_supported"]

GROUPS = (1, 4, 8, 16)
"""Rows of blocks that are walked together, so that concurrent blocks share operands in L2."""
WARPS = (1, 2, 4, 8)
MOST_BLOCK = 256
"""Largest block tile along m and n, elements."""
LegalityCheck = Callable[[NDArray[np.int64]], NDArray[np.bool_]]


class TensorCoreSpace(SampledSpace):
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

    template = TENSORCORE.name

    def __init__(self, workload: Workload, hardware: GpuSpec, is_legal: LegalityCheck) -> None:
        check_supported(workload, hardware)
        self.workload = workload
        self.hardware = hardware
        self._is_legal = is_legal
        self.gemm = implicit_gemm(workload)
        self.axes: tuple[str, ...] = ("m", "n", "k")
        self.extents: dict[str, int] = {axis: self.gemm.extents[axis] for axis in self.axes}
        self.instruction: dict[str, int] = dict(zip(self.axes, INSTRUCTION[workload.dtype], strict=True))
        self.levels: dict[str, tuple[str, ...]] = {"m": ("warp", "mma"), "n": ("warp", "mma"), "k": ("mma",)}
        self.staged: tuple[str, ...] = tuple(operand.access.tensor for operand in self.gemm.operands)
        self.stage_counts: tuple[int, ...] = STAGES
        self.groups: tuple[int, ...] = GROUPS
        self.widths: tuple[tuple[int, ...], ...] = tuple(fetch_widths(workload).values())

    def __repr__(self) -> str:
        return f"TensorCoreSpace({self.workload.describe()} on {self.hardware.name}: {self.size:.4g} points)"

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the entries of a point."""
        names = [f"{axis}.{level}" for axis in self.axes for level in self.levels[axis]]
        return (*names, "stages", "group", *(f"vector.{tensor}" for tensor in self.staged))

    @cached_property
    def _tables(self) -> tuple[NDArray[np.int64], ...]:
        """The choices of each coordinate, (count, columns it fills) int64 each."""
        singles = (self._depths(), STAGES, GROUPS, *self.widths)
        return (self._warp_tiles("m"), self._warp_tiles("n"), *(np.array(s, dtype=np.int64)[:, None] for s in singles))

    def _warp_tiles(self, axis: str) -> NDArray[np.int64]:
        """Return (warp, mma) pairs: powers of two, and whatever divides the extent; no block is twice too large."""
        size, extent = self.instruction[axis], self.extents[axis]
        most = min(MOST_BLOCK, max(size, 1 << (extent - 1).bit_length()))
        rows = []
        for warps in WARPS:
            for count in range(1, 16 * 8 // size + 1):
                block = warps * count * size
                if block <= most and (count & (count - 1) == 0 or extent % block == 0):
                    rows.append((warps, count))
        return np.array(rows, dtype=np.int64)

    def _depths(self) -> tuple[int, ...]:
        """Return the instructions along k in a stage: 16 to 128 elements of 16 bits, 8 to 64 of 32 bits."""
        size, extent = self.instruction["k"], self.extents["k"]
        return tuple(2**e for e in range(4) if e == 0 or 2 ** (e - 1) * size < extent)

    @cached_property
    def radices(self) -> tuple[int, ...]:
        """Number of choices of each coordinate."""
        return tuple(len(table) for table in self._tables)

    @cached_property
    def size(self) -> int:
        """Exact number of points, legal or not."""
        return math.prod(self.radices)

    def decode(self, coordinates: NDArray[np.int64]) -> NDArray[np.int64]:
        """Turn coordinates (num_points, len(radices)) into points (num_points, len(columns)), both int64."""
        coordinates = np.atleast_2d(coordinates)
        parts = [table[coordinates[:, index]] for index, table in enumerate(self._tables)]
        return np.concatenate(parts, axis=1).astype(np.int64)

    def encode(self, points: NDArray[np.int64]) -> NDArray[np.int64]:
        """Turn points into coordinates: the inverse of `decode`.

        Raises
        ------
        SpaceError
            A point has a value that is none of the space's choices.
        """
        points = np.atleast_2d(points)
        out = np.empty((len(points), len(self.radices)), dtype=np.int64)
        column = 0
        for index, table in enumerate(self._tables):
            width = table.shape[1]
            lookup = {tuple(row): at for at, row in enumerate(table.tolist())}
            for row, values in enumerate(points[:, column : column + width].tolist()):
                if tuple(values) not in lookup:
                    names = ", ".join(self.columns[column : column + width])
                    raise SpaceError(f"{names}: got {values}, which is no choice of this space; take a point of it")
                out[row, index] = lookup[tuple(values)]
            column += width
        return out

    def schedule_of(self, point: Sequence[int] | NDArray[np.int64]) -> Schedule:
        """Decode one point (a vector in the order of `columns`) into a Schedule."""
        m_warp, m_mma, n_warp, n_mma, k_mma, stages, group, *widths = self._values(point)
        inner = {"m": (m_warp, m_mma), "n": (n_warp, n_mma), "k": (k_mma,)}
        return self.schedule(inner, stages, group, dict(zip(self.staged, widths, strict=True)))

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
        return np.array([*values, *options, *(schedule.vector[tensor] for tensor in self.staged)], dtype=np.int64)

    def schedule(
        self,
        tiles: Mapping[str, Sequence[int]],
        stages: int = 3,
        group: int = 8,
        vector: Mapping[str, int] | None = None,
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
        for axis in self.axes:
            levels = self.levels[axis]
            factors = tuple(tiles.get(axis, (1,) * len(levels)))
            if len(factors) != len(levels):
                raise SpaceError(
                    f"tiles[{axis!r}] has {len(factors)} factors, expected {len(levels)}: {', '.join(levels)}"
                )
            factors = tuple(checked_count(f"tiles[{axis!r}] factor", factor, 1, MAX_INTEGER) for factor in factors)
            inner = (*factors, self.instruction[axis])
            complete[axis] = (-(-self.extents[axis] // math.prod(inner)), *inner)
        checked_count("stages", stages, min(STAGES), max(STAGES))
        widths = {tensor: choices[-1] for tensor, choices in zip(self.staged, self.widths, strict=True)}
        allowed = dict(zip(self.staged, self.widths, strict=True))
        for tensor, width in (vector or {}).items():
            widths[tensor] = checked_width(tensor, width, allowed)
        options: dict[str, OptionValue] = {
            "stages": int(stages),
            "group": checked_count("group", group, 1, MAX_INTEGER),
        }
        return Schedule(self.workload, self.hardware, self.template, complete, 0, widths, options)
