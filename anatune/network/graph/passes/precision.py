"""In which dtype numbers with fractions are computed and kept."""

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
    mapped,
    rewritten,
    tensor_type,
    values_in,
)
from anatune.network.graph.operators import CONCAT, CONVOLUTION, LAYER_NORM, PRODUCTS, WINDOW
from anatune.network.graph.passes.simplify import simplified
from anatune.network.graph.products import workload_named, workload_of

__all__ = ["FP8", "WIDE", "marked", "precision_of", "stored", "widened"]

WIDE = "float32"
FP8 = "fp8"
"""Of models whose products are of 8-bit floats with scales; everything else has 16 bits."""
_MOVES = (CONCAT, "permute_dims", "reshape")
"""Operators whose kernels move elements of any dtype."""


def precision_of(graph: Graph) -> str:
    """Return the dtype of a model's results that have fractions: what it asks for its products, too."""
    found = {tensor_type(value).dtype for value in graph.outputs if "float" in tensor_type(value).dtype}
    return min(found, key=(*HALVES, WIDE).index) if found and found <= {*HALVES, WIDE} else WIDE


def _wide(kind: TensorType) -> TensorType:
    return kind._replace(dtype=WIDE) if kind.dtype in HALVES else kind


def widened(graph: Graph, held: Collection[int] = (), kept: Collection[int] = ()) -> Graph:
    """Return a graph that computes in float32 what the model computes in 16 bits; its inputs and outputs stay.

    Conversions to 16 bits in between are left out: what follows them is more exact than the model asks.

    Parameters
    ----------
    held, kept : collection of int
        Inputs and outputs that are float32, too: a state.
    """
    nodes = graph.nodes()
    if not any(_is_half(value) for node in nodes for value in (node, *values_in(node.arguments))):
        return graph
    if any(node.op.startswith(WRITTEN) for node in nodes):
        return graph  # loops of somebody else's, which say their dtypes
    made: dict[Value, Argument] = {}
    inputs = list(graph.inputs)
    for place, value in enumerate(graph.inputs):
        if not _is_half(value):
            continue
        if place in held:
            inputs[place] = made[value] = Input(value.name, tensor_type(value)._replace(dtype=WIDE))
        else:
            made[value] = cast(value, WIDE)

    def new(argument: Argument) -> Argument:
        if isinstance(argument, Scalar) and argument.dtype in HALVES:
            return argument._replace(dtype=WIDE)
        if argument not in made and isinstance(argument, Constant) and _is_half(argument):
            made[argument] = argument.converted(WIDE)
        return made.get(argument, argument)

    for node in nodes:
        kind = _wide(node.type) if isinstance(node.type, TensorType) else tuple(map(_wide, node.type))
        own = {name: WIDE if str(value) in HALVES else value for name, value in node.attributes.items()}
        arguments = mapped(node.arguments, new)
        is_none = node.op == "astype" and arguments[0].type == kind  # of 16 bits; passes look for what is behind it
        made[node] = arguments[0] if is_none else Node(node.op, arguments, kind, own, node.kind)
    outputs = [
        new(value) if place in kept else cast(new(value), tensor_type(value).dtype)
        for place, value in enumerate(graph.outputs)
    ]
    return Graph(tuple(inputs), tuple(outputs), is_tuple=graph.is_tuple)


def _is_half(value: Value) -> bool:
    kinds = (value.type,) if isinstance(value.type, TensorType) else value.type
    return any(kind.dtype in HALVES for kind in kinds)


def marked(graph: Graph, dtype: str, fits: Callable[[Workload], bool]) -> Graph:
    """Return a graph whose products are to multiply 16-bit numbers where that `fits`; types stay what they are.

    Parameters
    ----------
    graph : Graph
        Behind `passes.order.CPU`.
    dtype : {"bfloat16", "float16"}
    fits : callable
        Whether products of such a workload are worth it.
    """

    def replace(node: Node) -> Value:
        if node.op not in PRODUCTS or any(tensor_type(one).dtype != WIDE for one in (node, *node.arguments)):
            return node
        own = node.of(node.arguments, dtype=dtype)
        workload = workload_of(own)
        if own.op == CONVOLUTION:  # orders are chosen later, where it matters with the channels last
            word = layout_word(CHANNELS_LAST, CHANNELS_LAST, len(own.attributes["strides"]))
            workload = workload_named(workload.operator, **{**workload.attribute, "layout": word})
        return own if fits(workload) else node

    return rewritten(graph, replace)


