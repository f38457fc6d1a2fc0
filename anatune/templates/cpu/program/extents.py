"""Extents as expressions of TVMScript: numbers, but for one that is known at run time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anatune.core.workload.nest import Access
from anatune.templates.cpu.program.layout import Layout, Slivers
from anatune.templates.cpu.program.nest import Loop, Part

__all__ = ["EXTENT", "FIXED", "Extents", "OneByOne", "RunTimeExtent"]

EXTENT = "extent"
"""The variable that holds an extent that is known at run time."""
_CALLS, _SIZE, _SMALL = "num_calls", "least_size", "num_small"
_PIECE, _FIRST, _OWN = "piece", "first", "own_extent"
_ONE = "one"


class Extents:
    """What loops, calls and shapes of a program are where every extent is a number."""

    @property
    def whole(self) -> str:
        """The head of a loop around copies and nest, which are those of one of its iterations; "": there is none."""
        return ""

    def origin(self, access: Access) -> str:
        """Return which element of a tensor an iteration of `whole` begins at; "": the first."""
        return ""

    def indices(self, access: Access, indices: Sequence[str]) -> Sequence[str]:
        """Return where an element of an iteration of `whole` is in the tensor."""
        return indices

    @property
    def pieces(self) -> str:
        """The head of a loop over pieces of an extent, which the nest is run for one by one; "" where there is one."""
        return ""

    @property
    def definitions(self) -> tuple[str, ...]:
        """Statements that make the variables of the other answers."""
        return ()

    def shape(self, access: Access) -> tuple[int | str, ...]:
        """Return a tensor's shape."""
        return access.shape

    def count(self, layout: Layout) -> int | str:
        """Return the elements of a copy."""
        return layout.size

    def parts(self, axis: str, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        """Return what loops of calls are written for: one part where calls share the extent out at run time."""
        return parts

    def trips(self, loop: Loop) -> str:
        """Return the iterations of a loop."""
        return str(loop.extent)

    def product(self, loops: Sequence[Loop]) -> str:
        """Return the iterations of loops that are fused into one."""
        trips = [self.trips(loop) for loop in loops]
        number, words = math.prod(int(word) for word in trips if word != EXTENT), [EXTENT] * trips.count(EXTENT)
        return " * ".join([*words, *[str(number)] * (number > 1 or not words)])

    def calls(self, axis: str, part: Part) -> str:
        """Return the calls of a part; "" where there is one."""
        return str(part.count) if part.count > 1 else ""

    def start(self, axis: str, call: str, size: int) -> tuple[str, int]:
        """Return where a call of so many elements begins: an expression, and the elements that it counts."""
        return call, size

    def rows(self, axis: str, call: str, size: int) -> str:
        """Return the elements of a call; "" where there is one."""
        return str(size) if size > 1 else ""

    def moved(
        self, variable: str, calls: Mapping[str, str], layout: Layout, loop: Loop, sizes: Mapping[str, int]
    ) -> tuple[str, int]:
        """Return how a loop moves an address: its variable, times what is not constant, and its stride.

        Parameters
        ----------
        calls : mapping of str to str
            Axis -> variable of its loop of calls.
        sizes : mapping of str to int
            Axis -> elements of a call.
        """
        return variable, layout.loop_stride(loop, sizes)

    def share(self, axis: str, call: str) -> str:
        """Return which share of what lies ahead a call asks for."""
        return call

    def arguments(self, calls: Mapping[str, str]) -> list[str]:
        """Return what microkernels take besides."""
        return []


FIXED = Extents()


@dataclass(frozen=True)
class OneByOne(Extents):
    """Elements of one axis, as many as an argument says, that everything runs for one by one: a program of extent 1.

    The axis is the outermost dimension of tensors that use it.
    """

    axis: str

    @property
    def whole(self) -> str:
        """The head of the loop over elements."""
        return f"for {_ONE} in range({EXTENT}):"

    def origin(self, access: Access) -> str:
        """Return which element of a tensor an iteration begins at."""
        return f"{_ONE} * {access.num_elements}" if access.uses(self.axis) else ""

    def indices(self, access: Access, indices: Sequence[str]) -> Sequence[str]:
        """Return where an element of an iteration is in the tensor."""
        return (_ONE, *indices[1:]) if access.uses(self.axis) else indices

    def shape(self, access: Access) -> tuple[int | str, ...]:
        """Return a tensor's shape, the extent in it by name."""
        return (EXTENT, *access.shape[1:]) if access.uses(self.axis) else access.shape


@dataclass(frozen=True)
class RunTimeExtent(Extents):
    """One axis whose extent is an argument, and how calls of microkernels share it out (see `cpu.range_space`).

    ``num_calls`` calls, of which the first ``num_small`` compute ``least_size`` elements each, the others one more. A
    long extent is cut into pieces of nearly the same size, each with calls of its own: what the calls of a piece read
    again stays in the caches.

    Attributes
    ----------
    axis : str
    most : int
        Largest number of elements of a call.
    repeats : int
        Calls that microkernels are made for, where what they ask for ahead depends on the number; 0: the axis has no
        loop of calls, but one of single iterations outside.
    largest : int
        Extent that layouts are made for.
    piece : int, optional
        Most elements of a piece; None: there is one.
    """

    axis: str
    most: int
    repeats: int
    largest: int
    piece: int | None = None

    @property
    def pieces(self) -> str:
        """The head of the loop over pieces."""
        return "" if self.piece is None else f"for {_PIECE} in range({self._num_pieces}):"

    @property
    def _num_pieces(self) -> str:
        return f"T.truncdiv({EXTENT} + {(self.piece or 1) - 1}, {self.piece})"

    @property
    def definitions(self) -> tuple[str, ...]:
        """Statements that share out the extent."""
        extent, values = EXTENT, {}
        if self.piece is not None:
            extent, count = _OWN, self._num_pieces
            values = {
                _FIRST: f"T.truncdiv({EXTENT} * {_PIECE}, {count})",
                _OWN: f"T.truncdiv({EXTENT} * ({_PIECE} + 1), {count}) - {_FIRST}",
            }
        if self.most > 1:
            values |= {
                _CALLS: f"T.truncdiv({extent} + {self.most - 1}, {self.most})",
                _SIZE: f"T.truncdiv({extent}, {_CALLS})",
                _SMALL: f"{_CALLS} + {_CALLS} * {_SIZE} - {extent}",
            }
        return tuple(f"{name}: T.let[T.int32] = {value}" for name, value in values.items())

    def shape(self, access: Access) -> tuple[int | str, ...]:
        """Return a tensor's shape, the extent in it by name."""
        return (EXTENT, *access.shape[1:]) if access.uses(self.axis) else access.shape

    def count(self, layout: Layout) -> int | str:
        """Return the elements of a copy; packed forms grow with the extent."""
        if isinstance(layout, Slivers) and layout.access.uses(self.axis):
            return f"{EXTENT} * {layout.size // self.largest}"
        return layout.size

    def parts(self, axis: str, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        """Return what loops of calls are written for: one part of the axis."""
        return parts[:1] if axis == self.axis else parts

    def trips(self, loop: Loop) -> str:
        """Return the iterations of a loop."""
        return EXTENT if loop.axis == self.axis else super().trips(loop)

    def calls(self, axis: str, part: Part) -> str:
        """Return the calls of a part; "" where there is one."""
        if axis != self.axis:
            return super().calls(axis, part)
        own = EXTENT if self.piece is None else _OWN
        return "" if not self.repeats else own if self.most == 1 else _CALLS

    def start(self, axis: str, call: str, size: int) -> tuple[str, int]:
        """Return where a call begins: single elements of the axis are counted."""
        if axis != self.axis:
            return call, size
        place = call if self.most == 1 else f"({call} * {_SIZE} + T.max(0, {call} - {_SMALL}))"
        return place if self.piece is None else f"({_FIRST} + {place})", 1

    def rows(self, axis: str, call: str, size: int) -> str:
        """Return the elements of a call."""
        return self._size(call) if axis == self.axis else super().rows(axis, call, size)

    def _size(self, call: str) -> str:
        return "1" if self.most == 1 else f"{_SIZE} + T.Select({call} >= {_SMALL}, 1, 0)"

    def moved(
        self, variable: str, calls: Mapping[str, str], layout: Layout, loop: Loop, sizes: Mapping[str, int]
    ) -> tuple[str, int]:
        """Return how a loop moves an address.

        Packed forms lie tile by tile, so that their strides are proportional to the elements of the call.
        """
        if self.axis not in calls:
            return super().moved(variable, calls, layout, loop, sizes)
        single, double = (layout.loop_stride(loop, {**sizes, self.axis: size}) for size in (1, 2))
        return (variable if single == double else f"{variable} * ({self._size(calls[self.axis])})"), single

    def share(self, axis: str, call: str) -> str:
        """Return which of `repeats` shares of what lies ahead a call asks for; calls beyond them repeat the last."""
        return f"T.min({call}, {self.repeats - 1})" if axis == self.axis else call

    def arguments(self, calls: Mapping[str, str]) -> list[str]:
        """Return the elements of the call, where that may be one of several numbers."""
        return [self._size(calls[self.axis])] if self.axis in calls and self.most > 1 else []
