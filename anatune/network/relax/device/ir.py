"""A small language of loops: what TVM's functions are read as, what tiles are written in, what Triton is printed from.

`reading` makes a `DeviceNest` of loops; its expressions have an `Element` for each load, and a `Reduction` around what is
joined. `rest` makes statements on tiles of it, whose expressions have a `Load` where memory is read. `printing` writes
them. All are compared by value; Python's operators make expressions of expressions and numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from anatune.errors import BuildError

__all__ = [
    "INFINITY",
    "LARGEST",
    "NAN_STAYS",
    "Assign",
    "CallExpr",
    "Cast",
    "ChoiceExpr",
    "DeviceNest",
    "Element",
    "Expanded",
    "Expr",
    "For",
    "Full",
    "Infix",
    "Load",
    "Name",
    "Negative",
    "NoSourceError",
    "Number",
    "Reduction",
    "Statement",
    "Store",
    "add_compensated",
    "clamp_finite",
    "elements_in",
    "equal",
    "expr_of",
    "names_in",
    "parts_of",
    "where",
]  # fmt: skip

LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38}
"""Numbers of 16 bits."""
NAN_STAYS = (("propagate_nan", "tl.PropagateNan.ALL"),)
"""Argument of ``tl.maximum`` and ``tl.minimum`` with which a NaN is no number that the other one replaces."""


class NoSourceError(BuildError):
    """A part of a network has no Triton source, though TVM may have code for it."""


class Expr:
    """A value."""

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
        """Return the value with the other sign."""
        return Negative(self)


Operand = Expr | float | int


@dataclass(frozen=True)
class Name(Expr):
    """A loop of a nest, or a value that a statement assigns."""

    name: str


@dataclass(frozen=True)
class Number(Expr):
    """A constant."""

    value: float | int


INFINITY = Number(float("inf"))


@dataclass(frozen=True)
class Negative(Expr):
    """A value with the other sign, or (``~``) with all bits turned."""

    value: Expr
    sign: str = "-"


@dataclass(frozen=True)
class Infix(Expr):
    """Two values joined by an operator that Python and C share."""

    sign: str
    left: Expr
    right: Expr


@dataclass(frozen=True)
class CallExpr(Expr):
    """A function of Triton's, or one of `printing.HELPERS`, whose names begin with "_"; in nests, of TVM's."""

    function: str
    arguments: tuple[Expr, ...]
    keywords: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Cast(Expr):
    """A value in another dtype; `before` is its dtype, in nests."""

    value: Expr
    dtype: str
    before: str = ""


@dataclass(frozen=True)
class ChoiceExpr(Expr):
    """One of two values, in nests: what is loaded for the other one may not be there."""

    condition: Expr
    first: Expr
    second: Expr


@dataclass(frozen=True)
class Element(Expr):
    """An element of a buffer, in nests.

    Attributes
    ----------
    buffer : int
        Which of the function's: its parameters, then those that it allocates.
    index : Expr
        Its number in memory, of the loops.
    factors : tuple of int, optional
        By how much the index grows with each loop, the constant last; None: it is no sum of loops.
    """

    buffer: int
    index: Expr
    factors: tuple[int, ...] | None


@dataclass(frozen=True)
class Reduction(Expr):
    """Terms of a nest joined over its reductions, and with `first`; `kind` is TVM's name of what joins two."""

    kind: str
    term: Expr
    first: Expr
    dtype: str


@dataclass(frozen=True)
class Full(Expr):
    """A tile of one number."""

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
    """Elements of a parameter: those where the mask holds, `other` elsewhere."""

    parameter: str
    index: Expr
    mask: Expr | None = None
    other: Number | None = None


class Statement:
    """What is done."""


@dataclass(frozen=True)
class Assign(Statement):
    """A name for a value from here on."""

    name: str
    value: Expr


@dataclass(frozen=True)
class Store(Statement):
    """Writes a value to elements of a parameter, where the mask holds."""

    parameter: str
    index: Expr
    value: Expr
    mask: Expr | None = None


@dataclass(frozen=True)
class For(Statement):
    """A loop from 0 to below an end."""

    name: str
    end: int
    step: int
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class DeviceNest:
    """Loops, named ``i0``, ``i1``, .. outer first, that store a value to one element in each iteration.

    Attributes
    ----------
    name : str
        Of the function that it is part of.
    extents : tuple of int
    is_reduction : tuple of bool
    target : Element
    value : Expr
        A `Reduction`, if any loop reduces.
    moves : tuple of tuple of int
        By how much each load moves with each loop; None: not known.
    """

    name: str
    extents: tuple[int, ...]
    is_reduction: tuple[bool, ...]
    target: Element
    value: Expr
    moves: tuple[tuple[int | None, ...], ...]


def expr_of(value: Operand) -> Expr:
    """Return an expression, or a number as one."""
    return value if isinstance(value, Expr) else Number(value)


def equal(left: Expr, right: Operand) -> Infix:
    """Return whether two values are equal."""
    return Infix("==", left, expr_of(right))


def where(condition: Expr, first: Operand, second: Operand) -> CallExpr:
    """Return the first value where a condition holds, the second elsewhere."""
    return CallExpr("where", (condition, expr_of(first), expr_of(second)))


def parts_of(node: Expr | Statement) -> Iterator[Expr | Statement]:
    """Yield an expression or a statement, and all that it consists of."""
    yield node
    for field in dataclasses.fields(node):  # type: ignore[arg-type]
        value = getattr(node, field.name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Expr | Statement):
                yield from parts_of(part)


def names_in(node: Expr) -> set[str]:
    """Return the names that an expression is made of."""
    return {part.name for part in parts_of(node) if isinstance(part, Name)}


def elements_in(nest: DeviceNest) -> list[Element]:
    """Return what a nest loads."""
    return [part for root in (nest.target.index, nest.value) for part in parts_of(root) if isinstance(part, Element)]


def clamp_finite(value: Expr, dtype: str) -> Expr:
    """Return a float32 value as memory of a dtype may hold it: no number becomes infinite, as masks would."""
    if dtype not in LARGEST:
        return value
    most = LARGEST[dtype]
    high = where((value > most) & (value < INFINITY), most, value)
    return where((value < -most) & (value > -INFINITY), -most, high)


def add_compensated(total: Name, term: Expr) -> list[Statement]:
    """Return statements that add a float32 term to a sum, and keep what rounding takes away in ``total_lost``.

    What is lost in sums that are not finite is nothing: infinities stay what they are.
    """
    lost, more, both = (Name(f"{total.name}_{word}") for word in ("lost", "more", "both"))
    return [
        Assign(more.name, term - lost),
        Assign(both.name, total + more),
        Assign(lost.name, both - total - more),
        Assign(lost.name, where(CallExpr("abs", (lost,)) < INFINITY, lost, 0.0)),
        Assign(total.name, both),
    ]
