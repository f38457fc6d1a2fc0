"""Turn a model of all sizes into one of fixed sizes with an input for the held size of its state, for GPU kernels.

Growing tensors have memory for the most rows, so that only three things depend on the number of held rows: where rows
are put, at which positions tables are read, and how many keys an attention sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from anatune.core.sizes import Size, is_run_time
from anatune.errors import WorkloadError
from anatune.network.graph.building import cast, constant, elementwise, make_node
from anatune.network.graph.nodes import (
    LEADING,
    Argument,
    Constant,
    Graph,
    Input,
    Node,
    Scalar,
    Shape,
    TensorType,
    Value,
    rewrite_graph,
    tensor_type,
)
from anatune.network.graph.operators import ATTENTION, PUT

__all__ = ["COUNT", "fix_state_size", "set_windows"]

COUNT = "held"
"""Name of the input with the number of held elements."""


def fix_state_size(graph: Graph, sizes: Mapping[str, int], symbol: str, most: int, num_state: int, name: str) -> Graph:
    """Return a graph whose last input before the state is the number of held elements, (1,) int32.

    Parameters
    ----------
    graph : Graph
        The graph of all sizes (`graph.varying.join_readings`), with attentions found.
    sizes : mapping of str to int
        Values of the other symbols.
    symbol : str
        The symbol of the held size.
    most : int
        Its largest value.
    num_state : int
        Number of inputs that are the state; they are the last ones.
    name : str
        Name of the model for messages.

    Raises
    ------
    WorkloadError
        Another operation depends on the held size.
    """
    return _StateSizeRewriter({**sizes, symbol: Size.symbol(symbol, most)}, most, name).graph(graph, num_state)


class _StateSizeRewriter:
    def __init__(self, sizes: Mapping[str, int], most: int, name: str) -> None:
        self.sizes, self.most, self.name = sizes, most, name
        self.count = Input(COUNT, TensorType((1,), "int32"))
        self.made: dict[Value, Value] = {}

    def graph(self, graph: Graph, num_state: int) -> Graph:
        for value in graph.inputs:
            self.made[value] = Input(value.name, self.type(value, tensor_type(value)))
        inputs = [self.made[value] for value in graph.inputs]
        inputs.insert(len(inputs) - num_state, self.count)
        for node in graph.nodes():
            self.made[node] = self.node(node)
        outputs = tuple(self.made.get(value, value) for value in graph.outputs)
        return Graph(tuple(inputs), outputs, is_tuple=graph.is_tuple)  # type: ignore[arg-type]

    def refusal(self, value: object) -> WorkloadError:
        return WorkloadError(
            f"{self.name}: {value!s:.80} depends on the held size of the state, and GPU kernels support that only for "
            "putting rows, reading positions and attention; compile the model for a CPU"
        )

    def types(self, node: Node) -> TensorType | tuple[TensorType, ...]:
        if isinstance(node.type, TensorType):
            return self.type(node, node.type)
        return tuple(self.type(node, kind) for kind in node.type)

    def type(self, value: Value, kind: TensorType) -> TensorType:
        shape = tuple(map(self.number, kind.shape))
        if is_run_time(shape):
            raise self.refusal(value)
        return kind._replace(shape=shape)

    def number(self, value: Argument) -> Argument:
        if isinstance(value, Size):
            size = value.at(self.sizes)
            return size if isinstance(size, Size) else int(size)
        if isinstance(value, tuple) and not isinstance(value, TensorType):
            members = [self.number(one) for one in value]
            return type(value)(*members) if hasattr(value, "_fields") else type(value)(members)
        return value

    def argument(self, value: Argument) -> Argument:
        if isinstance(value, Value):
            return self.made.get(value, value)
        if isinstance(value, Scalar):
            return value._replace(value=self.number(value.value))
        if type(value) is tuple:
            return tuple(map(self.argument, value))
        return self.number(value) if isinstance(value, Shape) else value

    def node(self, node: Node) -> Value:
        arguments = tuple(map(self.argument, node.arguments))
        attributes = {key: self.number(value) for key, value in node.attributes.items()}
        if node.op == ATTENTION and len(arguments) == 3:  # others have pages or lengths of their own
            if is_run_time(attributes["keys"]):
                attributes |= {"keys": self.most, "counted": COUNT}
                arguments = (*arguments, self.count)
        elif node.op == PUT and isinstance(arguments[2], Scalar) and isinstance(arguments[2].value, Size):
            arguments = (*arguments[:2], self.count)
        elif node.op == "strided_slice" and is_run_time(arguments[2]):
            return self.rows(node, arguments)
        elif node.op == LEADING:
            kind = self.type(node, tensor_type(node))
            (value,) = arguments
            assert isinstance(value, Constant)
            return Constant(value.array.reshape(-1)[: int(np.prod(kind.shape))].reshape(kind.shape))
        if is_run_time((arguments, tuple(attributes.values()))):
            raise self.refusal(node)
        return Node(node.op, arguments, self.types(node), attributes, node.kind)

    def rows(self, node: Node, arguments: Sequence[Argument]) -> Value:
        """Return the rows of a table that begin at the held size."""
        table, axes, begins, _, _ = arguments
        kind = self.type(node, tensor_type(node))
        if len(axes) != 1 or begins[0].value not in self.sizes.values():
            raise self.refusal(node)
        axis = axes[0].value
        places = elementwise("add", cast(self.count, "int64"), constant(np.arange(kind.shape[axis]), "int64"))
        return make_node("take", (table, places), kind, axis=axis, mode="clip")


def set_windows(graph: Graph, windows: Sequence[int]) -> Graph:
    """Return a graph whose attentions have the windows of a reading with more keys, if all of their keys are inside."""
    next_windows = iter(windows)

    def replace(node: Node) -> Value:
        if node.op != ATTENTION:
            return node
        window = next(next_windows, 0)
        is_hidden = not node.attributes["window"] and node.attributes["keys"] <= window
        return node.of(node.arguments, window=window) if is_hidden else node

    return rewrite_graph(graph, replace)
