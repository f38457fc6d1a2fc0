"""An extent that is known at run time, as expressions of TVMScript."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anatune.core.workload.nest import Access
from anatune.templates.cpu.program.layout import Layout, Slivers
from anatune.templates.cpu.program.nest import Loop, Part

__all__ = ["RunTimeExtent", "product_of_trips", "repeats", "trips"]

_EXTENT, _CALLS, _SIZE, _SMALL = "extent", "num_calls", "least_size", "num_small"


@dataclass(frozen=True)
class RunTimeExtent:
    """One axis whose extent is an argument, and how calls of microkernels share it out (see `cpu.range_space`).

    ``num_calls`` calls, of which the first ``num_small`` compute ``least_size`` elements each, the others one more.

    Attributes
    ----------
    axis : str
    most : int
        Largest number of elements of a call.
    repeats : int
        Calls that microkernels are made for, where what they ask for ahead depends on the number; 0: the axis has no
        loop of calls, but one of single iterations outside.
    """

    axis: str
    most: int
    repeats: int

    @property
    def name(self) -> str:
        """The variable that holds the extent."""
        return _EXTENT

    @property
    def definitions(self) -> tuple[str, ...]:
        """Statements that share out the extent."""
        values = {
            _CALLS: f"T.truncdiv({_EXTENT} + {self.most - 1}, {self.most})",
            _SIZE: f"T.truncdiv({_EXTENT}, {_CALLS})",
            _SMALL: f"{_CALLS} + {_CALLS} * {_SIZE} - {_EXTENT}",
        }
        if self.most == 1:
            return ()
        return tuple(f"{name}: T.let[T.int32] = {value}" for name, value in values.items())

    def shape(self, access: Access) -> tuple[int | str, ...]:
        """Return a tensor's shape, the extent in it by name."""
        return (_EXTENT, *access.shape[1:]) if access.uses(self.axis) else access.shape

    def count(self, layout: Layout, largest: int) -> int | str:
        """Return the elements of a copy, that of the `largest` extent given; packed forms grow with the extent."""
        if isinstance(layout, Slivers) and layout.access.uses(self.axis):
            return f"{_EXTENT} * {layout.size // largest}"
        return layout.size

    def num_calls(self) -> str:
        """Return the number of calls along the axis."""
        return _EXTENT if self.most == 1 else _CALLS

    def start(self, call: str) -> str:
        """Return the first element of a call."""
        return call if self.most == 1 else f"({call} * {_SIZE} + T.max(0, {call} - {_SMALL}))"

    def size(self, call: str) -> str:
        """Return the elements of a call."""
        if self.most == 1:
            return "1"
        return f"{_SIZE} + T.Select({call} >= {_SMALL}, 1, 0)"

    def moved(self, variable: str, call: str, layout: Layout, loop: Loop, sizes: Mapping[str, int]) -> tuple[str, int]:
        """Return how a loop moves a call's address: its variable, times what is not constant, and its stride.

        Packed forms lie tile by tile, so that their strides are proportional to the elements of the call.
        """
        one, two = (layout.loop_stride(loop, {**sizes, self.axis: size}) for size in (1, 2))
        return (variable, one) if one == two else (f"{variable} * ({self.size(call)})", one)

    def share(self, call: str) -> str:
        """Return which of `repeats` shares of what lies ahead a call asks for; calls beyond them repeat the last."""
        return f"T.min({call}, {self.repeats - 1})"


def trips(loop: Loop, moving: RunTimeExtent | None) -> str:
    """Return the iterations of a loop."""
    return moving.name if moving is not None and loop.axis == moving.axis else str(loop.extent)


def product_of_trips(loops: Sequence[Loop], moving: RunTimeExtent | None) -> str:
    """Return the iterations of loops that are fused into one."""
    number, words = 1, []
    for loop in loops:
        if moving is not None and loop.axis == moving.axis:
            words.append(moving.name)
        else:
            number *= loop.extent
    return " * ".join([*words, *[str(number)] * (number > 1 or not words)])


def repeats(axis: str, part: Part, moving: RunTimeExtent | None) -> str:
    """Return the calls of a part; "" where there is one."""
    if moving is not None and axis == moving.axis:
        return moving.num_calls() if moving.repeats else ""
    return str(part.count) if part.count > 1 else ""
