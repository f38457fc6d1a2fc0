"""Read ONNX models as graphs, node by node.

Operators are read by domain and name, as the standard defines them for the version that the model names, from 6 on. An
operator without a reader is replaced by its body of other operators, if the standard or the model has one. A branch
with a known condition is chosen, and loops with a known count are unrolled. An attribute or an operand that a reader
does not ask for is refused, unless `UNUSED` says that it changes nothing.
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
from anatune.network.graph.onnx.call import DTYPES, Attributes, OnnxCall, RefusedError, UnknownValueError, check_table
from anatune.network.graph.onnx.checks import NUMBERS, check_results, check_types, check_usage
from anatune.network.graph.onnx.operators import DEFAULTS, OUTSIDE, READERS, UNUSED
from anatune.untyped import onnx

__all__ = [
    "LEAVE", "OnnxReader", "check_operators", "describe_node", "graph_of_onnx", "inline_bodies", "inner_graphs",
    "list_reads", "onnx_dtype", "sort_nodes",
]  # fmt: skip

LEAVE = '--fallback onnxruntime (in Python fallback="onnxruntime") runs such nodes with onnxruntime'
"""The advice if single nodes are refused."""
_OLDEST = 6
_STANDARD = ("", "ai.onnx")
_DEEPEST = 8
"""The most levels of bodies within bodies of operators."""
_MOST_NODES = 1 << 18
"""The most operators that are read; those in bodies of loops count as often as they run."""
_SMALL_BYTES = 1 << 12
"""The largest weight that stays in a model while bodies of operators are inserted, because they may need its values."""
_MOST_BYTES = 1 << 31
"""The largest tensor without stored values: a file of a few bytes may declare any size."""


def graph_of_onnx(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]], name: str) -> Graph:
    """Return the graph of an ONNX model.

    Parameters
    ----------
    model : onnx.ModelProto
        The model with its weights.
    shapes : mapping of str to sequence of int
        The sizes of its inputs.
    name : str
        The name of the model, for messages.

    Raises
    ------
    WorkloadError
        The model cannot be read. The message names the operator, the node, and what can be done.
    UnknownValueError
        A size, an axis or a similar number is known only when the model runs.
    """
    try:
        model, large = inline_bodies(model, name)
        check_operators(model.graph.node, name)
        return OnnxReader(model, large, name).graph(shapes)
    except WorkloadError:
        raise
    except Exception as error:  # a damaged file may break a package in any way, as by names that are not text
        text = str(error).strip().splitlines() or [type(error).__name__]
        raise WorkloadError(f"{name} cannot be read: {text[0]:.200}; export it again") from error


def onnx_dtype(value: onnx.ValueInfoProto) -> str:
    """Return NumPy's name of the dtype of an input; raise KeyError if it is not a tensor or has an unknown type."""
    return _numpy_name(value.type.tensor_type.elem_type)


def _numpy_name(kind: int) -> str:
    return str(import_module("onnx").helper.tensor_dtype_to_np_dtype(kind).name)


def _versions(model: onnx.ModelProto) -> dict[str, int]:
    """Return domain -> version of its operators."""
    versions = {"" if entry.domain in _STANDARD else entry.domain: int(entry.version) for entry in model.opset_import}
    return {"": 1, **versions} if "" not in versions and not versions else versions


