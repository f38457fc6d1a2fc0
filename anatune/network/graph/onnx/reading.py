"""ONNX models as graphs, node by node.

Operators are read by their domain and name, as the standard says of the version that the model names, from 6 on. What
has no reader here and a body of other operators in the standard, or in the model, is spelt by that. Branches whose
condition is known are taken, loops whose count is known are written out. An attribute or an operand that a reader does
not ask for is refused, unless `UNUSED` says that it changes nothing.
"""

from __future__ import annotations

import contextlib
import graphlib
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module

import numpy as np

from anatune.errors import WorkloadError
from anatune.network.graph.nodes import Constant, Graph, Input, TensorType, Value
from anatune.network.graph.onnx.call import DTYPES, Attributes, Call, RefusedError, UnknownValueError, check_table
from anatune.network.graph.onnx.checks import NUMBERS, check_results, check_types, check_used
from anatune.network.graph.onnx.operators import DEFAULTS, OUTSIDE, READERS, UNUSED
from anatune.untyped import onnx

__all__ = [
    "LEAVE", "Reader", "check_operators", "graph_of_onnx", "graphs_in", "inlined", "onnx_dtype", "place_of",
    "put_in_order", "read_by",
]  # fmt: skip

LEAVE = '--fallback onnxruntime (in Python fallback="onnxruntime") leaves such nodes to it'
"""Advice where single nodes are refused."""
_OLDEST = 6
_STANDARD = ("", "ai.onnx")
_DEEPEST = 8
"""Bodies of operators in bodies."""
_MOST_NODES = 1 << 18
"""Operators that are read, those of bodies of loops as often as they run."""
_SMALL_BYTES = 1 << 12
"""Of a weight that bodies of operators may want to know, such as sizes."""
_MOST_BYTES = 1 << 31
"""Of a tensor that a file of a few bytes may ask for."""


def graph_of_onnx(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]], name: str) -> Graph:
    """Return an ONNX model as a graph.

    Parameters
    ----------
    model : onnx.ModelProto
        Weights are in it.
    shapes : mapping of str to sequence of int
        Sizes of its inputs.
    name : str
        For messages.

    Raises
    ------
    WorkloadError
        It cannot be read: which operator, which node, and what can be done.
    UnknownValueError
        A size, an axis or the like is known only when the model runs.
    """
    try:
        model, large = inlined(model, name)
        check_operators(model.graph.node, name)
        return Reader(model, large, name).graph(shapes)
    except WorkloadError:
        raise
    except Exception as error:  # a damaged file may hold what no package expects, as names that are no text
        text = str(error).strip().splitlines() or [type(error).__name__]
        raise WorkloadError(f"{name} cannot be read: {text[0]:.200}; export it again") from error


def onnx_dtype(value: onnx.ValueInfoProto) -> str:
    """Return NumPy's name of the dtype of an input; KeyError: it is no tensor, or of a type that ONNX has not."""
    return _numpy_name(value.type.tensor_type.elem_type)


def _numpy_name(kind: int) -> str:
    return str(import_module("onnx").helper.tensor_dtype_to_np_dtype(kind).name)


def _versions(model: onnx.ModelProto) -> dict[str, int]:
    """Return domain -> version of its operators."""
    found = {"" if one.domain in _STANDARD else one.domain: int(one.version) for one in model.opset_import}
    return {"": 1, **found} if "" not in found and not found else found


