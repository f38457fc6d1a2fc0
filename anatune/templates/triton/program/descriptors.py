"""Tensor descriptors, which copy whole tiles of plain matrices with aligned rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from anatune.core.workload.access import DTYPE_BYTES, Access
from anatune.core.workload.implicit_gemm import ImplicitGemm
from anatune.core.workload.nest import Workload
from anatune.emit.script import Script
from anatune.templates.triton.program.indices import walk_of

__all__ = ["Descriptor", "can_describe", "descriptor_of"]

_ALIGNMENT = 16
"""Bytes of which strides and rows of a box must be multiples. Source: cuTensorMapEncodeTiled, CUDA driver API."""
_MOST_BOX = 256
"""Most elements of a box along one dimension. Source: the same."""


class Descriptor(NamedTuple):
    """The descriptor of one or more matrices from or to which tiles are copied.

    Attributes
    ----------
    tensor : str
    tile : tuple of str
        Kinds of the rows and columns of the tile in the product.
    transposed : bool
        Whether rows of the tile are columns in memory.
    shape, strides : tuple of int
        Shape and strides in memory: batch (if there is one), rows, columns. A length that varies in a range is the
        name of its value.
    """

    tensor: str
    tile: tuple[str, str]
    transposed: bool
    shape: tuple[int | str, ...]
    strides: tuple[int, ...]

    @property
    def _kinds(self) -> tuple[str, str]:
        """Kinds of the rows and columns of the matrix in memory."""
        return (self.tile[1], self.tile[0]) if self.transposed else self.tile

    @property
    def _is_batched(self) -> bool:
        return len(self.shape) == 3

    @property
    def _block(self) -> str:
        return ", ".join(["1"] * self._is_batched + [f"BLOCK_{kind.upper()}" for kind in self._kinds])

    def write(self, text: Script) -> None:
        """Write the statement that makes the descriptor."""
        shape, strides = ", ".join(map(str, self.shape)), list(self.strides)
        text.line(f"{self.tensor}_tiles = tl.make_tensor_descriptor(")
        text.line(f"    {self.tensor}_ptr, shape=[{shape}], strides={strides}, block_shape=[{self._block}]")
        text.line(")")

    def _offsets(self) -> str:
        return ", ".join(["batch"] * self._is_batched + [f"first_{kind}" for kind in self._kinds])

    def load(self) -> str:
        """Return the expression of the tile, with the rows and columns of the product."""
        loaded = f"{self.tensor}_tiles.load([{self._offsets()}])"
        if self._is_batched:
            loaded += f".reshape({', '.join(f'BLOCK_{kind.upper()}' for kind in self._kinds)})"
        return f"{loaded}.T" if self.transposed else loaded

    def store(self, value: str) -> str:
        """Return the statement that stores a tile."""
        shaped = f"tl.reshape({value}, ({self._block}))" if self._is_batched else value
        return f"{self.tensor}_tiles.store([{self._offsets()}], {shaped})"


def can_describe(workload: Workload, gemm: ImplicitGemm) -> bool:
    """Return whether both operands and the result are plain matrices whose rows are multiples of 16 bytes."""
    sides = ((gemm.left.access, ("m", "k")), (gemm.right.access, ("k", "n")), (workload.write, ("m", "n")))
    least = dict.fromkeys("mnk", 1)
    return all(descriptor_of(access, tile, gemm, workload, least) is not None for access, tile in sides)


def descriptor_of(
    access: Access, tile: tuple[str, str], gemm: ImplicitGemm, workload: Workload, blocks: Mapping[str, int]
) -> Descriptor | None:
    """Return the descriptor of a tensor, or None if it is not a plain matrix or its rows are not aligned.

    Parameters
    ----------
    tile : tuple of str
        Kinds of the rows and columns of the tile.
    """
    walks = {index: walk_of(access, index, gemm, workload) for index in ("batch", *tile)}
    if any(walk.guarded for walk in walks.values()) or any(access.offsets):
        return None
    steps = {}
    for index, walk in walks.items():
        if not walk.pieces and index == "batch":
            continue
        if len(walk.pieces) != 1 or not walk.pieces[0][0].is_whole:
            return None
        steps[index] = walk.pieces[0][1]
    transposed = steps[tile[1]] != 1
    order = (tile[1], tile[0]) if transposed else tile
    outer = [index for index in ("batch", order[0]) if index in steps]
    size = DTYPE_BYTES[access.dtype]
    aligned = all(steps[index] * size % _ALIGNMENT == 0 for index in outer)
    if steps[order[1]] != 1 or not aligned or any(blocks[index] > _MOST_BOX for index in tile):
        return None
    if transposed and "k" not in tile:
        return None  # results cannot be stored transposed
    every = (*outer, order[1])
    return Descriptor(
        access.tensor, tile, transposed, tuple(gemm.extents[i] for i in every), tuple(steps[i] for i in every)
    )
