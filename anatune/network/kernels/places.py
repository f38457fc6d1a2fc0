"""Kernels of scatters and of the indices of the largest elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from anatune.emit.kernels import write_loop_head
from anatune.emit.script import Script, buffer_type, open_function, whole_region

__all__ = ["ScatterKernel", "TopKernel", "scatter_program", "top_program"]

_UPDATES = {"add": "{0} + {1}", "max": "T.max({0}, {1})", "min": "T.min({0}, {1})", "mul": "{0} * {1}", "update": "{1}"}
"""Reduction -> the new element from the old one and an update."""
_PARALLEL_FROM = 1 << 14
"""The least elements of a loop that runs in several threads: a parallel loop costs some microseconds."""


@dataclass(frozen=True)
class ScatterKernel:
    """Updates that replace elements or are combined with them, at indices along an axis that broadcast to them."""

    shape: tuple[int, ...]
    updates: tuple[int, ...]
    dtype: str
    indices: tuple[int, ...]
    index: str
    axis: int
    reduction: str
    kind: str = "scatter"


@dataclass(frozen=True)
class TopKernel:
    """The indices of the `count` largest or smallest elements along an axis, in order."""

    shape: tuple[int, ...]
    dtype: str
    axis: int
    count: int
    largest: bool
    kind: str = "top"


def scatter_program(kernel: ScatterKernel, name: str, threads: int, _: object) -> tuple[str, str]:
    """Return (the function in TVMScript, no LLVM IR); parameters: data, indices, updates, result.

    Updates are applied in the order in which they lie in memory.
    """
    text = _open_kernel(
        name,
        {
            "data": (kernel.shape, kernel.dtype),
            "indices": (kernel.indices, kernel.index),
            "updates": (kernel.updates, kernel.dtype),
            "result": (kernel.shape, kernel.dtype),
        },
    )
    names = [f"i{place}" for place in range(len(kernel.shape))]
    is_parallel = threads > 1 and kernel.axis > 0 and math.prod(kernel.updates) >= _PARALLEL_FROM
    position = ", ".join(names)
    with text.scope(*_loop_heads(names, kernel.shape, is_parallel=is_parallel)):
        text.line(f"result[{position}] = data[{position}]")
    with text.scope(*_loop_heads(names, kernel.updates, is_parallel=is_parallel)):
        spots = ["0" if size == 1 else i for i, size in zip(names, kernel.indices, strict=True)]
        stored_index = f"indices[{', '.join(spots)}]"
        number = f"T.{kernel.index}"
        end = f"T.Select({stored_index} < {number}(0), {number}({kernel.shape[kernel.axis]}), {number}(0))"
        index = stored_index if kernel.index.startswith("u") else f"{stored_index} + {end}"
        target = f"result[{', '.join([*names[: kernel.axis], index, *names[kernel.axis + 1 :]])}]"
        text.line(f"{target} = {_UPDATES[kernel.reduction].format(target, f'updates[{position}]')}")
    return str(text), ""


def top_program(kernel: TopKernel, name: str, threads: int, _: object) -> tuple[str, str]:
    """Return (the function in TVMScript, no LLVM IR); parameters: the data and the result, int64.

    The best elements so far are kept in order, after those that are equal to them. Most of the other elements need only
    one comparison, with the last of them. A NaN counts as the largest number, as in PyTorch.
    """
    count, axis, shape = kernel.count, kernel.axis, kernel.shape
    result = (*shape[:axis], count, *shape[axis + 1 :])
    others = [dimension for dimension in range(len(shape)) if dimension != axis]
    text = _open_kernel(
        name, {"data": (shape, kernel.dtype), "result": (result, "int64")}, ("best", kernel.dtype, count + 1)
    )
    names = [f"i{dimension}" for dimension in range(len(shape))]

    def element(tensor: str, index: str) -> str:
        return f"{tensor}[{', '.join([*names[:axis], index, *names[axis + 1 :]])}]"

    relation = ">" if kernel.largest else "<"
    better = f"x[0] {relation} best[{{0}}]"
    if kernel.dtype.startswith("float"):
        first, second = ("x[0]", "best[{0}]") if kernel.largest else ("best[{0}]", "x[0]")
        better = f"({better}) or (T.isnan({first}) and not T.isnan({second}))"
    order = [*others, axis]
    loops = [*(names[dimension] for dimension in others), "j"], [shape[dimension] for dimension in order]
    with text.scope(*_loop_heads(*loops, is_parallel=False)):
        text.line(f"x[0] = {element('data', 'j')}")
        with text.scope(f"if j < {count} or {better.format(count - 1)}:"):
            text.line(f"at[0] = T.min(j, {count - 1})")
            with text.scope(f"while at[0] > 0 and ({better.format('at[0] - 1')}):"):
                text.line("best[at[0]] = best[at[0] - 1]")
                text.line(f"{element('result', 'at[0]')} = {element('result', 'at[0] - 1')}")
                text.line("at[0] = at[0] - 1")
            text.line("best[at[0]] = x[0]")
            text.line(f'{element("result", "at[0]")} = T.Cast("int64", j)')
    return str(text), ""


def _open_kernel(
    name: str, tensors: dict[str, tuple[Sequence[int], str]], best: tuple[str, str, int] | None = None
) -> Script:
    """Return the head of a function; `best` is a buffer (name, dtype, elements), which gets two scalars beside it."""
    text = Script()
    open_function(text, name, [(tensor, buffer_type(sizes, dtype)) for tensor, (sizes, dtype) in tensors.items()])
    regions = [f"{tensor}[{whole_region(sizes)}]" for tensor, (sizes, _) in tensors.items()]
    written = regions[-1:]
    if best is not None:
        for buffer, dtype, size in (best, ("x", best[1], 1), ("at", "int32", 1)):
            text.line(f'{buffer} = T.sblock_alloc_buffer(({size},), "{dtype}", scope="local")')
            written.append(f"{buffer}[0:{size}]")
    text.open('with T.sblock("places"):')
    text.line(f"T.reads({', '.join(regions[:-1])})")
    text.line(f"T.writes({', '.join(written)})")
    return text


def _loop_heads(names: Sequence[str], sizes: Sequence[int], *, is_parallel: bool) -> list[str]:
    """Return the heads of loops, the first one parallel if `is_parallel`."""
    pairs = enumerate(zip(names, sizes, strict=True))
    return [write_loop_head(name, size, parallel=is_parallel and level == 0) for level, (name, size) in pairs]
