"""What one ONNX operator computes in float64: by ONNX's reference evaluator, or by a function of our own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bench.fuzz.onnx.meanings import MEANINGS
from bench.fuzz.oracle import (
    EXACT,
    INNER,
    MOST,
    MOVE,
    NUM_SAMPLES,
    OUTER,
    WIDER,
    Noise,
    Undefined,
    is_float,
    worst_error,
)
from bench.fuzz.program import Array, Program, Step, words

__all__ = ["Sampled", "agrees", "evaluated", "is_strange", "model_of_step", "rounding", "sampled"]

_MOVES = words(
    """Identity Reshape Transpose Concat Slice Split Squeeze Unsqueeze Expand Tile Gather GatherElements GatherND
    Scatter ScatterElements ScatterND Pad Flatten DepthToSpace SpaceToDepth Shape Size Where Trilu Compress
    Constant ReverseSequence OneHot ConstantOfShape CenterCropPad Neg Abs Dropout EyeLike TensorScatter
    MaxUnpool"""
)
_EXACT = words(
    """Relu Max Min Clip ReduceMax ReduceMin MaxPool GlobalMaxPool ArgMax ArgMin TopK Ceil Floor Round Sign And Or
    Not Xor Equal Less LessOrEqual Greater GreaterOrEqual IsInf IsNaN Hardmax ThresholdedRelu NonZero Unique
    Cast CastLike BitShift BitwiseAnd BitwiseOr BitwiseXor BitwiseNot BitCast Upsample Range"""
)
_OUTER = words(
    """Add Sub Mul Div Acos Acosh Asin Asinh Atan Atanh Celu Cos Cosh Elu Erf Exp  LeakyRelu Log
    Mish Mod PRelu Pow QuickGelu Reciprocal Selu Shrink Sigmoid Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh"""
)
_ROUNDING = {**dict.fromkeys(_MOVES, MOVE), **dict.fromkeys(_EXACT, EXACT), **dict.fromkeys(_OUTER, OUTER)}
_SHAKEN = {"Resize": (0,), "TopK": (0,), "LayerNormalization": (0, 1, 2), "GroupNormalization": (0, 1, 2)}
"""Operands that have noise, where not all of them do: sizes that come from a scale must not change."""


_MOST_SCORE = {"float16": 1e4, "float32": 1e38, "bfloat16": 1e38}
_OF_FINITE = words(
    """Resize GridSample DeformConv DFT STFT AveragePool LpPool AffineGrid DynamicQuantizeLinear ReduceLogSumExp
    RoiAlign GRU LSTM RNN"""
)
"""Operators of finite numbers: whether those outside of a window, or with a weight of 0, count is open."""


_IN_FLOAT32 = words("DeformConv RoiAlign GridSample AffineGrid")
"""Operators whose places between elements the reference, or everybody, computes in float32."""
_OF_SQUARES, _ROOT = words("LayerNormalization GroupNormalization InstanceNormalization"), 1e17
"""Norms whose standard takes the variance in float32, and the numbers whose squares leave that: infinity, hence 0."""
_PLACE_OF_LARGEST = {"TopK": -1, "ArgMax": 0, "ArgMin": 0}
"""Operators whose last result is the place of largest elements, and the axis where none is given."""
_OF_SMALL, _SMALL = words("ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean ReduceProd"), 1e4
"""Reductions of integers that are of fractions meanwhile, or leave their dtype: of small ones alone."""


def rounding(step: Step) -> str:
    """Return how an operator rounds, one of those of `bench.fuzz.oracle`; a reduction of updates is inexact."""
    if step.attributes.get("reduction", "none") != "none":
        return INNER
    return _ROUNDING.get(step.op, INNER)


def model_of_step(step: Step, opset: int, arrays: Sequence[Array] | None = None) -> Any:
    """Return a model of one operator; with arrays its inputs have their types, and it can be checked."""
    from onnx import helper

    node = helper.make_node(step.op, list(step.inputs), list(step.outputs), domain=step.domain, **step.attributes)
    names = dict.fromkeys(name for name in step.inputs if name)
    given = dict(zip(step.inputs, arrays, strict=True)) if arrays is not None else {}
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(given[name].dtype), given[name].shape)
        if name in given else helper.make_tensor_value_info(name, 1, None)
        for name in names
    ]  # fmt: skip
    outputs = [helper.make_empty_tensor_value_info(name) for name in step.outputs if name]
    graph = helper.make_graph([node], "step", inputs, outputs)
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(step.domain, 1)] if step.domain else [])
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def is_strange(step: Step) -> bool:
    """Return whether an operator is of a domain that nobody knows, so that it has to be refused."""
    return step.domain not in ("", "com.microsoft")


def evaluated(step: Step, opset: int) -> Callable[[Sequence[Array | None]], list[Array]]:
    """Return what computes an operator: a function of its operands (None where one is left out)."""
    if is_strange(step):
        return lambda arrays: [arrays[0]]
    own = MEANINGS.get(step.op)
    if own is not None:
        attributes = {
            name: float(np.float32(one)) if isinstance(one, float) else one for name, one in step.attributes.items()
        }
        return lambda arrays: _several(own(attributes, *arrays), len(step.outputs), arrays)
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(model_of_step(step, opset))
    names = [name for name in step.outputs if name]

    def run(arrays: Sequence[Array | None]) -> list[Array]:
        feeds = {name: array for name, array in zip(step.inputs, arrays, strict=True) if name}
        found = dict(zip(names, evaluator.run(None, feeds), strict=True))
        return [np.asarray(found[name]) if name else None for name in step.outputs]

    return run


def agrees(step: Step, opset: int, arrays: Sequence[Array], computed: Sequence[Array]) -> bool:
    """Return whether onnxruntime, where it has the operator, computes the same on ordinary numbers, by and large."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    feeds = {name: array for name, array in zip(step.inputs, arrays, strict=True) if name}
    try:
        model = model_of_step(step, opset, arrays).SerializeToString()
        found = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, feeds)
    except Exception:  # noqa: BLE001  of onnxruntime: it has no such operator, or not of these dtypes
        return True
    wanted = [one for name, one in zip(step.outputs, computed, strict=True) if name]
    return all(
        one.shape == other.shape
        and np.allclose(one.astype("float64"), other.astype("float64"), 0.02, 0.02, equal_nan=True)
        for one, other in zip(found, wanted, strict=True)
        if other is not None
    )


