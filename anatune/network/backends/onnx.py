"""ONNX's interfaces: an `InferenceSession` like onnxruntime's, and a `Backend` for ``onnx.backend.base``.

Both compile a model once for each set of sizes that it is called with. If sizes or axes are computed from the values of
inputs, they also compile it once for each set of these values.
"""

from __future__ import annotations

import contextlib
import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from anatune.core.accuracy import STANDARD
from anatune.errors import RunError, WorkloadError
from anatune.measure.named_hardware import HardwareLike
from anatune.named import import_optional
from anatune.network.compiling.compiled import CompiledModel
from anatune.network.compiling.divided import NothingCompiledError, make_whole_runner
from anatune.network.compiling.session import compile as compile_model
from anatune.network.graph.nodes import Array, is_unknown
from anatune.network.graph.onnx.call import UnknownValueError
from anatune.network.graph.onnx.reading import onnx_dtype, sort_nodes
from anatune.network.graph.torch.arrays import any_array
from anatune.network.relax.onnx_files import inputs_of, load_onnx
from anatune.threads import new_lock

__all__ = ["Backend", "InferenceSession", "Prepared", "TensorInfo"]

if TYPE_CHECKING:
    from anatune.untyped import onnx
else:
    onnx = import_optional("onnx", "onnx", "the backend anatune.adapters.onnx")
_base = import_module("onnx.backend.base")

_MOST_MODELS = 16
"""Most compiled models of a session; the least recently used one is removed first."""

Feeds = Sequence[object] | Mapping[str, object]
"""Arrays in the order of a model's inputs, or by their names."""
_MOST_FIXED = 4096
"""Most elements of inputs that a model is compiled for the values of: sizes and axes are few, data is not."""


class TensorInfo(NamedTuple):
    """An input or output: name, sizes (text for one that varies, None for one without a name), and type."""

    name: str
    shape: list[int | str | None]
    type: str


class InferenceSession:
    """An ONNX model to run, like ``onnxruntime.InferenceSession``: ``run(None, {"x": array})``.

    Several threads may call `run`, as explained at `CompiledModel`: with ``threads=1`` as many calls run at once as
    there are cores, otherwise one. A new set of sizes is compiled once, while calls with others go on. Sessions can be
    copied and pickled.

    Parameters
    ----------
    path_or_bytes : str, Path, bytes or onnx.ModelProto
    threads : int, optional
        Threads of the kernels; all cores by default.
    check : bool
        Compare the outputs of each compiled model with those of ONNX's reference evaluator on random inputs.
    hw, accuracy, fallback
        As `anatune.compile`. With a fallback, nothing is compiled for the values of inputs. A model of which no node
        can be compiled runs in onnxruntime.

    Raises
    ------
    WorkloadError
        The model is not an ONNX model, or has operators that cannot be read.
    """

    def __init__(
        self,
        path_or_bytes: str | Path | bytes | onnx.ModelProto,
        *,
        threads: int | None = None,
        check: bool = False,
        hw: HardwareLike = "host",
        accuracy: str = STANDARD,
        fallback: str | None = None,
    ) -> None:
        self._model = _model_of(path_or_bytes)
        self._where = str(path_or_bytes) if isinstance(path_or_bytes, str | Path) else "ONNX model"
        self._compile = functools.partial(
            compile_model, hw=hw, threads=threads, accuracy=accuracy, check=check, fallback=fallback
        )
        self._threads = threads
        self._whole: Callable[..., list[object]] | None = None
        self._fixed: tuple[str, ...] = ()
        self._compiled: OrderedDict[tuple[object, ...], CompiledModel] = OrderedDict()
        self._lock = new_lock()

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: Mapping[str, object]) -> None:
        vars(self).update(state, _lock=new_lock())

    def get_inputs(self) -> list[TensorInfo]:
        """Return the names, sizes and types of the inputs."""
        return [_info(value) for value in inputs_of(self._model, self._where)]

    def get_outputs(self) -> list[TensorInfo]:
        """Return the names, sizes and types of the outputs."""
        return [_info(value) for value in self._model.graph.output]

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, object]) -> list[Array]:
        """Return all outputs, or those with the given names, for arrays by the names of the inputs.

        Raises
        ------
        RunError
            An output does not exist, or an input is missing.
        WorkloadError
            The model cannot be compiled for these sizes and values.
        """
        names = [value.name for value in self._model.graph.output]
        unknown = [name for name in output_names or () if name not in names]
        if unknown:
            raise RunError(f"the model has no output {unknown[0]}, expected one of {', '.join(names)}")
        inputs = inputs_of(self._model, self._where)
        input_names = [value.name for value in inputs]
        missing = [name for name in input_names if name not in input_feed]
        if missing:
            raise RunError(f"input {missing[0]} is missing, expected arrays for {', '.join(input_names)}")
        arrays = {value.name: _check_input(value, input_feed[value.name]) for value in inputs}
        results: Sequence[object]
        try:
            if self._whole is None:
                compiled, given = self._compile_for(arrays)
                outputs_of_call = compiled(*given)
                results = outputs_of_call if compiled.summary.is_tuple else (outputs_of_call,)
        except NothingCompiledError:
            self._whole = make_whole_runner(self._model, input_names, self._threads)
        if self._whole is not None:
            results = self._whole(*arrays.values())
        outputs = dict(zip(names, results, strict=True))
        return [outputs[name] for name in output_names or names]

    def _compile_for(self, arrays: Mapping[str, Array]) -> tuple[CompiledModel, list[Array]]:
        """Return the model compiled for the sizes of arrays and the values that sizes depend on, and its inputs."""
        while True:
            fixed = {name: arrays[name] for name in self._fixed}
            given = [array for name, array in arrays.items() if name not in fixed]
            key = (
                *((array.shape, array.dtype.name) for array in arrays.values()),
                *(array.tobytes() for array in fixed.values()),
            )
            if (compiled := self._compiled.get(key)) is not None:
                with contextlib.suppress(KeyError):  # another thread may have removed it
                    self._compiled.move_to_end(key)
                return compiled, given
            with self._lock:
                if key not in self._compiled and tuple(fixed) == self._fixed:
                    self._add_model(key, fixed, arrays)

    def _add_model(self, key: tuple[object, ...], fixed: Mapping[str, Array], arrays: Mapping[str, Array]) -> None:
        """Compile for arrays, or note which inputs' values are needed for that."""
        examples = [array for name, array in arrays.items() if name not in fixed]
        try:
            self._compiled[key] = self._compile(_fix_values(self._model, fixed), examples)
        except UnknownValueError as error:
            more = tuple(name for name in error.inputs if name not in fixed)
            if not more or sum(arrays[name].size for name in more) > _MOST_FIXED:
                raise
            self._fixed = (*self._fixed, *more)
        while len(self._compiled) > _MOST_MODELS:
            self._compiled.popitem(last=False)


