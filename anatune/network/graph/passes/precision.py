"""The dtypes in which floating-point numbers are computed and stored."""

from __future__ import annotations

from collections.abc import Callable, Collection
from importlib import import_module

from anatune.core.workload.nest import Workload
from anatune.core.workload.orders import CHANNELS_LAST, layout_word
from anatune.network.graph.building import cast
from anatune.network.graph.nodes import (
    HALVES,
    WRITTEN,
    Argument,
    Constant,
    Graph,
    Input,
    Node,
    Scalar,
    TensorType,
    Value,
    iterate_values,
    map_argument,
    rewrite_graph,
    tensor_type,
)
from anatune.network.graph.operators import CONCAT, CONVOLUTION, LAYER_NORM, PRODUCTS, WINDOW
from anatune.network.graph.passes.simplify import simplify
from anatune.network.graph.products import make_workload, workload_of

__all__ = ["FP8", "WIDE", "compute_in_float32", "mark_products", "precision_of", "store_16_bit"]

WIDE = "float32"
FP8 = "fp8"
"""The precision of networks whose products use scaled 8-bit floats; everything else has 16 bits."""
_MOVES = (CONCAT, "permute_dims", "reshape")
"""Operators whose kernels move elements of any dtype."""


def precision_of(graph: Graph) -> str:
    """Return the dtype of a network's floating-point outputs, which is also the dtype for its products."""
    dtypes = {tensor_type(value).dtype for value in graph.outputs if "float" in tensor_type(value).dtype}
    return min(dtypes, key=(*HALVES, WIDE).index) if dtypes and dtypes <= {*HALVES, WIDE} else WIDE


def _widen_type(kind: TensorType) -> TensorType:
    return kind._replace(dtype=WIDE) if kind.dtype in HALVES else kind


def compute_in_float32(graph: Graph, state_inputs: Collection[int] = (), state_outputs: Collection[int] = ()) -> Graph:
    """Return a graph that computes in float32 instead of 16 bits, with the same inputs and outputs.

    Conversions to 16 bits in between are removed, so that results are more exact than the network asks for.

    Parameters
    ----------
    state_inputs, state_outputs : collection of int
        Indices of inputs and of outputs that become float32 as well, such as a state.
    """
    nodes = graph.nodes()
    if not any(_is_half(value) for node in nodes for value in (node, *iterate_values(node.arguments))):
        return graph
    if any(node.op.startswith(WRITTEN) for node in nodes):
        return graph  # loop nests written by an importer have fixed dtypes
    replacements: dict[Value, Argument] = {}
    inputs = list(graph.inputs)
    for index, value in enumerate(graph.inputs):
        if not _is_half(value):
            continue
        if index in state_inputs:
            inputs[index] = replacements[value] = Input(value.name, tensor_type(value)._replace(dtype=WIDE))
        else:
            replacements[value] = cast(value, WIDE)

    def replace(argument: Argument) -> Argument:
        if isinstance(argument, Scalar) and argument.dtype in HALVES:
            return argument._replace(dtype=WIDE)
        if argument not in replacements and isinstance(argument, Constant) and _is_half(argument):
            replacements[argument] = argument.to_dtype(WIDE)
        return replacements.get(argument, argument)

    for node in nodes:
        kind = _widen_type(node.type) if isinstance(node.type, TensorType) else tuple(map(_widen_type, node.type))
        attributes = {name: WIDE if str(value) in HALVES else value for name, value in node.attributes.items()}
        arguments = map_argument(node.arguments, replace)
        is_identity = node.op == "astype" and arguments[0].type == kind  # passes expect the operand instead
        replacements[node] = arguments[0] if is_identity else Node(node.op, arguments, kind, attributes, node.kind)
    outputs = [
        replace(value) if place in state_outputs else cast(replace(value), tensor_type(value).dtype)
        for place, value in enumerate(graph.outputs)
    ]
    return Graph(tuple(inputs), tuple(outputs), is_tuple=graph.is_tuple)


def _is_half(value: Value) -> bool:
    kinds = (value.type,) if isinstance(value.type, TensorType) else value.type
    return any(kind.dtype in HALVES for kind in kinds)


def mark_products(graph: Graph, dtype: str, fits: Callable[[Workload], bool]) -> Graph:
    """Return a graph whose products are marked to multiply 16-bit numbers where that `fits`; types do not change.

    Parameters
    ----------
    graph : Graph
        The result of `passes.order.CPU`.
    dtype : {"bfloat16", "float16"}
    fits : callable
        Whether 16-bit numbers pay for products of a workload.
    """

    def replace(node: Node) -> Value:
        if node.op not in PRODUCTS or any(tensor_type(operand).dtype != WIDE for operand in (node, *node.arguments)):
            return node
        marked_node = node.of(node.arguments, dtype=dtype)
        workload = workload_of(marked_node)
        if marked_node.op == CONVOLUTION:  # orders are chosen later; where the dtype matters, channels are last
            word = layout_word(CHANNELS_LAST, CHANNELS_LAST, len(marked_node.attributes["strides"]))
            workload = make_workload(workload.operator, **{**workload.attribute, "layout": word})
        return marked_node if fits(workload) else node

    return rewrite_graph(graph, replace)


