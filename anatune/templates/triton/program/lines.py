"""Expressions over a tile: addresses that are summed by kind, and definitions that are written once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from anatune.core.workload.access import Access
from anatune.core.workload.implicit_gemm import ImplicitGemm
from anatune.core.workload.nest import Workload
from anatune.emit.script import Script
from anatune.templates.triton.program.indices import Piece, dimension_strides, walk_of

__all__ = ["TensorOffsets", "TileLines", "fold_lines", "join_terms", "spread"]

_WIDTH = 100
_CALL = re.compile(r"( *)(.*?tl\.(?:load|store)\()(.*)\)")


class TensorOffsets(NamedTuple):
    """The positions of elements of a tensor.

    Attributes
    ----------
    offsets : dict of str to list of str
        Kind ("", "m", "n", "k") -> expressions of that kind, in elements. All of them are added.
    positions : dict of int to (str, str)
        Dimension in which positions may lie outside -> (position as far as the same indices move it, its kind).
    """

    offsets: dict[str, list[str]]
    positions: dict[int, tuple[str, str]]


def spread(expression: str, kind: str, tile: tuple[str, ...]) -> str:
    """Return an expression of a kind (a name, or a product that begins with one) as one over a tile of two kinds."""
    if not kind or len(tile) < 2:
        return expression
    name, *factor = expression.split(" ", 1)
    return " ".join([f"{name}[:, None]" if kind == tile[0] else f"{name}[None, :]", *factor])


class TileLines:
    """Writes definitions of a tile's indices into a kernel, each name once.

    Parameters
    ----------
    text : Script
        Text to which lines are added.
    blocks : mapping of str to int
        Extents of the tile along "m", "n", "k".
    wide : bool
        Whether elements are counted in 64 bits.
    """

    def __init__(
        self, text: Script, workload: Workload, gemm: ImplicitGemm, blocks: Mapping[str, int], *, wide: bool
    ) -> None:
        self.text, self.workload, self.gemm, self.blocks, self.wide = text, workload, gemm, blocks, wide
        self.constants: dict[str, int] = {}
        self._written: set[str] = set()

    def define(self, name: str, expression: str, why: str = "") -> str:
        """Write ``name = expression`` unless it is already defined. Return the name."""
        if name not in self._written and name != expression:
            self._written.add(name)
            self.text.line(f"{name} = {expression}{f'  # {why}' if why else ''}")
        return name

    def first(self, index: str) -> str:
        """Return the first index of a tile (or the number of the product), as addresses take it."""
        name = index if index == "batch" else f"first_{index}"
        return self.define(f"wide_{index}", f"{name}.to(tl.int64)") if self.wide else name

    def lane(self, index: str) -> str:
        """Return the numbers of a tile's elements along an index."""
        return f"tl.arange(0, BLOCK_{index.upper()}){'.to(tl.int64)' if self.wide else ''}"

    @property
    def lane_k(self) -> str:
        """Name of the numbers of a step's iterations of k. The property defines it if necessary."""
        return self.define("lane_k", self.lane("k"))

    def whole(self, index: str) -> str:
        """Define the vector of an index if necessary, and return its name."""
        return self.define(index, f"first_{index} + {self.lane(index)}")

    def value(self, piece: Piece) -> tuple[str, str]:
        """Return a piece's name and kind; define the variables that it uses first."""
        index, block = piece.fused, self.blocks.get(piece.fused, 1)
        if piece.below % block == 0:
            return self._define_piece(piece, self.first(index)), ""
        if piece.is_whole:
            return self.whole(index), index
        if self._is_run(piece):
            return self.define(piece.name, f"{self.first(index)} % {piece.extent} + {self.lane(index)}"), index
        return self._define_piece(piece, self.whole(index)), index

    def _is_run(self, piece: Piece) -> bool:
        """Return whether the elements of a tile along a piece follow each other."""
        return piece.is_whole or (piece.below == 1 and piece.extent % self.blocks[piece.fused] == 0)

    def _define_piece(self, piece: Piece, index: str) -> str:
        if piece.is_whole:
            return index
        expression = index if piece.below == 1 else f"{index} // {piece.below}"
        return self.define(piece.name, expression if piece.is_outermost else f"{expression} % {piece.extent}")

    def steady_terms(self, access: Access) -> list[str] | None:
        """Return the terms that lanes of k add to an element's number in every step, or None if they differ by step."""
        walk = walk_of(access, "k", self.gemm, self.workload)
        block = self.blocks["k"]
        inner = [(piece, stride) for piece, stride in walk.pieces if piece.below % block]
        guarded = [piece for pieces in walk.guarded.values() for piece, _ in pieces if piece.below % block]
        if guarded or not all(self._is_run(piece) for piece, _ in inner):
            return None
        return [
            self._times(self.lane_k, f"STRIDE_{access.tensor}_{piece.name.upper()}", stride) for piece, stride in inner
        ]

    def offsets_of(
        self, access: Access, indices: Sequence[str], word: str, *, origin: bool, steady: bool = False
    ) -> TensorOffsets:
        """Return the offset of an element that fused indices add; define the variables that it uses first.

        Parameters
        ----------
        indices : sequence of str
            Fused indices, at most one of which is a vector.
        word : str
            Prefix of the names of positions in guarded dimensions.
        origin : bool
            Whether the constants of the access are added, too.
        steady : bool
            Whether lanes are left out, see `steady_terms`.
        """
        offsets: dict[str, list[str]] = {}
        guarded: dict[int, list[tuple[str, str]]] = {}
        for index in indices:
            walk = walk_of(access, index, self.gemm, self.workload)
            for piece, stride in walk.pieces:
                name, kind = self._start(piece) if steady else self.value(piece)
                constant = f"STRIDE_{access.tensor}_{piece.name.upper()}"
                offsets.setdefault(kind, []).append(self._times(name, constant, stride))
            for d, pieces in walk.guarded.items():
                terms = guarded.setdefault(d, [])
                for piece, coefficient in pieces:
                    name, kind = self.value(piece)
                    terms.append((name if coefficient == 1 else f"{name} * {coefficient}", kind))
        sizes = dimension_strides(access.shape)
        positions: dict[int, tuple[str, str]] = {}
        for d, terms in guarded.items():
            shift = [str(access.offsets[d])] if origin and access.offsets[d] else []
            kind = next((kind for _, kind in terms if kind), "")
            if terms or shift:
                positions[d] = self._name_sum(f"{word}{d}_{access.tensor}", [term for term, _ in terms] + shift), kind
            # offsets of vectors stay above zero: the first position of an image is added to the pointer
            offsets.setdefault(kind, []).extend(
                self._times(term, f"STRIDE_{access.tensor}_{d}", sizes[d]) for term, _ in terms
            )
        start = sum(o * s for o, s in zip(access.offsets, sizes, strict=True)) if origin else 0
        if start:
            offsets.setdefault("", []).append(str(start))
        return TensorOffsets({kind: terms for kind, terms in offsets.items() if terms}, positions)

    def _start(self, piece: Piece) -> tuple[str, str]:
        """Return the position along a piece at which a tile begins."""
        if piece.below % self.blocks[piece.fused] == 0:
            return self.value(piece)
        first = self.first(piece.fused)
        return (first if piece.is_whole else self.define(f"first_{piece.name}", f"{first} % {piece.extent}")), ""

    def _name_sum(self, name: str, terms: Sequence[str]) -> str:
        """Return the name of the sum of terms."""
        if len(terms) == 1 and terms[0].isidentifier():
            return terms[0]
        return self.define(name, join_terms(terms))

    def _times(self, name: str, constant: str, factor: int) -> str:
        if factor == 1:
            return name
        self.constants[constant] = factor
        return f"{name} * {constant}"

    def element(self, start: str, name: str, places: Sequence[TensorOffsets], tile: tuple[str, ...]) -> str:
        """Return the positions of a tile's elements: first the scalars, then the vectors, spread over the tile.

        Parameters
        ----------
        start : str
            The tensor's pointer, or "".
        name : str
            Prefix of the names of sums of vectors.
        """
        terms: dict[str, list[str]] = {}
        for position in places:
            for kind, more in position.offsets.items():
                terms.setdefault(kind, []).extend(more)
        words = [start] * bool(start) + [*terms.pop("", [])]
        vectors = []
        for kind, parts in terms.items():
            vector = parts[0] if len(parts) == 1 else self.define(f"{name}_{kind}", join_terms(parts))
            vectors.append(spread(vector, kind, tile))
        # offsets are added to each other before the pointer: in as many bits as they need
        vectors = [f"({join_terms(vectors)})"] if words and len(vectors) > 1 else vectors
        return join_terms([*words, *vectors])


def join_terms(terms: Sequence[str]) -> str:
    """Return the sum of terms. Terms may be negative numbers."""
    return " + ".join(terms).replace("+ -", "- ")


def fold_lines(source: str) -> str:
    """Return a module's text with long loads and stores spread over several lines."""
    lines = []
    for line in source.splitlines():
        match = _CALL.fullmatch(line) if len(line) > _WIDTH else None
        if match is None:
            lines.append(line)
            continue
        indent, head, arguments = match.groups()
        lines += [indent + head, *(f"{indent}    {argument}," for argument in _arguments(arguments)), f"{indent})"]
    return "\n".join(lines) + "\n"


def _arguments(text: str) -> list[str]:
    """Return the arguments in a text: its parts between commas outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]