def _convert_version(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return a model with operators of a version that can be read."""
    if model.ir_version < 3:
        raise WorkloadError(f"{name} has version {model.ir_version} of the ONNX format, expected at least 3")
    newest = int(import_module("onnx.defs").onnx_opset_version())
    version = _versions(model).get("", newest)
    if version > newest:
        raise WorkloadError(
            f"{name} has operators of version {version}, but the package onnx supports them up to {newest}; install a "
            "newer onnx, or export the model for an older version"
        )
    if version >= _OLDEST:
        return model
    try:
        return import_module("onnx.version_converter").convert_version(model, _OLDEST + 1)
    except Exception as error:  # the converter raises errors of its C++ code
        text = str(error).strip().splitlines()
        raise WorkloadError(
            f"{name} has operators of version {version}, which onnx cannot convert to version {_OLDEST + 1} "
            f"({text[-1] if text else type(error).__name__}); export the model for a newer version"
        ) from error


def inline_bodies(model: onnx.ModelProto, name: str) -> tuple[onnx.ModelProto, list[onnx.TensorProto]]:
    """Return a model in which operators without a reader are replaced by their bodies in the standard or the model.

    The large weights are returned separately, because the model is copied. Errors are those of `graph_of_onnx`.
    """
    model = _convert_version(model, name)
    if not model.functions and not _operators_with_bodies(model):
        return model, []
    inliner, (model, large) = import_module("onnx.inliner"), _separate_weights(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if model.functions:
                model = inliner.inline_local_functions(model)
            for _ in range(_DEEPEST):
                missing = _operators_with_bodies(model)
                if not missing:
                    break
                model = inliner.inline_selected_functions(_add_types(model), missing, inline_schema_functions=True)
        except (TypeError, RuntimeError, ValueError):  # types are missing: the operators stay without a reader
            pass
    return model, large


def _separate_weights(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[onnx.TensorProto]]:
    """Return a copy of a model in which large weights are inputs, and these weights."""
    onnx = import_module("onnx")
    copy, large = onnx.ModelProto(), []
    _copy(model, copy, "graph")
    _copy(model.graph, copy.graph, "initializer")
    input_names = {value.name for value in copy.graph.input}
    for weight in model.graph.initializer:
        if weight.ByteSize() <= _SMALL_BYTES:
            copy.graph.initializer.append(weight)
            continue
        large.append(weight)
        if weight.name not in input_names:
            copy.graph.input.append(onnx.helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims))
    return copy, large


def _copy(source: onnx.ModelProto | onnx.GraphProto, target: onnx.ModelProto | onnx.GraphProto, without: str) -> None:
    """Copy all fields of a message except one."""
    for field, value in source.ListFields():
        if field.name == without:
            continue
        if isinstance(value, int | float | str | bytes):
            setattr(target, field.name, value)
        else:
            getattr(target, field.name).MergeFrom(value)


def _operators_with_bodies(model: onnx.ModelProto) -> list[tuple[str, str]]:
    """Return (domain, name) of the operators of a model that have no reader here, but a body in the standard."""
    defs, versions, operators = import_module("onnx.defs"), _versions(model), set()
    for node in _flatten_nodes(model.graph.node):
        domain = _domain(node)
        if (domain, node.op_type) not in READERS:
            with contextlib.suppress(defs.SchemaError):  # an operator that is not in the standard
                schema = defs.get_schema(node.op_type, versions.get(domain, 1), domain)
                if schema.has_function or schema.has_context_dependent_function:
                    operators.add((domain, node.op_type))
    return sorted(operators)


def _add_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model with the types of all tensors and the defaults of attributes, which bodies depend on."""
    onnx, defs, versions = import_module("onnx"), import_module("onnx.defs"), _versions(model)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for weight in copy.graph.initializer:
        copy.graph.value_info.append(onnx.helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims))
    copy = onnx.shape_inference.infer_shapes(copy)
    copy.graph.value_info.append(onnx.helper.make_tensor_value_info("", 1, None))  # the name of omitted inputs
    for node in _flatten_nodes(copy.graph.node):
        with contextlib.suppress(defs.SchemaError):
            domain = _domain(node)
            schema = defs.get_schema(node.op_type, versions.get(domain, 1), domain)
            given = {entry.name for entry in node.attribute}
            defaults = [attribute.default_value for key, attribute in schema.attributes.items() if key not in given]
            node.attribute.extend(entry for entry in defaults if entry.name)
    return copy


