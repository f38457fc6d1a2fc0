"""ONNX models as graphs, node by node.

Operators are read as the standard says of the version that the model names, from 6 on. What has no reader here and a
body of other operators in the standard, or in the model, is spelt by that. Branches whose condition is known are
taken, loops whose count is known are written out.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from anatune.errors import WorkloadError
from anatune.graph.nodes import Constant, Graph, Input, TensorType, Value
from anatune.graph.onnx.call import Call, RefusedError, UnknownValueError
from anatune.graph.onnx.operators import READERS

__all__ = ["graph_of_onnx", "onnx_dtype"]

OnnxObject = Any
"""What the package onnx makes: models, graphs, nodes, tensors, types."""

_OLDEST = 6
_STANDARD = ("", "ai.onnx")
_MOST_BYTES = 1 << 31
"""Of a tensor that a file of a few bytes may ask for."""


def graph_of_onnx(model: OnnxObject, shapes: Mapping[str, Sequence[int]], name: str) -> Graph:
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
    model = _inlined(_of_readable_version(model, name), name)
    return _Reader(model, shapes, name).graph


def onnx_dtype(value: OnnxObject) -> str:
    """Return NumPy's name of the dtype of an input; KeyError: it is no tensor, or of a type that ONNX has not."""
    return _numpy_name(value.type.tensor_type.elem_type)


def _numpy_name(kind: int) -> str:
    return str(import_module("onnx").helper.tensor_dtype_to_np_dtype(kind).name)


def _versions(model: OnnxObject) -> dict[str, int]:
    """Return domain -> version of its operators."""
    found = {"" if one.domain in _STANDARD else one.domain: int(one.version) for one in model.opset_import}
    return {"": 1, **found} if "" not in found and not found else found


def _of_readable_version(model: OnnxObject, name: str) -> OnnxObject:
    """Return a model whose operators are of a version that can be read."""
    if model.ir_version < 3:
        raise WorkloadError(f"{name} has version {model.ir_version} of ONNX's format, expected 3 at least")
    newest, version = import_module("onnx.defs").onnx_opset_version(), _versions(model).get("", newest_known())
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


def newest_known() -> int:
    """Return the newest version of the standard's operators that the installed onnx knows."""
    return int(import_module("onnx.defs").onnx_opset_version())


def _inlined(model: OnnxObject, name: str) -> OnnxObject:
    """Return a model in which operators without a reader that have a body, in the standard or the model, are spelt."""
    inliner, defs = import_module("onnx.inliner"), import_module("onnx.defs")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if model.functions:
                model = inliner.inline_local_functions(model)
            versions = _versions(model)
            missing: set[tuple[str, str]] = set()
            for node in _nodes_of(model.graph):
                domain = "" if node.domain in _STANDARD else node.domain
                if node.op_type in READERS:
                    continue
                with contextlib.suppress(defs.SchemaError):  # an operator of the model's own
                    schema = defs.get_schema(node.op_type, versions.get(domain, 1), domain)
                    given = {entry.name for entry in node.attribute}
                    defaults = [one.default_value for key, one in schema.attributes.items() if key not in given]
                    node.attribute.extend(entry for entry in defaults if entry.name)  # bodies take them for given
                    missing.add((domain, node.op_type))
            if not missing:
                return model
            return inliner.inline_selected_functions(_typed(model), sorted(missing), inline_schema_functions=True)
        except (TypeError, RuntimeError, ValueError):  # a model of 2 GiB and more
            return model


def _typed(model: OnnxObject) -> OnnxObject:
    """Return a model with the types that inliners ask for: of values, weights and what is left out."""
    helper = import_module("onnx.helper")
    typed = import_module("onnx.shape_inference").infer_shapes(model)
    weights = [(one.name, one.data_type, one.dims) for one in model.graph.initializer]
    typed.graph.value_info.extend(helper.make_tensor_value_info(*one) for one in (*weights, ("", 1, None)))
    return typed


def _nodes_of(graph: OnnxObject) -> list[OnnxObject]:
    """Return the nodes of a graph and of the graphs inside them."""
    found = list(graph.node)
    for node in graph.node:
        for entry in node.attribute:
            for inner in (*([entry.g] if entry.HasField("g") else []), *entry.graphs):
                found += _nodes_of(inner)
    return found


