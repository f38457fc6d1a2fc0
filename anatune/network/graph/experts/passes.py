"""Experts that tokens choose: products of rows sorted by expert, as kernels that find the rows of each, or as others.

Notation
--------
row : a token and one of its choices, number ``token * top_k + choice``.
sorted : rows of the first expert first, those of an expert in order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from anatune.network.graph.building import (
    arg_extreme,
    axis_indices,
    broadcast,
    cast,
    concat,
    constant,
    elementwise,
    histogram,
    matmul,
    padded,
    permute,
    reduced,
    reshape,
    sliced,
    where,
)
from anatune.network.graph.folding import computed
from anatune.network.graph.nodes import (
    ITEM,
    Argument,
    Array,
    Constant,
    Graph,
    Node,
    TensorType,
    Value,
    mapped,
    rewritten,
    rewritten_beside,
    tensor_type,
    values_in,
)
from anatune.network.graph.operators import EXPERTS, GROUPED_MATMUL, HISTOGRAM, MATMUL, ROUTE, operator_of

__all__ = ["deciding", "lead_of", "with_experts", "with_gates", "with_rounds", "with_terms", "without_groups"]

_ALIGNED = 4
"""Numbers of 16 bytes."""
_MOST_ROUNDS, _MOST_CHOICES = 16, 1024
"""Largest elements that are looked for one after the other, and elements that they are among."""


def lead_of(experts: int) -> int:
    """Return how many numbers ``anatune.route`` returns before the rows."""
    return -(-experts // _ALIGNED) * _ALIGNED


def deciding(graph: Graph) -> set[Value]:
    """Return the products that choices of experts follow from: 16 bits of them would change some."""
    stack = [node.arguments[0] for node in graph.nodes() if node.op == "argmax"]
    seen, found = set[Value](), set[Value]()
    while stack:
        value = stack.pop()
        if not isinstance(value, Node) or value in seen or value.op == "strided_slice":
            continue  # a slice: the product makes other columns, too
        seen.add(value)
        if value.op == MATMUL:
            found.update([value] if tensor_type(value).shape[1] <= _MOST_CHOICES else [])
        elif not operator_of(value).is_own:
            stack += values_in(value.arguments)
    return found


def without_groups(graph: Graph) -> Graph:
    """Return a graph in which rows are multiplied with the matrices of all groups, and of each its own is kept.

    Histograms, by which rows of groups are counted, become other operators, too.
    """

    def replace(own: Node) -> Value:
        if own.op == HISTOGRAM:
            ends = (constant(own.attributes[name], tensor_type(own).dtype) for name in ("low", "high"))
            return histogram(own.arguments[0], own.attributes["bins"], *ends)
        if own.op != GROUPED_MATMUL:
            return own
        x, weights, ends = own.arguments
        (groups, inner, columns), rows = tensor_type(weights).shape, tensor_type(x).shape[0]
        wide = reshape(permute(weights, (1, 0, 2)), (inner, groups * columns))
        products = reshape(matmul(x, wide), (rows, groups, columns))
        place = constant(np.arange(rows)[:, None], tensor_type(ends).dtype)
        is_below = cast(elementwise("less", place, reshape(ends, (1, groups))), "int8")
        before = padded(sliced(is_below, [1], [0], [groups - 1]), [0, 1], [0, 0])
        mine = cast(elementwise("subtract", is_below, before), tensor_type(own).dtype)
        return reduced("sum", elementwise("multiply", products, reshape(mine, (rows, groups, 1))), [1], keepdims=False)

    return rewritten(graph, replace)


def with_rounds(graph: Graph) -> Graph:
    """Return a graph in which few largest elements are looked for, and few elements put, one after the other: loops."""

    def replace(own: Node) -> Value:
        if own.op not in ("topk", "scatter_elements"):
            return own
        left: Value = own.arguments[0]
        shape, dtype = tensor_type(left)
        rank, counts = len(shape), tensor_type(own if own.op == "topk" else own.arguments[1]).shape
        is_last = own.attributes["axis"] % rank == rank - 1 and counts[:-1] == shape[:-1]
        if not is_last or counts[-1] > _MOST_ROUNDS or shape[-1] > _MOST_CHOICES or dtype != "float32":
            return own
        number = axis_indices(-1, rank, shape[-1])
        if own.op == "scatter_elements":
            if own.attributes["reduction"] != "update":
                return own
            for place in range(counts[-1]):
                at, new = (sliced(one, [rank - 1], [place], [place + 1]) for one in own.arguments[1:])
                left = where(elementwise("equal", number, at), new, left)
            return left
        word = "max" if own.attributes["largest"] else "min"
        taken = constant(-np.inf if word == "max" else np.inf, dtype)
        lowest = float(np.finfo(dtype).max) * (-1 if word == "max" else 1)  # beyond is what is taken
        left = elementwise(f"{word}imum", left, lowest)
        places = [arg_extreme(f"arg{word}", left, -1, keepdims=True)]
        while len(places) < counts[-1]:
            left = where(elementwise("equal", number, places[-1]), taken, left)
            places.append(arg_extreme(f"arg{word}", left, -1, keepdims=True))
        return concat(places, -1)

    return rewritten(graph, replace)


def with_experts(graph: Graph) -> Graph:
    """Return a graph in which rows of experts are not sorted: their products find them by ``anatune.route``.

    What indices are is told from their values for some choices of experts, not from the operators that make them.
    """
    nodes, new = graph.nodes(), dict[Value, Value]()
    counts = {tensor_type(node.arguments[1]).shape[0] for node in nodes if node.op == GROUPED_MATMUL}
    sorts = [node for node in nodes if node.op == "argsort" and len(tensor_type(node).shape) == 1 and counts]
    routings = [_Routing(nodes, sort.arguments[0], experts, new) for experts in counts for sort in sorts]

    def replace(own: Node, old: Node) -> Value:
        return next((one for routing in routings if (one := routing.restored(old)) is not None), own)

    return rewritten_beside(graph, replace, new) if routings else graph


class _Routing:
    """Values of a graph that follow from which expert each row is of, `chosen` (rows,)."""

    def __init__(self, nodes: Sequence[Node], chosen: Value, experts: int, new: dict[Value, Value]) -> None:
        self.chosen, self.experts, self.new = chosen, experts, new
        (self.rows,) = tensor_type(chosen).shape
        draw = np.random.default_rng(0).integers
        turned = np.roll(np.arange(self.rows), 1) % experts  # whose order is another one than back
        samples = [turned, np.arange(self.rows)[::-1] % experts, draw(0, experts, self.rows)]
        self.samples = [(one, np.argsort(one, kind="stable"), _following(nodes, chosen, one)) for one in samples]
        self.unsorted: dict[Value, Value | None] = {}
        self.tokens: dict[Value, Value] = {}
        """Rows that are tokens again and again -> the tokens."""
        self.top_k = 1
        self.route: Node | None = None

    def restored(self, node: Node) -> Value | None:
        """Return what a node is that brings sorted rows into order; None: it is something else."""
        is_back = _is_of_rows(node) and self._is(node.arguments[1], lambda _, order: np.argsort(order))
        return self.in_order(node.arguments[0]) if is_back else None

    def in_order(self, value: Value) -> Value | None:
        """Return sorted rows in order; None: they are not that."""
        if value not in self.unsorted:
            self.unsorted[value] = self._in_order(value) if isinstance(value, Node) else None
        return self.unsorted[value]

    def _is(self, value: Value, wanted: Callable[[Array, Array], Array]) -> bool:
        """Whether a value is a function of the choices and the order of rows that is sorted."""
        return all(
            value in found and np.array_equal(found[value].array, wanted(chosen, order))
            for chosen, order, found in self.samples
        )

    def _in_order(self, node: Node) -> Value | None:
        if _is_of_rows(node):
            return self._taken(node)
        if node.op == GROUPED_MATMUL:
            return self._product(node)
        is_of_elements = operator_of(node).layout == "elementwise" or node.op in ("astype", "where")
        rank = len(_kinds(node)[0].shape) if is_of_elements else 0  # of what else is broadcast to the rows
        if not (is_of_elements or _is_rowwise(node)) or not all(map(self._has_rows, _kinds(node))):
            return None
        found: list[Value | None] = []

        def moved(argument: Argument) -> Argument:
            if not isinstance(argument, Value):
                return argument
            if not all(self._has_rows(kind) and len(kind.shape) >= rank for kind in _kinds(argument)):
                return self._new(argument)
            found.append(self.in_order(argument))
            return found[-1]

        arguments = mapped(node.arguments, moved)
        return node.of(arguments) if found and None not in found else None

    def _new(self, value: Value) -> Value:
        return self.new.get(value, value)

    def _has_rows(self, kind: TensorType) -> bool:
        return kind.shape[:1] == (self.rows,)

    def _taken(self, node: Node) -> Value | None:
        """Return the rows that sorted ones were taken of: rows, tokens, or what belongs to experts."""
        data, index = node.arguments
        own, (size, *sizes) = self._new(data), tensor_type(data).shape
        if self._is(index, lambda chosen, _: np.sort(chosen)):
            return node.of((own, self._new(self.chosen)))
        times = self.rows // size
        if times * size != self.rows or not self._is(index, lambda _, order: order // times):
            return None
        if times == 1:
            return own
        rows = reshape(broadcast(reshape(own, (size, 1, *sizes)), (size, times, *sizes)), (self.rows, *sizes))
        self.tokens[rows], self.top_k = own, times
        return rows

    def _product(self, node: Node) -> Value | None:
        data, weight, ends = node.arguments
        is_counted = self._is(ends, lambda chosen, _: np.bincount(chosen, minlength=self.experts).cumsum())
        rows = self.in_order(data) if is_counted else None
        if rows is None:
            return None
        if self.route is None:
            kind = TensorType((lead_of(self.experts) + self.rows,), "int32")
            self.route = Node(ROUTE, (self._new(self.chosen),), kind, {"experts": self.experts})
        matrices = permute(self._new(weight), (0, 2, 1))
        own = {"top_k": self.top_k, "expanded": rows not in self.tokens, "activation": False}
        return Node(EXPERTS, (self.tokens.get(rows, rows), matrices, self.route, self.route), node.type, own)


def _is_of_rows(node: Node) -> bool:
    return node.op == "take" and node.attributes["axis"] == 0


def _is_rowwise(node: Node) -> bool:
    """Whether an operator that keeps the first dimension makes each row of the same row."""
    if node.op == "strided_slice":
        return all(axis.value for axis in node.arguments[1])
    return node.op in (ITEM, "split", "reshape")


def _kinds(value: Value) -> tuple[TensorType, ...]:
    return (value.type,) if isinstance(value.type, TensorType) else value.type


def _following(nodes: Sequence[Node], source: Value, array: Array) -> dict[Value, Constant]:
    """Return the vectors that follow from one value alone where that is an array."""
    known = {source: Constant(array.astype(tensor_type(source).dtype))}
    for node in nodes:
        unknown = [one for one in values_in(node.arguments) if not isinstance(one, Constant)]
        if unknown and all(one in known for one in unknown):
            made = computed(node.of(mapped(node.arguments, lambda one: known.get(one, one))))
            if isinstance(made, Constant):
                known[node] = made
    return {key: value for key, value in known.items() if value.array.ndim == 1}  # others are rows times experts


def with_gates(graph: Graph) -> Graph:
    """Return a graph whose products of experts multiply ``silu(gate)`` with up, where that is what follows them."""

    def replace(own: Node) -> Value:
        if own.op != "multiply":
            return own
        for gate, up in (own.arguments, own.arguments[::-1]):
            if isinstance(gate, Node) and gate.op == "nn.silu":
                product = _half(gate.arguments[0], 0)
                if product is not None and product is _half(up, 1):
                    return product.of(product.arguments, tensor_type(own), activation=True)
        return own

    return rewritten(graph, replace)


def _half(value: Value, number: int) -> Node | None:
    """Return the product of experts that a value is the first, or second, half of the columns of; None: it is not."""
    if not isinstance(value, Node) or value.op != ITEM or value.attributes["index"] != number:
        return None
    parts = value.arguments[0]
    product, kinds = parts.arguments[0], _kinds(parts)
    is_half = len(kinds) == 2 and kinds[0] == kinds[1] and kinds[0].shape[0] == tensor_type(product).shape[0]
    return product if is_half and isinstance(product, Node) and product.op == EXPERTS else None


def with_terms(graph: Graph) -> Graph:
    """Return a graph that adds up what few experts made of a token term by term, which joins what follows."""

    def replace(own: Node) -> Value:
        whole = own.arguments[0] if own.op == "sum" and own.attributes["axis"] == (1,) else None
        if not isinstance(whole, Node) or whole.op != "reshape" or len(tensor_type(whole).shape) != 3:
            return own
        (tokens, choices, columns), rows = tensor_type(whole).shape, whole.arguments[0]
        shapes = [(tokens * choices, size) for size in (columns, 1)]
        if not isinstance(rows, Node) or rows.op != "multiply" or choices > _MOST_ROUNDS:
            return own
        if any(tensor_type(one).shape not in shapes for one in rows.arguments):
            return own
        factors = [reshape(one, (tokens, choices, tensor_type(one).shape[1])) for one in rows.arguments]
        parts = ([sliced(one, [1], [place], [place + 1]) for one in factors] for place in range(choices))
        terms = (elementwise("multiply", *part) for part in parts)
        total = functools.reduce(lambda one, other: elementwise("add", one, other), terms)
        return reshape(total, tensor_type(own).shape)

    return rewritten(graph, replace)
