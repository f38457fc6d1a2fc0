"""References for compiled outputs: the original model, computed in float64 by its own library.

Weights stay in float32, and each is converted while an operator reads it: a whole copy in float64 would take twice the
model's size.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from anatune.codegen.compat import last_line
from anatune.errors import RunError
from anatune.network.graph.meanings import unpack_bits
from anatune.network.graph.nodes import HALVES, Array
from anatune.network.graph.state import StatePair
from anatune.network.graph.torch.arrays import array_of_torch, torch_of_array
from anatune.untyped import OnnxObject, TorchObject

__all__ = ["Arrays", "Reference", "onnx_reference", "reorder_reference", "torch_reference"]

_log = logging.getLogger(__name__)
Arrays = list[Array]


class Reference(Protocol):
    """Computes the outputs of a model, and returns the name of the library that did."""

    def __call__(self, arrays: Arrays, *, is_narrow: bool = False) -> tuple[Arrays, str]:
        """Return the outputs for inputs, with `is_narrow` in the model's own dtypes, which round like a kernel."""
        ...


_REFUSALS = (AssertionError, RuntimeError, TypeError, ValueError, LookupError, AttributeError, NotImplementedError)
"""Errors of operators that do not support float64, or a dtype at all."""


def torch_reference(torch: TorchObject, source: TorchObject, name: str, written: Sequence[str | int] = ()) -> Reference:
    """Return the reference of a PyTorch module, in float64 if its operators support it.

    Parameters
    ----------
    torch
        The package torch.
    source : torch.nn.Module
    name : str
        For messages.
    written : sequence of str or int
        The targets of its writes: buffers, which then are its last inputs, and inputs by number. They are also its last
        outputs.
    """
    buffers = [word for word in written if isinstance(word, str)]

    def run(arrays: Arrays, *, is_wide: bool = False) -> Arrays:
        tensors = [torch_of_array(np.array(array)) for array in arrays]
        count = len(tensors) - len(buffers)
        states = dict(zip(buffers, tensors[count:], strict=True))
        if is_wide:
            states = {word: one.double() if one.is_floating_point() else one for word, one in states.items()}
        with torch.no_grad():
            outputs = torch.func.functional_call(source, states, tuple(tensors[:count]))
        changed = [states[word] if isinstance(word, str) else tensors[word] for word in written]
        listed = [*torch.utils._pytree.tree_leaves(outputs), *changed]
        return [array_of_torch(tensor) for tensor in listed if isinstance(tensor, torch.Tensor)]

    return _make_reference(lambda arrays: _in_float64(torch, partial(run, is_wide=True), arrays), run, "PyTorch", name)


def reorder_reference(reference: Reference, pairs: Sequence[StatePair], count: int) -> Reference:
    """Return a reference with a model's state as the last inputs and outputs; `count` is its number of inputs."""
    state_inputs = [pair.input for pair in pairs]
    inputs = [*(place for place in range(count) if place not in state_inputs), *state_inputs]
    state_outputs = [pair.output for pair in pairs]

    def run(arrays: Arrays, *, is_narrow: bool = False) -> tuple[Arrays, str]:
        ordered = dict(zip(inputs, arrays, strict=True))
        outputs, library = reference([ordered[place] for place in range(count)], is_narrow=is_narrow)
        return [
            *(one for place, one in enumerate(outputs) if place not in state_outputs),
            *(outputs[place] for place in state_outputs),
        ], library

    return run


