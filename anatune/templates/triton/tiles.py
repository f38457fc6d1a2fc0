"""Batches of block tiles: the sizes and options that a tile compiler takes."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from typing import Self

__all__ = ["OPTION_FIELDS", "TILE_FIELDS", "TileBatch", "Tiles", "no_option", "stage_preference"]

Ints = NDArray[np.int64]

TILE_FIELDS = ("block_m", "block_n", "block_k", "num_warps", "num_stages", "split_k", "group_m")
OPTION_FIELDS = ("descriptors", "persistent", "promote", "warp_specialize")
"""Further options of a tile, 0 if left out: operands by tensor descriptors, blocks that compute several tiles in turn,
steps of k after which sums leave the matrix units, warps that only copy or only start products."""


def no_option() -> Ints:
    """Return the default of an option that is left out. `TileBatch` replaces it by one zero per tile."""
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class TileBatch:
    """A batch of tiles: (num_tiles,) int64 each, >= 1. Fields in `options` are >= 0, and zeros if left out."""

    block_m: Ints
    block_n: Ints
    options: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        for name in self.options:
            if len(getattr(self, name)) == 0:
                object.__setattr__(self, name, np.zeros_like(self.block_m))

    @classmethod
    def of(cls, rows: object) -> Self:
        """Return the tiles of rows (num_tiles, num_fields), in the order of the fields. Options may be left out."""
        table = np.asarray(rows, dtype=np.int64)
        width = len(fields(cls)) - len(cls.options) if table.ndim < 2 else table.shape[1]
        return cls(*np.ascontiguousarray(table.reshape(-1, width).T))

    def take(self, places: Ints) -> Self:
        """Return the tiles at these positions."""
        return type(self)(**{name: column[places] for name, column in vars(self).items()})

    def __len__(self) -> int:
        return len(self.block_m)


@dataclass(frozen=True)
class Tiles(TileBatch):
    """Tiles of products. Their rows are `TILE_FIELDS`, optionally followed by `OPTION_FIELDS`."""

    block_k: Ints
    num_warps: Ints
    num_stages: Ints
    split_k: Ints
    group_m: Ints
    descriptors: Ints = field(default_factory=no_option)
    persistent: Ints = field(default_factory=no_option)
    promote: Ints = field(default_factory=no_option)
    warp_specialize: Ints = field(default_factory=no_option)
    options: ClassVar[tuple[str, ...]] = OPTION_FIELDS


def stage_preference(num_stages: Ints) -> Ints:
    """Return the rank of numbers of stages among tiles of equal time, best first: three, four, more, two, one."""
    order: Ints = np.array([9, 4, 3, 0, 1, 2])[np.minimum(num_stages, 5)]
    return order