def check_operators(nodes: Sequence[onnx.NodeProto], name: str) -> None:
    """Raise `WorkloadError` if nodes have operators without a reader; the message lists them and their nodes."""
    missing: dict[str, list[str]] = {}
    for node in _flatten_nodes(nodes):
        key = _domain(node), node.op_type
        if key in OUTSIDE:
            raise WorkloadError(f"{name}: {node.op_type} ({describe_node(node)}) {OUTSIDE[key]}; {LEAVE}")
        if key not in READERS:
            word = f"{key[0]}.{key[1]}".removeprefix(".")
            missing.setdefault(word, []).append(describe_node(node))
    if missing:
        words = [
            f"{operator} ({positions[0]}{f' and {len(positions) - 1} more' if positions[1:] else ''})"
            for operator, positions in missing.items()
        ]
        raise WorkloadError(
            f"{name}: operators that anatune cannot read: {', '.join(words)}; export the model with other operators, "
            f"or {LEAVE}"
        )


def _domain(node: onnx.NodeProto) -> str:
    """Return the domain of a node; that of the standard is ""."""
    return "" if node.domain in _STANDARD else str(node.domain)


def describe_node(node: onnx.NodeProto) -> str:
    """Return words that name a node: its own name, or that of its first output."""
    return f"node {node.name or next((word for word in node.output if word), '')}"


def inner_graphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the graphs in a node: its branches or its body."""
    graph_lists = [(*([entry.g] if entry.HasField("g") else []), *entry.graphs) for entry in node.attribute]
    return [graph for graphs in graph_lists for graph in graphs]


def _flatten_nodes(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Return nodes and all nodes of the graphs in them."""
    all_nodes = list(nodes)
    for node in nodes:
        for inner in inner_graphs(node):
            all_nodes += _flatten_nodes(inner.node)
    return all_nodes


def list_reads(node: onnx.NodeProto) -> list[str]:
    """Return the names of the values that a node reads, including those that its branches and its body read."""
    names = dict.fromkeys(word for word in node.input if word)
    for graph in inner_graphs(node):
        inner_names = {value.name for value in (*graph.input, *graph.initializer)}
        inner_names |= {value.values.name for value in graph.sparse_initializer}
        for inner in graph.node:
            names.update(dict.fromkeys(word for word in list_reads(inner) if word not in inner_names))
            inner_names.update(inner.output)
        names.update(dict.fromkeys(output.name for output in graph.output if output.name not in inner_names))
    return list(names)


def sort_nodes(graph: onnx.GraphProto) -> None:
    """Sort nodes so that each comes after those that it reads, also in branches and bodies; keep the order in a cycle.

    The standard demands this order, but onnxruntime accepts others, and its float16 converter writes others.
    """
    nodes = list(graph.node)
    for inner in (graph_inside for node in nodes for graph_inside in inner_graphs(node)):
        sort_nodes(inner)
    last_first = reversed(list(enumerate(nodes)))  # if two nodes compute the same name, the first one counts
    makers = {word: index for index, node in last_first for word in node.output if word}
    sources_of = [{makers[word] for word in list_reads(node) if word in makers} for node in nodes]
    if any(index <= max(sources, default=-1) for index, sources in enumerate(sources_of)):
        with contextlib.suppress(graphlib.CycleError):
            order = list(graphlib.TopologicalSorter(dict(enumerate(sources_of))).static_order())
            del graph.node[:]
            graph.node.extend(nodes[index] for index in order)