def _of_readable_version(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return a model whose operators are of a version that can be read."""
    if model.ir_version < 3:
        raise WorkloadError(f"{name} has version {model.ir_version} of ONNX's format, expected 3 at least")
    newest = int(import_module("onnx.defs").onnx_opset_version())
    version = _versions(model).get("", newest)
    if version > newest:
        raise WorkloadError(
            f"{name} has operators of version {version}, the package onnx knows them up to {newest}; install a newer "
            "one, or export the model for an older version"
        )
    if version >= _OLDEST:
        return model
    try:
        return import_module("onnx.version_converter").convert_version(model, _OLDEST + 1)
    except Exception as error:  # converters raise what their C++ does
        text = str(error).strip().splitlines()
        raise WorkloadError(
            f"{name} has operators of version {version}, and onnx cannot convert them to {_OLDEST + 1} "
            f"({text[-1] if text else type(error).__name__}); export the model for a newer version"
        ) from error


def inlined(model: onnx.ModelProto, name: str) -> tuple[onnx.ModelProto, list[onnx.TensorProto]]:
    """Return a model in which operators without a reader that have a body, in the standard or the model, are spelt.

    The second result is those of its weights that it lacks then: it is copied a few times meanwhile. Errors as
    `graph_of_onnx`.
    """
    model = _of_readable_version(model, name)
    if not model.functions and not _with_bodies(model):
        return model, []
    inliner, (model, large) = import_module("onnx.inliner"), _apart(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if model.functions:
                model = inliner.inline_local_functions(model)
            for _ in range(_DEEPEST):
                missing = _with_bodies(model)
                if not missing:
                    break
                model = inliner.inline_selected_functions(_with_types(model), missing, inline_schema_functions=True)
        except (TypeError, RuntimeError, ValueError):  # no types: operators stay unknown
            pass
    return model, large


def _apart(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[onnx.TensorProto]]:
    """Return a copy of a model whose large weights are inputs, and those weights."""
    onnx = import_module("onnx")
    made, large = onnx.ModelProto(), []
    _copy(model, made, "graph")
    _copy(model.graph, made.graph, "initializer")
    known = {value.name for value in made.graph.input}
    for weight in model.graph.initializer:
        if weight.ByteSize() <= _SMALL_BYTES:
            made.graph.initializer.append(weight)
            continue
        large.append(weight)
        if weight.name not in known:
            made.graph.input.append(onnx.helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims))
    return made, large


def _copy(source: onnx.ModelProto | onnx.GraphProto, made: onnx.ModelProto | onnx.GraphProto, without: str) -> None:
    """Copy the fields of a message without one of them."""
    for field, value in source.ListFields():
        if field.name == without:
            continue
        if isinstance(value, int | float | str | bytes):
            setattr(made, field.name, value)
        else:
            getattr(made, field.name).MergeFrom(value)


def _with_bodies(model: onnx.ModelProto) -> list[tuple[str, str]]:
    """Return domains and names of a model's operators that have no reader here, and a body in the standard."""
    defs, versions, found = import_module("onnx.defs"), _versions(model), set()
    for node in _with_inner(model.graph.node):
        domain = _domain(node)
        if (domain, node.op_type) not in READERS:
            with contextlib.suppress(defs.SchemaError):  # an operator of the model's own
                schema = defs.get_schema(node.op_type, versions.get(domain, 1), domain)
                if schema.has_function or schema.has_context_dependent_function:
                    found.add((domain, node.op_type))
    return sorted(found)


def _with_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model that says what bodies of operators ask: types of all tensors, defaults of attributes."""
    onnx, defs, versions = import_module("onnx"), import_module("onnx.defs"), _versions(model)
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for weight in made.graph.initializer:
        made.graph.value_info.append(onnx.helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims))
    made = onnx.shape_inference.infer_shapes(made)
    made.graph.value_info.append(onnx.helper.make_tensor_value_info("", 1, None))  # of inputs that are left out
    for node in _with_inner(made.graph.node):
        with contextlib.suppress(defs.SchemaError):
            domain = _domain(node)
            schema = defs.get_schema(node.op_type, versions.get(domain, 1), domain)
            given = {entry.name for entry in node.attribute}
            defaults = [one.default_value for key, one in schema.attributes.items() if key not in given]
            node.attribute.extend(entry for entry in defaults if entry.name)
    return made


def check_operators(nodes: Sequence[onnx.NodeProto], name: str) -> None:
    """Raise a `WorkloadError` that names the operators among nodes that nothing reads, and where they are."""
    missing: dict[str, list[str]] = {}
    for node in _with_inner(nodes):
        key = _domain(node), node.op_type
        if key in OUTSIDE:
            raise WorkloadError(f"{name}: {node.op_type} ({place_of(node)}) {OUTSIDE[key]}; {LEAVE}")
        if key not in READERS:
            word = f"{key[0]}.{key[1]}".removeprefix(".")
            missing.setdefault(word, []).append(place_of(node))
    if missing:
        words = [
            f"{operator} ({places[0]}{f' and {len(places) - 1} more' if places[1:] else ''})"
            for operator, places in missing.items()
        ]
        raise WorkloadError(
            f"{name}: operators that are not known: {', '.join(words)}; export the model with other operators, or "
            f"{LEAVE}"
        )


def _domain(node: onnx.NodeProto) -> str:
    """Return the domain of a node; the standard's is ""."""
    return "" if node.domain in _STANDARD else str(node.domain)


def place_of(node: onnx.NodeProto) -> str:
    """Return where a model has a node."""
    return f"node {node.name or next((word for word in node.output if word), '')}"


def graphs_in(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the graphs that a node holds: branches, bodies."""
    held = [(*([entry.g] if entry.HasField("g") else []), *entry.graphs) for entry in node.attribute]
    return [graph for graphs in held for graph in graphs]


def _with_inner(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Return nodes and those of the graphs inside them."""
    found = list(nodes)
    for node in nodes:
        for inner in graphs_in(node):
            found += _with_inner(inner.node)
    return found


def read_by(node: onnx.NodeProto) -> list[str]:
    """Return the names of the values that a node reads, those around it that its branches and bodies see included."""
    found = dict.fromkeys(word for word in node.input if word)
    for graph in graphs_in(node):
        own = {one.name for one in (*graph.input, *graph.initializer)}
        own |= {one.values.name for one in graph.sparse_initializer}
        for inner in graph.node:
            found.update(dict.fromkeys(word for word in read_by(inner) if word not in own))
            own.update(inner.output)
        found.update(dict.fromkeys(output.name for output in graph.output if output.name not in own))
    return list(found)


def put_in_order(graph: onnx.GraphProto) -> None:
    """Put nodes behind those that they read, also in branches and bodies; where there is a cycle, they stay.

    onnxruntime takes files in another order, and its converter to float16 writes them, against the standard.
    """
    nodes = list(graph.node)
    for inner in (held for node in nodes for held in graphs_in(node)):
        put_in_order(inner)
    last_first = reversed(list(enumerate(nodes)))  # of two nodes that make one name the first counts
    makers = {word: place for place, node in last_first for word in node.output if word}
    before = [{makers[word] for word in read_by(node) if word in makers} for node in nodes]
    if any(place <= max(own, default=-1) for place, own in enumerate(before)):
        with contextlib.suppress(graphlib.CycleError):
            order = list(graphlib.TopologicalSorter(dict(enumerate(before))).static_order())
            del graph.node[:]
            graph.node.extend(nodes[place] for place in order)


class Reader:
    """Walks the nodes of a model, which lacks some large weights, in order."""

    def __init__(self, model: onnx.ModelProto, large: Sequence[onnx.TensorProto], name: str) -> None:
        self.name, self.read_nodes = name, 0
        self.model, self.large = model, large
        self.versions = _versions(model)
        self.weights: list[tuple[onnx.GraphProto, dict[str, Value]]] = []
        self.helper = import_module("onnx.helper")
        self.numpy_helper = import_module("onnx.numpy_helper")
        self.defs = import_module("onnx.defs")

    def graph(self, shapes: Mapping[str, Sequence[int]]) -> Graph:
        """Return the model for inputs of some sizes; errors as `graph_of_onnx`."""
        inputs = []
        for value in self.inputs():
            if onnx_dtype(value) not in DTYPES.values():
                raise WorkloadError(
                    f"{self.name}: input {value.name} is {onnx_dtype(value)}, expected {NUMBERS}; {LEAVE}"
                )
            inputs.append(Input(value.name, TensorType(tuple(map(int, shapes[value.name])), onnx_dtype(value))))
        own: dict[str, Value] = {one.name: one for one in inputs}
        own |= {one.name: self.weight(one) for one in self.large}
        outputs = self.outputs_of(self.model.graph, own, {})
        for output, kind in zip(self.model.graph.output, outputs, strict=True):
            if not isinstance(kind.type, TensorType):
                raise WorkloadError(f"{self.name}: output {output.name} is no tensor, expected one; {LEAVE}")
        return Graph(tuple(inputs), tuple(outputs), is_tuple=len(outputs) != 1)

    def inputs(self) -> list[onnx.ValueInfoProto]:
        """Return the inputs of the model that are no weights."""
        weights = {weight.name for weight in (*self.model.graph.initializer, *self.large)}
        return [value for value in self.model.graph.input if value.name not in weights]

    def weights_of(self, graph: onnx.GraphProto) -> dict[str, Value]:
        """Return the weights that a graph holds, read once: the body of a loop is read often."""
        if (known := next((known for other, known in self.weights if other is graph), None)) is None:
            known = {one.name: self.weight(one) for one in graph.initializer}
            known.update((one.values.name, self.sparse(one)) for one in graph.sparse_initializer)
            self.weights.append((graph, known))
        return known

    def outputs_of(self, graph: onnx.GraphProto, own: Mapping[str, Value], around: Mapping[str, Value]) -> list[Value]:
        """Return the outputs of a graph; `own` are its inputs, `around` what is seen in it beside them."""
        values = {**around, **self.weights_of(graph), **own}
        for node in graph.node:
            results = self.results_of(node, values)
            values.update((word, value) for word, value in zip(node.output, results, strict=False) if word)
        return [self.value(output.name, values, "the outputs") for output in graph.output]

    def value(self, word: str, values: Mapping[str, Value], what: str) -> Value:
        """Return a value by its name, for `what` reads it; WorkloadError: nothing computes it."""
        if word not in values:
            raise WorkloadError(
                f"{self.name}: {what} read {word}, which nothing before computes (a cycle, or a damaged file); export "
                "it again"
            )
        return values[word]

    def weight(self, tensor: onnx.TensorProto) -> Constant:
        """Return a tensor of a model."""
        elements = int(np.prod([int(size) for size in tensor.dims], dtype=np.float64))
        if min(tensor.dims, default=0) < 0:
            raise WorkloadError(
                f"{self.name}: tensor {tensor.name} has the sizes {list(tensor.dims)}, expected none < 0"
            )
        if elements * 8 > _MOST_BYTES and tensor.ByteSize() < elements // 8:
            raise WorkloadError(f"{self.name}: tensor {tensor.name} has {elements:,} elements, but no values for them")
        try:
            return Constant(self.numpy_helper.to_array(tensor))
        except Exception as error:  # of protobuf, of NumPy
            raise WorkloadError(
                f"{self.name}: tensor {tensor.name} cannot be read ({error:}); export it again"
            ) from error

    def sparse(self, tensor: onnx.SparseTensorProto) -> Constant:
        """Return a sparse tensor of a model, with its zeros."""
        shape = tuple(int(size) for size in tensor.dims)
        values, places = (self.weight(one).array for one in (tensor.values, tensor.indices))
        try:
            check_table(*shape)
            array = np.zeros(shape, values.dtype)
            flat = places if places.ndim == 1 else np.ravel_multi_index(tuple(places.T), shape)
            array.reshape(-1)[flat] = values
        except (RefusedError, ValueError, IndexError, TypeError) as error:
            raise WorkloadError(f"{self.name}: sparse tensor {tensor.values.name}: {error}; export it again") from error
        return Constant(array)

    def results_of(self, node: onnx.NodeProto, values: Mapping[str, Value]) -> Sequence[Value]:
        """Return the results of a node.

        Raises
        ------
        WorkloadError
            It cannot be read.
        """
        self.read_nodes += 1
        if self.read_nodes > _MOST_NODES:
            raise WorkloadError(f"{self.name}: loops write out more than {_MOST_NODES:,} operators; export it without")
        domain = _domain(node)
        place, convert = place_of(node), READERS[domain, node.op_type]

        def read(graph: onnx.GraphProto, given: Sequence[Value]) -> list[Value]:
            own = {value.name: one for value, one in zip(graph.input, given, strict=True)}
            return self.outputs_of(graph, own, values)

        opset = self.versions.get(domain, self.versions.get("", 1))
        inputs = tuple(self.value(word, values, place) if word else None for word in node.input)
        try:
            schema = self.schema(node, domain, opset)
            check_types(schema, inputs)
            defaults = self.defaults(node, schema)
            given = {entry.name: self.plain(entry) for entry in node.attribute}
            attributes = Attributes({**{key: one for key, one in defaults.items() if one is not None}, **given})
            call = Call(node.op_type, opset, inputs, attributes, tuple(node.output), read)
            made = convert(call)
            found = [made] if isinstance(made, Value) else list(made)
            check_used(call, given, defaults, UNUSED.get(node.op_type, ()))
            check_results(found)
        except UnknownValueError as error:
            if error.args[0].startswith(self.name):
                raise
            advice = (
                f"; make {', '.join(error.inputs)} a weight of the model, or run it by "
                "anatune.adapters.onnx.InferenceSession, which compiles for its values"
            )
            raise UnknownValueError(
                f"{self.name}: {node.op_type} ({place}) {error}{advice if error.inputs else ''}", error.inputs
            ) from error
        except RefusedError as error:
            raise WorkloadError(f"{self.name}: {node.op_type} ({place}) {error}; {LEAVE}") from error
        except WorkloadError:
            raise
        except Exception as error:  # a model that contradicts itself may break any reader
            text = str(error).strip().splitlines() or [type(error).__name__]
            raise WorkloadError(
                f"{self.name}: {node.op_type} ({place}) cannot be read: {text[-1]}; is the model valid?"
            ) from error
        return found

    def schema(self, node: onnx.NodeProto, domain: str, opset: int) -> onnx.defs.OpSchema | None:
        """Return what the standard says of an operator; None: it is not one of the standard's."""
        try:
            return self.defs.get_schema(node.op_type, opset, domain)
        except self.defs.SchemaError:
            return None

    def defaults(self, node: onnx.NodeProto, schema: onnx.defs.OpSchema | None) -> dict[str, object]:
        """Return the attributes that an operator can have, with what they are where left out (None: nothing).

        Raises
        ------
        RefusedError
            A node has another one: it is no operator of this version.
        """
        known = dict(DEFAULTS.get((_domain(node), node.op_type), {}))
        if schema is not None:
            defaults = {key: one.default_value for key, one in schema.attributes.items()}
            known = {key: self.plain(value) if value.name else None for key, value in defaults.items()}
        for entry in node.attribute:
            if entry.name not in known:
                raise RefusedError(f"has the attribute {entry.name}, expected {', '.join(sorted(known)) or 'none'}")
        return known

    def plain(self, entry: onnx.AttributeProto) -> object:
        """Return the value of an attribute."""
        value = self.helper.get_attribute_value(entry)
        if isinstance(value, bytes):
            return value.decode()
        if type(value).__name__ == "TensorProto":
            return self.weight(value).array
        if type(value).__name__ == "SparseTensorProto":
            return self.sparse(value).array
        if isinstance(value, list | tuple):
            return [one.decode() if isinstance(one, bytes) else one for one in value]
        return value