class _Reader:
    """Walks the nodes of a model in order; `graph` is what comes out."""

    def __init__(self, model: OnnxObject, shapes: Mapping[str, Sequence[int]], name: str) -> None:
        self.name = name
        self.versions = _versions(model)
        self.helper = import_module("onnx.helper")
        self.numpy_helper = import_module("onnx.numpy_helper")
        self.defs = import_module("onnx.defs")
        weights = {weight.name for weight in model.graph.initializer}
        inputs = []
        for value in model.graph.input:
            if value.name not in weights:
                inputs.append(Input(value.name, TensorType(tuple(map(int, shapes[value.name])), onnx_dtype(value))))
        outputs = self.outputs_of(model.graph, {one.name: one for one in inputs}, {})
        for output, kind in zip(model.graph.output, outputs, strict=True):
            if not isinstance(kind.type, TensorType):
                raise WorkloadError(f"{name}: output {output.name} is no tensor, expected one")
        self.graph = Graph(tuple(inputs), tuple(outputs), is_tuple=len(outputs) != 1)

    def outputs_of(self, graph: OnnxObject, own: Mapping[str, Value], around: Mapping[str, Value]) -> list[Value]:
        """Return the outputs of a graph; `own` are its inputs, `around` what is seen in it beside them."""
        values = {**around, **own}
        for weight in graph.initializer:
            if weight.name not in own:
                values[weight.name] = self.weight(weight)
        for weight in graph.sparse_initializer:
            values[weight.values.name] = self.sparse(weight)
        for node in graph.node:
            results = self.results_of(node, values)
            values.update((word, value) for word, value in zip(node.output, results, strict=False) if word)
        return [self.value(output.name, values, "the outputs") for output in graph.output]

    def value(self, word: str, values: Mapping[str, Value], what: str) -> Value:
        if word not in values:
            raise WorkloadError(
                f"{self.name}: {what} read {word}, which nothing before computes (a cycle, or a damaged file); export "
                "it again"
            )
        return values[word]

    def weight(self, tensor: OnnxObject) -> Constant:
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

    def sparse(self, tensor: OnnxObject) -> Constant:
        """Return a sparse tensor of a model, with its zeros."""
        shape = tuple(int(size) for size in tensor.dims)
        values, places = (self.numpy_helper.to_array(one) for one in (tensor.values, tensor.indices))
        array = np.zeros(shape, values.dtype)
        flat = places if places.ndim == 1 else np.ravel_multi_index(tuple(places.T), shape)
        array.reshape(-1)[flat] = values
        return Constant(array)

    def results_of(self, node: OnnxObject, values: Mapping[str, Value]) -> Sequence[Value]:
        """Return the results of a node.

        Raises
        ------
        WorkloadError
            It cannot be read.
        """
        domain = "" if node.domain in _STANDARD else node.domain
        place = f"node {node.name or next((word for word in node.output if word), '')}"
        convert = READERS.get(node.op_type)
        if convert is None:
            raise WorkloadError(
                f"{self.name}: operator {f'{domain}.' if domain else ''}{node.op_type} ({place}) is not known; export "
                "the model with other operators"
            )

        def read(graph: OnnxObject, given: Sequence[Value]) -> list[Value]:
            own = {value.name: one for value, one in zip(graph.input, given, strict=True)}
            return self.outputs_of(graph, own, values)

        opset = self.versions.get(domain, self.versions.get("", 1))
        inputs = tuple(self.value(word, values, place) if word else None for word in node.input)
        try:
            attributes = self.attributes(node, domain, opset)
            found = convert(Call(node.op_type, opset, inputs, attributes, tuple(node.output), read))
        except UnknownValueError as error:
            if error.args[0].startswith(self.name):
                raise
            raise UnknownValueError(f"{self.name}: {node.op_type} ({place}) {error}", error.inputs) from error
        except RefusedError as error:
            raise WorkloadError(f"{self.name}: {node.op_type} ({place}) {error}") from error
        except WorkloadError:
            raise
        except Exception as error:  # a model that contradicts itself may break any reader
            text = str(error).strip().splitlines() or [type(error).__name__]
            raise WorkloadError(
                f"{self.name}: {node.op_type} ({place}) cannot be read: {text[-1]}; is the model valid?"
            ) from error
        return [found] if isinstance(found, Value) else found

    def attributes(self, node: OnnxObject, domain: str, opset: int) -> dict[str, Any]:
        """Return the attributes of a node, with the standard's defaults."""
        found = {}
        with contextlib.suppress(self.defs.SchemaError):
            schema = self.defs.get_schema(node.op_type, opset, domain)
            found = {
                key: self.plain(one.default_value) for key, one in schema.attributes.items() if one.default_value.name
            }
        return {**found, **{entry.name: self.plain(entry) for entry in node.attribute}}

    def plain(self, entry: OnnxObject) -> Any:
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
