"""Extents as TVMScript expressions: numbers, except for one extent that can be an argument at run time."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from anatune.core.workload.nest import Access
from anatune.templates.cpu.program.layout import Slivers, TensorLayout
from anatune.templates.cpu.program.nest import CallGroup, NestLoop
from anatune.templates.cpu.program.prefetch import FEWEST_REPEATS

__all__ = ["ALWAYS", "EXTENT", "FIXED", "NEVER", "Extents", "OneByOne", "RunTimeExtent"]

EXTENT = "extent"
"""Name of the variable that holds the extent at run time."""
ALWAYS, NEVER = "True", "False"
"""Conditions that are known before the run."""
_CALLS, _SIZE, _SMALL = "num_calls", "least_size", "num_small"
_PIECE, _FIRST, _OWN = "piece", "first", "own_extent"
_ONE = "one"


class Extents:
    """Expressions for loops, calls and shapes of a program whose extents are all numbers. Subclasses override them."""

    @property
    def whole(self) -> str:
        """Head of a loop around copies and nest, which compute one iteration of it; "" if there is none."""
        return ""

    def origin(self, access: Access) -> str:
        """Return the first element of a tensor in an iteration of `whole`; "" for element 0."""
        return ""

    def indices(self, access: Access, indices: Sequence[str]) -> Sequence[str]:
        """Return the indices in the tensor of an element of an iteration of `whole`."""
        return indices

    @property
    def pieces(self) -> str:
        """Head of a loop over pieces of an extent, for each of which the nest runs; "" if there is one piece."""
        return ""

    @property
    def definitions(self) -> tuple[str, ...]:
        """Statements that define the variables of the other expressions."""
        return ()

    def shape(self, access: Access) -> tuple[int | str, ...]:
        """Return the shape of a tensor."""
        return access.shape

    def count(self, layout: TensorLayout) -> int | str:
        """Return the number of elements of a copy."""
        return layout.size

    def parts(self, axis: str, parts: tuple[CallGroup, ...]) -> tuple[CallGroup, ...]:
        """Return the parts for which loops of calls are written; one part if calls share the extent at run time."""
        return parts

    def trips(self, loop: NestLoop) -> str:
        """Return the iterations of a loop."""
        return str(loop.extent)

    def product(self, loops: Sequence[NestLoop]) -> str:
        """Return the number of iterations of loops that are fused into one."""
        trips = [self.trips(loop) for loop in loops]
        number, words = math.prod(int(word) for word in trips if word != EXTENT), [EXTENT] * trips.count(EXTENT)
        return " * ".join([*words, *[str(number)] * (number > 1 or not words)])

    def calls(self, axis: str, part: CallGroup) -> str:
        """Return the number of calls of a part; "" for one call."""
        return str(part.count) if part.count > 1 else ""

    def one_pass(self, axes: Collection[str]) -> str:
        """Return the condition that loops along `axes`, which have several iterations here, have one."""
        return NEVER if axes else ALWAYS

    def start(self, axis: str, call: str, size: int) -> tuple[str, int]:
        """Return the first element of a call of `size` elements: (expression, elements that it counts)."""
        return call, size

    def rows(self, axis: str, call: str, size: int) -> str:
        """Return the number of elements of a call; "" for one element."""
        return str(size) if size > 1 else ""

    def loop_term(
        self, variable: str, calls: Mapping[str, str], layout: TensorLayout, loop: NestLoop, sizes: Mapping[str, int]
    ) -> tuple[str, int]:
        """Return the term of a loop in an address: its variable, times what is not constant, and its stride.

        Parameters
        ----------
        calls : mapping of str to str
            Axis -> variable of its loop of calls.
        sizes : mapping of str to int
            Axis -> elements of a call.
        """
        return variable, layout.loop_stride(loop, sizes)

    def share(self, axis: str, call: str) -> str:
        """Return the number of the share of the next block that a call prefetches."""
        return call

    def arguments(self, calls: Mapping[str, str]) -> list[str]:
        """Return additional arguments of microkernels."""
        return []


FIXED = Extents()


@dataclass(frozen=True)
class OneByOne(Extents):
    """An axis of extent 1 in the program that has `extent` elements at run time: everything runs once for each.

    The axis is the outermost dimension of the tensors that use it.
    """

    axis: str

    @property
    def whole(self) -> str:
        """Head of the loop over elements."""
        return f"for {_ONE} in range({EXTENT}):"

    def origin(self, access: Access) -> str:
        """Return the first element of a tensor in an iteration."""
        return f"{_ONE} * {access.num_elements}" if access.uses(self.axis) else ""

    def indices(self, access: Access, indices: Sequence[str]) -> Sequence[str]:
        """Return the indices in the tensor of an element of an iteration."""
        return (_ONE, *indices[1:]) if access.uses(self.axis) else indices

    def shape(self, access: Access) -> tuple[int | str, ...]:
        """Return the shape of a tensor, with the extent by name."""
        return (EXTENT, *access.shape[1:]) if access.uses(self.axis) else access.shape


@dataclass(frozen=True)
class RunTimeExtent(Extents):
    """An axis whose extent is an argument, which calls of microkernels share (see `cpu.range_space`).

    There are ``num_calls`` calls. The first ``num_small`` compute ``least_size`` elements each, the others one more. A
    long extent is split into pieces of nearly the same size, each with its own calls, so that what the calls of a piece
    read again stays in the caches.

    Attributes
    ----------
    axis : str
    most : int
        Largest number of elements of a call.
    in_calls : bool
        False: the axis has no loop of calls, but an outer loop of single iterations.
    largest : int
        Extent for which layouts are made.
    piece : int, optional
        Most elements of a piece; None: there is one piece.
    """

    axis: str
    most: int
    in_calls: bool
    largest: int
    piece: int | None = None

    @property
    def pieces(self) -> str:
        """Head of the loop over pieces."""
        return "" if self.piece is None else f"for {_PIECE} in range({self._num_pieces}):"

    @property
    def _num_pieces(self) -> str:
        return f"T.truncdiv({EXTENT} + {(self.piece or 1) - 1}, {self.piece})"

    @property
    def definitions(self) -> tuple[str, ...]:
        """Statements that divide the extent among pieces and calls."""
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
        """Return the shape of a tensor, with the extent by name."""
        return (EXTENT, *access.shape[1:]) if access.uses(self.axis) else access.shape

    def count(self, layout: TensorLayout) -> int | str:
        """Return the number of elements of a copy; packed forms grow with the extent."""
        if isinstance(layout, Slivers) and layout.access.uses(self.axis):
            return f"{EXTENT} * {layout.size // self.largest}"
        return layout.size

    def parts(self, axis: str, parts: tuple[CallGroup, ...]) -> tuple[CallGroup, ...]:
        """Return the parts for which loops of calls are written: one for the axis."""
        return parts[:1] if axis == self.axis else parts

    def trips(self, loop: NestLoop) -> str:
        """Return the iterations of a loop."""
        return EXTENT if loop.axis == self.axis else super().trips(loop)

    def calls(self, axis: str, part: CallGroup) -> str:
        """Return the number of calls of a part; "" for one call."""
        if axis != self.axis:
            return super().calls(axis, part)
        return self._num_calls if self.in_calls else ""

    @property
    def _num_calls(self) -> str:
        return _CALLS if self.most > 1 else EXTENT if self.piece is None else _OWN

    def one_pass(self, axes: Collection[str]) -> str:
        """Return the condition that loops have one iteration; along the axis it depends on the extent."""
        return f"{self._num_calls} == 1" if {*axes} == {self.axis} else super().one_pass(axes)

    def start(self, axis: str, call: str, size: int) -> tuple[str, int]:
        """Return the first element of a call; along the axis the expression counts single elements."""
        if axis != self.axis:
            return call, size
        offset = call if self.most == 1 else f"({call} * {_SIZE} + T.max(0, {call} - {_SMALL}))"
        return offset if self.piece is None else f"({_FIRST} + {offset})", 1

    def rows(self, axis: str, call: str, size: int) -> str:
        """Return the number of elements of a call."""
        return self._size(call) if axis == self.axis else super().rows(axis, call, size)

    def _size(self, call: str) -> str:
        return "1" if self.most == 1 else f"{_SIZE} + T.Select({call} >= {_SMALL}, 1, 0)"

    def loop_term(
        self, variable: str, calls: Mapping[str, str], layout: TensorLayout, loop: NestLoop, sizes: Mapping[str, int]
    ) -> tuple[str, int]:
        """Return the term of a loop in an address.

        Packed forms are stored tile by tile, so their strides are proportional to the elements of the call.
        """
        if self.axis not in calls:
            return super().loop_term(variable, calls, layout, loop, sizes)
        single, double = (layout.loop_stride(loop, {**sizes, self.axis: size}) for size in (1, 2))
        return (variable if single == double else f"{variable} * ({self._size(calls[self.axis])})"), single

    def share(self, axis: str, call: str) -> str:
        """Return which share a call prefetches, the first or the second; calls that are neighbours repeat it."""
        return f"T.truncdiv({call} * {FEWEST_REPEATS}, {self._num_calls})" if axis == self.axis else call

    def arguments(self, calls: Mapping[str, str]) -> list[str]:
        """Return the number of elements of the call if it varies."""
        return [self._size(calls[self.axis])] if self.axis in calls and self.most > 1 else []