def stored(graph: Graph) -> Graph:
    """Return a graph in which what `marked` products read, and what they write for each other, has 16 bits in memory.

    Convolutions write 16 bits, matrix products float32 unless products alone read them: softmax, norms, sums of
    residuals and attentions get float32. Windows read either; concatenations and moves keep what they are given.
    """
    return simplified(_Storage(graph).graph) if any(map(_mark, graph.nodes())) else graph


def _mark(node: Node) -> str:
    return node.attributes.get("dtype", "") if node.op in PRODUCTS else ""


class _Storage:
    """Rewrites a graph; tables are by values of the old one."""

    def __init__(self, graph: Graph) -> None:
        nodes = graph.nodes()
        self.dtype = next(filter(None, map(_mark, nodes)))
        import_module("ml_dtypes")  # NumPy has bfloat16 from it
        self.made: dict[Value, Value] = {}
        self.other: dict[Value, Value] = {}
        """In the dtype that `made` has not."""
        self.half = self.small(graph)
        for node in nodes:
            self.made[node] = self.rewritten(node)
        self.graph = Graph(graph.inputs, tuple(self.wide(one) for one in graph.outputs), is_tuple=graph.is_tuple)

    def small(self, graph: Graph) -> set[Value]:
        """Return which nodes write 16 bits: those that are only read by what wants that, and convolutions."""
        users, found = graph.users(), set[Value]()
        for node in reversed(graph.nodes()):
            own = users.get(node, [])
            is_wanted = bool(own) and node not in graph.outputs and all(self.wants(one, node, found) for one in own)
            is_float = isinstance(node.type, TensorType) and node.type.dtype == WIDE
            if is_float and (is_wanted or (node.op == CONVOLUTION and _mark(node))):
                found.add(node)
        return found

    def wants(self, reader: Node, node: Node, found: Collection[Value]) -> bool:
        """Whether a reader of a node wants 16 bits; `found`: those behind it that write 16 bits."""
        if _mark(reader):
            return node in reader.arguments[:2] or reader in found
        return reader.op == WINDOW or (reader.op in _MOVES and reader in found)

    def value(self, value: Value) -> Value:
        return self.made.get(value, value)

    def in_dtype(self, value: Value, dtype: str) -> Value:
        """Return what a value of the old graph is, in a dtype."""
        own = self.value(value)
        if isinstance(own, Node) and own.op == "astype" and tensor_type(own.arguments[0]).dtype == dtype:
            own = own.arguments[0]  # an input in 16 bits
        if tensor_type(own).dtype == dtype:
            return own
        if value not in self.other:
            array = value.array.astype(dtype) if isinstance(value, Constant) else None
            self.other[value] = cast(own, dtype) if array is None else Constant(array)
        return self.other[value]

    def wide(self, argument: Argument) -> Argument:
        """Return an argument as the old graph has it, float32."""
        is_half = isinstance(argument, Value) and not _is_half(argument) and _is_half(self.value(argument))
        return self.in_dtype(argument, WIDE) if is_half else self.made.get(argument, argument)

    def rewritten(self, node: Node) -> Value:
        is_half = node in self.half
        if not isinstance(node.type, TensorType):
            return node.of(mapped(node.arguments, self.wide))
        kind = node.type._replace(dtype=self.dtype) if is_half else node.type
        if _mark(node):
            dtype = self.dtype if is_half else WIDE
            data, weight, *others = node.arguments
            read = [self.in_dtype(one, self.dtype) for one in (data, weight)]
            return node.of((*read, *(self.in_dtype(one, dtype) for one in others)), kind, dtype="")
        if node.op == WINDOW:  # weights and biases are few
            return node.of(tuple(one if isinstance(one, Constant) else self.value(one) for one in node.arguments), kind)
        if node.op in _MOVES:
            own = [self.value(one) for one in values_in(node.arguments)]
            if is_half or all(_is_half(one) for one in own):
                return node.of(mapped(node.arguments, self.narrow), kind._replace(dtype=self.dtype))
        arguments = mapped(node.arguments, self.wide)
        if is_half and node.op == LAYER_NORM:
            return node.of(arguments, kind)
        made = node.of(arguments)
        return cast(made, self.dtype) if is_half else made

    def narrow(self, argument: Argument) -> Argument:
        return self.in_dtype(argument, self.dtype) if isinstance(argument, Value) else argument