def _in_float64(torch: TorchObject, run: Callable[[Arrays], Arrays], arrays: Arrays) -> Arrays:
    """Return the result of `run` while PyTorch's operators read float32 tensors as float64.

    Both calls from Python (some check dtypes before they are dispatched) and dispatched operators are converted.
    """
    dispatch: TorchObject = import_module("torch.utils._python_dispatch").TorchDispatchMode
    function_mode: TorchObject = import_module("torch.overrides").TorchFunctionMode
    tree_map = torch.utils._pytree.tree_map
    floats = (torch.float32, torch.float16, torch.bfloat16)

    def wide(value: TorchObject) -> TorchObject:
        is_narrow = isinstance(value, torch.Tensor) and value.dtype in floats
        return value.double() if is_narrow else value

    def widen_arguments(
        names: Iterable[str], written: Collection[str], args: TorchObject, kwargs: TorchObject
    ) -> tuple[list[TorchObject], TorchObject]:
        """Return arguments converted to float64, except those with `written` names."""
        reads = [value if name in written else tree_map(wide, value) for name, value in zip(names, args, strict=False)]
        named = {name: value if name in written else tree_map(wide, value) for name, value in kwargs.items()}
        if named.get("dtype") in floats:
            named["dtype"] = torch.float64
        return reads, named

    class Dispatched(dispatch):  # type: ignore[misc]
        """Converts the arguments that a dispatched operator reads, not those that it writes."""

        def __torch_dispatch__(
            self, function: TorchObject, types: object, args: TorchObject = (), kwargs: TorchObject = None
        ) -> TorchObject:
            schema = function._schema.arguments
            written = {value.name for value in schema if value.alias_info is not None and value.alias_info.is_write}
            if function is torch.ops.aten._to_copy.default:  # it converts anyway; another conversion would copy
                written.add(schema[0].name)
            given, named = widen_arguments([value.name for value in schema], written, args, kwargs or {})
            if function.namespace == "quantized_decomposed" and "quantize_per" in function.__name__:
                names = [value.name for value in schema]
                return _compute_conversion(torch, function.__name__, {**dict(zip(names, given, strict=False)), **named})
            return function(*given, **named)

    class Called(function_mode):  # type: ignore[misc]
        """Converts arguments of Python calls, except ``out`` and the first one of an in-place function."""

        def __torch_function__(
            self, function: TorchObject, types: object, args: TorchObject = (), kwargs: TorchObject = None
        ) -> TorchObject:
            name = getattr(function, "__name__", "")
            if name == "__get__":
                return function(*args, **kwargs or {})
            short = name.partition(".")[0]
            is_written = short.startswith(("__i", "__set")) or (short.endswith("_") and not short.endswith("__"))
            names = ["0" if is_written else "", *[""] * len(args)]
            given, named = widen_arguments(names, ("0", "out"), args, kwargs or {})
            return function(*given, **named)

    with Called(), Dispatched():
        return run(arrays)


def _compute_conversion(torch: TorchObject, name: str, given: Mapping[str, TorchObject]) -> TorchObject:
    """Return a conversion to or from scaled integers in float64; PyTorch's own takes float32 only."""
    data = given["input"].double()
    scale, zero = (given.get(word, given.get(f"{word}s")) for word in ("scale", "zero_point"))
    if "per_channel" in name:
        shape = [-1 if place == given["axis"] % data.ndim else 1 for place in range(data.ndim)]
        scale, zero = scale.double().reshape(shape), 0 if zero is None else zero.reshape(shape)
    if name.startswith("dequantize"):
        return (data - zero) * scale
    whole = torch.round(data / scale) + zero
    return torch.clamp(whole, given["quant_min"], given["quant_max"]).to(given["dtype"])


def onnx_reference(model: OnnxObject, name: str) -> Reference:
    """Return the reference of an ONNX model, which ONNX's reference evaluator computes from inputs in its order.

    It computes in float64 if the operators support it. The model is not copied, which would take twice its size.

    Parameters
    ----------
    model : onnx.ModelProto
    name : str
        For messages.
    """

    def run(arrays: Arrays, *, is_wide: bool) -> Arrays:
        onnx, evaluator = import_module("onnx"), import_module("onnx.reference").ReferenceEvaluator
        weights = {weight.name: weight for weight in model.graph.initializer}
        names = [value.name for value in model.graph.input if value.name not in weights]
        given = dict(zip(names, arrays, strict=True))
        evaluate = functools.partial(evaluator, new_ops=_reference_operators())
        with _limit_threads():
            if is_wide or any(node.op_type in _SCALED for node in model.graph.node):
                return _evaluate_nodes(onnx, evaluate, model, weights, given, _to_float64 if is_wide else np.asarray)
            return list(evaluate(model).run(None, given))

    wide, narrow = functools.partial(run, is_wide=True), functools.partial(run, is_wide=False)
    return _make_reference(wide, narrow, "ONNX's reference evaluator", name)


