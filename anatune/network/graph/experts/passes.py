"""Mixture of experts: products of rows sorted by expert, as kernels that find their rows, or as other operators.

Notation
--------
row : a token and one of its choices, with number ``token * top_k + choice``.
sorted : in the order of experts; rows of one expert stay in order.
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
    pad_tensor,
    permute,
    reduce_axes,
    reshape,
    slice_axes,
    where,
)
from anatune.network.graph.folding import fold
from anatune.network.graph.nodes import (
    ITEM,
    Argument,
    Array,
    Constant,
    Graph,
    Node,
    TensorType,
    Value,
    iterate_values,
    map_argument,
    rewrite_graph,
    rewrite_with_originals,
    tensor_type,
)
from anatune.network.graph.operators import EXPERTS, GROUPED_MATMUL, HISTOGRAM, MATMUL, ROUTE, find_operator

__all__ = [
    "expand_groups",
    "expand_sums",
    "fuse_gates",
    "header_size",
    "routing_products",
    "select_in_rounds",
    "unsort_experts",
]

_ALIGNED = 4
"""The numbers in 16 bytes."""
_MOST_ROUNDS, _MOST_CHOICES = 16, 1024
"""The most elements that are selected in rounds, and the most elements that they are selected from."""


def header_size(experts: int) -> int:
    """Return how many numbers ``anatune.route`` returns before the rows."""
    return -(-experts // _ALIGNED) * _ALIGNED


def routing_products(graph: Graph) -> set[Value]:
    """Return the products that decide which experts are chosen; computing them in 16 bits would change choices."""
    stack = [node.arguments[0] for node in graph.nodes() if node.op == "argmax"]
    seen, products = set[Value](), set[Value]()
    while stack:
        value = stack.pop()
        if not isinstance(value, Node) or value in seen or value.op == "strided_slice":
            continue  # a slice: the product also computes other columns
        seen.add(value)
        if value.op == MATMUL:
            products.update([value] if tensor_type(value).shape[1] <= _MOST_CHOICES else [])
        elif not find_operator(value).is_own:
            stack += iterate_values(value.arguments)
    return products


def expand_groups(graph: Graph) -> Graph:
    """Return a graph in which rows are multiplied by the matrices of all groups, and only the own product is kept.

    Histograms, which count the rows of groups, become other operators as well.
    """

    def replace(node: Node) -> Value:
        if node.op == HISTOGRAM:
            ends = (constant(node.attributes[name], tensor_type(node).dtype) for name in ("low", "high"))
            return histogram(node.arguments[0], node.attributes["bins"], *ends)
        if node.op != GROUPED_MATMUL:
            return node
        x, weights, ends = node.arguments
        (groups, inner, columns), rows = tensor_type(weights).shape, tensor_type(x).shape[0]
        wide = reshape(permute(weights, (1, 0, 2)), (inner, groups * columns))
        products = reshape(matmul(x, wide), (rows, groups, columns))
        row = constant(np.arange(rows)[:, None], tensor_type(ends).dtype)
        is_below = cast(elementwise("less", row, reshape(ends, (1, groups))), "int8")
        before = pad_tensor(slice_axes(is_below, [1], [0], [groups - 1]), [0, 1], [0, 0])
        mask = cast(elementwise("subtract", is_below, before), tensor_type(node).dtype)
        return reduce_axes(
            "sum", elementwise("multiply", products, reshape(mask, (rows, groups, 1))), [1], keepdims=False
        )

    return rewrite_graph(graph, replace)


def select_in_rounds(graph: Graph) -> Graph:
    """Return a graph in which a few elements are selected or replaced in rounds, one element a round."""

    def replace(node: Node) -> Value:
        if node.op not in ("topk", "scatter_elements"):
            return node
        remaining: Value = node.arguments[0]
        shape, dtype = tensor_type(remaining)
        rank, counts = len(shape), tensor_type(node if node.op == "topk" else node.arguments[1]).shape
        is_last = node.attributes["axis"] % rank == rank - 1 and counts[:-1] == shape[:-1]
        if not is_last or counts[-1] > _MOST_ROUNDS or shape[-1] > _MOST_CHOICES or dtype != "float32":
            return node
        number = axis_indices(-1, rank, shape[-1])
        if node.op == "scatter_elements":
            if node.attributes["reduction"] != "update":
                return node
            for index in range(counts[-1]):
                target, new = (
                    slice_axes(argument, [rank - 1], [index], [index + 1]) for argument in node.arguments[1:]
                )
                remaining = where(elementwise("equal", number, target), new, remaining)
            return remaining
        extreme = "max" if node.attributes["largest"] else "min"
        excluded = constant(-np.inf if extreme == "max" else np.inf, dtype)
        lowest = float(np.finfo(dtype).max) * (-1 if extreme == "max" else 1)  # selected elements lie beyond it
        remaining = elementwise(f"{extreme}imum", remaining, lowest)
        indices = [arg_extreme(f"arg{extreme}", remaining, -1, keepdims=True)]
        while len(indices) < counts[-1]:
            remaining = where(elementwise("equal", number, indices[-1]), excluded, remaining)
            indices.append(arg_extreme(f"arg{extreme}", remaining, -1, keepdims=True))
        return concat(indices, -1)

    return rewrite_graph(graph, replace)


def unsort_experts(graph: Graph) -> Graph:
    """Return a graph in which rows of experts are not sorted: their products find them with ``anatune.route``.

    The pass recognises indices by their values for some sample choices of experts, not by the operators that compute
    them.
    """
    nodes, new = graph.nodes(), dict[Value, Value]()
    counts = {tensor_type(node.arguments[1]).shape[0] for node in nodes if node.op == GROUPED_MATMUL}
    sorts = [node for node in nodes if node.op == "argsort" and len(tensor_type(node).shape) == 1 and counts]
    routings = [_Routing(nodes, sort.arguments[0], experts, new) for experts in counts for sort in sorts]

    def replace(node: Node, old: Node) -> Value:
        return next((restored for routing in routings if (restored := routing.restore(old)) is not None), node)

    return rewrite_with_originals(graph, replace, new) if routings else graph


class _Routing:
    """The values of a graph that follow from the expert of each row, `chosen` (rows,)."""

    def __init__(self, nodes: Sequence[Node], chosen: Value, experts: int, new: dict[Value, Value]) -> None:
        self.chosen, self.experts, self.new = chosen, experts, new
        (self.rows,) = tensor_type(chosen).shape
        draw = np.random.default_rng(0).integers
        rotated = np.roll(np.arange(self.rows), 1) % experts  # its order differs from the inverse order
        samples = [rotated, np.arange(self.rows)[::-1] % experts, draw(0, experts, self.rows)]
        self.samples = [(s, np.argsort(s, kind="stable"), _dependent_vectors(nodes, chosen, s)) for s in samples]
        self.unsorted: dict[Value, Value | None] = {}
        self.tokens: dict[Value, Value] = {}
        """Rows that repeat tokens -> the tokens."""
        self.top_k = 1
        self.route: Node | None = None

    def restore(self, node: Node) -> Value | None:
        """Return the value of a node that restores the order of sorted rows, or None for other nodes."""
        is_back = _takes_rows(node) and self._matches(node.arguments[1], lambda _, order: np.argsort(order))
        return self.restore_order(node.arguments[0]) if is_back else None

    def restore_order(self, value: Value) -> Value | None:
        """Return sorted rows in their original order, or None if the value is something else."""
        if value not in self.unsorted:
            self.unsorted[value] = self._compute_in_order(value) if isinstance(value, Node) else None
        return self.unsorted[value]

    def _matches(self, value: Value, expected: Callable[[Array, Array], Array]) -> bool:
        """Return whether a value equals a function of the choices and the sorted order, for all samples."""
        return all(
            value in vectors and np.array_equal(vectors[value].array, expected(chosen, order))
            for chosen, order, vectors in self.samples
        )

    def _compute_in_order(self, node: Node) -> Value | None:
        if _takes_rows(node):
            return self._source_rows(node)
        if node.op == GROUPED_MATMUL:
            return self._lower_product(node)
        is_of_elements = find_operator(node).layout == "elementwise" or node.op in ("astype", "where")
        rank = len(_types(node)[0].shape) if is_of_elements else 0  # operands of lower rank are broadcast to the rows
        if not (is_of_elements or _is_rowwise(node)) or not all(map(self._has_rows, _types(node))):
            return None
        moved_operands: list[Value | None] = []

        def move(argument: Argument) -> Argument:
            if not isinstance(argument, Value):
                return argument
            if not all(self._has_rows(kind) and len(kind.shape) >= rank for kind in _types(argument)):
                return self._new_value(argument)
            moved_operands.append(self.restore_order(argument))
            return moved_operands[-1]

        arguments = map_argument(node.arguments, move)
        return node.of(arguments) if moved_operands and None not in moved_operands else None

    def _new_value(self, value: Value) -> Value:
        return self.new.get(value, value)

    def _has_rows(self, kind: TensorType) -> bool:
        return kind.shape[:1] == (self.rows,)

    def _source_rows(self, node: Node) -> Value | None:
        """Return the rows from which sorted rows are taken: rows, tokens, or tensors of each expert."""
        data, index = node.arguments
        new_data, (size, *sizes) = self._new_value(data), tensor_type(data).shape
        if self._matches(index, lambda chosen, _: np.sort(chosen)):
            return node.of((new_data, self._new_value(self.chosen)))
        times = self.rows // size
        if times * size != self.rows or not self._matches(index, lambda _, order: order // times):
            return None
        if times == 1:
            return new_data
        rows = reshape(broadcast(reshape(new_data, (size, 1, *sizes)), (size, times, *sizes)), (self.rows, *sizes))
        self.tokens[rows], self.top_k = new_data, times
        return rows

    def _lower_product(self, node: Node) -> Value | None:
        data, weight, ends = node.arguments
        is_counted = self._matches(ends, lambda chosen, _: np.bincount(chosen, minlength=self.experts).cumsum())
        rows = self.restore_order(data) if is_counted else None
        if rows is None:
            return None
        if self.route is None:
            kind = TensorType((header_size(self.experts) + self.rows,), "int32")
            self.route = Node(ROUTE, (self._new_value(self.chosen),), kind, {"experts": self.experts})
        matrices = permute(self._new_value(weight), (0, 2, 1))
        attributes = {"top_k": self.top_k, "expanded": rows not in self.tokens, "activation": False}
        return Node(EXPERTS, (self.tokens.get(rows, rows), matrices, self.route, self.route), node.type, attributes)


def _takes_rows(node: Node) -> bool:
    return node.op == "take" and node.attributes["axis"] == 0


def _is_rowwise(node: Node) -> bool:
    """Return whether an operator that keeps the first dimension computes each row from the same row."""
    if node.op == "strided_slice":
        return all(axis.value for axis in node.arguments[1])
    return node.op in (ITEM, "split", "reshape")


def _types(value: Value) -> tuple[TensorType, ...]:
    return (value.type,) if isinstance(value.type, TensorType) else value.type


def _dependent_vectors(nodes: Sequence[Node], source: Value, array: Array) -> dict[Value, Constant]:
    """Return the vectors that depend only on a source value, for a given array as that value."""
    constants = {source: Constant(array.astype(tensor_type(source).dtype))}
    for node in nodes:
        operands = [operand for operand in iterate_values(node.arguments) if not isinstance(operand, Constant)]
        if operands and all(operand in constants for operand in operands):
            folded = fold(node.of(map_argument(node.arguments, lambda operand: constants.get(operand, operand))))
            if isinstance(folded, Constant):
                constants[node] = folded
    return {key: value for key, value in constants.items() if value.array.ndim == 1}  # drop (rows, experts)


def fuse_gates(graph: Graph) -> Graph:
    """Return a graph in which products of experts also compute ``silu(gate) * up``, if that follows them."""

    def replace(node: Node) -> Value:
        if node.op != "multiply":
            return node
        for gate, up in (node.arguments, node.arguments[::-1]):
            if isinstance(gate, Node) and gate.op == "nn.silu":
                product = _product_of_half(gate.arguments[0], 0)
                if product is not None and product is _product_of_half(up, 1):
                    return product.of(product.arguments, tensor_type(node), activation=True)
        return node

    return rewrite_graph(graph, replace)


def _product_of_half(value: Value, number: int) -> Node | None:
    """Return the product of experts of whose columns a value is the first or second half, or None."""
    if not isinstance(value, Node) or value.op != ITEM or value.attributes["index"] != number:
        return None
    parts = value.arguments[0]
    product, kinds = parts.arguments[0], _types(parts)
    is_half = len(kinds) == 2 and kinds[0] == kinds[1] and kinds[0].shape[0] == tensor_type(product).shape[0]
    return product if is_half and isinstance(product, Node) and product.op == EXPERTS else None


def expand_sums(graph: Graph) -> Graph:
    """Return a graph that adds the results of a few experts for a token one by one, which can be fused."""

    def replace(node: Node) -> Value:
        whole = node.arguments[0] if node.op == "sum" and node.attributes["axis"] == (1,) else None
        if not isinstance(whole, Node) or whole.op != "reshape" or len(tensor_type(whole).shape) != 3:
            return node
        (tokens, choices, columns), rows = tensor_type(whole).shape, whole.arguments[0]
        shapes = [(tokens * choices, size) for size in (columns, 1)]
        if not isinstance(rows, Node) or rows.op != "multiply" or choices > _MOST_ROUNDS:
            return node
        if any(tensor_type(factor).shape not in shapes for factor in rows.arguments):
            return node
        factors = [reshape(factor, (tokens, choices, tensor_type(factor).shape[1])) for factor in rows.arguments]
        parts = ([slice_axes(factor, [1], [choice], [choice + 1]) for factor in factors] for choice in range(choices))
        terms = (elementwise("multiply", *part) for part in parts)
        total = functools.reduce(lambda factor, other: elementwise("add", factor, other), terms)
        return reshape(total, tensor_type(node).shape)

    return rewrite_graph(graph, replace)
