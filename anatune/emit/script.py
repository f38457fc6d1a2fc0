"""Writing of TVMScript."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager


class Script:
    """Indented lines of text."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0

    def line(self, text: str) -> None:
        """Append one line."""
        self.lines.append("    " * self.depth + text)

    def open(self, text: str) -> None:
        """Append a line that opens a block."""
        self.line(text)
        self.depth += 1

    def close(self, levels: int = 1) -> None:
        """Leave `levels` blocks."""
        self.depth -= levels

    @contextmanager
    def scope(self, *heads: str) -> Iterator[None]:
        """Open blocks, skipping empty heads, and close them at the end."""
        depth = self.depth
        for head in heads:
            if head:
                self.open(head)
        yield
        self.close(self.depth - depth)

    def __str__(self) -> str:
        return "\n".join(self.lines) + "\n"


def write_affine(terms: Iterable[tuple[str, int]], constant: int = 0) -> str:
    """Return ``name * factor + ... + constant`` without zero terms."""
    words = [name if factor == 1 else f"{name} * {factor}" for name, factor in terms if factor]
    if constant or not words:
        words.append(str(constant))
    return " + ".join(words)


def buffer_type(shape: Sequence[int | str], dtype: str) -> str:
    """Return the type of a buffer parameter."""
    return f'T.Buffer({shape_tuple(shape)}, "{dtype}")'


def shape_tuple(shape: Sequence[int | str]) -> str:
    """Return a shape as a tuple."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def whole_region(shape: Sequence[int | str]) -> str:
    """Return the region of a whole buffer."""
    return ", ".join(f"0:{extent}" for extent in shape) or "()"


def open_function(text: Script, name: str, parameters: Sequence[tuple[str, str]]) -> None:
    """Append the head of a function and enter it."""
    text.line("@T.prim_func(s_tir=True)")
    text.open(f"def {name}({', '.join(f'{tensor}: {buffer}' for tensor, buffer in parameters)}):")
    text.line(f'T.func_attr({{"global_symbol": "{name}", "tirx.noalias": True}})')
