"""A small language of loops, between TVM's functions and Triton source.

`reading` returns a `DeviceNest` whose expressions have an `Element` for each load, and a `Reduction` around each
reduced expression. `rest` turns it into statements on tiles, whose expressions have a `Load` where memory is read.
`printing` prints them. All are compared by value; Python's operators build expressions from expressions and numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from anatune.errors import BuildError

__all__ = [
    "INFINITY", "LARGEST", "NAN_STAYS", "Assign", "CallExpr", "Cast", "ChoiceExpr", "DeviceNest", "Element", "Expanded",
    "Expr", "For", "Full", "Infix", "Load", "Name", "Negative", "NoSourceError", "Number", "Reduction", "Statement",
    "Store", "clamp_finite", "compensated_sum", "elements_in", "equal", "expr_of", "names_in", "parts_of", "where",
]  # fmt: skip

LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38}
"""Number format of 16 bits -> its largest number."""
NAN_STAYS = (("propagate_nan", "tl.PropagateNan.ALL"),)
"""Argument of ``tl.maximum`` and ``tl.minimum`` that returns a NaN if either value is one."""


class NoSourceError(BuildError):
    """A part of a network has no Triton source, though TVM may be able to compile it."""


class Expr:
    """An expression."""

    def __add__(self, other: Operand) -> Infix:
        """Return the sum."""
        return Infix("+", self, expr_of(other))

    def __radd__(self, other: float) -> Infix:
        """Return the sum with a number."""
        return Infix("+", Number(other), self)

    def __sub__(self, other: Operand) -> Infix:
        """Return the difference."""
        return Infix("-", self, expr_of(other))

    def __rmul__(self, other: float) -> Infix:
        """Return the product with a number."""
        return Infix("*", Number(other), self)

    def __mul__(self, other: Operand) -> Infix:
        """Return the product."""
        return Infix("*", self, expr_of(other))

    def __rtruediv__(self, other: float) -> Infix:
        """Return a number divided by this."""
        return Infix("/", Number(other), self)

    def __truediv__(self, other: Operand) -> Infix:
        """Return the quotient."""
        return Infix("/", self, expr_of(other))

    def __floordiv__(self, other: Operand) -> Infix:
        """Return the quotient without its fraction."""
        return Infix("//", self, expr_of(other))

    def __mod__(self, other: Operand) -> Infix:
        """Return the remainder."""
        return Infix("%", self, expr_of(other))

    def __lt__(self, other: Operand) -> Infix:
        """Return whether this is less."""
        return Infix("<", self, expr_of(other))

    def __gt__(self, other: Operand) -> Infix:
        """Return whether this is more."""
        return Infix(">", self, expr_of(other))

    def __and__(self, other: Operand) -> Infix:
        """Return whether both hold."""
        return Infix("&", self, expr_of(other))

    def __neg__(self) -> Negative:
        """Return the negated value."""
        return Negative(self)


Operand = Expr | float | int


@dataclass(frozen=True)
class Name(Expr):
    """A loop of a nest, or a name that a statement assigns."""

    name: str


@dataclass(frozen=True)
class Number(Expr):
    """A constant."""

    value: float | int


INFINITY = Number(float("inf"))


@dataclass(frozen=True)
class Negative(Expr):
    """A negated value, or with ``~`` its bitwise complement."""

    value: Expr
    sign: str = "-"


@dataclass(frozen=True)
class Infix(Expr):
    """A binary operator that Python and C share."""

    sign: str
    left: Expr
    right: Expr


@dataclass(frozen=True)
class CallExpr(Expr):
    """A call of a Triton function or of one of `printing.HELPERS` ("_..."); in nests, of a TVM function."""

    function: str
    arguments: tuple[Expr, ...]
    keywords: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Cast(Expr):
    """A value in another number format; in nests, `before` is its own format."""

    value: Expr
    dtype: str
    before: str = ""


@dataclass(frozen=True)
class ChoiceExpr(Expr):
    """A choice between two values, in nests; elements of the value that is not chosen may not exist."""

    condition: Expr
    first: Expr
    second: Expr


@dataclass(frozen=True)
class Element(Expr):
    """An element of a buffer, in nests.

    Attributes
    ----------
    buffer : int
        Index of the function's buffer: its parameters, then those that it allocates.
    index : Expr
        Index in memory, as an expression of the loops.
    factors : tuple of int, optional
        Stride of the index along each loop, and the constant last; None if the index is not affine.
    """

    buffer: int
    index: Expr
    factors: tuple[int, ...] | None


@dataclass(frozen=True)
class Reduction(Expr):
    """Terms of a nest reduced over its reductions, together with `first`; `kind` is TVM's name of the operation."""

    kind: str
    term: Expr
    first: Expr
    dtype: str


