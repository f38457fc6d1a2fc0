"""ONNX models divided: parts that graphs can say, and parts of the nodes between them, for another engine.

Each node is read as if those before it could be, as far as it is known what these return. There are as few parts as the
order of the nodes allows, and what is known while the model is read is known in each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import NamedTuple, TypeAlias

from anatune.errors import WorkloadError
from anatune.network.graph.nodes import Constant, Input, TensorType, tensor_type
from anatune.network.graph.onnx.call import DTYPES
from anatune.network.graph.onnx.reading import Reader, check_operators, inlined, place_of, read_by
from anatune.untyped import onnx

__all__ = ["Left", "Part", "divided"]

_PRODUCTS = ("Attention", "Conv", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "QLinear", "RNN")
"""What names of operators begin with that anatune has planned kernels for; "Attention" may come behind others."""
_FOREIGN = "reads text, sequences, or tensors whose sizes depend on data"
_BETWEEN = "stands between such nodes, without a product: nothing would be gained"
_WITH_WEIGHTS = 4
"""Version of ONNX's format from which on weights are no inputs."""
_SMALL_BYTES = 1 << 12
"""Of a tensor whose values may decide sizes."""
_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}


class Left(NamedTuple):
    """A node that is left to another engine: its operator and place, and why."""

    node: str
    why: str


class Part(NamedTuple):
    """Nodes of a model that run together.

    Attributes
    ----------
    model : onnx.ModelProto
        They alone, with the weights that they read, for inputs of fixed sizes where these are known.
    reads, makes : tuple of str
        Names of its inputs and outputs.
    left : tuple of Left
        All its nodes, where they cannot be read; (): they can.
    """

    model: onnx.ModelProto
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    left: tuple[Left, ...]


Infer: TypeAlias = "Callable[[onnx.ModelProto], Sequence[onnx.ValueInfoProto]]"
"""Takes a model of one node; returns its outputs (onnx.ValueInfoProto) with their types, as far as they are known."""


def divided(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]], name: str, infer: Infer) -> list[Part]:
    """Return the parts of a model, in an order in which they can run; none where all its nodes can be read.

    Parameters
    ----------
    model : onnx.ModelProto
        Weights are in it.
    shapes : mapping of str to sequence of int
        Sizes of its inputs.
    name : str
        For messages.
    infer : callable
        As `Infer` says.

    Raises
    ------
    WorkloadError
        It is damaged: a node reads what nothing computes.
    """
    return _Divider(*inlined(model, name), shapes, name, infer).parts()