class Prepared(_base.BackendRep):  # type: ignore[misc,name-defined]
    """A model that a `Backend` has prepared."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session

    def run(self, inputs: Feeds, **kwargs: object) -> tuple[Array, ...]:
        """Return the outputs for arrays, which are a list in the model's order, or a mapping by name."""
        names = [one.name for one in self._session.get_inputs()]
        given = inputs if isinstance(inputs, Mapping) else dict(zip(names, inputs, strict=False))
        return tuple(self._session.run(None, given))


class Backend(_base.Backend):  # type: ignore[misc,name-defined]
    """Backend for ONNX's tests: ``onnx.backend.test.BackendTest(anatune.adapters.onnx.Backend, __name__)``."""

    @classmethod
    def prepare(
        cls, model: onnx.ModelProto, device: str = "CPU", *, threads: int | None = None, **kwargs: object
    ) -> Prepared:
        """Return a model that can run. Raises the errors of `InferenceSession`. Other options are ignored."""
        if not cls.supports_device(device):
            raise WorkloadError(f"the device is {device}, but the backend runs on CPU only")
        return Prepared(InferenceSession(model, threads=threads))

    @classmethod
    def run_node(
        cls, node: onnx.NodeProto, inputs: Sequence[object], device: str = "CPU", **kwargs: object
    ) -> tuple[Array, ...]:
        """Return the results of one operator for arrays."""
        arrays = [np.asarray(one) for one in inputs]
        names = [name for name in node.input if name]
        helper = onnx.helper
        kinds = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in zip(names, arrays, strict=True)
        ]
        outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
        graph = helper.make_graph([node], "node", kinds, outputs)
        opsets = [helper.make_opsetid(node.domain, kwargs["opset_version"])] if "opset_version" in kwargs else None
        return cls.prepare(helper.make_model(graph, opset_imports=opsets), device).run(arrays)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether `device` is a CPU."""
        return device.partition(":")[0] == "CPU"


def _model_of(source: str | Path | bytes | onnx.ModelProto) -> onnx.ModelProto:
    if not isinstance(source, onnx.ModelProto | bytes):
        path = Path(source)
        if not path.is_file():
            raise WorkloadError(f"{path} does not exist, expected an ONNX file (.onnx)")
        return load_onnx(path)
    try:
        model = onnx.load_from_string(source) if isinstance(source, bytes) else source
    except Exception as error:
        raise WorkloadError(f"the {len(source)} bytes are not an ONNX model ({error})") from error
    sort_nodes(model.graph)
    return model


def _fix_values(model: onnx.ModelProto, fixed: Mapping[str, Array]) -> onnx.ModelProto:
    """Return a model with given values of some inputs as weights."""
    if not fixed:
        return model
    fixed_model = onnx.ModelProto()
    fixed_model.CopyFrom(model)
    remaining_inputs = [value for value in fixed_model.graph.input if value.name not in fixed]
    del fixed_model.graph.input[:]
    fixed_model.graph.input.extend(remaining_inputs)
    fixed_model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in fixed.items())
    return fixed_model


def _check_input(value: onnx.ValueInfoProto, value_given: object) -> Array:
    """Return an input as an array; RunError if its type or sizes differ from the model's."""
    info, dtype = _info(value), onnx_dtype(value)
    array = any_array(f"input {info.name}", value_given, RunError)
    if is_unknown(array):
        raise RunError(f"input {info.name} is on the meta device, which stores no values; give an array with values")
    array = array.astype(object) if array.dtype.kind in "US" else array  # text
    if array.dtype.name != dtype:
        shape = "x".join(map(str, array.shape)) or "scalar"
        raise RunError(f"input {info.name} is {shape} {array.dtype.name}, expected {shape} {dtype}")
    if not value.type.tensor_type.HasField("shape"):  # any shape is allowed
        return array
    if len(array.shape) != len(info.shape):
        raise RunError(f"input {info.name} has {array.ndim} dimensions, expected {len(info.shape)}")
    for axis, (size, expected) in enumerate(zip(array.shape, info.shape, strict=True)):
        if isinstance(expected, int) and size != expected:
            raise RunError(f"input {info.name} has {size} elements along axis {axis}, expected {expected}")
    return array


def _info(value: onnx.ValueInfoProto) -> TensorInfo:
    kind = value.type.tensor_type
    sizes = [one.dim_value if one.HasField("dim_value") else one.dim_param or None for one in kind.shape.dim]
    word = onnx.TensorProto.DataType.Name(kind.elem_type).lower() if kind.elem_type else "unknown"
    return TensorInfo(value.name, sizes, f"tensor({word})")
