"""Read ONNX files with their external weights, and the types of their inputs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from anatune.codegen.compat import last_line
from anatune.errors import WorkloadError
from anatune.files import reason
from anatune.named import import_optional
from anatune.network.graph.nodes import Array
from anatune.network.graph.onnx.reading import onnx_dtype, sort_nodes
from anatune.network.relax.ranges import make_symbol
from anatune.untyped import OnnxObject

__all__ = ["inputs_of", "load_onnx", "onnx_inputs", "onnx_shapes", "weight_files"]


def onnx_inputs(path: Path) -> list[tuple[str, str]]:
    """Return the name and dtype of each input of an ONNX file. Raises the errors of `import_model`."""
    return [(value.name, onnx_dtype(value)) for value in inputs_of(load_onnx(path), str(path))]


def load_onnx(path: Path) -> OnnxObject:
    """Return the ONNX model in a file, with its external weights.

    Raises
    ------
    WorkloadError
        The file is damaged, or external weights are missing or outside of its folder.
    MissingDependencyError
        ONNX is not installed.
    """
    onnx = import_optional("onnx", "onnx", "anatune compile of ONNX files")
    refusal: type[Exception] = import_module("google.protobuf.message").DecodeError
    try:
        model = onnx.load(str(path), format="protobuf", load_external_data=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _load_weights(onnx, model, path)
    except WorkloadError:
        raise
    except OSError as error:
        raise WorkloadError(f"{path}: {reason(error)}; give a file that can be read") from error
    except refusal as error:
        raise WorkloadError(
            f"{path}: {last_line(error):.200}; expected an ONNX file (or NAME.pt2); export it again"
        ) from error
    except (onnx.checker.ValidationError, ValueError) as error:  # a path outside of the folder, or a wrong offset
        raise WorkloadError(
            f"{path}: {last_line(error):.300}; expected weights in files of the same folder; export it again"
        ) from error
    if not model.graph.output:
        raise WorkloadError(f"{path}: it is not an ONNX model with operators and outputs; export it again")
    sort_nodes(model.graph)
    return model


def weight_files(path: Path) -> list[Path]:
    """Return the files of an ONNX file's external weights, each once. Raises the errors of `load_onnx`."""
    onnx = import_optional("onnx", "onnx", "anatune compile of ONNX files")
    helper = onnx.external_data_helper
    model = onnx.load(str(path), format="protobuf", load_external_data=False)
    external = [tensor for tensor in helper._get_all_tensors(model) if helper.uses_external_data(tensor)]
    locations = dict.fromkeys(helper.ExternalDataInfo(tensor).location for tensor in external)
    return [path.parent / location for location in locations]


def inputs_of(model: OnnxObject, where: str) -> list[OnnxObject]:
    """Return the inputs of an ONNX model that are not weights.

    Raises
    ------
    WorkloadError
        An input is not a tensor; `where` begins the message.
    """
    weight_names = {weight.name for weight in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weight_names]
    for value in inputs:
        try:
            onnx_dtype(value)
        except KeyError:
            raise WorkloadError(
                f"{where}: input {value.name} is not a tensor of an ONNX type; export it again"
            ) from None
    return inputs


def onnx_shapes(model: OnnxObject, where: str, example: Sequence[Array] | None) -> dict[str, list[int | str]]:
    """Return the shapes of an ONNX model's inputs: the shapes of example inputs, else the model's shapes with symbols.

    Raises
    ------
    WorkloadError
        A shape is unknown, an input is not a tensor, or the number of examples differs; `where` begins the message.
    """
    inputs = inputs_of(model, where)
    shapes: dict[str, list[int | str]] = {}
    if example is not None:
        if len(example) != len(inputs):
            names = ", ".join(item.name for item in inputs)
            raise WorkloadError(f"{where}: got {len(example)} example inputs, expected {len(inputs)}: {names}")
        for item, array in zip(inputs, example, strict=True):
            _check_shape(item, array.shape, where)
        return {item.name: list(array.shape) for item, array in zip(inputs, example, strict=True)}
    for item in inputs:
        if not item.type.tensor_type.HasField("shape"):
            raise WorkloadError(
                f"{where}: input {item.name} has no shape; give example inputs (--input-shape) "
                "of the sizes to compile for"
            )
        sizes = item.type.tensor_type.shape.dim
        for axis, size in enumerate(sizes):
            if size.HasField("dim_value") and size.dim_value < 0:
                raise WorkloadError(
                    f"{where}: input {item.name} has {size.dim_value} elements along axis {axis}, expected 0 or more; "
                    "export it again"
                )
        shapes[item.name] = [
            size.dim_value if size.HasField("dim_value") else make_symbol(size.dim_param or f"{item.name}_{axis}")
            for axis, size in enumerate(sizes)
        ]
    return shapes


def _check_shape(item: OnnxObject, shape: tuple[int, ...], where: str) -> None:
    """Raise WorkloadError if the shape of an example contradicts the shape of a model's input."""
    if not item.type.tensor_type.HasField("shape"):
        return
    sizes = item.type.tensor_type.shape.dim
    fixed = [size.dim_value if size.HasField("dim_value") else None for size in sizes]
    if len(fixed) == len(shape) and all(size in (None, count) for size, count in zip(fixed, shape, strict=True)):
        return
    expected = "x".join(str(size.dim_value) if size.HasField("dim_value") else size.dim_param or "?" for size in sizes)
    raise WorkloadError(
        f"{where}: the shape given for input {item.name} is {'x'.join(map(str, shape)) or 'scalar'}, expected "
        f"{expected or 'scalar'} as the model says; give example inputs (--input-shape) that agree"
    )


def _load_weights(onnx: OnnxObject, model: OnnxObject, path: Path) -> None:
    """Load the external weights of a model.

    Raises
    ------
    WorkloadError
        A file is missing, or too short.
    OSError
        A file cannot be read.
    onnx.checker.ValidationError, ValueError
        A file lies outside of the model's folder, or an offset is wrong.
    """
    helper = onnx.external_data_helper
    for weight in [tensor for tensor in helper._get_all_tensors(model) if helper.uses_external_data(tensor)]:
        info = helper.ExternalDataInfo(weight)
        weight_path = path.parent / info.location
        if not weight_path.is_file():
            what = "no file" if weight_path.exists() else "missing"
            raise WorkloadError(f"{weight_path} is {what}, but {path.name} has weights in it; put it beside the model")
        end = (info.offset or 0) + (info.length or 0)
        if weight_path.stat().st_size < end:
            size = weight_path.stat().st_size
            raise WorkloadError(f"{weight_path} has {size:,} bytes, {path.name} expects {end:,}; export it again")
        folder, name = _resolve_links(path, info.location)
        for entry in weight.external_data:
            entry.value = name if entry.key == "location" else entry.value
        helper.load_external_data_for_tensor(weight, str(folder))
        weight.data_location = onnx.TensorProto.DEFAULT
        weight.ClearField("external_data")


def _resolve_links(path: Path, location: str) -> tuple[Path, str]:
    """Return the folder of a file of weights, and its name there.

    Links may lead to files in the model's folder, or in the folder of the file that the model is a link to, as in the
    cache of huggingface_hub. Other paths are returned unchanged, and onnx refuses them.
    """
    name, target = Path(location), (path.parent / location).resolve()
    for folder in (path.parent.resolve(), path.resolve().parent):
        if not name.is_absolute() and ".." not in name.parts and target.is_relative_to(folder):
            return folder, str(target.relative_to(folder))
    return path.parent, location