def _reference_operators() -> list[OnnxObject]:
    """Return operators that replace those of the evaluator that fail or are slow (ONNX 1.23).

    It also returns onnxruntime's product with weights of few bits.

    Its GatherElements fails for axes of 65 elements or more. Its Erf, also in Gelu, and its pools are Python loops:
    half a second for BERT, a second and a half for ResNet-50, forty for Inception-V3.
    """
    run: OnnxObject = import_module("onnx.reference.op_run").OpRun
    largest: OnnxObject = import_module("onnx.reference.ops.op_max_pool").MaxPool
    average: OnnxObject = import_module("onnx.reference.ops.op_average_pool").AveragePool_19

    class GatherElements(run):  # type: ignore[misc]
        op_domain = ""

        def _run(self, data: Array, indices: Array, axis: int | None = None) -> tuple[Array]:
            return (np.take_along_axis(data, indices, axis or 0),)

    class Erf(run):  # type: ignore[misc]
        op_domain = ""

        def _run(self, x: Array) -> tuple[Array]:
            from scipy.special import erf

            return (erf(x).astype(x.dtype),)

    class Gelu(run):  # type: ignore[misc]
        op_domain = ""

        def _run(self, x: Array, approximate: str = "none") -> tuple[Array]:
            from scipy.special import erf

            if approximate == "tanh":
                return (0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),)
            return (0.5 * x * (1 + erf(x / math.sqrt(2))),)

    class MaxPool(largest):  # type: ignore[misc]
        op_domain = ""

        def _run(self, x: Array, **attributes: TorchObject) -> tuple[Array, ...]:
            windows = None if len(self.onnx_node.output) > 1 else _pool_windows(x, attributes, -np.inf)
            if windows is None:
                return tuple(super()._run(x, **attributes))
            return (windows.max(axis=tuple(range(x.ndim, windows.ndim))),)

    class AveragePool(average):  # type: ignore[misc]
        op_domain = ""

        def _run(self, x: Array, **attributes: TorchObject) -> tuple[Array, ...]:
            windows, taps = _pool_windows(x, attributes, 0.0), tuple(range(x.ndim, 2 * x.ndim - 2))
            count = _pool_windows(np.ones_like(x[:1, :1]), attributes, float(bool(attributes.get("count_include_pad"))))
            if windows is None or count is None:
                return tuple(super()._run(x, **attributes))
            return ((windows.sum(axis=taps) / count.sum(axis=taps)).astype(x.dtype),)

    class MatMulNBits(run):  # type: ignore[misc]
        op_domain = "com.microsoft"

        def _run(self, data: Array, packed: Array, scales: Array, *more: Array | None, **_: object) -> tuple[Array]:
            sizes = {one.name: one.i for one in self.onnx_node.attribute}
            given: list[Array | None] = [*more, None, None, None]
            zeros, groups, bias = given[:3]
            columns, length, bits = sizes["N"], sizes["K"], sizes.get("bits", 4)
            blocks = -(-length // sizes["block_size"])
            groups = np.arange(length) // sizes["block_size"] if groups is None else groups.reshape(-1)[:length]
            less: Array | float = float(1 << (bits - 1))
            if zeros is not None:
                is_packed = zeros.dtype == np.uint8
                whole = unpack_bits(zeros.reshape(columns, -1), bits)[:, :blocks] if is_packed else zeros
                less = whole.reshape(columns, blocks)[:, groups].astype(data.dtype)
            numbers = unpack_bits(packed.reshape(columns, -1), bits)[:, :length].astype(data.dtype)
            product = data @ ((numbers - less) * scales.reshape(columns, blocks)[:, groups]).T
            return (product if bias is None else product + bias,)

    return [GatherElements, Erf, Gelu, MaxPool, AveragePool, MatMulNBits]


def _pool_windows(x: Array, attributes: Mapping[str, TorchObject], fill: float) -> Array | None:
    """Return the elements in a pool's windows, (N, C, *positions, *taps); None if it has other options than these."""
    rank, taps = x.ndim - 2, attributes["kernel_shape"]
    pads, steps = attributes.get("pads") or [0] * 2 * rank, attributes.get("strides") or [1] * rank
    is_plain = attributes.get("auto_pad") in (None, "NOTSET") and not attributes.get("ceil_mode")
    if not is_plain or set(attributes.get("dilations") or [1]) != {1} or x.dtype.kind != "f" or len(pads) != 2 * rank:
        return None
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)], constant_values=fill)
    windows = sliding_window_view(padded, tuple(taps), tuple(range(2, x.ndim)))
    return windows[(slice(None), slice(None), *(slice(None, None, step) for step in steps))]