def _several(found: Any, count: int, arrays: Sequence[Array | None]) -> list[Array]:
    """Return the results of a function of our own as a list, in the dtype of the floats that it was given."""
    floats = [one.dtype for one in arrays if one is not None and one.dtype.kind == "f"]
    results = list(found)[:count] if isinstance(found, tuple) else [found]
    return [
        one.astype(floats[0]) if floats and one is not None and np.asarray(one).dtype == np.float64 else one
        for one in results
    ]


def _is_undefined(step: Step, arrays: Sequence[Array | None], dtypes: Sequence[str], to: str) -> bool:
    """Return whether the standard leaves open what an operator makes of operands."""
    first = arrays[0] if arrays else None
    if step.op in ("Div", "Mod") and not is_float(dtypes[0]):
        limits = np.iinfo(dtypes[0])
        return bool((arrays[1] == 0).any() or (limits.min and (arrays[1] == -1).any() and (first == limits.min).any()))
    if step.op in ("Cast", "CastLike", "Shrink") and is_float(dtypes[0]) and to.startswith(("int", "uint")):
        limits = np.iinfo(to)
        return not bool((np.isfinite(first) & (first > limits.min - 1) & (first < float(limits.max))).all())
    if step.op in _OF_SMALL and not is_float(dtypes[0]):
        return bool((np.abs(first.astype(np.float64)) > _SMALL).any())
    if step.op == "Pow" and is_float(dtypes[0]) and bool(np.isneginf(first).any()):
        return True  # a power of 0.5 is a root or is not
    if step.op == "Pow" and not is_float(dtypes[0]):
        with np.errstate(all="ignore"):
            power = np.asarray(first, np.float64) ** np.asarray(arrays[1], np.float64)
        return not bool((np.abs(power) < 2.0**24).all())
    if step.op in _OF_FINITE and not all(np.isfinite(one).all() for one in arrays if one is not None):
        return True
    if step.op.endswith("Attention") and len(arrays) > 1 and arrays[0] is not None and arrays[1] is not None:
        with np.errstate(all="ignore"):
            largest = float(np.abs(first).max(initial=0)) * float(np.abs(arrays[1]).max(initial=0)) * first.shape[-1]
        if is_float(dtypes[0]) and np.isfinite(first).all() and largest > _MOST_SCORE.get(dtypes[0], np.inf):
            return True  # scores that overflow are NaN, or infinite, by the order of sums
    is_masked = len(arrays) > 3 or bool(step.attributes.get("unidirectional") or step.attributes.get("is_causal"))
    if (
        step.op.endswith("Attention")
        and is_masked
        and not all(np.isfinite(one).all() for one in arrays[:3] if one is not None and one.dtype.kind == "f")
    ):
        return True  # whether a NaN counts that a mask takes out: it does where masks are added
    if step.op.endswith("Attention") and any(one is not None and np.isinf(one).any() for one in arrays[:2]):
        return True  # scores that are all -inf without a mask: the reference and PyTorch have 0, onnxruntime NaN
    if step.op == "GridSample" and dtypes[0] == "float64" and step.attributes.get("mode") == "nearest":
        return True  # the reference has places in float32, and another nearest element
    if step.op == "Conv" and max(step.attributes.get("dilations", [1])) > 1:
        # The reference multiplies what lies between the taps of a dilated kernel by 0, which makes NaN of infinity.
        return not all(np.isfinite(one).all() for one in arrays if one is not None)
    if step.op == "GatherElements":  # the reference wraps indices around that are outside of a dimension
        size = first.shape[step.attributes.get("axis", 0)]
        return bool(((arrays[1] < -size) | (arrays[1] >= size)).any())
    if step.op in _OF_SQUARES and dtypes[0] == "float32":
        return bool((np.abs(first[np.isfinite(first)]) > _ROOT).any())
    if step.op == "DynamicQuantizeLinear" and not first.any():
        return True
    if step.op in ("ScatterElements", "ScatterND") and step.attributes.get("reduction") in ("max", "min"):
        return any(is_float(dtypes[place]) and bool(np.isnan(arrays[place]).any()) for place in (0, 2))
    if step.op in ("ArgMax", "ArgMin", "TopK", "Hardmax", "QuantizeLinear", "DynamicQuantizeLinear", "Unique", "Sign"):
        return first is not None and is_float(dtypes[0]) and bool(np.isnan(first).any())
    return False