class _Divider:
    """A model whose nodes are read: `left` has those that cannot be, by their places, and why."""

    def __init__(
        self, model: onnx.ModelProto, large: Sequence[onnx.TensorProto], shapes: Mapping[str, Sequence[int]], name: str,
        infer: Infer,
    ) -> None:  # fmt: skip
        self.onnx, self.model, self.infer = import_module("onnx"), model, infer
        self.reader, self.name = Reader(model, large, name), name
        self.weights = {weight.name: weight for weight in (*model.graph.initializer, *large)}
        self.values = {**self.reader.weights_of(model.graph), **{one.name: self.reader.weight(one) for one in large}}
        self.kinds: dict[str, onnx.ValueInfoProto] = {}  # what graphs cannot say: its name -> its type where known
        self.left: dict[int, str] = {}
        for value in self.reader.inputs():
            fixed = self.onnx.helper.make_tensor_value_info(
                value.name, value.type.tensor_type.elem_type, shapes[value.name]
            )
            self.keep(fixed)
        self.reads = [read_by(node) for node in model.graph.node]
        for place in range(len(model.graph.node)):
            self.read(place)

    def read(self, place: int) -> None:
        """Read a node."""
        node, reads = self.model.graph.node[place], self.reads[place]
        for word in reads:
            if word not in self.kinds:
                self.reader.value(word, self.values, place_of(node))
        try:
            if any(word in self.kinds for word in reads):
                raise WorkloadError(_FOREIGN)
            check_operators([node], self.name)
            results = self.reader.results_of(node, self.values)
        except WorkloadError as error:
            why, words = str(error).removeprefix(f"{self.name}: "), _words(node)
            self.left[place] = why.removeprefix(words).strip().partition("; ")[0]
            for value in self.infer(self.model_of([node], self.infos(reads, most=_SMALL_BYTES), node.output)):
                self.keep(value)
            return
        self.values.update((word, value) for word, value in zip(node.output, results, strict=False) if word)

    def keep(self, value: onnx.ValueInfoProto) -> None:
        """Keep what is known of a value that is computed elsewhere."""
        kind = value.type.tensor_type
        sizes = [size.dim_value for size in kind.shape.dim if size.HasField("dim_value")]
        if kind.elem_type in DTYPES and kind.HasField("shape") and len(sizes) == len(kind.shape.dim):
            self.values[value.name] = Input(value.name, TensorType(tuple(sizes), DTYPES[kind.elem_type]))
        else:
            self.kinds[value.name] = value

    def is_known(self, word: str) -> bool:
        return isinstance(self.values.get(word), Constant)

    def infos(self, words: Sequence[str], *, most: float = math.inf) -> list[onnx.TensorProto | onnx.ValueInfoProto]:
        """Return what is said of values in a model that reads them.

        Those that are known, of `most` bytes, are weights, the others inputs.
        """
        found = []
        for word in words:
            value = self.values.get(word)
            if isinstance(value, Constant) and value.array.nbytes <= most:
                known = self.weights.get(word)
                found.append(self.onnx.numpy_helper.from_array(value.array, word) if known is None else known)
            else:
                found.append(self.typed(word))
        return found

    def typed(self, word: str) -> onnx.ValueInfoProto:
        """Return what is known of the type of a value."""
        if word not in self.values:
            return self.kinds.get(word) or self.onnx.ValueInfoProto(name=word)
        kind = tensor_type(self.values[word])
        number = self.weights[word].data_type if word in self.weights else _NUMBERS[kind.dtype]
        return self.onnx.helper.make_tensor_value_info(word, number, kind.shape)

    def model_of(
        self, nodes: Sequence[onnx.NodeProto], given: Sequence[onnx.TensorProto | onnx.ValueInfoProto],
        makes: Sequence[str],
    ) -> onnx.ModelProto:  # fmt: skip
        """Return a model of some nodes; `given` are inputs and weights, `makes` names of outputs."""
        onnx = self.onnx
        weights = [one for one in given if isinstance(one, onnx.TensorProto)]
        graph = onnx.helper.make_graph(
            nodes, "part", [one for one in given if not isinstance(one, onnx.TensorProto)],
            [self.typed(word) for word in makes if word], weights,
        )  # fmt: skip
        made = onnx.helper.make_model(
            graph, opset_imports=self.model.opset_import, ir_version=max(self.model.ir_version, _WITH_WEIGHTS)
        )
        made.functions.extend(self.model.functions)
        return made

    def needed(self) -> list[int]:
        """Return the places of nodes that have to run: something needs them, and they are not known."""
        wanted = {output.name for output in self.model.graph.output}
        found = []
        for place in reversed(range(len(self.reads))):
            if wanted.intersection(self.model.graph.node[place].output):
                found.append(place)
                wanted.update(word for word in self.reads[place] if not self.is_known(word))
        return found[::-1]

    def groups(self, places: Sequence[int]) -> dict[tuple[int, bool], list[int]]:
        """Return nodes by the part that they are of: how often engines take turns before it, and whose it is.

        A way that leaves a part goes to later ones only, and there is none with fewer turns. What has time waits: a
        node whose result is needed late is of a late part.
        """
        makers = {word: place for place in places for word in self.model.graph.node[place].output if word}
        readers: dict[int, list[int]] = {place: [] for place in places}
        turns: dict[int, int] = {}
        for place in places:
            before = {makers[word] for word in self.reads[place] if word in makers and not self.is_known(word)}
            turns[place] = max((turns[other] + self.is_turn(other, place) for other in before), default=0)
            for other in before:
                readers[other].append(place)
        for place in reversed(places):
            turns[place] = min((turns[one] - self.is_turn(place, one) for one in readers[place]), default=turns[place])
        found: dict[tuple[int, bool], list[int]] = {}
        for place in places:
            found.setdefault((turns[place], place in self.left), []).append(place)
        return dict(sorted(found.items()))

    def is_turn(self, first: int, second: int) -> bool:
        return (first in self.left) != (second in self.left)

    def parts(self) -> list[Part]:
        """Return the parts, in order."""
        places = self.needed() if self.left else []
        while True:
            groups = self.groups(places)
            between = [place for group in groups for place in groups[group] if self.is_between(group, groups)]
            if not between:
                break
            self.left |= dict.fromkeys(between, _BETWEEN)
        return [self.part(group, places) for group in groups.values()]

    def is_between(self, group: tuple[int, bool], groups: Mapping[tuple[int, bool], Sequence[int]]) -> bool:
        """Whether a part has no product, and stands between others that are left."""
        turn, is_left = group
        if is_left or not turn or (turn + 1, True) not in groups:
            return False
        names = [self.model.graph.node[place].op_type for place in groups[group]]
        return not any(name.startswith(_PRODUCTS) or name.endswith("Attention") for name in names)

    def part(self, group: Sequence[int], places: Sequence[int]) -> Part:
        nodes = [self.model.graph.node[place] for place in group]
        made = [word for node in nodes for word in node.output if word]
        read = dict.fromkeys(word for place in group for word in self.reads[place] if word not in made)
        others = {
            word for place in places if place not in group for word in self.reads[place] if not self.is_known(word)
        }
        others.update(output.name for output in self.model.graph.output)
        makes = tuple(word for word in made if word in others)
        model = self.model_of(nodes, self.infos(list(read)), makes)
        left = tuple(Left(_words(self.model.graph.node[at]), self.left[at]) for at in group if at in self.left)
        return Part(model, tuple(one.name for one in model.graph.input), makes, left)


def _words(node: onnx.NodeProto) -> str:
    return f"{node.op_type} ({place_of(node)})"
