"""Kernels that put rows into a tensor: nothing else of it is touched."""

from __future__ import annotations

from dataclasses import dataclass

from anatune.core.sizes import at_run_time, symbols_of
from anatune.emit.script import Script, open_function, shape_tuple, whole_region

__all__ = ["PutKernel", "put_program"]


@dataclass(frozen=True)
class PutKernel:
    """Elements of shape `rows` that go into a tensor at some places along an axis.

    Attributes
    ----------
    first : int
        Of the places, where these are neighbours; -1: a tensor has them, int64.
    """

    shape: tuple[int, ...]
    rows: tuple[int, ...]
    axis: int
    dtype: str
    first: int = -1
    kind: str = "put"

    @property
    def is_told(self) -> bool:
        """Whether a tensor has the places."""
        return not at_run_time(self.first) and self.first < 0


def put_program(kernel: PutKernel, name: str, threads: int, *, lanes: int) -> tuple[str, str]:
    """Return (the function in TVMScript, nothing); its parameters are the tensor, which is written, rows, places."""
    axis, count = kernel.axis, len(kernel.rows)
    shapes = {"held": kernel.shape, "rows": kernel.rows, **({"places": (kernel.rows[axis],)} if kernel.is_told else {})}
    dtypes = {"held": kernel.dtype, "rows": kernel.dtype, "places": "int64"}
    symbols = sorted(symbols_of((*shapes.values(), kernel.first)))
    text = Script()
    open_function(text, name, [*((f"{one}_", "T.handle") for one in shapes), *((one, "T.int64") for one in symbols)])
    for one, shape in shapes.items():
        text.line(f'{one} = T.match_buffer({one}_, {shape_tuple(shape)}, "{dtypes[one]}")')
    text.open('with T.sblock("moves"):')
    text.line(f"T.reads({', '.join(f'{one}[{whole_region(shapes[one])}]' for one in [*shapes][1:])})")
    text.line(f"T.writes(held[{whole_region(kernel.shape)}])")
    for place, size in enumerate(kernel.rows):
        is_vector = place == count - 1 != axis and not at_run_time(size) and size % lanes == 0
        if is_vector:
            text.open(f"for i{place}_ in T.serial({size // lanes}):")
            text.open(f"for lane in T.vectorized({lanes}):")
        else:
            text.open(f"for i{place} in T.serial({size}):")
    words = [f"i{place}" for place in range(count)]
    if is_vector:
        words[-1] = f"i{count - 1}_ * {lanes} + lane"
    to = [*words]
    to[axis] = f"places[{words[axis]}]" if kernel.is_told else f"{kernel.first} + {words[axis]}"
    text.line(f"held[{', '.join(to)}] = rows[{', '.join(words)}]")
    return str(text), ""
