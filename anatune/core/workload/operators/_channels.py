"""Which axes channels are, and which dimensions: of the data, the weight and the result of a convolution.

Where channels lie in blocks, two axes count them: ``g``, ``f`` and ``rc`` the blocks, ``gi``, ``fi`` and ``rci`` what
is in one. A depthwise convolution has blocks of groups, others blocks of the channels of one group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from anatune.core.workload.nest import Axis, Term
from anatune.core.workload.operators._product import Dimension
from anatune.core.workload.operators._windows import ordered
from anatune.core.workload.orders import Order
from anatune.errors import WorkloadError

__all__ = ["Channels"]


class Channels(NamedTuple):
    """The channels of a convolution.

    Attributes
    ----------
    groups, inner, outer : int
        Groups, input and output channels of one.
    data, result : Order
    """

    groups: int
    inner: int
    outer: int
    data: Order
    result: Order

    def check(self, operator: str, layout: str) -> None:
        """Raise unless blocks divide what they are blocks of.

        Raises
        ------
        WorkloadError
            A block is too long, or two differ where one axis is both.
        """
        if self._is_depthwise:
            blocks = {order.block for order in (self.data, self.result) if order.block}
            problem = len(blocks) > 1 or any(self.groups % block for block in blocks)
        else:
            pairs = ((self.inner, self.data.block), (self.outer, self.result.block))
            problem = any(block and size % block for size, block in pairs)
        if problem:
            raise WorkloadError(
                f"{operator}: layout {layout} with {self.inner} input and {self.outer} output channels in each of "
                f"{self.groups} group(s), expected whole blocks; choose a block that divides them"
            )

    @property
    def _is_depthwise(self) -> bool:
        return self.groups > 1 and self.inner == self.outer == 1

    @property
    def _group_block(self) -> int:
        return max(self.data.block, self.result.block) if self._is_depthwise else 0

    def axes(self, name: str, kind: Literal["spatial", "reduction"]) -> tuple[Axis, ...]:
        """Return the axis "g", "f" or "rc", and behind it the one inside its blocks where it has some."""
        extent, block = {
            "g": (self.groups, self._group_block),
            "f": (self.outer, 0 if self._is_depthwise else self.result.block),
            "rc": (self.inner, 0 if self._is_depthwise else self.data.block),
        }[name]
        if not block:
            return (Axis(name, extent, kind),)
        return Axis(name, extent // block, kind), Axis(f"{name}i", block, kind)

    def of_data(self, positions: Sequence[Dimension]) -> list[Dimension]:
        """Return the data's dimensions behind the batch."""
        return ordered(self.data, self._of("rc", self.inner, self.data), positions)

    def of_result(self, positions: Sequence[Dimension]) -> list[Dimension]:
        """Return the result's dimensions behind the batch."""
        return ordered(self.result, self._of("f", self.outer, self.result), positions)

    def places_in_result(self, rank: int) -> tuple[int, ...]:
        """Return which dimensions of the result, of so many, are channels."""
        if self.result.is_last:
            return (rank - 1,)
        return (1, rank - 1) if self.result.block else (1,)

    def of_weight(self, taps: Sequence[Dimension]) -> list[Dimension]:
        """Return the weight's dimensions: in the result's order, blocks of the result's channels innermost.

        NCHW: [k, c, ...]; NHWC: [..., c, k]; NCHW16c: [k / 16, c / 16, ..., 16, 16] (TVM's OIHW16i16o).
        """
        produced = self._of("f", self.outer, self.result)
        if self._is_depthwise:
            reduced: list[Dimension] = [(1, (Term("rc"),), 0)]
        else:
            reduced = _blocks("rc", self.inner, self.data.block)
        if self.result.is_last:
            return [*taps, *reduced, *produced]
        return [produced[0], reduced[0], *taps, *reduced[1:], *produced[1:]]

    def _of(self, name: str, each: int, order: Order) -> list[Dimension]:
        """Return one dimension, or blocks and what is in one, of the channels `name`, `each` in a group."""
        if self.groups == 1:
            return _blocks(name, each, order.block)
        if not self._is_depthwise:
            (size, terms, offset), *inside = _blocks(name, each, order.block)
            return [(self.groups * size, (Term("g", size), *terms), offset), *inside]
        block = self._group_block
        if not block:
            return [(self.groups, (Term("g"), Term(name)), 0)]
        if not order.block:
            return [(self.groups, (Term("g", block), Term("gi"), Term(name)), 0)]
        return [(self.groups // block, (Term("g"),), 0), (block, (Term("gi"), Term(name)), 0)]


def _blocks(name: str, size: int, block: int) -> list[Dimension]:
    if not block:
        return [(size, (Term(name),), 0)]
    return [(size // block, (Term(name),), 0), (block, (Term(f"{name}i"),), 0)]
