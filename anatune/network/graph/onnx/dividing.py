"""Divide ONNX models into parts that anatune compiles and parts for another engine.

Each node is read even if nodes before it cannot be, as far as the types of their results are known. There are as few
parts as the order of the nodes allows. A value that is known while the model is read is a constant in every part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import NamedTuple, TypeAlias

from anatune.errors import WorkloadError
from anatune.network.graph.nodes import Constant, Input, TensorType, tensor_type
from anatune.network.graph.onnx.call import DTYPES
from anatune.network.graph.onnx.reading import OnnxReader, check_operators, describe_node, inline_bodies, list_reads
from anatune.untyped import onnx

__all__ = ["DividedPart", "ForeignNode", "divide"]

_PRODUCTS = ("Attention", "Conv", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "QLinear", "RNN")
"""Prefixes of operators for which anatune has planned kernels; "Attention" may also be a suffix."""
_FOREIGN = "reads text, sequences, or tensors whose sizes depend on data"
_BETWEEN = "lies between such nodes in a part without convolutions and matrix products, which gains nothing"
_WITH_WEIGHTS = 4
"""The version of the ONNX format from which on weights need not be inputs."""
_SMALL_BYTES = 1 << 12
"""The largest tensor whose values may determine sizes."""
_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}


class ForeignNode(NamedTuple):
    """A node that another engine runs: its operator and name, and the reason."""

    node: str
    why: str


class DividedPart(NamedTuple):
    """The nodes of a model that run together.

    Attributes
    ----------
    model : onnx.ModelProto
        A model of these nodes and their weights, for inputs of fixed sizes as far as these are known.
    reads, makes : tuple of str
        The names of its inputs and outputs.
    left : tuple of ForeignNode
        All its nodes, if they cannot be read; (): they can.
    """

    model: onnx.ModelProto
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    left: tuple[ForeignNode, ...]


Infer: TypeAlias = "Callable[[onnx.ModelProto], Sequence[onnx.ValueInfoProto]]"
"""Takes a model of one node; returns its outputs (onnx.ValueInfoProto) with their types, as far as they are known."""


def divide(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]], name: str, infer: Infer) -> list[DividedPart]:
    """Return the parts of a model in an order in which they can run, or no parts if all its nodes can be read.

    Parameters
    ----------
    model : onnx.ModelProto
        The model with its weights.
    shapes : mapping of str to sequence of int
        The sizes of its inputs.
    name : str
        The name of the model, for messages.
    infer : callable
        See `Infer`.

    Raises
    ------
    WorkloadError
        The model is damaged: a node reads a value that nothing computes.
    """
    return _Divider(*inline_bodies(model, name), shapes, name, infer).parts()


class _Divider:
    """Divides a model; `left` holds the index of each node that cannot be read, and the reason."""

    def __init__(
        self, model: onnx.ModelProto, large: Sequence[onnx.TensorProto], shapes: Mapping[str, Sequence[int]], name: str,
        infer: Infer,
    ) -> None:  # fmt: skip
        self.onnx, self.model, self.infer = import_module("onnx"), model, infer
        self.reader, self.name = OnnxReader(model, large, name), name
        self.weights = {weight.name: weight for weight in (*model.graph.initializer, *large)}
        self.values = {**self.reader.weights_of(model.graph), **{one.name: self.reader.weight(one) for one in large}}
        self.kinds: dict[str, onnx.ValueInfoProto] = {}  # name -> type of values that graphs do not support
        self.left: dict[int, str] = {}
        for value in self.reader.inputs():
            fixed = self.onnx.helper.make_tensor_value_info(
                value.name, value.type.tensor_type.elem_type, shapes[value.name]
            )
            self.store_type(fixed)
        self.reads = [list_reads(node) for node in model.graph.node]
        for index in range(len(model.graph.node)):
            self.read(index)

    def read(self, index: int) -> None:
        """Read a node, or note why it cannot be read."""
        node, reads = self.model.graph.node[index], self.reads[index]
        for word in reads:
            if word not in self.kinds:
                self.reader.value(word, self.values, describe_node(node))
        try:
            if any(word in self.kinds for word in reads):
                raise WorkloadError(_FOREIGN)
            check_operators([node], self.name)
            results = self.reader.results_of(node, self.values)
        except WorkloadError as error:
            why, words = str(error).removeprefix(f"{self.name}: "), _describe(node)
            self.left[index] = why.removeprefix(words).strip().partition("; ")[0]
            for value in self.infer(self.make_model([node], self.declare_all(reads, most=_SMALL_BYTES), node.output)):
                self.store_type(value)
            return
        self.values.update((word, value) for word, value in zip(node.output, results, strict=False) if word)

    def store_type(self, value: onnx.ValueInfoProto) -> None:
        """Store the type of a value that is computed elsewhere."""
        kind = value.type.tensor_type
        sizes = [size.dim_value for size in kind.shape.dim if size.HasField("dim_value")]
        if kind.elem_type in DTYPES and kind.HasField("shape") and len(sizes) == len(kind.shape.dim):
            self.values[value.name] = Input(value.name, TensorType(tuple(sizes), DTYPES[kind.elem_type]))
        else:
            self.kinds[value.name] = value

    def is_constant(self, word: str) -> bool:
        return isinstance(self.values.get(word), Constant)

    def declare_all(
        self, words: Sequence[str], *, most: float = math.inf
    ) -> list[onnx.TensorProto | onnx.ValueInfoProto]:
        """Return the declarations of values in a model that reads them.

        Known values of at most `most` bytes become weights, all others inputs.
        """
        declarations = []
        for word in words:
            value = self.values.get(word)
            if isinstance(value, Constant) and value.array.nbytes <= most:
                weight = self.weights.get(word)
                declarations.append(self.onnx.numpy_helper.from_array(value.array, word) if weight is None else weight)
            else:
                declarations.append(self.declare(word))
        return declarations

    def declare(self, word: str) -> onnx.ValueInfoProto:
        """Return the declaration of a value with its type as far as it is known."""
        if word not in self.values:
            return self.kinds.get(word) or self.onnx.ValueInfoProto(name=word)
        kind = tensor_type(self.values[word])
        number = self.weights[word].data_type if word in self.weights else _NUMBERS[kind.dtype]
        return self.onnx.helper.make_tensor_value_info(word, number, kind.shape)

    def make_model(
        self, nodes: Sequence[onnx.NodeProto], operands: Sequence[onnx.TensorProto | onnx.ValueInfoProto],
        makes: Sequence[str],
    ) -> onnx.ModelProto:  # fmt: skip
        """Return a model of some nodes; `operands` are its inputs and weights, `makes` the names of its outputs."""
        onnx = self.onnx
        weights = [operand for operand in operands if isinstance(operand, onnx.TensorProto)]
        graph = onnx.helper.make_graph(
            nodes, "part", [operand for operand in operands if not isinstance(operand, onnx.TensorProto)],
            [self.declare(word) for word in makes if word], weights,
        )  # fmt: skip
        model = onnx.helper.make_model(
            graph, opset_imports=self.model.opset_import, ir_version=max(self.model.ir_version, _WITH_WEIGHTS)
        )
        model.functions.extend(self.model.functions)
        return model

    def find_needed(self) -> list[int]:
        """Return the indices of the nodes that have to run: their results are needed and not known."""
        names = {output.name for output in self.model.graph.output}
        indices = []
        for index in reversed(range(len(self.reads))):
            if names.intersection(self.model.graph.node[index].output):
                indices.append(index)
                names.update(word for word in self.reads[index] if not self.is_constant(word))
        return indices[::-1]

    def groups(self, indices: Sequence[int]) -> dict[tuple[int, bool], list[int]]:
        """Return the nodes by part: (number of switches between engines before it, whether the other engine runs it).

        Every path that leaves a part leads to later parts, and no division has fewer switches. A node is put into the
        last part in which its result is still in time.
        """
        makers = {word: place for place in indices for word in self.model.graph.node[place].output if word}
        readers: dict[int, list[int]] = {place: [] for place in indices}
        switches: dict[int, int] = {}
        for i in indices:
            before = {makers[word] for word in self.reads[i] if word in makers and not self.is_constant(word)}
            switches[i] = max((switches[other] + self.is_switch(other, i) for other in before), default=0)
            for other in before:
                readers[other].append(i)
        for i in reversed(indices):
            switches[i] = min((switches[r] - self.is_switch(i, r) for r in readers[i]), default=switches[i])
        groups: dict[tuple[int, bool], list[int]] = {}
        for i in indices:
            groups.setdefault((switches[i], i in self.left), []).append(i)
        return dict(sorted(groups.items()))

    def is_switch(self, first: int, second: int) -> bool:
        return (first in self.left) != (second in self.left)

    def parts(self) -> list[DividedPart]:
        """Return the parts, in order."""
        indices = self.find_needed() if self.left else []
        while True:
            groups = self.groups(indices)
            between = [index for group in groups for index in groups[group] if self.is_between(group, groups)]
            if not between:
                break
            self.left |= dict.fromkeys(between, _BETWEEN)
        return [self.part(group, indices) for group in groups.values()]

    def is_between(self, group: tuple[int, bool], groups: Mapping[tuple[int, bool], Sequence[int]]) -> bool:
        """Return whether a part has no product and lies between parts of the other engine."""
        switch, is_left = group
        if is_left or not switch or (switch + 1, True) not in groups:
            return False
        names = [self.model.graph.node[index].op_type for index in groups[group]]
        return not any(name.startswith(_PRODUCTS) or name.endswith("Attention") for name in names)

    def part(self, group: Sequence[int], indices: Sequence[int]) -> DividedPart:
        nodes = [self.model.graph.node[index] for index in group]
        outputs = [word for node in nodes for word in node.output if word]
        read = dict.fromkeys(word for index in group for word in self.reads[index] if word not in outputs)
        others = {
            word for index in indices if index not in group for word in self.reads[index] if not self.is_constant(word)
        }
        others.update(output.name for output in self.model.graph.output)
        makes = tuple(word for word in outputs if word in others)
        model = self.make_model(nodes, self.declare_all(list(read)), makes)
        left = tuple(ForeignNode(_describe(self.model.graph.node[i]), self.left[i]) for i in group if i in self.left)
        return DividedPart(model, tuple(one.name for one in model.graph.input), makes, left)


def _describe(node: onnx.NodeProto) -> str:
    return f"{node.op_type} ({describe_node(node)})"
