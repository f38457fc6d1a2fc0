"""Proposals of block tiles for a matrix product, in predicted order."""

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
_SHAPE_FIELDS = ("block_m", "block_n", "block_k", "num_warps", "split_k")
"""The fields that make a tile shape: only the best tile of each shape is proposed."""


class Proposal(NamedTuple):
    """One tile: sizes and options (`TILE_FIELDS`, `OPTION_FIELDS`), predicted seconds, and the binding resource."""

    tile: dict[str, int]
    time_s: float
    binding_resources: str


def propose(
    problem: MatmulProblem,
    spec: GpuSpec,
    *,
    split_k: bool,
    group_m: bool,
    options: Sequence[tuple[int, ...]] = ((0,), (0,)),
) -> list[Proposal]:
    """Return the best legal tile of each shape, best first.

    Parameters
    ----------
    split_k, group_m : bool
        Whether the kernel can split the reduction among blocks, and process groups of block rows together.
    options : sequence of tuple of int
        The possible values of each of `OPTION_FIELDS`.
    """
    deepest = max(least_depth(spec, problem.dtype), _largest_block(problem.k))
    depths = tuple(depth for depth in _DEPTHS if depth <= deepest)
    rows = np.array(
        list(
            itertools.product(
                [block for block in _BLOCKS if block <= _largest_block(problem.m)],
                [block for block in _BLOCKS if block <= _largest_block(problem.n)],
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
    results = rows[:, 0] * rows[:, 1] / (32 * rows[:, 3])  # results of one thread
    useful = (rows[:, 2] * rows[:, 5] <= deepest) & (results >= 2) & (results <= 256)
    useful &= (rows[:, 5] == 1) | (rows[:, 8] == 0)  # persistent kernels do not split the reduction
    tiles = Tiles.of(rows[useful])
    scores = score_tiles(problem, tiles, spec)
    order = tile_order(scores, problem, tiles)
    table = rows[useful][order]
    columns = [TILE_FIELDS.index(field) for field in _SHAPE_FIELDS]
    code = np.ravel_multi_index(tuple(np.log2(table[:, columns]).astype(np.int64).T), (10,) * len(columns))
    first = np.sort(np.unique(code, return_index=True)[1])
    names, best = (*TILE_FIELDS, *OPTION_FIELDS)[: table.shape[1]], table[first]
    times = scores.time_s[order[first]].tolist()
    return [
        Proposal(dict(zip(names, values, strict=True)), time_s, part)
        for values, time_s, part in zip(best.tolist(), times, binding_resources(scores, order[first]), strict=True)
    ]


def binding_resources(scores: TileScores, places: NDArray[np.int64]) -> list[str]:
    """Return the binding resource of the tiles at these indices, in a word each."""
    table = np.array([scores.parts[name][places] for name in PARTS])
    return [PARTS[at].removesuffix("_s") for at in table.argmax(axis=0)]


def _largest_block(extent: int) -> int:
    """Return the largest useful block size: the extent rounded up to a power of two, at least 16."""
    return max(16, 1 << (extent - 1).bit_length())
