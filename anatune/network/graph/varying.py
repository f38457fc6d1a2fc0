"""One graph for sizes that vary, from readings of a model at several sizes.

A model is read, and goes through all passes, at a few sizes. Where the graphs are the same but for numbers, each number
that differs is the expression of the symbols that all readings agree with; a constant that grows is the leading part of
the largest one. What differs otherwise is another model at other sizes, and refused. Expressions with floors need more
readings: where several fit that differ somewhere in the range, and at sizes next to the ends, where a floor may be a
bound in truth (`MoreReadingsError`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import numpy as np

from anatune.core.sizes import Size, at_run_time
from anatune.errors import WorkloadError
from anatune.network.graph.building import constant, made, reshape, where
from anatune.network.graph.nodes import (
    LEADING,
    Argument,
    Array,
    Constant,
    Graph,
    Input,
    Node,
    Scalar,
    Shape,
    TensorType,
    Value,
    is_unknown,
    tensor_type,
)
from anatune.network.graph.operators import ATTENTION

__all__ = ["Environment", "MoreReadingsError", "Reading", "together"]

Environment = Mapping[str, int]
"""Symbol -> its value."""

_POWER = 2
"""Highest power of a symbol in an expression."""
_MOST_STRIDE = 64
"""Largest number that floors are looked for with."""
_PLACES = 4096
"""Sizes of a range at which expressions that fit are compared."""

_MOST_AXES = 4
"""Of a constant that may begin elsewhere along each of them."""

_MOST_NUMBERS, _MOST_TABLE = 8, 1 << 16
"""Of a constant: different expressions of the sizes, and the largest number that one can have."""


class Reading(NamedTuple):
    """A model as it is at some sizes."""

    sizes: Environment
    graph: Graph


def together(
    readings: Sequence[Reading], name: str, ranges: Mapping[str, tuple[int, int]] | None = None
) -> tuple[Graph, dict[Node, Node]]:
    """Return the graph of all sizes, and each node of the first reading -> its node there.

    It is the graph of the first reading, with expressions where readings differ.

    Parameters
    ----------
    readings : sequence of Reading
        The first one is planned; in the last one all symbols are largest.
    name : str
        For messages.
    ranges : mapping of str to (int, int), optional
        Least and largest value of each symbol that varies; None: expressions that fit are believed.

    Raises
    ------
    WorkloadError
        The model is another one at other sizes: where, and how.
    MoreReadingsError
        Several expressions fit.
    """
    joined = _Joined(readings, name, ranges or {})
    return joined.graph, joined.nodes


class MoreReadingsError(Exception):
    """Expressions are not certain: the model has to be read at `sizes`, too."""

    def __init__(self, sizes: Environment) -> None:
        super().__init__(sizes)
        self.sizes = sizes


class _DiffersError(Exception):
    """What readings do not agree in."""


class _Joined:
    """Walks the nodes of all readings side by side."""

    def __init__(self, readings: Sequence[Reading], name: str, ranges: Mapping[str, tuple[int, int]]) -> None:
        self.fit = _Fit([reading.sizes for reading in readings], ranges)
        self.constants: dict[tuple[Value, ...], Value] = {}
        graphs = [reading.graph for reading in readings]
        self.values: dict[tuple[Value, ...], Value] = {}
        self.nodes: dict[Node, Node] = {}
        inputs = []
        for given in zip(*(graph.inputs for graph in graphs), strict=True):
            kind = self.type(given)
            assert isinstance(kind, TensorType)
            inputs.append(Input(given[0].name, kind))
            self.values[given] = inputs[-1]
        lists = [graph.nodes() for graph in graphs]
        for nodes in zip(*lists, strict=False):
            try:
                self.values[nodes] = self.nodes[nodes[0]] = self.node(nodes)
            except _DiffersError as error:
                raise self.refusal(name, readings, f"{nodes[0].op} ({nodes[0]}) {error}") from error
        if len({len(nodes) for nodes in lists}) > 1:
            raise self.refusal(name, readings, f"{' or '.join(str(len(nodes)) for nodes in lists)} operators")
        try:
            outputs = self.argument(tuple(graph.outputs for graph in graphs))
        except _DiffersError as error:
            raise self.refusal(name, readings, f"the outputs: {error}") from error
        self.graph = Graph(tuple(inputs), outputs, is_tuple=graphs[0].is_tuple)
        self.check_ends(name, ranges)

    def check_ends(self, name: str, ranges: Mapping[str, tuple[int, int]]) -> None:
        """Refuse a model that chooses elements which it has not where a size is at an end of its range.

        Readings are at other sizes: ``x[:, -3:]`` of 5 elements begins at the third, of two it is all of them.
        """
        ends = [ranges.get(word, (size, size)) for word, size in self.fit.environments[0].items()]
        values = [{least, min(max(least, 1), most), most} for least, most in ends]
        choices = [(node, numbers) for node in self.graph.nodes() for numbers in _choices(node)]
        for corner in itertools.product(*map(sorted, values)):
            lookup = dict(zip(self.fit.symbols, corner, strict=True))
            for node, numbers in choices:
                size, *chosen = (one.at(lookup) if isinstance(one, Size) else one for one in numbers)
                if size > 0 and [0, *chosen, size] != sorted([0, *chosen, size]):
                    at = ", ".join(f"{word.rstrip('_')}={value}" for word, value in lookup.items())
                    read = " to ".join(map(str, chosen))
                    raise WorkloadError(
                        f"{name} is not one model at all sizes: with {at}, {node.op} ({node}) takes {read} of "
                        f"{size} elements; compile it for fixed sizes, or for a smaller range"
                    )

    def refusal(self, name: str, readings: Sequence[Reading], what: str) -> WorkloadError:
        sizes = "; ".join(
            ", ".join(f"{symbol.rstrip('_')}={value}" for symbol, value in reading.sizes.items())
            for reading in readings
        )
        return WorkloadError(
            f"{name} is not one model at all sizes, looked at with {sizes}: {what}; compile it for fixed sizes, or for "
            "a smaller range"
        )

    def node(self, nodes: Sequence[Node]) -> Node:
        own = nodes[0]
        if len({(node.op, node.kind) for node in nodes}) > 1:
            raise _DiffersError(f"is {' or '.join(sorted({node.op for node in nodes}))}")
        arguments = self.argument(tuple(node.arguments for node in nodes))
        given = [node.attributes for node in nodes]
        if own.op == ATTENTION:
            given = [_causal(one) for one in given]
        attributes = {key: self.attribute([one[key] for one in given], key) for key in own.attributes}
        return Node(own.op, arguments, self.type(nodes), attributes, own.kind)

    def type(self, values: Sequence[Value]) -> TensorType | tuple[TensorType, ...]:
        kinds: list[Argument] = [value.type for value in values]
        if isinstance(kinds[0], TensorType):
            return TensorType(self.sizes([kind.shape for kind in kinds]), self.same([kind.dtype for kind in kinds]))
        return tuple(
            TensorType(self.sizes([kind.shape for kind in own]), self.same([kind.dtype for kind in own]))
            for own in zip(*kinds, strict=True)
        )

    def argument(self, given: Sequence[Argument]) -> Argument:
        """Return an argument of all readings."""
        first = given[0]
        if len({type(one) for one in given}) > 1:
            raise _DiffersError("reads other kinds of arguments")
        if isinstance(first, Constant):
            return self.constant(given)
        if isinstance(first, Value):
            if tuple(given) not in self.values:
                raise _DiffersError("reads other values")
            return self.values[tuple(given)]
        if isinstance(first, Shape):
            return Shape(self.sizes(given))
        if isinstance(first, Scalar):
            return Scalar(self.attribute([one.value for one in given], "a number"), first.dtype)
        if type(first) is tuple:
            if len({len(one) for one in given}) > 1:
                raise _DiffersError("reads other numbers of tensors")
            return tuple(map(self.argument, zip(*given, strict=True)))
        return self.same(given)

    def attribute(self, given: Sequence[Argument], key: str) -> Argument:
        """Return an attribute of all readings."""
        first = given[0]
        if isinstance(first, tuple) and all(isinstance(one, tuple) and len(one) == len(first) for one in given):
            found = [self.attribute(one, key) for one in zip(*given, strict=True)]
            return type(first)(*found) if hasattr(first, "_fields") else tuple(found)
        if isinstance(first, int) and not isinstance(first, bool):
            return self.size(given)
        return self.same(given, key)

    def sizes(self, given: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        if len({len(one) for one in given}) > 1:
            raise _DiffersError("has other numbers of dimensions")
        return tuple(map(self.size, zip(*given, strict=True)))

    def size(self, given: Sequence[int]) -> int:
        found = self.fit(tuple(map(int, given)))
        if found is None:
            raise _DiffersError(f"has {', '.join(map(str, given))} elements, which no expression fits")
        return found

    def same(self, given: Sequence[Argument], what: str = "") -> Argument:
        """Return what all readings have, if it is the same."""
        if any(one != given[0] for one in given[1:]):
            raise _DiffersError(f"has {what or 'it'} as {', '.join(map(str, given))}")
        return given[0]

    def constant(self, given: Sequence[Constant]) -> Value:
        """Return a constant of all readings: of one size, or the leading part of the largest."""
        key = tuple(given)
        if key not in self.constants:
            largest = given[-1].array
            starts = next(filter(partial(self.is_part, given, largest), self.starts(given, largest)), None)
            if starts is None:
                self.constants[key] = self.numbers([one.array for one in given])
                return self.constants[key]
            self.constants[key] = found = Constant(largest)
            if len({one.array.shape for one in given}) > 1 or any(starts):
                shape = self.sizes([one.array.shape for one in given])
                is_known = not is_unknown(largest)
                kind = TensorType(shape, largest.dtype.name)
                self.constants[key] = _part(found, shape, starts) if is_known else Node(LEADING, (found,), kind)
        return self.constants[key]

    def numbers(self, arrays: Sequence[Array]) -> Value:
        """Return whole numbers that are expressions of the sizes: each is an element of a table of all numbers."""
        kind = tensor_type(Constant(arrays[0]))
        rows = np.stack(arrays, -1) if len({one.shape for one in arrays}) == 1 else np.zeros(0)
        varying = sorted({tuple(map(int, row)) for row in rows.reshape(-1, len(arrays)) if len(set(row)) > 1})
        if rows.dtype.kind not in "iu" or not 0 < len(varying) <= _MOST_NUMBERS:
            raise _DiffersError("reads a constant whose values depend on the sizes")
        value: Value = constant(arrays[0], kind.dtype)
        for numbers in varying:
            size = self.fit(numbers)
            ends = [self.fit.ranges.get(name, (number, number)) for name, number in self.fit.environments[-1].items()]
            corners = [dict(zip(self.fit.symbols, corner, strict=True)) for corner in itertools.product(*ends)]
            reached = [size.at(corner) for corner in corners] if isinstance(size, Size) else [-1]
            if size is None or min(reached) < 0 or max(reached) > _MOST_TABLE or max(numbers) > max(reached):
                raise _DiffersError("reads a constant whose values depend on the sizes")
            table = Constant(np.arange(max(reached) + 1).astype(kind.dtype))
            part = reshape(_part(table, (1,), (size,)), (1,) * len(kind.shape))
            value = where(constant((rows == numbers).all(-1), "bool"), part, value) if kind.shape else part
        return value

    def starts(self, given: Sequence[Constant], largest: Array) -> Iterator[tuple[int, ...]]:
        """Yield where a constant may begin in the largest one: at 0, or behind what a state holds."""
        if any(one.array.ndim != largest.ndim or one.array.dtype != largest.dtype for one in given):
            return
        yield (0,) * largest.ndim
        held = [symbol for name, symbol in self.fit.symbols.items() if not self.fit.environments[-1][name]]
        if held and largest.ndim <= _MOST_AXES:
            yield from itertools.product((0, *held), repeat=largest.ndim)

    def is_part(self, given: Sequence[Constant], largest: Array, starts: Sequence[int]) -> bool:
        """Whether the constant of each reading is the part of the largest one that begins there."""
        for one, sizes in zip(given, self.fit.environments, strict=True):
            begins = [start.at(sizes) if isinstance(start, Size) else start for start in starts]
            part = largest[
                tuple(slice(begin, begin + size) for begin, size in zip(begins, one.array.shape, strict=True))
            ]
            if not _equal(part, one.array):
                return False
        return True


def _choices(node: Node) -> Iterator[tuple[int, ...]]:
    """Yield each size that varies of which a node takes elements, and how many, or where it begins and ends."""
    if node.op not in ("topk", "strided_slice", "split"):
        return
    shape, own = tensor_type(node.arguments[0]).shape, node.attributes
    rows: list[tuple[int, ...]] = [(own["axis"], own["k"])] if node.op == "topk" else []
    if node.op == "split" and isinstance(own["indices_or_sections"], tuple):
        rows = [(own["axis"], *own["indices_or_sections"])]
    if node.op == "strided_slice":
        rows = [tuple(one.value for one in row) for row in zip(*node.arguments[1:4], strict=True)]
    for axis, *chosen in rows:
        if isinstance(shape[axis], Size):
            yield shape[axis], *chosen


def _causal(attributes: Mapping[str, Argument]) -> dict[str, Argument]:
    """Return the attributes of an attention that says by a number which keys its queries see."""
    visible = attributes["visible"]
    first = visible[0] - 1 if visible else 0
    is_causal = bool(visible) and visible == tuple(range(first + 1, first + 1 + len(visible)))
    return {**attributes, "visible": (), "causal": first if is_causal else None}


def _part(value: Constant, shape: tuple[int, ...], starts: Sequence[int]) -> Value:
    """Return a part of a constant, of a size and with a start that are known at run time."""
    kind, array = TensorType(shape, value.array.dtype.name), value.array
    axes = [
        axis for axis, ends in enumerate(zip(shape, starts, strict=True)) if any(isinstance(one, Size) for one in ends)
    ]
    for axis in axes:
        first = array[(*[slice(None)] * axis, slice(1))]
        array = (
            first if array.strides[axis] == 0 or np.array_equal(array, np.broadcast_to(first, array.shape)) else array
        )
    if array.shape != value.array.shape:  # the same everywhere along some axes
        same = [array.shape[axis] == 1 for axis in range(array.ndim)]
        sizes = tuple(1 if is_same else size for is_same, size in zip(same, shape, strict=True))
        begins = [0 if is_same else start for is_same, start in zip(same, starts, strict=True)]
        one = Constant(array)
        part = _part(one, sizes, begins) if at_run_time((*sizes, *begins)) else one
        return made("broadcast_to", (part, Shape(shape)), kind)
    if all(size == 1 for size in shape[: axes[0]]) and len(axes) == 1 and not any(starts):  # it lies there as it is
        return Node(LEADING, (value,), kind)
    ends = [starts[axis] + shape[axis] for axis in axes]
    rows = (axes, [starts[axis] for axis in axes], ends, [1] * len(axes))
    numbers = (tuple(Scalar(number, "int64") for number in row) for row in rows)
    return made("strided_slice", (value, *numbers), kind, assume_inbound=True)


def _equal(one: Array, other: Array) -> bool:
    if one.shape != other.shape:
        return False
    is_same = one.strides == other.strides and one.__array_interface__["data"] == other.__array_interface__["data"]
    return is_same or bool(np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))


class _Fit:
    """Finds expressions of symbols that have given values in all environments."""

    def __init__(self, environments: Sequence[Environment], ranges: Mapping[str, tuple[int, int]]) -> None:
        self.environments, self.ranges = environments, ranges
        first = environments[0]
        self.symbols = {name: Size.symbol(name, value) for name, value in first.items()}
        powers = itertools.product(range(_POWER + 1), repeat=len(self.symbols))
        products = [
            [s for s, times in zip(self.symbols.values(), row, strict=True) for _ in range(times)] for row in powers
        ]
        self.products: list[int] = [math.prod(row) for row in sorted(products, key=len) if row]
        self.known: dict[tuple[int, ...], int | None] = {}

    def __call__(self, values: tuple[int, ...]) -> int | None:
        """Return the expression; a number where values are the same; None: none was found.

        Raises
        ------
        MoreReadingsError
            Others fit as well.
        """
        if values not in self.known:
            found = values[0] if len(set(values)) == 1 else next(self.candidates(values), None)
            self.known[values] = found
            if isinstance(found, Size) and "//" in str(found):
                self.check(found, values)
        return self.known[values]

    def check(self, found: Size, values: tuple[int, ...]) -> None:
        """Raise MoreReadingsError unless the readings say that an expression with floors is the one."""
        first = self.environments[0]
        for name in sorted(found.symbols & self.ranges.keys()):
            least, most = self.ranges[name]
            planned = first[name]
            for size in (planned + 1, most - 1, (planned + most) // 2, (least + planned) // 2):
                if least < size < most and all(one[name] != size for one in self.environments):
                    raise MoreReadingsError({**first, name: size})
        for other in self.floors(values):
            if self.values_of(other) != values:
                continue
            for name in sorted(found.symbols & self.ranges.keys()):
                for size in np.unique(np.linspace(*self.ranges[name], _PLACES).astype(int)).tolist():
                    sizes = {**first, name: size}
                    if found.at(sizes) != (other.at(sizes) if isinstance(other, Size) else other):
                        raise MoreReadingsError(sizes)

    def candidates(self, values: tuple[int, ...]) -> Iterator[int]:
        def checks(size: int) -> bool:
            return self.values_of(size) == values

        yield from filter(checks, self.linear(values))
        yield from filter(checks, self.floors(values))
        sizes = [size for size in self.known.values() if isinstance(size, Size)]
        for one, other in itertools.combinations_with_replacement(dict.fromkeys([*self.products, *sizes]), 2):
            factor = Fraction(values[0], max(int(one) * int(other), 1))
            if factor.denominator == 1:
                yield from filter(checks, [one * other * int(factor)])

    def values_of(self, size: int) -> tuple[int, ...]:
        return tuple(size.at(sizes) if isinstance(size, Size) else size for sizes in self.environments)

    def linear(self, values: tuple[int, ...]) -> Iterator[int]:
        """Yield multiples of one product of symbols and a number, then sums of two products' and a number."""
        for count in (1, 2):
            if len(values) <= count + 1 and count > 1:
                return
            for products in itertools.combinations(self.products, count):
                rows = np.array([[*row, 1] for row in zip(*map(self.values_of, products), strict=True)], float)
                if np.linalg.matrix_rank(rows) <= count:
                    continue
                found = np.rint(np.linalg.lstsq(rows, np.array(values, float), rcond=None)[0])
                total: int = int(found[-1])
                for factor, product in zip(found, products, strict=False):
                    total = product * int(factor) + total
                yield total

    def floors(self, values: tuple[int, ...]) -> Iterator[int]:
        """Yield what strides leave of one symbol."""
        for symbol in self.symbols.values():
            own = self.values_of(symbol)
            if own[0] == own[-1]:
                continue
            slope = (values[-1] - values[0]) / (own[-1] - own[0])
            for divisor in range(2, _MOST_STRIDE + 1):
                factor = round(slope * divisor)
                for term in range(-divisor * 4, divisor * 4 + 1):
                    if factor and (own[0] * factor + term) // divisor == values[0]:
                        yield (symbol * factor + term) // divisor