class OnnxReader:
    """Reads the nodes of a model, whose large weights are passed separately, in order."""

    def __init__(self, model: onnx.ModelProto, large: Sequence[onnx.TensorProto], name: str) -> None:
        self.name, self.read_nodes = name, 0
        self.model, self.large = model, large
        self.versions = _versions(model)
        self.weights: list[tuple[onnx.GraphProto, dict[str, Value]]] = []
        self.helper = import_module("onnx.helper")
        self.numpy_helper = import_module("onnx.numpy_helper")
        self.defs = import_module("onnx.defs")

    def graph(self, shapes: Mapping[str, Sequence[int]]) -> Graph:
        """Return the graph of the model for inputs of given sizes; errors are those of `graph_of_onnx`."""
        inputs = []
        for value in self.inputs():
            if onnx_dtype(value) not in DTYPES.values():
                raise WorkloadError(
                    f"{self.name}: input {value.name} is {onnx_dtype(value)}, expected {NUMBERS}; {LEAVE}"
                )
            inputs.append(Input(value.name, TensorType(tuple(map(int, shapes[value.name])), onnx_dtype(value))))
        values: dict[str, Value] = {one.name: one for one in inputs}
        values |= {one.name: self.weight(one) for one in self.large}
        outputs = self.outputs_of(self.model.graph, values, {})
        for output, kind in zip(self.model.graph.output, outputs, strict=True):
            if not isinstance(kind.type, TensorType):
                raise WorkloadError(f"{self.name}: output {output.name} is not a tensor; {LEAVE}")
        return Graph(tuple(inputs), tuple(outputs), is_tuple=len(outputs) != 1)

    def inputs(self) -> list[onnx.ValueInfoProto]:
        """Return the inputs of the model that are not weights."""
        weights = {weight.name for weight in (*self.model.graph.initializer, *self.large)}
        return [value for value in self.model.graph.input if value.name not in weights]

    def weights_of(self, graph: onnx.GraphProto) -> dict[str, Value]:
        """Return the weights in a graph; they are read only once, because the body of a loop is read often."""
        if (weights := next((known for other, known in self.weights if other is graph), None)) is None:
            weights = {one.name: self.weight(one) for one in graph.initializer}
            weights.update((one.values.name, self.sparse(one)) for one in graph.sparse_initializer)
            self.weights.append((graph, weights))
        return weights

    def outputs_of(self, graph: onnx.GraphProto, given: Mapping[str, Value], outer: Mapping[str, Value]) -> list[Value]:
        """Return the outputs of a graph from the values `given` for its inputs and from `outer` values."""
        values = {**outer, **self.weights_of(graph), **given}
        for node in graph.node:
            results = self.results_of(node, values)
            values.update((word, value) for word, value in zip(node.output, results, strict=False) if word)
        return [self.value(output.name, values, "the outputs") for output in graph.output]

    def value(self, word: str, values: Mapping[str, Value], what: str) -> Value:
        """Return a value by its name; `what` reads it. Raise WorkloadError if nothing computes it."""
        if word not in values:
            raise WorkloadError(
                f"{self.name}: {what} read {word}, which no earlier node computes (a cycle, or a damaged file); export "
                "the model again"
            )
        return values[word]

    def weight(self, tensor: onnx.TensorProto) -> Constant:
        """Return a tensor of the model as a constant."""
        elements = int(np.prod([int(size) for size in tensor.dims], dtype=np.float64))
        if min(tensor.dims, default=0) < 0:
            raise WorkloadError(
                f"{self.name}: tensor {tensor.name} has the sizes {list(tensor.dims)}, expected none below 0"
            )
        if elements * 8 > _MOST_BYTES and tensor.ByteSize() < elements // 8:
            raise WorkloadError(f"{self.name}: tensor {tensor.name} has {elements:,} elements, but stores no values")
        try:
            return Constant(self.numpy_helper.to_array(tensor))
        except Exception as error:  # protobuf and NumPy raise errors of many classes
            raise WorkloadError(
                f"{self.name}: tensor {tensor.name} cannot be read ({error:}); export the model again"
            ) from error

    def sparse(self, tensor: onnx.SparseTensorProto) -> Constant:
        """Return a sparse tensor of the model as a dense constant."""
        shape = tuple(int(size) for size in tensor.dims)
        values, indices = (self.weight(one).array for one in (tensor.values, tensor.indices))
        try:
            check_table(*shape)
            array = np.zeros(shape, values.dtype)
            flat = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), shape)
            array.reshape(-1)[flat] = values
        except (RefusedError, ValueError, IndexError, TypeError) as error:
            raise WorkloadError(f"{self.name}: sparse tensor {tensor.values.name}: {error}; export it again") from error
        return Constant(array)

    def results_of(self, node: onnx.NodeProto, values: Mapping[str, Value]) -> Sequence[Value]:
        """Return the results of a node.

        Raises
        ------
        WorkloadError
            The node cannot be read.
        """
        self.read_nodes += 1
        if self.read_nodes > _MOST_NODES:
            raise WorkloadError(f"{self.name}: unrolled loops have over {_MOST_NODES:,} operators; export it without")
        domain = _domain(node)
        position, convert = describe_node(node), READERS[domain, node.op_type]

        def read(graph: onnx.GraphProto, given: Sequence[Value]) -> list[Value]:
            values_of_inputs = {value.name: argument for value, argument in zip(graph.input, given, strict=True)}
            return self.outputs_of(graph, values_of_inputs, values)

        opset = self.versions.get(domain, self.versions.get("", 1))
        inputs = tuple(self.value(word, values, position) if word else None for word in node.input)
        try:
            schema = self.schema(node, domain, opset)
            check_types(schema, inputs)
            defaults = self.defaults(node, schema)
            stated = {entry.name: self.to_python(entry) for entry in node.attribute}
            attributes = Attributes({**{key: one for key, one in defaults.items() if one is not None}, **stated})
            call = OnnxCall(node.op_type, opset, inputs, attributes, tuple(node.output), read)
            converted = convert(call)
            results = [converted] if isinstance(converted, Value) else list(converted)
            check_usage(call, stated, defaults, UNUSED.get(node.op_type, ()))
            check_results(results)
        except UnknownValueError as error:
            if error.args[0].startswith(self.name):
                raise
            advice = (
                f"; make {', '.join(error.inputs)} a weight of the model, or run the model with "
                "anatune.adapters.onnx.InferenceSession, which compiles it for the values of its inputs"
            )
            raise UnknownValueError(
                f"{self.name}: {node.op_type} ({position}) {error}{advice if error.inputs else ''}", error.inputs
            ) from error
        except RefusedError as error:
            raise WorkloadError(f"{self.name}: {node.op_type} ({position}) {error}; {LEAVE}") from error
        except WorkloadError:
            raise
        except Exception as error:  # a model with contradictions may break any reader
            text = str(error).strip().splitlines() or [type(error).__name__]
            raise WorkloadError(
                f"{self.name}: {node.op_type} ({position}) cannot be read: {text[-1]}; check that the model is valid"
            ) from error
        return results

    def schema(self, node: onnx.NodeProto, domain: str, opset: int) -> onnx.defs.OpSchema | None:
        """Return the schema of an operator in the standard, or None."""
        try:
            return self.defs.get_schema(node.op_type, opset, domain)
        except self.defs.SchemaError:
            return None

    def defaults(self, node: onnx.NodeProto, schema: onnx.defs.OpSchema | None) -> dict[str, object]:
        """Return the attributes that an operator can have and their default values (None: no default).

        Raises
        ------
        RefusedError
            A node has another attribute, which this version of the operator does not have.
        """
        result = dict(DEFAULTS.get((_domain(node), node.op_type), {}))
        if schema is not None:
            defaults = {key: one.default_value for key, one in schema.attributes.items()}
            result = {key: self.to_python(value) if value.name else None for key, value in defaults.items()}
        for entry in node.attribute:
            if entry.name not in result:
                raise RefusedError(f"has the attribute {entry.name}, expected {', '.join(sorted(result)) or 'none'}")
        return result

    def to_python(self, entry: onnx.AttributeProto) -> object:
        """Return the value of an attribute as a Python object."""
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
