"""Kernels of what goes by places: updates put at places of a tensor, places of the largest elements in order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from anatune.emit.kernels import loop_over
from anatune.emit.script import Script, buffer_type, open_function, whole_region

__all__ = ["ScatterKernel", "TopKernel", "scatter_program", "top_program"]

_SCATTERED = {
    "add": "{0} + {1}",
    "max": "T.max({0}, {1})",
    "min": "T.min({0}, {1})",
    "mul": "{0} * {1}",
    "update": "{1}",
}
"""Reduction -> what an element becomes of itself and of an update."""
_PARALLEL_FROM = 1 << 14
"""Elements from which on loops are spread over threads: a parallel loop costs some microseconds."""


@dataclass(frozen=True)
class ScatterKernel:
    """Updates put into data (or joined with it) at indices along an axis, which are broadcast to them."""

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
    """The places of the `count` largest or smallest elements along an axis, in order."""

    shape: tuple[int, ...]
    dtype: str
    axis: int
    count: int
    largest: bool
    kind: str = "top"


def scatter_program(kernel: ScatterKernel, name: str, threads: int, _: object) -> tuple[str, str]:
    """Return (the function in TVMScript, no LLVM IR); its parameters: data, indices, updates, result.

    Updates are taken in the order in which they lie in memory.
    """
    text = _opened(
        name,
        {
            "data": (kernel.shape, kernel.dtype),
            "indices": (kernel.indices, kernel.index),
            "updates": (kernel.updates, kernel.dtype),
            "result": (kernel.shape, kernel.dtype),
        },
    )
    names = [f"i{place}" for place in range(len(kernel.shape))]
    spread = threads > 1 and kernel.axis > 0 and math.prod(kernel.updates) >= _PARALLEL_FROM
    place = ", ".join(names)
    with text.scope(*_heads(names, kernel.shape, spread=spread)):
        text.line(f"result[{place}] = data[{place}]")
    with text.scope(*_heads(names, kernel.updates, spread=spread)):
        spots = ["0" if size == 1 else one for one, size in zip(names, kernel.indices, strict=True)]
        own = f"indices[{', '.join(spots)}]"
        number = f"T.{kernel.index}"
        end = f"T.Select({own} < {number}(0), {number}({kernel.shape[kernel.axis]}), {number}(0))"
        at = own if kernel.index.startswith("u") else f"{own} + {end}"
        target = f"result[{', '.join([*names[: kernel.axis], at, *names[kernel.axis + 1 :]])}]"
        text.line(f"{target} = {_SCATTERED[kernel.reduction].format(target, f'updates[{place}]')}")
    return str(text), ""


def top_program(kernel: TopKernel, name: str, threads: int, _: object) -> tuple[str, str]:
    """Return (the function in TVMScript, no LLVM IR); its parameters: the data and the result, int64.

    The best elements so far are kept in order, behind those that are equal: most of the others lose one comparison,
    with the last one. A NaN is the largest number, as in PyTorch.
    """
    count, axis, shape = kernel.count, kernel.axis, kernel.shape
    result = (*shape[:axis], count, *shape[axis + 1 :])
    others = [place for place in range(len(shape)) if place != axis]
    text = _opened(
        name, {"data": (shape, kernel.dtype), "result": (result, "int64")}, ("best", kernel.dtype, count + 1)
    )
    names = [f"i{place}" for place in range(len(shape))]

    def at(tensor: str, place: str) -> str:
        return f"{tensor}[{', '.join([*names[:axis], place, *names[axis + 1 :]])}]"

    relation = ">" if kernel.largest else "<"
    better = f"x[0] {relation} best[{{0}}]"
    if kernel.dtype.startswith("float"):
        first, second = ("x[0]", "best[{0}]") if kernel.largest else ("best[{0}]", "x[0]")
        better = f"({better}) or (T.isnan({first}) and not T.isnan({second}))"
    order = [*others, axis]
    loops = [*(names[place] for place in others), "j"], [shape[place] for place in order]
    with text.scope(*_heads(*loops, spread=False)):
        text.line(f"x[0] = {at('data', 'j')}")
        with text.scope(f"if j < {count} or {better.format(count - 1)}:"):
            text.line(f"at[0] = T.min(j, {count - 1})")
            with text.scope(f"while at[0] > 0 and ({better.format('at[0] - 1')}):"):
                text.line("best[at[0]] = best[at[0] - 1]")
                text.line(f"{at('result', 'at[0]')} = {at('result', 'at[0] - 1')}")
                text.line("at[0] = at[0] - 1")
            text.line("best[at[0]] = x[0]")
            text.line(f'{at("result", "at[0]")} = T.Cast("int64", j)')
    return str(text), ""


def _opened(
    name: str, tensors: dict[str, tuple[Sequence[int], str]], best: tuple[str, str, int] | None = None
) -> Script:
    """Return the head of a function; `best`: a buffer with its dtype and elements, and two numbers beside it."""
    text = Script()
    open_function(text, name, [(one, buffer_type(sizes, dtype)) for one, (sizes, dtype) in tensors.items()])
    regions = [f"{one}[{whole_region(sizes)}]" for one, (sizes, _) in tensors.items()]
    written = regions[-1:]
    if best is not None:
        for buffer, dtype, size in (best, ("x", best[1], 1), ("at", "int32", 1)):
            text.line(f'{buffer} = T.sblock_alloc_buffer(({size},), "{dtype}", scope="local")')
            written.append(f"{buffer}[0:{size}]")
    text.open('with T.sblock("places"):')
    text.line(f"T.reads({', '.join(regions[:-1])})")
    text.line(f"T.writes({', '.join(written)})")
    return text


def _heads(names: Sequence[str], sizes: Sequence[int], *, spread: bool) -> list[str]:
    """Return the heads of loops, the first one spread over threads or not."""
    pairs = enumerate(zip(names, sizes, strict=True))
    return [loop_over(name, size, parallel=spread and place == 0) for place, (name, size) in pairs]
