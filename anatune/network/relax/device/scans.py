"""Triton programs of running sums and products, and of sorts, along a dimension, which loops cannot express."""

from __future__ import annotations

import math

from anatune.emit.buffer import Buffer
from anatune.emit.script import Script
from anatune.network.graph.nodes import Node, tensor_type
from anatune.network.relax.device.ir import CallExpr, Name, Number, compensated_sum
from anatune.network.relax.device.printing import print_statements, triton_type
from anatune.templates.triton.program.kernel import TritonKernel, TritonProgram

__all__ = ["scan_program"]

_MOST_SORTED = 4096
"""Most elements that one program sorts."""
_MOST_BLOCK, _LANES = 1024, 32
_SUMS = {"cumsum": 0, "cumprod": 1}
"""Operator -> its neutral value."""
_HEAD = """
import triton
import triton.language as tl


@triton.jit
def {name}(data_ptr, result_ptr):
    program = tl.program_id(0){wide}
"""


def scan_program(node: Node) -> TritonProgram | None:
    """Return the program of a node, from ``data`` to ``result``; None for other operators and for large sorts."""
    if node.op in _SUMS:
        return _cumulative_program(node)
    if node.op not in ("argsort", "topk"):
        return None
    kind = tensor_type(node.arguments[0])
    fits = kind.dtype in ("float32", "int32", "int8", "uint8") and kind.shape[_axis(node)] <= _MOST_SORTED
    return _sort_program(node) if fits else None


def _axis(node: Node) -> int:
    axis: int = node.attributes["axis"] % len(tensor_type(node.arguments[0]).shape)
    return axis


def _split_shape(node: Node) -> tuple[int, int, int]:
    """Return the sizes before the dimension, of it, and after it."""
    shape, axis = tensor_type(node.arguments[0]).shape, _axis(node)
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _make_program(node: Node, name: str, title: str, body: str, grid: int, warps: int) -> TritonProgram:
    types = [tensor_type(one) for one in (node.arguments[0], node)]
    buffers = tuple(Buffer(word, kind.dtype, kind.shape) for word, kind in zip(("data", "result"), types, strict=True))
    wide = ".to(tl.int64)" if math.prod(types[0].shape) >= 1 << 31 else ""
    source = f'"""{title}"""\n{_HEAD.format(name=name, wide=wide)}{body}'
    kernel = TritonKernel(name, buffers, grid, warps, 1, {"enable_fp_fusion": True})
    return TritonProgram("", source, (kernel,), "result")


def _cumulative_program(node: Node) -> TritonProgram:
    before, size, behind = _split_shape(node)
    lanes = min(_LANES, 1 << (behind - 1).bit_length())
    block = min(_MOST_BLOCK // lanes, 1 << (size - 1).bit_length())
    blocks, neutral, dtype = -(-behind // lanes), _SUMS[node.op], triton_type(tensor_type(node).dtype)
    step, is_later = "+" if node.op == "cumsum" else "*", bool(node.attributes["exclusive"])
    to, there, begin = "at", "inside", ""
    if is_later:  # an element excludes itself
        to, there = f"at + {behind}", f"inside & (place < {size - 1})[:, None]"
        first = f"tl.full(({lanes},), {neutral}, tl.{dtype}), mask=lane < {behind}"
        begin = f"    tl.store(result_ptr + row * {size * behind} + lane, {first})\n"
    lines = [f"run = kept[None, :] {step} part", f"tl.store(result_ptr + {to}, run, mask={there})"]
    if dtype == "float32" and step == "+":
        begin += f"    kept_lost = tl.zeros(({lanes},), tl.float32)\n"
        lines[0] = "run = kept[None, :] + (part - kept_lost[None, :])"
        sums = Script()
        print_statements(sums, compensated_sum(Name("kept"), CallExpr("sum", (Name("x"), Number(0)))))
        lines += sums.lines
    else:
        lines.append(f"is_last = tl.arange(0, {block}) == {block - 1}")
        lines.append("kept = tl.sum(tl.where(is_last[:, None], run, 0), 0)")
    carry = "".join(f"        {line}\n" for line in lines)
    body = f"""    row = program // {blocks}
    lane = program % {blocks} * {lanes} + tl.arange(0, {lanes})
{begin}    kept = tl.full(({lanes},), {neutral}, tl.{dtype})
    for first in range(0, {size}, {block}):
        place = first + tl.arange(0, {block})
        at = (row * {size} + place[:, None]) * {behind} + lane[None, :]
        inside = (place < {size})[:, None] & (lane < {behind})[None, :]
        x = tl.load(data_ptr + at, mask=inside, other={neutral})
        part = tl.{node.op}(x, 0)
{carry}"""
    name = f"{node.op}_{before}x{size}x{behind}_{dtype}{'_exclusive' * is_later}"
    title = f"Running {'sums' if step == '+' else 'products'} of {size} elements, {before * behind} times."
    return _make_program(node, name, title, body, before * blocks, 4)


def _sort_program(node: Node) -> TritonProgram:
    before, size, behind = _split_shape(node)
    is_top, kind = node.op == "topk", tensor_type(node.arguments[0])
    falls = node.attributes["largest" if is_top else "descending"]
    count = node.attributes["k"] if is_top else size
    block = max(2, 1 << (size - 1).bit_length())
    # numbers as integers in the same order; indices in the low bits keep equal numbers in order
    bits, plain, signed = "x.to(tl.int32)", "", ""
    if kind.dtype == "float32":
        bits = "(x + 0.0).to(tl.int32, bitcast=True)"
        plain = '    x = tl.where(x != x, float("nan"), x)\n'  # without a sign: behind all numbers
        signed = "    bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)\n"
    body = f"""    row, lane = program // {behind}, program % {behind}
    place = tl.arange(0, {block})
    x = tl.load(data_ptr + (row * {size} + place) * {behind} + lane, mask=place < {size}, other=0)
{plain}    bits = {bits}
{signed}    key = ({"-1 - " * falls}bits).to(tl.int64) * 4294967296 + place
    key = tl.sort(tl.where(place < {size}, key, 0x7FFFFFFFFFFFFFFF))
    at = (row * {count} + place) * {behind} + lane
    tl.store(result_ptr + at, (key & 0xFFFFFFFF).to(tl.{triton_type(tensor_type(node).dtype)}), mask=place < {count})
"""
    name = f"{'top' if is_top else 'order'}_{count}_of_{before}x{size}x{behind}_{kind.dtype}{'_falling' * falls}"
    title = f"Places of {'the first ' * is_top}{count} of {size} elements in order, {before * behind} times."
    return _make_program(node, name, title, body, before * behind, 8 if block > _MOST_BLOCK else 4)