def store_16_bit(graph: Graph) -> Graph:
    """Return a graph in which operands and moved results of marked products (`mark_products`) are stored in 16 bits.

    Convolutions write 16 bits. Matrix products write float32 unless only products read the result: softmax, norms,
    residual sums and attentions read float32. Windows read either; concatenations and moves keep the dtype.
    """
    return simplify(_StoragePass(graph).graph) if any(map(_mark, graph.nodes())) else graph


def _mark(node: Node) -> str:
    return node.attributes.get("dtype", "") if node.op in PRODUCTS else ""


class _StoragePass:
    """A pass over a graph; its tables have values of the old graph as keys."""

    def __init__(self, graph: Graph) -> None:
        nodes = graph.nodes()
        self.dtype = next(filter(None, map(_mark, nodes)))
        import_module("ml_dtypes")  # registers bfloat16 in NumPy
        self.made: dict[Value, Value] = {}
        self.other: dict[Value, Value] = {}
        """The same values in the dtype that `made` does not have."""
        self.half = self.small(graph)
        for node in nodes:
            self.made[node] = self.rewritten(node)
        self.graph = Graph(graph.inputs, tuple(self.wide(output) for output in graph.outputs), is_tuple=graph.is_tuple)

    def small(self, graph: Graph) -> set[Value]:
        """Return the nodes that write 16 bits: those whose readers all want 16 bits, and convolutions."""
        users, small = graph.users(), set[Value]()
        for node in reversed(graph.nodes()):
            readers = users.get(node, [])
            is_wanted = bool(readers) and node not in graph.outputs and all(self.wants(r, node, small) for r in readers)
            is_float = isinstance(node.type, TensorType) and node.type.dtype == WIDE
            if is_float and (is_wanted or (node.op == CONVOLUTION and _mark(node))):
                small.add(node)
        return small

    def wants(self, reader: Node, node: Node, small: Collection[Value]) -> bool:
        """Return whether a reader of a node wants 16 bits; `small` are the later nodes that write 16 bits."""
        if _mark(reader):
            return node in reader.arguments[:2] or reader in small
        return reader.op == WINDOW or (reader.op in _MOVES and reader in small)

    def value(self, value: Value) -> Value:
        return self.made.get(value, value)

    def in_dtype(self, value: Value, dtype: str) -> Value:
        """Return the new value of a value of the old graph, in a dtype."""
        new = self.value(value)
        if isinstance(new, Node) and new.op == "astype" and tensor_type(new.arguments[0]).dtype == dtype:
            new = new.arguments[0]  # a 16-bit input
        if tensor_type(new).dtype == dtype:
            return new
        if value not in self.other:
            array = value.array.astype(dtype) if isinstance(value, Constant) else None
            self.other[value] = cast(new, dtype) if array is None else Constant(array)
        return self.other[value]

    def wide(self, argument: Argument) -> Argument:
        """Return an argument as in the old graph, float32."""
        is_half = isinstance(argument, Value) and not _is_half(argument) and _is_half(self.value(argument))
        return self.in_dtype(argument, WIDE) if is_half else self.made.get(argument, argument)

    def rewritten(self, node: Node) -> Value:
        is_half = node in self.half
        if not isinstance(node.type, TensorType):
            return node.of(map_argument(node.arguments, self.wide))
        kind = node.type._replace(dtype=self.dtype) if is_half else node.type
        if _mark(node):
            dtype = self.dtype if is_half else WIDE
            data, weight, *others = node.arguments
            read = [self.in_dtype(v, self.dtype) for v in (data, weight)]
            return node.of((*read, *(self.in_dtype(v, dtype) for v in others)), kind, dtype="")
        if node.op == WINDOW:  # weights and biases are small
            return node.of(tuple(v if isinstance(v, Constant) else self.value(v) for v in node.arguments), kind)
        if node.op in _MOVES:
            operands = [self.value(v) for v in iterate_values(node.arguments)]
            if is_half or all(_is_half(v) for v in operands):
                return node.of(map_argument(node.arguments, self.narrow), kind._replace(dtype=self.dtype))
        arguments = map_argument(node.arguments, self.wide)
        if is_half and node.op == LAYER_NORM:
            return node.of(arguments, kind)
        result = node.of(arguments)
        return cast(result, self.dtype) if is_half else result

    def narrow(self, argument: Argument) -> Argument:
        return self.in_dtype(argument, self.dtype) if isinstance(argument, Value) else argument
