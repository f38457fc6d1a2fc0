"""Join readings of a network at several sizes into one graph for sizes that vary.

The network is read, and goes through all passes, at a few sizes. If the graphs differ in numbers only, each number
that differs becomes an expression of the symbols that agrees with all readings. A constant that grows becomes the
leading part of the largest one. Every other difference means that the network is not the same at all sizes: it is
refused. Expressions with floor division need more readings (`MoreReadingsError`) if several of them fit and differ
somewhere in the range. They also need readings near the ends, where a floor may be a minimum or maximum.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import numpy as np

from anatune.core.sizes import Size, is_run_time
from anatune.errors import WorkloadError
from anatune.network.graph.building import constant, make_node, reshape, where
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

__all__ = ["Environment", "MoreReadingsError", "SizedReading", "join_readings"]

Environment = Mapping[str, int]
"""Symbol -> its value."""

_POWER = 2
"""The highest power of a symbol in an expression."""
_MOST_STRIDE = 64
"""The largest divisor of a floor division that is tried."""
_COMPARED_SIZES = 4096
"""The number of sizes of a range at which fitting expressions are compared."""

_MOST_AXES = 4
"""The most axes of a constant that may begin at an offset along each axis."""

_MOST_NUMBERS, _MOST_TABLE = 8, 1 << 16
"""Limits of a constant: the number of different expressions in it, and the largest value of an expression."""


class SizedReading(NamedTuple):
    """A network that was read at some sizes."""

    sizes: Environment
    graph: Graph


def join_readings(
    readings: Sequence[SizedReading], name: str, ranges: Mapping[str, tuple[int, int]] | None = None
) -> tuple[Graph, dict[Node, Node]]:
    """Return the graph for all sizes, and each node of the first reading -> its node in that graph.

    The result is the graph of the first reading, with expressions for the numbers that differ.

    Parameters
    ----------
    readings : sequence of SizedReading
        The first one has the planned sizes; in the last one all symbols have their largest value.
    name : str
        The name of the network, for messages.
    ranges : mapping of str to (int, int), optional
        The least and the largest value of each symbol that varies; None: the first expression that fits is used.

    Raises
    ------
    WorkloadError
        The network is not the same at all sizes. The message says where it differs.
    MoreReadingsError
        Several expressions fit.
    """
    joined = _ReadingJoiner(readings, name, ranges or {})
    return joined.graph, joined.nodes


class MoreReadingsError(Exception):
    """The readings do not determine an expression: the network has to be read at `sizes` as well."""

    def __init__(self, sizes: Environment) -> None:
        super().__init__(sizes)
        self.sizes = sizes


class _DiffersError(Exception):
    """Readings differ in something other than numbers."""


class _ReadingJoiner:
    """Compares the nodes of all readings one by one."""

    def __init__(self, readings: Sequence[SizedReading], name: str, ranges: Mapping[str, tuple[int, int]]) -> None:
        self.fit = _Fit([reading.sizes for reading in readings], ranges)
        self.constants: dict[tuple[Value, ...], Value] = {}
        graphs = [reading.graph for reading in readings]
        self.values: dict[tuple[Value, ...], Value] = {}
        self.nodes: dict[Node, Node] = {}
        inputs = []
        for joined_inputs in zip(*(graph.inputs for graph in graphs), strict=True):
            kind = self.type(joined_inputs)
            assert isinstance(kind, TensorType)
            inputs.append(Input(joined_inputs[0].name, kind))
            self.values[joined_inputs] = inputs[-1]
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
        """Refuse a network that selects elements that do not exist when a size is at an end of its range.

        The readings cannot show this: ``x[:, -3:]`` of 5 elements begins at the third, but of 2 elements it is all.
        """
        ends = [ranges.get(word, (size, size)) for word, size in self.fit.environments[0].items()]
        values = [{least, min(max(least, 1), most), most} for least, most in ends]
        choices = [(node, numbers) for node in self.graph.nodes() for numbers in _selected_ranges(node)]
        for corner in itertools.product(*map(sorted, values)):
            lookup = dict(zip(self.fit.symbols, corner, strict=True))
            for node, numbers in choices:
                size, *chosen = (number.at(lookup) if isinstance(number, Size) else number for number in numbers)
                if size > 0 and [0, *chosen, size] != sorted([0, *chosen, size]):
                    at_sizes = ", ".join(f"{word.rstrip('_')}={value}" for word, value in lookup.items())
                    chosen_text = " to ".join(map(str, chosen))
                    raise WorkloadError(
                        f"{name} cannot be compiled for all sizes: with {at_sizes}, {node.op} ({node}) reads "
                        f"{chosen_text} of {size} elements; compile it for fixed sizes, or for a smaller range"
                    )

    def refusal(self, name: str, readings: Sequence[SizedReading], what: str) -> WorkloadError:
        sizes = "; ".join(
            ", ".join(f"{symbol.rstrip('_')}={value}" for symbol, value in reading.sizes.items())
            for reading in readings
        )
        return WorkloadError(
            f"{name} is not the same network at all sizes (read at {sizes}): {what}; compile it for fixed sizes, or "
            "for a smaller range"
        )

    def node(self, nodes: Sequence[Node]) -> Node:
        first = nodes[0]
        if len({(node.op, node.kind) for node in nodes}) > 1:
            raise _DiffersError(f"is {' or '.join(sorted({node.op for node in nodes}))}")
        arguments = self.argument(tuple(node.arguments for node in nodes))
        dicts = [node.attributes for node in nodes]
        if first.op == ATTENTION:
            dicts = [_express_causal(attrs) for attrs in dicts]
        attributes = {key: self.attribute([attrs[key] for attrs in dicts], key) for key in first.attributes}
        return Node(first.op, arguments, self.type(nodes), attributes, first.kind)

    def type(self, values: Sequence[Value]) -> TensorType | tuple[TensorType, ...]:
        kinds: list[Argument] = [value.type for value in values]
        if isinstance(kinds[0], TensorType):
            return TensorType(self.sizes([kind.shape for kind in kinds]), self.same([kind.dtype for kind in kinds]))
        return tuple(
            TensorType(self.sizes([kind.shape for kind in types]), self.same([kind.dtype for kind in types]))
            for types in zip(*kinds, strict=True)
        )

    def argument(self, arguments: Sequence[Argument]) -> Argument:
        """Return an argument that stands for those of all readings."""
        first = arguments[0]
        if len({type(argument) for argument in arguments}) > 1:
            raise _DiffersError("reads arguments of different types")
        if isinstance(first, Constant):
            return self.constant(arguments)
        if isinstance(first, Value):
            if tuple(arguments) not in self.values:
                raise _DiffersError("reads different values")
            return self.values[tuple(arguments)]
        if isinstance(first, Shape):
            return Shape(self.sizes(arguments))
        if isinstance(first, Scalar):
            return Scalar(self.attribute([argument.value for argument in arguments], "a number"), first.dtype)
        if type(first) is tuple:
            if len({len(argument) for argument in arguments}) > 1:
                raise _DiffersError("reads different numbers of tensors")
            return tuple(map(self.argument, zip(*arguments, strict=True)))
        return self.same(arguments)

    def attribute(self, values: Sequence[Argument], key: str) -> Argument:
        """Return an attribute that stands for those of all readings."""
        first = values[0]
        if isinstance(first, tuple) and all(isinstance(value, tuple) and len(value) == len(first) for value in values):
            parts = [self.attribute(value, key) for value in zip(*values, strict=True)]
            return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
        if isinstance(first, int) and not isinstance(first, bool):
            return self.size(values)
        return self.same(values, key)

    def sizes(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        if len({len(shape) for shape in shapes}) > 1:
            raise _DiffersError("has different numbers of dimensions")
        return tuple(map(self.size, zip(*shapes, strict=True)))

    def size(self, sizes: Sequence[int]) -> int:
        size = self.fit(tuple(map(int, sizes)))
        if size is None:
            raise _DiffersError(f"has {', '.join(map(str, sizes))} elements, for which there is no expression")
        return size

    def same(self, values: Sequence[Argument], what: str = "") -> Argument:
        """Return the value that all readings agree on."""
        if any(value != values[0] for value in values[1:]):
            raise _DiffersError(f"has different values of {what or 'an attribute'}: {', '.join(map(str, values))}")
        return values[0]

    def constant(self, constants: Sequence[Constant]) -> Value:
        """Return a constant for all readings: the constant itself, or the leading part of the largest one."""
        key = tuple(constants)
        if key not in self.constants:
            largest = constants[-1].array
            starts = next(filter(partial(self.is_part, constants, largest), self.starts(constants, largest)), None)
            if starts is None:
                self.constants[key] = self.numbers([constant.array for constant in constants])
                return self.constants[key]
            self.constants[key] = value = Constant(largest)
            if len({constant.array.shape for constant in constants}) > 1 or any(starts):
                shape = self.sizes([constant.array.shape for constant in constants])
                is_known = not is_unknown(largest)
                kind = TensorType(shape, largest.dtype.name)
                self.constants[key] = _varying_part(value, shape, starts) if is_known else Node(LEADING, (value,), kind)
        return self.constants[key]

    def numbers(self, arrays: Sequence[Array]) -> Value:
        """Return integers that are expressions of the sizes; each is read from a table of all integers."""
        kind = tensor_type(Constant(arrays[0]))
        rows = np.stack(arrays, -1) if len({array.shape for array in arrays}) == 1 else np.zeros(0)
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
            part = reshape(_varying_part(table, (1,), (size,)), (1,) * len(kind.shape))
            value = where(constant((rows == numbers).all(-1), "bool"), part, value) if kind.shape else part
        return value

    def starts(self, constants: Sequence[Constant], largest: Array) -> Iterator[tuple[int, ...]]:
        """Yield offsets at which a constant may begin in the largest one: 0, or the number of elements of a state."""
        if any(constant.array.ndim != largest.ndim or constant.array.dtype != largest.dtype for constant in constants):
            return
        yield (0,) * largest.ndim
        state_symbols = [symbol for name, symbol in self.fit.symbols.items() if not self.fit.environments[-1][name]]
        if state_symbols and largest.ndim <= _MOST_AXES:
            yield from itertools.product((0, *state_symbols), repeat=largest.ndim)

    def is_part(self, constants: Sequence[Constant], largest: Array, starts: Sequence[int]) -> bool:
        """Return whether the constant of each reading is the part of the largest one that begins at `starts`."""
        for smaller, sizes in zip(constants, self.fit.environments, strict=True):
            begins = [start.at(sizes) if isinstance(start, Size) else start for start in starts]
            part = largest[
                tuple(slice(begin, begin + size) for begin, size in zip(begins, smaller.array.shape, strict=True))
            ]
            if not _equal(part, smaller.array):
                return False
        return True


def _selected_ranges(node: Node) -> Iterator[tuple[int, ...]]:
    """Yield each varying size from which a node selects elements, with their number or with the begin and the end."""
    if node.op not in ("topk", "strided_slice", "split"):
        return
    shape, attributes = tensor_type(node.arguments[0]).shape, node.attributes
    rows: list[tuple[int, ...]] = [(attributes["axis"], attributes["k"])] if node.op == "topk" else []
    if node.op == "split" and isinstance(attributes["indices_or_sections"], tuple):
        rows = [(attributes["axis"], *attributes["indices_or_sections"])]
    if node.op == "strided_slice":
        rows = [tuple(scalar.value for scalar in row) for row in zip(*node.arguments[1:4], strict=True)]
    for axis, *chosen in rows:
        if isinstance(shape[axis], Size):
            yield shape[axis], *chosen


def _express_causal(attributes: Mapping[str, Argument]) -> dict[str, Argument]:
    """Return the attributes of an attention with the keys visible to its queries expressed as one number."""
    visible = attributes["visible"]
    first = visible[0] - 1 if visible else 0
    is_causal = bool(visible) and visible == tuple(range(first + 1, first + 1 + len(visible)))
    return {**attributes, "visible": (), "causal": first if is_causal else None}


def _varying_part(value: Constant, shape: tuple[int, ...], starts: Sequence[int]) -> Value:
    """Return a part of a constant with a size and an offset that are known at run time."""
    kind, array = TensorType(shape, value.array.dtype.name), value.array
    axes = [
        axis for axis, ends in enumerate(zip(shape, starts, strict=True)) if any(isinstance(one, Size) for one in ends)
    ]
    for axis in axes:
        first = array[(*[slice(None)] * axis, slice(1))]
        array = (
            first if array.strides[axis] == 0 or np.array_equal(array, np.broadcast_to(first, array.shape)) else array
        )
    if array.shape != value.array.shape:  # constant along some axes
        same = [array.shape[axis] == 1 for axis in range(array.ndim)]
        sizes = tuple(1 if is_same else size for is_same, size in zip(same, shape, strict=True))
        begins = [0 if is_same else start for is_same, start in zip(same, starts, strict=True)]
        reduced = Constant(array)
        part = _varying_part(reduced, sizes, begins) if is_run_time((*sizes, *begins)) else reduced
        return make_node("broadcast_to", (part, Shape(shape)), kind)
    if all(size == 1 for size in shape[: axes[0]]) and len(axes) == 1 and not any(starts):  # contiguous in memory
        return Node(LEADING, (value,), kind)
    ends = [starts[axis] + shape[axis] for axis in axes]
    rows = (axes, [starts[axis] for axis in axes], ends, [1] * len(axes))
    numbers = (tuple(Scalar(number, "int64") for number in row) for row in rows)
    return make_node("strided_slice", (value, *numbers), kind, assume_inbound=True)


def _equal(a: Array, b: Array) -> bool:
    if a.shape != b.shape:
        return False
    is_same = a.strides == b.strides and a.__array_interface__["data"] == b.__array_interface__["data"]
    return is_same or bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))


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
        """Return the expression, a number if all values are equal, or None if there is none.

        Raises
        ------
        MoreReadingsError
            Other expressions fit as well.
        """
        if values not in self.known:
            expression = values[0] if len(set(values)) == 1 else next(self.candidates(values), None)
            self.known[values] = expression
            if isinstance(expression, Size) and "//" in str(expression):
                self.check(expression, values)
        return self.known[values]

    def check(self, expression: Size, values: tuple[int, ...]) -> None:
        """Raise MoreReadingsError unless the readings confirm an expression with floor division."""
        first = self.environments[0]
        for name in sorted(expression.symbols & self.ranges.keys()):
            least, most = self.ranges[name]
            planned = first[name]
            for size in (planned + 1, most - 1, (planned + most) // 2, (least + planned) // 2):
                if least < size < most and all(environment[name] != size for environment in self.environments):
                    raise MoreReadingsError({**first, name: size})
        for other in self.floors(values):
            if self.values_of(other) != values:
                continue
            for name in sorted(expression.symbols & self.ranges.keys()):
                for size in np.unique(np.linspace(*self.ranges[name], _COMPARED_SIZES).astype(int)).tolist():
                    sizes = {**first, name: size}
                    if expression.at(sizes) != (other.at(sizes) if isinstance(other, Size) else other):
                        raise MoreReadingsError(sizes)

    def candidates(self, values: tuple[int, ...]) -> Iterator[int]:
        def checks(size: int) -> bool:
            return self.values_of(size) == values

        yield from filter(checks, self.linear(values))
        yield from filter(checks, self.floors(values))
        sizes = [size for size in self.known.values() if isinstance(size, Size)]
        for first, second in itertools.combinations_with_replacement(dict.fromkeys([*self.products, *sizes]), 2):
            factor = Fraction(values[0], max(int(first) * int(second), 1))
            if factor.denominator == 1:
                yield from filter(checks, [first * second * int(factor)])

    def values_of(self, size: int) -> tuple[int, ...]:
        return tuple(size.at(sizes) if isinstance(size, Size) else size for sizes in self.environments)

    def linear(self, values: tuple[int, ...]) -> Iterator[int]:
        """Yield a number plus a multiple of one product of symbols, then a number plus multiples of two products."""
        for count in (1, 2):
            if len(values) <= count + 1 and count > 1:
                return
            for products in itertools.combinations(self.products, count):
                rows = np.array([[*row, 1] for row in zip(*map(self.values_of, products), strict=True)], float)
                if np.linalg.matrix_rank(rows) <= count:
                    continue
                factors = np.rint(np.linalg.lstsq(rows, np.array(values, float), rcond=None)[0])
                total: int = int(factors[-1])
                for factor, product in zip(factors, products, strict=False):
                    total = product * int(factor) + total
                yield total

    def floors(self, values: tuple[int, ...]) -> Iterator[int]:
        """Yield floor divisions of a linear expression of one symbol, as sizes of strided operators have them."""
        for symbol in self.symbols.values():
            symbol_values = self.values_of(symbol)
            if symbol_values[0] == symbol_values[-1]:
                continue
            slope = (values[-1] - values[0]) / (symbol_values[-1] - symbol_values[0])
            for divisor in range(2, _MOST_STRIDE + 1):
                factor = round(slope * divisor)
                for term in range(-divisor * 4, divisor * 4 + 1):
                    if factor and (symbol_values[0] * factor + term) // divisor == values[0]:
                        yield (symbol * factor + term) // divisor
