"""What a call of a Triton kernel says beyond one matrix product: grids, batches, options that no model knows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from anatune.errors import SpaceError
from anatune.model.foreign.triton_tiles import TILE_FIELDS, MatmulProblem

__all__ = ["Argument", "Arguments", "Config", "check_grid", "check_operands", "unmodelled_option"]

Argument: TypeAlias = Any
"""Of a kernel: a tensor of whatever package, a number, or anything else; what it has is looked at."""
Arguments: TypeAlias = Mapping[str, Argument]
"""Of a call, by the kernel's names: arguments, meta-parameters, grid."""


class Config(Protocol):
    """A ``triton.Config``, as far as it is read here."""

    kwargs: dict[str, Argument]
    num_warps: int
    num_stages: int


_OPERANDS = {"a": ("m", "k"), "b": ("k", "n"), "c": ("m", "n")}


def check_operands(problem: MatmulProblem, operands: Arguments) -> None:
    """Refuse operands that are more than the matrices of one product.

    Parameters
    ----------
    operands : mapping
        "a", "b", "c" -> a tensor, or None where the call does not say.

    Raises
    ------
    SpaceError
        An operand has three dimensions or more, and several times the elements of one product; or it has steps between
        its elements along both dimensions.
    """
    for name, sizes in _OPERANDS.items():
        shape = _shape(operands.get(name))
        if len(shape) > 2:
            one = math.prod(getattr(problem, size) for size in sizes)
            batch, rest = divmod(math.prod(shape), one)
            if rest == 0 and batch > 1:
                raise SpaceError(f"operand {name} has {len(shape)} dimensions: a batch of products")
        stride = getattr(operands.get(name), "stride", None)
        steps = tuple(stride()) if callable(stride) else ()
        long = [step for step, extent in zip(steps, shape, strict=False) if extent > 1]
        if len(shape) == 2 and long and 1 not in long:
            raise SpaceError(f"operand {name} has no dimension without steps between elements")


def check_grid(problem: MatmulProblem, tile: list[int], grid: Argument, arguments: Arguments) -> None:
    """Refuse a launch that is not one block for each tile of the result.

    Parameters
    ----------
    tile : list of int
        Of one configuration, in the order of `TILE_FIELDS`.
    grid
        What the kernel is launched with: extents, or a function of all arguments; None where it is not known.
    arguments
        Of the kernel, with the configuration's meta-parameters.

    Raises
    ------
    SpaceError
        There are more blocks (a batch in another dimension of the grid) or fewer (blocks that take several tiles).
    """
    if grid is None:
        return
    try:
        found = grid(arguments) if callable(grid) else grid
        blocks = math.prod(int(extent) for extent in (found if isinstance(found, tuple | list) else (found,)))
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise SpaceError(f"the grid cannot be computed ({type(error).__name__}: {error!s:.60})") from None
    size = dict(zip(TILE_FIELDS, tile, strict=True))
    expected = -(-problem.m // size["block_m"]) * -(-problem.n // size["block_n"]) * size["split_k"]
    if blocks > expected:
        raise SpaceError("the grid has more blocks than one product has tiles: a batch, or a split that names omit")
    if blocks < expected:
        raise SpaceError("the grid has fewer blocks than the product has tiles: each takes several")


def unmodelled_option(options: Arguments) -> str:
    """Return the option of a configuration (its ``all_kwargs()``) that the model does not know, "" without one."""
    if (options.get("num_ctas") or 1) > 1:
        return "num_ctas"
    return next((name for name in ("maxnreg", "ir_override") if options.get(name) is not None), "")


def _shape(tensor: Argument) -> tuple[int, ...]:
    shape = getattr(tensor, "shape", None)
    return tuple(int(extent) for extent in shape) if isinstance(shape, tuple | list) else ()
