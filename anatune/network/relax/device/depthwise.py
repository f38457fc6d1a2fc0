"""The Triton program of depthwise convolutions, whose channels have no sums in common: loops over the window's taps.

A thread holds neighbouring channels of two pixels. Its loads are 16 bytes, and guards are those of a pixel.
"""

from __future__ import annotations

from anatune.core.workload.access import Access
from anatune.core.workload.nest import Workload
from anatune.emit.buffer import Buffer
from anatune.emit.script import Script
from anatune.network.relax.device.lowering import PlannedCall
from anatune.network.relax.device.modules import RestKernel
from anatune.templates.triton.program.kernel import TritonKernel, TritonProgram
from anatune.templates.triton.program.steps import write_steps

__all__ = ["is_taken", "plan_depthwise"]

_TILE, _LEAST_LANES, _MOST_LANES = 2048, 16, 64
_MOST_PADDING = 1.15
"""Most channels of the tiles of a pixel, relative to those that exist."""
_TAP_OPERATIONS = 8
"""Operations of a tap and result, of which an instruction has two. Source: Triton 3.9's code for sm_89 has 4.7, 4.3 and
3.7 instructions for windows of 3x3, 5x5 and 7x7, 2 of them conversions."""


def is_taken(workload: Workload) -> bool:
    """Return whether a convolution of images with channels last has one group for each channel, and 16 bits."""
    given = workload.attribute
    if workload.operator != "conv2d" or given["layout"] != "NHWC" or workload.dtype not in ("float16", "bfloat16"):
        return False
    return given["groups"] != 1 and given["groups"] == given["c"] == given["k"]


def plan_depthwise(workload: Workload) -> PlannedCall:
    """Return the call of a depthwise convolution; its bytes cross DRAM once, and its windows lie in caches."""
    data, window_rows, window_columns = workload.reads[0], workload.extents["ry"], workload.extents["rx"]
    (_, height, width, channels), (batch, rows, columns, _) = data.shape, workload.write.shape
    (down, tap_down), (across, tap_across) = ([term.coefficient for term in data.indices[dim]] for dim in (1, 2))
    lanes = _MOST_LANES
    while lanes > _LEAST_LANES and -(-channels // lanes) * lanes > _MOST_PADDING * channels:
        lanes //= 2
    pixels, tiles, block = batch * rows * columns, -(-channels // lanes), _TILE // lanes
    name = f"depthwise_{window_rows}x{window_columns}"
    buffers = tuple(Buffer.of(access) for access in (*workload.operands, workload.write))
    is_wide = max(data.num_elements, workload.write.num_elements) >= 1 << 31
    exists = "" if channels % lanes == 0 else f"channel < {channels}"
    text = Script()
    text.line(f'"""{workload.describe()}."""\n\nimport triton\nimport triton.language as tl\n\n')
    text.line("@triton.jit")
    with text.scope(f"def {name}({', '.join(f'{buffer.tensor}_ptr' for buffer in buffers)}):"):
        text.line(f"program = tl.program_id(0){'.to(tl.int64)' if is_wide else ''}")
        text.line(f"channel = program % {tiles} * {lanes} + tl.arange(0, {lanes})")
        text.line(f"pixel = program // {tiles} * {block} + tl.arange(0, {block})")
        text.line(f"row = pixel // {columns} % {rows} * {down} + {data.offsets[1]}")
        text.line(f"column = pixel % {columns} * {across} + {data.offsets[2]}")
        text.line(f"first = (pixel // {rows * columns} * {height * width} + row * {width} + column) * {channels}")
        text.line(f"sums = tl.zeros(({block}, {lanes}), tl.float32)")
        with text.scope(f"for r in range(0, {window_rows}):"):
            text.line(f"y = row + r * {tap_down}")
            text.line(f"in_rows = (y >= 0) & (y < {height}) & (pixel < {pixels})")
            with text.scope(f"for s in tl.static_range(0, {window_columns}):"):
                text.line(f"x = column + s * {tap_across}")
                text.line(f"inside = (in_rows & (x >= 0) & (x < {width}))[:, None]")
                text.line(f"at = first + (r * {tap_down * width} + s * {tap_across}) * {channels}")
                masks = (f"inside & ({exists})[None, :]", f", mask={exists}, other=0.0") if exists else ("inside", "")
                text.line(f"value = tl.load(data_ptr + (at[:, None] + channel[None, :]), mask={masks[0]}, other=0.0)")
                factor = f"tl.load(weight_ptr + (r * {window_columns} + s) * {channels} + channel{masks[1]})"
                text.line(f"sums += value.to(tl.float32) * {factor}.to(tl.float32)[None, :]")
        text.line(f"result = pixel[:, None] * {channels} + channel[None, :]")
        stored = " & ".join([f"(pixel < {pixels})[:, None]"] + ([f"({exists})[None, :]"] if exists else []))

        def load(access: Access) -> str:
            if len(access.shape) == 1:
                return f"tl.load({access.tensor}_ptr + channel{f', mask={exists}' if exists else ''})[None, :]"
            return f"tl.load({access.tensor}_ptr + result, mask={stored})"

        value = write_steps(text, workload, "sums", load)
        text.line(f"tl.store({workload.write.tensor}_ptr + result, {value}, mask={stored})")
    kernel = TritonKernel(name, buffers, -(-pixels // block) * tiles, 4, 1, {"enable_fp_fusion": True})
    program = TritonProgram("", str(text), (kernel,), workload.write.tensor)
    flop = workload.write.num_elements * window_rows * window_columns * _TAP_OPERATIONS
    num_bytes = sum(buffer.num_bytes for buffer in buffers)
    # L1 keeps a block's part of a row for all its taps; blocks with several rows of an image read each of them once
    part = window_rows * (block * across + (window_columns - 1) * tap_across)
    read = min(part, (block * down / columns + (window_rows - 1) * tap_down + 1) * width)
    cached_bytes = round((read / block + 1) * workload.write.num_bytes)
    rest = RestKernel(program, (), (), num_bytes, flop, cached_bytes)
    operands = tuple(access.tensor for access in workload.operands)
    return PlannedCall(program, operands, (0,) * len(operands), rest)
