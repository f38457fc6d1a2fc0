"""The kernel that adds up parts of sums in a fixed order and stores the results."""

from __future__ import annotations

from anatune.core.workload.access import Access
from anatune.core.workload.nest import Workload
from anatune.emit.script import Script
from anatune.templates.triton.program.indices import dimension_strides
from anatune.templates.triton.program.sizes import PARTS_BLOCK, TileSizes
from anatune.templates.triton.program.steps import write_steps

__all__ = ["PARTS_NAME", "write_parts"]

PARTS_NAME = "add_parts"


def write_parts(text: Script, workload: Workload, parts_pointer: str, parameters: list[str], sizes: TileSizes) -> None:
    """Write the kernel. Parts have the layout of the result and follow each other.

    Parameters
    ----------
    parts_pointer : str
        Parameter of the parts.
    parameters : list of str
        All parameters.
    sizes : TileSizes
        Sizes of the product.
    """
    write = workload.write
    mask = ", mask=mask" if sizes.divisor("results") % PARTS_BLOCK else ""
    cast = ".to(tl.int64)" if sizes.wide else ""
    text.line("@triton.jit")
    with text.scope(f"def {PARTS_NAME}({', '.join(parameters)}):"):
        if sizes.ranged is not None:
            text.line(f"RESULTS = {sizes.varying['RESULTS']}")
        text.line(f"at = tl.program_id(0){cast} * BLOCK + tl.arange(0, BLOCK)")
        if mask:
            text.line("mask = at < RESULTS")
        text.line(f"sums = tl.load({parts_pointer} + at{mask})")
        with text.scope("for part in tl.static_range(1, SPLIT_K):"):
            text.line(f"sums += tl.load({parts_pointer} + part * RESULTS + at{mask})")
        value = write_steps(text, workload, "sums", lambda access: _load(access, write, mask))
        text.line(f"tl.store({write.tensor}_ptr + at, {value}{mask})")


def _load(access: Access, write: Access, mask: str) -> str:
    """Return the elements of an epilogue operand for the results. It has some of their dimensions."""
    sizes = dimension_strides(access.shape)
    if access.indices == write.indices:
        where = "at"
    else:
        words = []
        strides = dimension_strides(write.shape)
        for terms, size in zip(access.indices, sizes, strict=True):
            d = write.indices.index(terms)
            position = "at" if strides[d] == 1 else f"at // {strides[d]}"
            position = position if d == 0 else f"{position} % {write.shape[d]}"
            words.append(position if size == 1 else f"{position} * {size}")
        where = " + ".join(words)
    return f"tl.load({access.tensor}_ptr + {where}{mask})"