def _limit_threads() -> contextlib.AbstractContextManager[object]:
    """Limit NumPy's products to one thread: threads that wait for busy cores double the CPU time.

    BERT beside three other programs on two cores: 7.9 s of CPU time, 2.1 s with one thread (14 s instead of 36 s).
    """
    try:
        limits = import_module("threadpoolctl").threadpool_limits
    except ImportError:
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[object] = limits(1, "blas")
    return context


def _make_reference(
    wide: Callable[[Arrays], Arrays], narrow: Callable[[Arrays], Arrays], library: str, name: str
) -> Reference:
    """Return a reference that computes in float64 (`wide`), or in the model's own dtypes (`narrow`) if refused."""

    def reference(arrays: Arrays, *, is_narrow: bool = False) -> tuple[Arrays, str]:
        try:
            if not is_narrow:
                return wide(arrays), f"{library} in float64"
        except _REFUSALS as error:
            _log.info("%s does not run in float64: %s", name, last_line(error))
        try:
            return narrow(arrays), library
        except _REFUSALS as error:
            raise RunError(
                f"check: {library} cannot run {name} on random inputs: {last_line(error):.200}; check=False "
                "(--no-check) builds the model without this check"
            ) from None

    return reference


def _evaluate_nodes(
    onnx: OnnxObject,
    evaluator: OnnxObject,
    model: OnnxObject,
    weights: dict[str, OnnxObject],
    given: dict[str, Array],
    convert: Callable[[Array], Array],
) -> Arrays:
    """Return a model's outputs; each node is evaluated alone, and `convert` converts its operands.

    Results are freed after their last reader.
    """
    versions = {operators.domain: operators.version for operators in model.opset_import}
    nodes = [part for node in model.graph.node for part in _expand_scaled_node(onnx, node)]
    readers = Counter(name for node in nodes for name in node.input)
    wanted = [output.name for output in model.graph.output]
    readers.update(wanted)
    values = {name: convert(array) for name, array in given.items()}

    def value(name: str) -> Array:
        return values[name] if name in values else convert(onnx.numpy_helper.to_array(weights[name]))

    def make_info(name: str) -> OnnxObject:
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.UNDEFINED, None)

    for node in nodes:
        names = [name for name in dict.fromkeys(node.input) if name]
        # branches and loops read values around them
        if any(entry.g.node or entry.graphs for entry in node.attribute):
            names = list({**values, **weights})
        results = [name for name in node.output if name]
        graph = onnx.helper.make_graph([node], "node", list(map(make_info, names)), list(map(make_info, results)))
        opsets = versions
        if node.op_type in _CONVERSIONS:  # older versions mean the same
            opsets = {**versions, "": max(_LEAST_QUANTISED, versions.get("", _LEAST_QUANTISED))}
        evaluator_of_node = evaluator(graph, opsets=opsets, functions=list(model.functions))
        computed = evaluator_of_node.run(None, {name: value(name) for name in names})
        if node.op_type in ("Cast", "CastLike") and computed[0].dtype.name in HALVES:
            computed = [value(node.input[0]).astype(np.float64)]  # 16 bits are for speed only
        values.update((name, convert(array)) for name, array in zip(results, computed, strict=True))
        for name in node.input:
            readers[name] -= 1
            if not readers[name]:
                values.pop(name, None)
    return [value(name) for name in wanted]


