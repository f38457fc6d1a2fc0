"""Kernels that write rows into a tensor and touch nothing else of it."""

from __future__ import annotations

from dataclasses import dataclass

from anatune.core.sizes import is_run_time, symbols_of
from anatune.emit.script import Script, open_function, shape_tuple, whole_region

__all__ = ["PutKernel", "put_program"]


@dataclass(frozen=True)
class PutKernel:
    """Elements of the shape `rows` that are written into a tensor at some indices along an axis.

    Attributes
    ----------
    first : int
        The first index, if the indices are consecutive; -1: a tensor holds the indices, int64.
    """

    shape: tuple[int, ...]
    rows: tuple[int, ...]
    axis: int
    dtype: str
    first: int = -1
    kind: str = "put"

    @property
    def has_indices(self) -> bool:
        """Return whether a tensor holds the indices."""
        return not is_run_time(self.first) and self.first < 0


def put_program(kernel: PutKernel, name: str, threads: int, *, lanes: int) -> tuple[str, str]:
    """Return (the function in TVMScript, no LLVM IR); parameters: the tensor that is written, rows, indices."""
    axis, count = kernel.axis, len(kernel.rows)
    shapes = {
        "held": kernel.shape,
        "rows": kernel.rows,
        **({"places": (kernel.rows[axis],)} if kernel.has_indices else {}),
    }
    dtypes = {"held": kernel.dtype, "rows": kernel.dtype, "places": "int64"}
    symbols = sorted(symbols_of((*shapes.values(), kernel.first)))
    text = Script()
    open_function(text, name, [*((f"{one}_", "T.handle") for one in shapes), *((one, "T.int64") for one in symbols)])
    for tensor, shape in shapes.items():
        text.line(f'{tensor} = T.match_buffer({tensor}_, {shape_tuple(shape)}, "{dtypes[tensor]}")')
    text.open('with T.sblock("moves"):')
    text.line(f"T.reads({', '.join(f'{one}[{whole_region(shapes[one])}]' for one in [*shapes][1:])})")
    text.line(f"T.writes(held[{whole_region(kernel.shape)}])")
    for dimension, size in enumerate(kernel.rows):
        is_vector = dimension == count - 1 != axis and not is_run_time(size) and size % lanes == 0
        if is_vector:
            text.open(f"for i{dimension}_ in T.serial({size // lanes}):")
            text.open(f"for lane in T.vectorized({lanes}):")
        else:
            text.open(f"for i{dimension} in T.serial({size}):")
    words = [f"i{place}" for place in range(count)]
    if is_vector:
        words[-1] = f"i{count - 1}_ * {lanes} + lane"
    target = [*words]
    target[axis] = f"places[{words[axis]}]" if kernel.has_indices else f"{kernel.first} + {words[axis]}"
    text.line(f"held[{', '.join(target)}] = rows[{', '.join(words)}]")
    return str(text), ""