Sampled = Mapping[str, Any]
"""Value -> its samples, `Undefined`; and "exact", "signs" -> names of values."""


def sampled(program: Program, run: int, *, num_samples: int = NUM_SAMPLES) -> dict[str, Any]:
    """Return samples of every value of a run: name -> (samples, dtype, whether exact, whether signs of zeros count).

    Raises
    ------
    Exception
        The reference evaluator cannot compute a step, whatever it raises.
    """
    opset = program.settings["opset"]
    given = {**program.weights, **program.feeds(run)}
    values: dict[str, Any] = {}
    for name, array in given.items():
        dtype = array.dtype.name
        one = array.astype(np.float64) if is_float(dtype) else array
        values[name] = ([one] * num_samples, dtype, True, True)
    noises = [Noise(sample, program.seed) for sample in range(num_samples)]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for step in program.steps:
            values.update(_sampled_step(step, opset, values, noises))
    return values


def _sampled_step(step: Step, opset: int, values: Mapping[str, Any], noises: Sequence[Noise]) -> dict[str, Any]:
    operands = [values[name] if name else None for name in step.inputs]
    if any(isinstance(one, Undefined) for one in operands):
        return dict.fromkeys((name for name in step.outputs if name), Undefined())
    how, run = rounding(step), evaluated(step, opset)
    dtypes = ["" if one is None else one[1] for one in operands]
    to = step_dtype(step, dtypes)
    results: list[list[Array]] = []
    shaken = _SHAKEN.get(step.op, range(len(operands)))
    for sample, noise in enumerate(noises):
        arrays = [None if one is None else one[0][sample] for one in operands]
        if _is_undefined(step, arrays, dtypes, to):
            return dict.fromkeys((name for name in step.outputs if name), Undefined())
        if how == INNER:
            arrays = [
                noise.operand(array, dtype) if place in shaken and dtype and is_float(dtype) else array
                for place, (array, dtype) in enumerate(zip(arrays, dtypes, strict=True))
            ]
        results.append(run(arrays))
    errors: list[Any] = [0.0] * len(step.outputs)
    native: list[Array] = []
    if how == INNER and len(noises) > 2:
        errors, native = _computed_natively(run, operands, results[0])
        if step.op == "Resize" and is_float(dtypes[0]):  # places between elements are numbers of float32
            errors = [errors[0] + 64 * 2.0**-23 * float(np.abs(results[0][0]).max(initial=0))]
        # Infinities and zeros of the dtype inside of this operator, and of those before it.
        results[2] = _computed_natively(run, operands, results[2], sample=2)[1] or results[2]
    for place, result in enumerate(results[0]):
        if step.op in _IN_FLOAT32 or (result is not None and result.dtype == np.float32 and "float64" in dtypes):
            sizes = [np.nan_to_num(np.abs(one), posinf=0).max(initial=0) for one in (result, operands[0][0][0])]
            errors[place] += 2.0**-21 * float(max(sizes))
    found = {}
    floats = [dtype for dtype in dtypes if dtype and is_float(dtype)]
    inner = all(one is None or one[2] for one in operands)
    signs = how == MOVE and all(one is None or one[3] for one in operands)
    for place, name in enumerate(step.outputs):
        if not name:
            continue
        samples = [result[place] for result in results]
        if step.op in _PLACE_OF_LARGEST and place == len(step.outputs) - 1:
            samples = _with_open_places(step, operands[0][0], samples)
        dtype = _dtype_of(step, place, samples[0].dtype.name, floats)
        if is_float(dtype):
            wides = [np.asarray(one, np.float64) for one in samples]
            samples = [noise.inner(one, errors[place], dtype) for noise, one in zip(noises, wides, strict=True)]
            if native:
                own = np.asarray(native[place], np.float64)
                samples = [noise.overflow(one, own) for noise, one in zip(noises, samples, strict=True)]
            if step.op in ("Sin", "Cos", "Tan"):
                samples = _with_open_phases(step.op, operands[0][0], samples, dtype)
            samples = [
                noise.result(np.asarray(one, np.float64), dtype, how)
                for noise, one in zip(noises, samples, strict=True)
            ]
        shapes = {one.shape for one in samples}
        if len(shapes) > 1:  # sizes that rounding decides
            found[name] = Undefined()
            continue
        found[name] = (samples, dtype, inner and (how in (MOVE, EXACT) or not is_float(dtype)), signs)
    return found


