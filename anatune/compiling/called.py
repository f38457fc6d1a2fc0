"""Sizes that vary of a compiled model, as a call has them."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from anatune.errors import RunError
from anatune.graph.summary import ModelSummary, TensorSummary

__all__ = ["check_size", "shape_at", "sizes_of", "value_at"]


def shape_at(one: TensorSummary, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of an input or output, numbers in the place of expressions.

    Raises
    ------
    RunError
        A size is not given.
    """
    return tuple(size if isinstance(size, int) else value_at(size, sizes) for size in one.shape)


def sizes_of(summary: ModelSummary, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """Return what the shapes of a call's inputs say of the sizes that vary.

    Raises
    ------
    RunError
        One is out of its range.
    """
    found: dict[str, int] = {}
    for one, shape in zip(summary.inputs, shapes, strict=True):
        for axis, (size, given) in enumerate(zip(one.shape, shape, strict=False)):
            if not isinstance(size, str) or size in found or size not in summary.ranges:
                continue
            found[size] = given
            check_size(summary, size, given, f" (axis {axis} of input {one.name})")
    return found


def check_size(summary: ModelSummary, name: str, value: int, where: str = "") -> None:
    """Raise RunError for a size that a model does not have, or that is out of its range; `where` it is, for people."""
    own = summary.ranges.get(name)
    if own is None:
        known = f"expected some of {', '.join(summary.ranges)}" if summary.ranges else "none of its sizes varies"
        raise RunError(f"the model has no size {name!r:.60}, {known}")
    if not own.least <= value <= own.most:
        raise RunError(
            f"size {name}{where} is {value}, expected {own.least} to {own.most}: the model was compiled for these; "
            "compile it for a larger range (sizes, --size)"
        )


def value_at(expression: str, sizes: Mapping[str, int]) -> int:
    """Return the value of an expression of sums, products and floors."""

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value(operand)
            case ast.Name(id=name):
                if name not in sizes:
                    raise RunError(f"size {name} is not known, expected inputs that have it, or a number for it")
                return sizes[name]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return value(left) + value(right)
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return value(left) * value(right)
            case ast.BinOp(left=left, op=ast.FloorDiv(), right=right):
                return value(left) // value(right)
        raise RunError(f"{expression!r:.80} is no size; compile the model again")

    return value(ast.parse(expression, mode="eval").body)
