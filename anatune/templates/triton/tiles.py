"""Batches of block tiles: what a tile compiler is told of a product's kernel."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["OPTION_FIELDS", "TILE_FIELDS", "Tiles", "stage_preference"]

Ints = NDArray[np.int64]

TILE_FIELDS = ("block_m", "block_n", "block_k", "num_warps", "num_stages", "split_k", "group_m")
OPTION_FIELDS = ("descriptors", "persistent", "promote", "warp_specialize")
"""What a tile may say besides, else 0: operands by tensor descriptors, blocks that take several tiles in turn, steps
of k after which sums leave the matrix units, warps that only copy or only start products."""


@dataclass(frozen=True)
class Tiles:
    """A batch of tiles: (num_tiles,) int64 each, >= 1; those of `OPTION_FIELDS` >= 0, zeros if left out."""

    block_m: Ints
    block_n: Ints
    block_k: Ints
    num_warps: Ints
    num_stages: Ints
    split_k: Ints
    group_m: Ints
    descriptors: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    persistent: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    promote: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    warp_specialize: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __post_init__(self) -> None:
        for name in OPTION_FIELDS:
            if len(getattr(self, name)) == 0:
                object.__setattr__(self, name, np.zeros_like(self.block_m))

    @classmethod
    def of(cls, rows: object) -> Tiles:
        """Return the tiles of rows (num_tiles, 7), `TILE_FIELDS`, or more, `OPTION_FIELDS` behind them."""
        table = np.asarray(rows, dtype=np.int64)
        width = len(TILE_FIELDS) if table.ndim < 2 else table.shape[1]
        return cls(*np.ascontiguousarray(table.reshape(-1, width).T))

    def take(self, places: Ints) -> Tiles:
        """Return the tiles at these places."""
        return Tiles(**{name: getattr(self, name)[places] for name in (*TILE_FIELDS, *OPTION_FIELDS)})

    def __len__(self) -> int:
        return len(self.block_m)


def stage_preference(num_stages: Ints) -> Ints:
    """Return the order of stages among tiles of equal time, lower first: three, then four, more, two, one."""
    order: Ints = np.array([9, 4, 3, 0, 1, 2])[np.minimum(num_stages, 5)]
    return order
