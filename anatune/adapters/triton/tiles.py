"""Block tiles that nobody has listed, in predicted order."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import GpuSpec
from anatune.model.foreign.triton_tiles import TILE_FIELDS, MatmulProblem, Tiles, least_depth
from anatune.model.foreign.triton_time import PARTS, TileScores, score_tiles, tile_order

__all__ = ["Proposal", "bound_by", "propose"]

_BLOCKS = (16, 32, 64, 128, 256)
_DEPTHS = (16, 32, 64, 128, 256)
_WARPS = (1, 2, 4, 8, 16)
_STAGES = (1, 2, 3, 4, 5, 6)
_SPLITS = (1, 2, 4, 8, 16, 32)
_GROUPS = (8, 4, 16, 1)
_FAMILY = ("block_m", "block_n", "block_k", "num_warps", "split_k")
"""Of tiles that differ in nothing else only the best one is proposed."""


class Proposal(NamedTuple):
    """One tile: sizes by name (`TILE_FIELDS`), predicted seconds, and the largest part of them."""

    tile: dict[str, int]
    time_s: float
    bound_by: str


def propose(problem: MatmulProblem, spec: GpuSpec, *, split_k: bool, group_m: bool) -> list[Proposal]:
    """Return the legal tiles, best first: one of each shape, with its best stages and group of rows.

    Parameters
    ----------
    split_k, group_m : bool
        Whether the kernel can share a tile among blocks, and walk rows of blocks together.
    """
    deepest = max(least_depth(problem.dtype), _reach(problem.k))
    depths = tuple(depth for depth in _DEPTHS if depth <= deepest)
    rows = np.array(
        list(
            itertools.product(
                [block for block in _BLOCKS if block <= _reach(problem.m)],
                [block for block in _BLOCKS if block <= _reach(problem.n)],
                depths,
                _WARPS,
                _STAGES,
                [split for split in _SPLITS if split == 1 or split * depths[0] <= problem.k] if split_k else (1,),
                _GROUPS if group_m else (1,),
            )
        ),
        dtype=np.int64,
    )
    results = rows[:, 0] * rows[:, 1] / (32 * rows[:, 3])  # of a thread
    useful = (rows[:, 2] * rows[:, 5] <= deepest) & (results >= 2) & (results <= 256)
    tiles = Tiles.of(rows[useful])
    scores = score_tiles(problem, tiles, spec)
    order = tile_order(scores, problem, tiles)
    table = rows[useful][order]
    columns = [TILE_FIELDS.index(field) for field in _FAMILY]
    code = np.ravel_multi_index(tuple(np.log2(table[:, columns]).astype(np.int64).T), (10,) * len(columns))
    first = np.sort(np.unique(code, return_index=True)[1])
    return [
        Proposal(dict(zip(TILE_FIELDS, table[at].tolist(), strict=True)), float(scores.time_s[order[at]]), part)
        for at, part in zip(first.tolist(), bound_by(scores, order[first]), strict=True)
    ]


def bound_by(scores: TileScores, places: NDArray[np.int64]) -> list[str]:
    """Return the largest part of the time of some tiles, in a word."""
    table = np.array([scores.parts[name][places] for name in PARTS])
    return [PARTS[at].removesuffix("_s") for at in table.argmax(axis=0)]


def _reach(extent: int) -> int:
    """Return the largest block size that is of use: the extent rounded up to a power of two, at least 16."""
    return max(16, 1 << (extent - 1).bit_length())