def _with_open_phases(op: str, angles: Sequence[Array], samples: Sequence[Array], dtype: str) -> list[Array]:
    """Return samples of a function of angles, two of them its limits where the hull of an angle allows all values.

    Few samples of an angle that is uncertain by more than a turn, or that may be on either side of a pole of the
    tangent, do not show how far apart the results are.
    """
    stack = np.stack(angles)
    finite = np.isfinite(stack)
    low, high = np.where(finite, stack, np.inf).min(0), np.where(finite, stack, -np.inf).max(0)
    reach = np.where(high > low, WIDER * (high - low), 0.0)
    low, high = low - reach, high + reach
    if op == "Tan":
        is_open = (reach > 0) & (np.floor(low / np.pi - 0.5) != np.floor(high / np.pi - 0.5))
    else:
        is_open = high - low >= 2 * np.pi
    most = min(1e20, MOST[dtype] / 64) if op == "Tan" else 1.0  # no float is nearer to a pole
    limits = {len(samples) - 2: most, len(samples) - 1: -most} if len(samples) > 2 else {}
    return [np.where(is_open, limits.get(place, one), one) for place, one in enumerate(samples)]


def _with_open_places(step: Step, values: Sequence[Array], samples: Sequence[Array]) -> list[Array]:
    """Return samples of places of largest elements, two of them the first and last of all that may be such.

    Where samples differ, rounding decides, and it may choose any element whose hull meets that of what they chose.
    """
    stack = np.stack(samples)
    if len(samples) < 3 or not samples[0].size or (stack == stack[0]).all():
        return list(samples)
    axis = step.attributes.get("axis", _PLACE_OF_LARGEST[step.op])
    is_reduced = step.op != "TopK" and not step.attributes.get("keepdims", 1)
    places = [np.moveaxis(np.expand_dims(one, axis) if is_reduced else one, axis, -1) for one in samples]
    rows = np.stack([np.moveaxis(one, axis, -1) for one in values])
    chosen = np.stack([np.take_along_axis(row, place, -1) for row, place in zip(rows, places, strict=True)])
    rows, low, high = rows[..., None, :], chosen.min(0)[..., None], chosen.max(0)[..., None]
    may_be = (rows.min(0) <= high) & (rows.max(0) >= low)
    ends = may_be.argmax(-1), may_be.shape[-1] - 1 - may_be[..., ::-1].argmax(-1)
    ends = [np.moveaxis(one, -1, axis) for one in ends]
    ends = [np.squeeze(one, axis) if is_reduced else one for one in ends]
    differs = (stack != stack[0]).any(0)
    return [*samples[:-2], *(np.where(differs, end, one) for end, one in zip(ends, samples[-2:], strict=True))]


