"""The LLVM IR functions that a Winograd program calls: transforms, and the product of tiles and weights."""

from __future__ import annotations

from collections.abc import Iterator

from anatune.core.hardware.spec import CpuSpec
from anatune.core.workload.nest import DTYPE_BYTES, Workload
from anatune.core.workload.number_formats import STEP_OPERANDS
from anatune.emit.kernels import Function, vector_attributes
from anatune.templates.cpu.program.kernels import register_letter
from anatune.templates.cpu.program.prefetch import FEWEST_REPEATS, LINE_BYTES, MOST_LINES
from anatune.templates.cpu.program.register_tile import Microkernel, Result, RowsAhead, Stream, TileOperand
from anatune.templates.winograd.program.bands import band_ir
from anatune.templates.winograd.program.layout import WinogradLayout
from anatune.templates.winograd.program.outputs import OutputTransform, output_ir
from anatune.templates.winograd.program.transforms import input_ir, weight_ir
from anatune.templates.winograd.rules import INSTRUCTION

__all__ = ["input_functions", "output_functions", "product_kernel", "weight_functions"]

_PAGE_BYTES = 4096
"""Distance by which streamed weights are prefetched. The hardware follows a stream to the end of a page, and waits for
memory at the start of the next one. Source: Zen 4, 512 to 512 channels on 7x7, 16 tiles x 1 vector: 2.0 ms without,
1.35 with; 256 to 256 on 14x14, which come from L3: 1.07 and 1.05.
"""

_LINES_FURTHER = 2
"""Lines by which rows are prefetched ahead of their use: 32 steps of float32, more cycles than a load from L3."""


def product_kernel(name: str, layout: WinogradLayout, hardware: CpuSpec) -> Microkernel:
    """Return the microkernel of the product of `rows` tiles and a sliver of output channels, for one frequency."""
    convolution = layout.convolution
    dtype, group = convolution.transformed, convolution.group
    steps, size = range(0, layout.unroll, group), DTYPE_BYTES[dtype]
    line = LINE_BYTES // size
    # rows of V that do not stay in L1 from one sliver to the next are prefetched
    rows_stay = layout.rows * layout.depth <= MOST_LINES * line
    rows = tuple(row * layout.data_row for row in range(layout.rows))
    tiles = TileOperand(
        dtype=dtype,
        lane_stride=0,
        rows=rows,
        loops=(layout.unroll,),
        steps=tuple(steps),
        masked=False,
        group=group,
        ahead=None if rows_stay else RowsAhead(_LINES_FURTHER * line, rows),
    )
    # transformed weights that do not fit L2 come from beyond it each time they are read
    are_streamed = layout.weight_size * size > hardware.l2.size_bytes
    stream = _stream(layout, line) if are_streamed else None
    weights = TileOperand(
        dtype=dtype,
        lane_stride=group,
        rows=(0,) * layout.rows,
        loops=(layout.unroll * layout.width,),
        steps=tuple(step * layout.width for step in steps),
        masked=False,
        group=group,
        ahead=RowsAhead(_PAGE_BYTES // size) if are_streamed and stream is None else None,
        stream=stream,
    )
    return Microkernel(
        name=name,
        lanes=layout.lanes,
        size=layout.width,
        body="multiply_add",
        accumulator=convolution.summed,
        operands=(tiles, weights),
        result=Result(convolution.summed, 1, tuple(row * layout.product_row for row in range(layout.rows))),
        trips=(layout.depth // layout.unroll,),
        num_steps=len(steps),
        dot=INSTRUCTION if group > 1 else "",
        registers=register_letter(hardware.compute, layout.rows * layout.vectors),
        num_registers=hardware.compute.num_vector_registers,
        attributes=vector_attributes(layout.lanes),
    )


def _stream(layout: WinogradLayout, line: int) -> Stream | None:
    """Return the part of the next sliver of weights that each call prefetches; None if one call reads a sliver alone.

    `line` is the number of elements of a cache line.
    """
    if layout.calls < FEWEST_REPEATS:
        return None
    lines = -(-layout.weight_sliver // (line * layout.calls))
    return Stream(lines, layout.weight_sliver, {"call": lines * line})


def _vectors(name: str, channels: int, lanes: int) -> Iterator[tuple[str, int]]:
    """Yield (name, lanes used) of the function for whole vectors of channels and of the one for the last vector."""
    yield name, lanes
    if channels % lanes:
        yield f"{name}_rest", channels % lanes


def input_functions(prefix: str, layout: WinogradLayout, dtype: str) -> list[Function]:
    """Return the input transforms for data of a dtype, and the functions that gather their inputs."""
    convolution, transform, lanes = layout.convolution, layout.transform, layout.data_lanes
    if convolution.channels_last:
        padded_channels, data = layout.channel_vectors * lanes, convolution.data
        pitches = {"gathered": (transform.inputs * padded_channels, padded_channels), "input": (data["y"], data["x"])}
        names = [("gathered", lanes), *_vectors("input", convolution.channels, lanes)]
        return [
            input_ir(
                f"{prefix}_{name}", layout, dtype, pitches=pitches[name.removesuffix("_rest")], strides=(lanes, lanes),
                used=used,
            )
            for name, used in names
        ]  # fmt: skip
    gathered = input_ir(
        f"{prefix}_gathered", layout, dtype, pitches=(layout.band_width * lanes, lanes),
        strides=(transform.outputs * lanes, layout.data_row), used=lanes,
    )  # fmt: skip
    used = [pair for pair in _vectors("band", convolution.channels, lanes) if pair[1] <= convolution.channels]
    return [gathered, *(band_ir(f"{prefix}_{name}", layout, lanes) for name, lanes in used)]


def output_functions(prefix: str, layout: WinogradLayout, workload: Workload) -> list[Function]:
    """Return the output transforms."""
    reading = iter(workload.epilogue_reads)
    steps = tuple((step, next(reading).dtype if STEP_OPERANDS[step] else "") for step in workload.epilogue)
    result = Result(workload.write.dtype, 1, (), zero_point=workload.write.zero_point)
    return [
        output_ir(f"{prefix}_{name}", OutputTransform(layout, steps, used, result))
        for name, used in _vectors("output", layout.convolution.filters, layout.lanes)
    ]


def weight_functions(prefix: str, layout: WinogradLayout, dtype: str) -> list[Function]:
    """Return the weight transforms for weights of a dtype."""
    return [
        weight_ir(f"{prefix}_{name}", layout, dtype, used)
        for name, used in _vectors("weights", layout.convolution.filters, layout.lanes)
    ]
