"""Sizes and strides of the buffers of a Winograd kernel, in elements.

V[t][tile][c] are the transformed inputs of a block. U[chunk][t][sliver][c][f] are the transformed weights, in the order
in which they are read. M[t][tile][f] are the products of a block with a chunk of the output channels. Rows of V are
whole vectors, and so are the channels f of a sliver.
"""

from __future__ import annotations

import math

from anatune.core.schedule import Schedule
from anatune.templates.cpu.program.layout import PITCH_ELEMENTS
from anatune.templates.winograd.convolution3x3 import convolution3x3
from anatune.templates.winograd.minimal_filtering import filtering
from anatune.templates.winograd.rules import output_tile_of

__all__ = ["WinogradLayout"]


class WinogradLayout:
    """The loops and buffers of a (checked) schedule of the template "winograd", as numbers.

    Attributes
    ----------
    convolution : Convolution3x3
    transform : Filtering
    lanes, blocks, calls, rows, chunks, slivers, vectors, unroll : int
        Factors of the schedule; the last chunk can have fewer slivers.
    data_lanes : int
        Input channels of a vector.
    tile_rows, tile_columns, num_tiles : int
        Rows of tiles of an image; tiles of such a row; tiles of all images.
    block : int
        Tiles of a block.
    width, all_slivers : int
        Output channels of a sliver; slivers of all output channels.
    depth : int
        Input channels, rounded up to a multiple of the unroll factor.
    channel_vectors : int
        Vectors of input channels.
    data_row, data_pitch, data_size : int
        Strides of V from one tile and from one frequency to the next, chosen so that the elements of a tile are in
        different sets of the cache; elements of V.
    product_row, product_pitch, product_size : int
        The same for M.
    weight_sliver, weight_pitch, weight_chunk, weight_size : int
        Strides of U from one sliver, one frequency and one chunk to the next; elements of U.
    band_width : int
        Columns of the band in which a row of tiles is gathered, in whole vectors.
    gathered_size : int
        Elements of the buffer in which inputs are gathered: a band of one vector of channels, or one tile of all
        channels.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.convolution = convolution = convolution3x3(schedule.workload)
        self.transform = transform = filtering(output_tile_of(schedule))
        self.blocks, self.calls, self.rows = schedule.tiles["p"]
        self.chunks, self.slivers, self.vectors, self.lanes = schedule.tiles["f"]
        self.unroll = schedule.tiles["c"][1]
        self.data_lanes = self.lanes * convolution.group
        self.tile_rows = math.ceil(convolution.rows / transform.outputs)
        self.tile_columns = math.ceil(convolution.columns / transform.outputs)
        self.num_tiles = convolution.num_tiles(transform.outputs)
        self.block = self.calls * self.rows
        self.width = self.vectors * self.lanes
        self.all_slivers = math.ceil(convolution.filters / self.width)
        self.depth = math.ceil(convolution.channels / self.unroll) * self.unroll
        self.channel_vectors = math.ceil(convolution.channels / self.data_lanes)
        self.data_row = self.channel_vectors * self.data_lanes
        if self.data_row % (PITCH_ELEMENTS * convolution.group) == 0:
            self.data_row += self.data_lanes
        self.data_pitch = self.block * self.data_row + self.data_lanes
        self.data_size = transform.frequencies * self.data_pitch
        self.product_row = self.slivers * self.width
        self.product_pitch = self.block * self.product_row + self.lanes
        self.product_size = transform.frequencies * self.product_pitch
        self.weight_sliver = self.depth * self.width
        self.weight_pitch = self.slivers * self.weight_sliver
        self.weight_chunk = transform.frequencies * self.weight_pitch
        self.weight_size = self.chunks * self.weight_chunk
        columns = min(self.tile_columns, self.block) * transform.outputs + 2
        self.band_width = math.ceil(columns / self.lanes) * self.lanes
        self.gathered_size = transform.inputs * self.band_width * self.lanes
        if convolution.channels_last:
            self.gathered_size = transform.frequencies * self.channel_vectors * self.data_lanes