def _computed_natively(
    run: Callable[..., list[Array]], operands: Sequence[Any], wide: Sequence[Array], sample: int = 0
) -> tuple[list[float], list[Array]]:
    """Return how far the reference is off at most in the dtypes of the operands, of a sample, and its results."""
    try:
        native = run([None if one is None else one[0][sample].astype(one[1]) for one in operands])
    except Exception:  # noqa: BLE001  of the reference
        return [0.0] * len(wide), []
    return [worst_error(one, other) for one, other in zip(native, wide, strict=True)], native


def step_dtype(step: Step, dtypes: Sequence[str]) -> str:
    """Return what a conversion converts to; "": the step is none."""
    from onnx import helper

    if step.op == "Cast":
        return np.dtype(helper.tensor_dtype_to_np_dtype(step.attributes["to"])).name
    return dtypes[1] if step.op == "CastLike" else dtypes[0] if step.op == "Shrink" and dtypes else ""


def _dtype_of(step: Step, place: int, computed: str, floats: Sequence[str]) -> str:
    """Return the dtype of a result; one that was computed in float64 has that of the operands."""
    if step.op in ("Cast", "CastLike"):
        return (
            step_dtype(step, floats) if step.op == "Cast" else computed if not floats else _cast_like(computed, floats)
        )
    if step.op == "DequantizeLinear":
        return floats[0]
    return floats[0] if floats and is_float(computed) else computed


def _cast_like(computed: str, floats: Sequence[str]) -> str:
    return computed if not is_float(computed) else floats[-1]
