"""Sizes and distances in the buffers of a Winograd kernel, in elements.

V[t][tile][c], the transformed inputs of a block; U[chunk][t][sliver][c][f], the transformed weights, in the order in
which they are read; M[t][tile][f], the products of a block with a chunk of the output channels. Rows of V are whole
vectors, and so is what a sliver has of f.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from anatune.core.schedule import Schedule
from anatune.templates.winograd.convolution3x3 import Convolution3x3, convolution3x3
from anatune.templates.winograd.minimal_filtering import Filtering, filtering

__all__ = ["WinogradLayout", "layout_of"]

_PITCH_ELEMENTS = 256
"""Rows whose distance is a multiple of this (1 KiB) share few sets of the L1 cache: they get a gap."""


@dataclass(frozen=True)
class WinogradLayout:
    """What a schedule's loops and buffers are, as numbers."""

    convolution: Convolution3x3
    transform: Filtering
    lanes: int
    blocks: int
    calls: int
    rows: int
    chunks: int
    slivers: int
    """Of a chunk; the last one may have fewer."""
    vectors: int
    unroll: int

    @property
    def tile_rows(self) -> int:
        """Rows of tiles of an image."""
        return math.ceil(self.convolution.rows / self.transform.outputs)

    @property
    def tile_columns(self) -> int:
        """Tiles of such a row."""
        return math.ceil(self.convolution.columns / self.transform.outputs)

    @property
    def num_tiles(self) -> int:
        """Tiles of all images."""
        return self.convolution.num_tiles(self.transform.outputs)

    @property
    def block(self) -> int:
        """Tiles of a block."""
        return self.calls * self.rows

    @property
    def width(self) -> int:
        """Output channels of a sliver."""
        return self.vectors * self.lanes

    @property
    def all_slivers(self) -> int:
        """Slivers of all output channels."""
        return math.ceil(self.convolution.filters / self.width)

    @property
    def depth(self) -> int:
        """Input channels, rounded up to what the microkernel unrolls."""
        return math.ceil(self.convolution.channels / self.unroll) * self.unroll

    @property
    def channel_vectors(self) -> int:
        """Vectors of input channels."""
        return math.ceil(self.convolution.channels / self.lanes)

    @property
    def data_row(self) -> int:
        """From one tile of V to the next."""
        row = self.channel_vectors * self.lanes
        return row + (self.lanes if row % _PITCH_ELEMENTS == 0 else 0)

    @property
    def data_pitch(self) -> int:
        """From one frequency of V to the next: what a tile writes must not share sets of the cache."""
        return self.block * self.data_row + self.lanes

    @property
    def product_row(self) -> int:
        """From one tile of M to the next."""
        return self.slivers * self.width

    @property
    def product_pitch(self) -> int:
        """From one frequency of M to the next."""
        return self.block * self.product_row + self.lanes

    @property
    def weight_sliver(self) -> int:
        """From one sliver of U to the next."""
        return self.depth * self.width

    @property
    def weight_pitch(self) -> int:
        """From one frequency of U to the next."""
        return self.slivers * self.weight_sliver

    @property
    def weight_chunk(self) -> int:
        """From one chunk of U to the next."""
        return self.transform.frequencies * self.weight_pitch

    @property
    def data_size(self) -> int:
        """Elements of V."""
        return self.transform.frequencies * self.data_pitch

    @property
    def product_size(self) -> int:
        """Elements of M."""
        return self.transform.frequencies * self.product_pitch

    @property
    def weight_size(self) -> int:
        """Elements of U."""
        return self.chunks * self.weight_chunk

    @property
    def band_width(self) -> int:
        """Columns of the band that a row of tiles is gathered in, whole vectors of them."""
        tiles = min(self.tile_columns, self.block)
        return math.ceil((tiles * self.transform.outputs + 2) / self.lanes) * self.lanes

    @property
    def gathered_size(self) -> int:
        """Elements of the buffer that inputs are gathered in: a band of one vector of channels, or a tile of all."""
        if self.convolution.channels_last:
            return self.transform.frequencies * self.channel_vectors * self.lanes
        return self.transform.inputs * self.band_width * self.lanes


def layout_of(schedule: Schedule) -> WinogradLayout:
    """Return the numbers of a (checked) schedule of the template "winograd"."""
    tiles = schedule.tiles
    blocks, calls, rows = tiles["p"]
    chunks, slivers, vectors, lanes = tiles["f"]
    size = schedule.options["output_tile"]
    assert isinstance(size, int)
    return WinogradLayout(
        convolution3x3(schedule.workload),
        filtering(size),
        lanes,
        blocks,
        calls,
        rows,
        chunks,
        slivers,
        vectors,
        tiles["c"][1],
    )
