"""In which dtype numbers with fractions are computed and kept."""

from __future__ import annotations

from collections.abc import Collection

from anatune.graph.building import cast
from anatune.graph.nodes import (
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
    tensor_type,
    values_in,
)

__all__ = ["WIDE", "widened"]

WIDE = "float32"


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
    made: dict[int, Argument] = {}
    inputs = list(graph.inputs)
    for place, value in enumerate(graph.inputs):
        if not _is_half(value):
            continue
        if place in held:
            inputs[place] = made[id(value)] = Input(value.name, tensor_type(value)._replace(dtype=WIDE))
        else:
            made[id(value)] = cast(value, WIDE)

    def new(argument: Argument) -> Argument:
        if isinstance(argument, Scalar) and argument.dtype in HALVES:
            return argument._replace(dtype=WIDE)
        if id(argument) not in made and isinstance(argument, Constant) and _is_half(argument):
            made[id(argument)] = Constant(argument.array.astype(WIDE))
        return made.get(id(argument), argument)

    for node in nodes:
        kind = _wide(node.type) if isinstance(node.type, TensorType) else tuple(map(_wide, node.type))
        own = {name: WIDE if str(value) in HALVES else value for name, value in node.attributes.items()}
        made[id(node)] = Node(node.op, mapped(node.arguments, new), kind, own, node.kind)
    outputs = [
        new(value) if place in kept else cast(new(value), tensor_type(value).dtype)
        for place, value in enumerate(graph.outputs)
    ]
    return Graph(tuple(inputs), tuple(outputs), is_tuple=graph.is_tuple)


def _is_half(value: Value) -> bool:
    kinds = (value.type,) if isinstance(value.type, TensorType) else value.type
    return any(kind.dtype in HALVES for kind in kinds)
