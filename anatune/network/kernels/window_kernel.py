"""The computation of windows over images, and the predicted time of convolutions of groups."""

from __future__ import annotations

import math
from dataclasses import dataclass

from anatune.core.hardware.spec import CpuSpec
from anatune.templates.cpu.model.pack import EXPOSED_SHARE, pack_machine
from anatune.templates.cpu.times.microkernel import call_one, step_one

__all__ = ["BYTES", "FLOAT", "Taps", "WindowKernel", "predict_groups", "tile_size"]

FLOAT, BYTES = "float32", 4
_PIXELS = 14
"""The most pixels of a tile: larger tiles load hardly less for each row, and their code is longer."""

Taps = tuple[int, int]
"""The first tap of a window inside the image along one dimension, and one past the last."""


@dataclass(frozen=True)
class WindowKernel:
    """The computation of each window.

    Attributes
    ----------
    kind : str
        "depthwise": for each channel the sum of products with its weights; "grouped": the same over the channels of
        its group; "max": the largest element, or NaN if there is one; "mean".
    batch, blocks, channels : int
        The number of blocks in each element of the batch, and the channels of a block; with 1 block channels come last.
        Only the batch may be unknown before run time (`core.sizes`).
    sizes, outputs : tuple of int
        Height and width of the images and of the results.
    window, strides, dilation : tuple of int
        Height and width of the window, of its strides and of its dilation.
    before : tuple of int
        The padding above and on the left; the other padding follows from `outputs`.
    counts_padding : bool
        "mean": whether padding counts as zeros; if not, only elements of the image count.
    epilogue : tuple of str
        Steps that are fused into the stores, as in `Workload.epilogue`.
    dtypes : tuple of str
        The dtypes of the parameters; (): float32. Sums are float32 in any case.
    group, unit : int
        "grouped": the channels of a group, and those whose weights lie together, whole vectors of whole groups.
    """

    kind: str
    batch: int
    blocks: int
    channels: int
    sizes: tuple[int, int]
    outputs: tuple[int, int]
    window: tuple[int, int]
    strides: tuple[int, int]
    dilation: tuple[int, int]
    before: tuple[int, int]
    counts_padding: bool = False
    epilogue: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    group: int = 1
    unit: int = 0

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the parameters in order: data, weights, operands of the epilogue, result."""
        image = (self.batch, self.blocks, *self.outputs, self.channels)
        shapes: dict[str, tuple[int, ...]] = {"data": (self.batch, self.blocks, *self.sizes, self.channels)}
        if self.kind == "depthwise":
            shapes["weight"] = (self.blocks, *self.window, self.channels)
        elif self.kind == "grouped":
            rows, columns = self.window
            shapes["weight"] = (self.blocks, -(-self.channels // self.unit), rows, self.group, columns, self.unit)
        for step in self.epilogue:
            if step in ("bias", "add"):
                shapes[step] = (self.blocks, self.channels) if step == "bias" else image
        return {**shapes, "result": image}

    @property
    def weights_apart(self) -> int:
        """The distance between the weights of neighbouring vectors, for each of their channels."""
        return math.prod(self.window) * self.group if self.kind == "grouped" else 1

    @property
    def dtype(self) -> dict[str, str]:
        """The dtypes of the parameters."""
        return dict(zip(self.shapes, self.dtypes or [FLOAT] * len(self.shapes), strict=True))

    def taps(self, dimension: int) -> list[Taps]:
        """Return the taps inside the image for each position of the result along a dimension (0: height, 1: width)."""
        size, step = self.sizes[dimension], self.dilation[dimension]
        taps = []
        for position in range(self.outputs[dimension]):
            start = position * self.strides[dimension] - self.before[dimension]
            first = min(max(0, -(start // step)), self.window[dimension])
            end = max(first, min(self.window[dimension], -((start - size) // step)))
            taps.append((first, end))
        return taps


def tile_size(kernel: WindowKernel, lanes: int, registers: int) -> int:
    """Return the pixels of a tile: as many as registers have sums for, in tiles of a row that are about equal."""
    width, columns = kernel.outputs[1], kernel.window[1]
    # beside the sums: a row of weights, the element that is read, two for the epilogue
    most = registers - columns - 3
    if kernel.unit:  # one of the last weights is read where it is multiplied; no sums of other rows wait
        most = (registers - 1) * lanes // kernel.unit - columns + 1
    return -(-width // -(-width // max(1, min(_PIXELS, most))))


def predict_groups(kernel: WindowKernel, hardware: CpuSpec) -> float:
    """Return the predicted seconds of convolutions of groups: those of the calls, or of the transfers into L1.

    A step multiplies one channel of a group by a tap, for all pixels of a tile. Weights are read again for each tile.
    Code that is too long for the first cache takes infinitely long.
    """
    lanes, machine = hardware.fp32_lanes, pack_machine(hardware)
    core, (rows, columns) = machine.core, kernel.window
    vectors, pixels = kernel.unit // lanes, tile_size(kernel, lanes, hardware.compute.num_vector_registers)
    if columns * kernel.group * pixels * vectors > core.multiply_add_limit:
        return math.inf
    elements = min(pixels, ((pixels - 1) * kernel.strides[1] + (columns - 1) * kernel.dilation[1] + 1) / columns)
    broadcast, shuffled = (elements, 0.0) if kernel.group >= lanes else (0.0, elements)
    sums, unroll = pixels * vectors, columns * kernel.group
    step, *_ = step_one(core, sums, vectors + elements, vectors, broadcast, shuffled, unroll, 1.0)
    taps = math.prod(sum(end - first for first, end in kernel.taps(dimension)) for dimension in range(2))
    units = kernel.batch * kernel.blocks * -(-kernel.channels // kernel.unit)
    tiles = units * kernel.outputs[0] * -(-kernel.outputs[1] // pixels)
    cycles = units * taps / pixels * kernel.group * step + tiles * call_one(core, sums, 0.0, 1.0, 0.0)
    shapes = kernel.shapes
    moved = tiles * rows * unroll * kernel.unit + math.prod(shapes["data"]) + math.prod(shapes["result"])
    transfers = BYTES * moved / machine.fill_bytes_per_cycle[0]
    return float(max(cycles, transfers) + EXPOSED_SHARE * min(cycles, transfers)) / (core.clock_hz * core.usable_cores)
