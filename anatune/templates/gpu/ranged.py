"""Kernels that take the extent of one axis at the launch: one compiled kernel serves all extents of a range."""

from __future__ import annotations

import math

import msgspec

from anatune.core.workload.access import MAX_INTEGER
from anatune.core.workload.nest import Workload
from anatune.core.workload.ranges import check_rangeable
from anatune.errors import RunError, SpaceError, WorkloadError

__all__ = ["Count", "Growth", "Ranged", "check_ranged", "product"]


class Ranged(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An axis whose extent is the last argument of the kernel, an ``int``. Immutable; JSON both ways.

    Attributes
    ----------
    axis : str
    least, most : int
        Smallest and largest extent. The schedule is that of the largest.
    multiple : int
        A divisor of every extent. Vectors along the axis are as wide as it allows, and tiles whose size divides it need
        no guards.
    """

    axis: str
    least: int
    most: int
    multiple: int = 1

    @property
    def parameter(self) -> str:
        """Name of the argument."""
        return f"extent_{self.axis}"

    def has(self, extent: int) -> bool:
        """Return whether an extent is in the range."""
        return self.least <= extent <= self.most and extent % self.multiple == 0

    @staticmethod
    def check(name: str, ranged: Ranged | None, extent: int) -> None:
        """Raise RunError if the kernel `name` does not serve an extent: it is for another range, or for no range."""
        if ranged is None or not ranged.has(extent):
            expected = "none" if ranged is None else f"{ranged.least} to {ranged.most} by {ranged.multiple}"
            raise RunError(f"{name} is not for the extent {extent}, expected {expected}")


class Growth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dependence of a grid on the extent: ``blocks * ceil(each * extent / iterations)``. Immutable; JSON both ways."""

    blocks: int
    iterations: int
    each: int = 1

    def grid(self, extent: int) -> int:
        """Return the blocks of a launch at one extent."""
        return self.blocks * -(-self.each * extent // self.iterations)

    def expression(self, parameter: str, divide: str) -> str:
        """Return the grid as an expression of C (`divide`: "/") or Python ("//")."""
        tiles = parameter if self.each == 1 else f"{parameter} * {self.each}"
        if self.iterations > 1:
            tiles = f"(({tiles} + {self.iterations - 1}) {divide} {self.iterations})"
        return tiles if self.blocks == 1 else f"{self.blocks} * {tiles}"

    def text(self, parameter: str) -> str:
        """Return the grid as an expression of TVMScript."""
        tiles = (
            f"T.truncdiv({parameter} + {self.iterations - 1}, {self.iterations})" if self.iterations > 1 else parameter
        )
        return tiles if self.blocks == 1 else f"{tiles} * {self.blocks}"


class Count(msgspec.Struct, frozen=True):
    """A number of iterations that may vary with the extent: an expression of TVMScript, and its range of values."""

    text: str
    least: int
    most: int

    @classmethod
    def of(cls, number: int) -> Count:
        """Return a count that does not vary."""
        return cls(str(number), number, number)


def product(*factors: int | str) -> int | str:
    """Return the product of numbers and expressions. It is a number if all factors are numbers."""
    words = [factor for factor in factors if isinstance(factor, str)]
    number = math.prod(factor for factor in factors if not isinstance(factor, str))
    if not words:
        return number
    return " * ".join([*words, str(number)] if number != 1 else words)


def check_ranged(workload: Workload, ranged: Ranged) -> None:
    """Raise SpaceError unless one kernel can serve this range of the workload's extents.

    Raises
    ------
    SpaceError
        There is no such axis; its extent cannot vary alone; the range is reversed; or it does not end at the workload's
        own extent.
    """
    if ranged.axis not in workload.extents:
        raise SpaceError(f"range: no axis {ranged.axis!r:.40}, expected one of {', '.join(workload.extents)}")
    try:
        check_rangeable(workload, ranged.axis)
    except WorkloadError as error:
        raise SpaceError(str(error)) from None
    extent, multiple = workload.extents[ranged.axis], ranged.multiple
    is_sound = 1 <= ranged.least <= ranged.most <= MAX_INTEGER and multiple >= 1
    if not is_sound or ranged.most != extent or ranged.least % multiple or ranged.most % multiple:
        raise SpaceError(
            f"range of {ranged.axis} is {ranged.least} to {ranged.most} by {multiple}, expected 1 or more, ascending, "
            f"in multiples of {multiple}, up to the schedule's extent {extent}"
        )
