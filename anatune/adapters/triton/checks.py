"""What a launch of a Triton kernel says: blocks of its grid, and options that no model knows."""

from __future__ import annotations

import math
from typing import Protocol

from anatune.adapters.triton.operands import Argument, Arguments
from anatune.errors import SpaceError
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.tiles import TILE_FIELDS

__all__ = ["Config", "Launch", "unmodelled_option"]


class Config(Protocol):
    """A ``triton.Config``, as far as it is read here."""

    kwargs: dict[str, Argument]
    num_warps: int
    num_stages: int


class Launch:
    """The grid of a call.

    Parameters
    ----------
    problem
        What the call computes.
    grid
        What the kernel is launched with: extents, or a function of all arguments; None where it is not known.
    num_sms : int
        Of the device.
    num_programs : int, optional
        What the kernel is told of them (an argument as NUM_SMS); a grid of so many blocks or a multiple is that of a
        persistent kernel, even where there are fewer tiles.
    """

    def __init__(self, problem: MatmulProblem, grid: Argument, num_sms: int, num_programs: int | None = None) -> None:
        self.problem, self.grid = problem, grid
        self.num_sms, self.num_programs = num_sms, num_programs

    def is_persistent(self, tile: list[int], arguments: Arguments, *, said: bool = False) -> bool:
        """Return whether blocks take several tiles of the result in turn, one block for each SM or a few.

        Parameters
        ----------
        tile : list of int
            Of one configuration, in the order of `TILE_FIELDS`.
        arguments
            Of the kernel, with the configuration's meta-parameters.
        said : bool
            Whether the caller says so; any grid will do then.

        Raises
        ------
        SpaceError
            There are more blocks than tiles (a batch in another dimension of the grid), or fewer and no multiple of
            the device's SMs.
        """
        if said or self.grid is None:
            return said
        try:
            found = self.grid(arguments) if callable(self.grid) else self.grid
            blocks = math.prod(int(extent) for extent in (found if isinstance(found, tuple | list) else (found,)))
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            raise SpaceError(f"the grid cannot be computed ({type(error).__name__}: {error!s:.60})") from None
        size = dict(zip(TILE_FIELDS, tile, strict=False))
        rows, columns = -(-self.problem.m // size["block_m"]), -(-self.problem.n // size["block_n"])
        tiles = rows * columns * size["split_k"]
        if blocks == tiles:
            return False
        if blocks > 0 and self.num_programs is not None and blocks % self.num_programs == 0:
            return True
        if blocks > tiles:
            raise SpaceError("the grid has more blocks than one product has tiles: a batch, or a split that names omit")
        if blocks > 0 and blocks % self.num_sms == 0:
            return True
        raise SpaceError(
            f"the grid has fewer blocks than the product has tiles, and no multiple of {self.num_sms} SMs; if each "
            "takes several in turn, say names={'persistent': True}"
        )


def unmodelled_option(options: Arguments) -> str:
    """Return the option of a configuration (its ``all_kwargs()``) that the model does not know, "" without one."""
    if (options.get("num_ctas") or 1) > 1:
        return "num_ctas"
    return next((name for name in ("maxnreg", "ir_override") if options.get(name) is not None), "")