@dataclass(frozen=True)
class Full(Expr):
    """A tile filled with one number."""

    shape: tuple[int, ...]
    value: Expr
    dtype: str


@dataclass(frozen=True)
class Expanded(Expr):
    """A vector as the rows (axis 0) or the columns (axis 1) of a tile."""

    value: Expr
    axis: int


@dataclass(frozen=True)
class Load(Expr):
    """Elements of a parameter where the mask holds, and `other` elsewhere."""

    parameter: str
    index: Expr
    mask: Expr | None = None
    other: Number | None = None


class Statement:
    """A statement."""


@dataclass(frozen=True)
class Assign(Statement):
    """The assignment of a value to a name."""

    name: str
    value: Expr


@dataclass(frozen=True)
class Store(Statement):
    """A store of a value to elements of a parameter where the mask holds."""

    parameter: str
    index: Expr
    value: Expr
    mask: Expr | None = None


@dataclass(frozen=True)
class For(Statement):
    """A loop from 0 up to, but not including, an end."""

    name: str
    end: int
    step: int
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class DeviceNest:
    """Loops, named ``i0``, ``i1``, .. from the outer one, that store one element in each iteration.

    Attributes
    ----------
    name : str
        Name of the function that contains it.
    extents : tuple of int
    is_reduction : tuple of bool
    target : Element
    value : Expr
        A `Reduction` if any loop reduces.
    moves : tuple of tuple of int
        Stride of each load along each loop; None if unknown.
    """

    name: str
    extents: tuple[int, ...]
    is_reduction: tuple[bool, ...]
    target: Element
    value: Expr
    moves: tuple[tuple[int | None, ...], ...]


def expr_of(value: Operand) -> Expr:
    """Return an expression; a number becomes one."""
    return value if isinstance(value, Expr) else Number(value)


def equal(left: Expr, right: Operand) -> Infix:
    """Return whether two values are equal."""
    return Infix("==", left, expr_of(right))


def where(condition: Expr, first: Operand, second: Operand) -> CallExpr:
    """Return the first value where a condition holds, the second elsewhere."""
    return CallExpr("where", (condition, expr_of(first), expr_of(second)))


def parts_of(node: Expr | Statement) -> Iterator[Expr | Statement]:
    """Yield an expression or a statement, and all of its parts."""
    yield node
    for field in dataclasses.fields(node):  # type: ignore[arg-type]
        value = getattr(node, field.name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Expr | Statement):
                yield from parts_of(part)


def names_in(node: Expr) -> set[str]:
    """Return the names in an expression."""
    return {part.name for part in parts_of(node) if isinstance(part, Name)}


def elements_in(nest: DeviceNest) -> list[Element]:
    """Return the elements that a nest loads."""
    return [part for root in (nest.target.index, nest.value) for part in parts_of(root) if isinstance(part, Element)]


def clamp_finite(value: Expr, dtype: str) -> Expr:
    """Return a float32 value clamped to a 16-bit format: finite numbers stay finite, infinities stay as in masks."""
    if dtype not in LARGEST:
        return value
    most = LARGEST[dtype]
    high = where((value > most) & (value < INFINITY), most, value)
    return where((value < -most) & (value > -INFINITY), -most, high)


def compensated_sum(total: Name, term: Expr) -> list[Statement]:
    """Return statements that add a float32 term to a sum, with the rounding error in ``total_lost``.

    The error counts as zero if it is not finite, so that infinities stay infinite.
    """
    lost, more, both = (Name(f"{total.name}_{word}") for word in ("lost", "more", "both"))
    return [
        Assign(more.name, term - lost),
        Assign(both.name, total + more),
        Assign(lost.name, both - total - more),
        Assign(lost.name, where(CallExpr("abs", (lost,)) < INFINITY, lost, 0.0)),
        Assign(total.name, both),
    ]
