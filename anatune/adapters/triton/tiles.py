"""Block tiles that nobody has listed, in predicted order."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import GpuSpec
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.resources import least_depth
from anatune.templates.triton.tiles import OPTION_FIELDS, TILE_FIELDS, Tiles
from anatune.templates.triton.times import PARTS, TileScores, score_tiles, tile_order

_BLOCKS = (16, 32, 64, 128, 256)
_DEPTHS = (16, 32, 64, 128, 256)
_WARPS = (1, 2, 4, 8, 16)
_STAGES = (1, 2, 3, 4, 5, 6)
_SPLITS = (1, 2, 4, 8, 16, 32)
_GROUPS = (8, 4, 16, 1)
_FAMILY = ("block_m", "block_n", "block_k", "num_warps", "split_k")
"""Of tiles that differ in nothing else only the best one is proposed."""


class Proposal(NamedTuple):
    """One tile: sizes and options by name (`TILE_FIELDS`, `OPTION_FIELDS`), predicted seconds, their largest part."""

    tile: dict[str, int]
    time_s: float
    bound_by: str


def propose(
    problem: MatmulProblem,
    spec: GpuSpec,
    *,
    split_k: bool,
    group_m: bool,
    options: Sequence[tuple[int, ...]] = ((0,), (0,)),
) -> list[Proposal]:
    """Return the legal tiles, best first: one of each shape, with its best stages and group of rows.

    Parameters
    ----------
    split_k, group_m : bool
        Whether the kernel can share a tile among blocks, and walk rows of blocks together.
    options : sequence of tuple of int
        Values of each of `OPTION_FIELDS` that it can have.
    """
    deepest = max(least_depth(spec, problem.dtype), _reach(problem.k))
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
                *options,
            )
        ),
        dtype=np.int64,
    )
    results = rows[:, 0] * rows[:, 1] / (32 * rows[:, 3])  # of a thread
    useful = (rows[:, 2] * rows[:, 5] <= deepest) & (results >= 2) & (results <= 256)
    useful &= (rows[:, 5] == 1) | (rows[:, 8] == 0)  # persistent blocks take whole tiles
    tiles = Tiles.of(rows[useful])
    scores = score_tiles(problem, tiles, spec)
    order = tile_order(scores, problem, tiles)
    table = rows[useful][order]
    columns = [TILE_FIELDS.index(field) for field in _FAMILY]
    code = np.ravel_multi_index(tuple(np.log2(table[:, columns]).astype(np.int64).T), (10,) * len(columns))
    first = np.sort(np.unique(code, return_index=True)[1])
    names, best = (*TILE_FIELDS, *OPTION_FIELDS)[: table.shape[1]], table[first]
    times = scores.time_s[order[first]].tolist()
    return [
        Proposal(dict(zip(names, values, strict=True)), time_s, part)
        for values, time_s, part in zip(best.tolist(), times, bound_by(scores, order[first]), strict=True)
    ]


def bound_by(scores: TileScores, places: NDArray[np.int64]) -> list[str]:
    """Return the largest part of the time of some tiles, in a word."""
    table = np.array([scores.parts[name][places] for name in PARTS])
    return [PARTS[at].removesuffix("_s") for at in table.argmax(axis=0)]


def _reach(extent: int) -> int:
    """Return the largest block size that is of use: the extent rounded up to a power of two, at least 16."""
    return max(16, 1 << (extent - 1).bit_length())