_SCALED = {
    "QGemm": ("Gemm", (0, 3, 6), 7), "QLinearAdd": ("Add", (0, 3), 6), "QLinearAveragePool": ("AveragePool", (0,), 3),
    "QLinearConv": ("Conv", (0, 3, 8), 6), "QLinearGlobalAveragePool": ("GlobalAveragePool", (0,), 3),
    "QLinearLeakyRelu": ("LeakyRelu", (0,), 3), "QLinearMatMul": ("MatMul", (0, 3), 6),
    "QLinearMul": ("Mul", (0, 3), 6),
    "QLinearReduceMean": ("ReduceMean", (0,), 3), "QLinearSigmoid": ("Sigmoid", (0,), 3),
    "QLinearSoftmax": ("Softmax", (0,), 3), "QLinearWhere": ("Where", (-1, 1, 4), 7),
}  # fmt: skip
"""Operator on scaled integers -> the one on numbers, where its operands are (of products the third is a bias in units
of both scales, of a choice the first are truth values), and where the result's scale is."""


_CONVERSIONS, _LEAST_QUANTISED = ("DequantizeLinear", "QuantizeLinear"), 19
"""Conversions from and to integers, and the first opset in which ONNX's evaluator has them."""


def _expand_scaled_node(onnx: OnnxObject, node: OnnxObject) -> list[OnnxObject]:
    """Return a node on scaled integers as conversions around a node on floats; other nodes unchanged.

    The evaluator has few of these operators, and they round to float32.
    """
    if node.domain not in ("", "ai.onnx", "com.microsoft"):
        return [node]
    if node.op_type == "QLinearConcat":
        given = list(node.input)
        op, places, end = "Concat", tuple(range(2, len(given), 3)), 0
    elif node.op_type in _SCALED:
        given = list(node.input)
        op, places, end = _SCALED[node.op_type]
    else:
        return [node]
    attributes = {entry.name: onnx.helper.get_attribute_value(entry) for entry in node.attribute}
    if attributes.pop("channels_last", 0):
        return [node]
    attributes.pop("opset", None)
    make, name = onnx.helper.make_node, node.output[0]
    nodes, operands = [], []
    for number, index in enumerate(places):
        word = f"{name}/{number}"
        if index >= len(given) or index == -1 or not given[index]:
            operands += [given[0]] * (index == -1)
        elif number == 2 and op in ("Conv", "Gemm"):
            nodes.append(make("Mul", [given[1], given[4]], [f"{word}/unit"]))
            nodes.append(make("Cast", [given[index]], [f"{word}/whole"], to=1))
            scaled = f"{word}/scaled"
            nodes.append(make("Mul", [f"{word}/whole", f"{word}/unit"], [scaled]))
            alpha = attributes.get("alpha", 1.0) if op == "Gemm" else 1.0  # onnxruntime also multiplies the bias by it
            nodes.append(make("Constant", [], [f"{word}/alpha"], value_float=alpha))
            nodes.append(make("Mul", [scaled, f"{word}/alpha"], [word]))
            operands.append(word)
        else:
            is_row = op == "MatMul" and number == 0
            is_column = number == 1 and (op == "MatMul" or (op == "Gemm" and not attributes.get("transB")))
            axis = -2 if is_row else -1 if is_column else 0
            nodes.append(make("DequantizeLinear", given[index : index + 3], [word], axis=axis))
            operands.append(word)
    if end >= len(given) or not given[end]:
        return [*nodes, make(op, operands, [name], **attributes)]
    nodes.append(make(op, operands, [f"{name}/number"], **attributes))
    return [*nodes, make("QuantizeLinear", [f"{name}/number", *given[end : end + 2]], [name])]


def _to_float64(array: Array) -> Array:
    is_narrow = isinstance(array, np.ndarray) and array.dtype.name in ("float32", *HALVES)
    return array.astype(np.float64) if is_narrow else array
