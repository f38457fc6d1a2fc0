"""How each ONNX operator is drawn: elements, moves, indices, reductions; the others come from `onnx_layers`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto, helper

from bench.fuzz.builder import Skip
from bench.fuzz.onnx_layers import LAYERS

if TYPE_CHECKING:
    from bench.fuzz.onnx_cases import OnnxBuilder as Builder

__all__ = ["NO_GENERATOR", "OPERATORS"]

INTEGERS = ("int32", "int64", "uint8", "int8", "int16", "uint16", "uint32", "uint64")
FLOATS = ("float32", "float16", "float64")
Draw = Callable[["Builder"], object]


def _unary(op: str, b: Builder, **numbers: tuple[float, ...]) -> None:
    """Add a function of floats; each of its attributes is left out, or one of some numbers."""
    x = b.pick()
    if op in ("Log", "Sqrt", "Acosh") and b.chance(0.7):
        x = b.add("Abs" if op != "Acosh" else "Exp", [x])
    if op in ("Acos", "Asin", "Atanh") and b.chance(0.7):
        x = b.add("Tanh", [x])
    b.add(op, [x], {name: b.choice(some) for name, some in numbers.items() if b.chance(0.6)})


def _numeric(op: str, b: Builder) -> None:
    b.add(op, [b.pick((b.dtype, b.dtype, *INTEGERS[:4]))])


def _pair(op: str, b: Builder) -> None:
    x = b.pick((b.dtype,) * 4 + INTEGERS[:4])
    y = b.like(x)
    if b.chance(0.25) and b.arrays[x].dtype.kind == "f":  # a constant of a body that is recognised
        number = b.choice([1e-8, -1e-8, 1e-6, 1e-5, -1e-5, 9e-5, 1e-3, 0.5, 1, 2, 3, 6, 0, 1e4])
        y = b.given(np.array(number, b.arrays[x].dtype), weight=True)
    b.add(op, [x, y] if b.chance(0.75) else [y, x])


def _logical(op: str, b: Builder) -> None:
    x = b.pick(("bool",))
    b.add(op, [x, b.like(x)])


def _bits(op: str, b: Builder) -> None:
    x = b.pick(INTEGERS)
    b.add(op, [x, b.like(x)])


def _shift(b: Builder) -> None:
    x = b.pick(("uint8", "uint16", "uint32", "uint64"))
    b.add("BitShift", [x, b.indices(b.arrays[x].shape, 0, 9, dtype=b.arrays[x].dtype.name)],
          {"direction": b.choice(["LEFT", "RIGHT"])})  # fmt: skip


def _many(op: str, b: Builder) -> None:
    x = b.pick((b.dtype,) * 4 + (INTEGERS[:2] if op in ("Max", "Min") else ()))
    b.add(op, [x, *(b.like(x) for _ in range(b.integer(0, 2)))])


def _clip(b: Builder) -> None:
    x = b.pick((b.dtype,) * 3 + ("int32", "int64"))
    dtype = b.arrays[x].dtype
    low = b.choice([0, 1e-8, 1e-6, 1e-5, -1e-5, 9e-5, -1, -2.5])
    high = b.choice([6, 1, 3, 1e-4, 1e4])
    bounds = [b.given(np.array(number, dtype), weight=True) if b.chance(0.7) else "" for number in (low, high)]
    b.add("Clip", [x, *bounds])


def _cast(b: Builder) -> None:
    x = b.pick((b.dtype, b.dtype, "bool", *INTEGERS))
    b.add(
        "Cast",
        [x],
        {"to": helper.np_dtype_to_tensor_dtype(np.dtype(b.choice(["bool", *INTEGERS[:4], *FLOATS, b.dtype])))},
    )


def _cast_like(b: Builder) -> None:
    b.add("CastLike", [b.pick((b.dtype, "bool", "int32")), b.new((1,), b.choice([b.dtype, "int64", "bool"]))])


def _where(b: Builder) -> None:
    x = b.pick((b.dtype, b.dtype, "int64", "int32", "uint8"))
    b.add("Where", [b.new(b.arrays[x].shape, "bool"), x, b.like(x)])


def _mod(b: Builder) -> None:
    x = b.pick((b.dtype, *INTEGERS[:3]))
    b.add("Mod", [x, b.like(x)], {"fmod": 1 if b.arrays[x].dtype.kind == "f" or b.chance(0.3) else None})


def _pow(b: Builder) -> None:
    x = b.pick()
    b.add(
        "Pow",
        [
            x,
            b.given(np.array(b.choice([2, 3, 0.5, -1, -2, 1, 0, 1.5]), b.dtype), weight=True)
            if b.chance(0.7)
            else b.like(x),
        ],
    )


def _prelu(b: Builder) -> None:
    x = b.pick(low=1)
    b.add("PRelu", [x, b.new((b.arrays[x].shape[-1],), weight=True)])


def _is_inf(b: Builder) -> None:
    b.add("IsInf", [b.pick()], {"detect_positive": b.choice([None, 0]), "detect_negative": b.choice([None, 0])})


# ---- moves ----


def _any(b: Builder, low: int = 1, high: int = 5) -> str:
    return b.pick((b.dtype,) * 5 + ("bool", *INTEGERS[:4]), low, high)


def _reshape(b: Builder) -> None:
    x = _any(b)
    shape, sizes = b.arrays[x].shape, []
    left = list(shape)
    while left:  # neighbours are joined, or a dimension is split
        count = b.integer(1, min(2, len(left)))
        size, left = int(np.prod(left[:count])), left[count:]
        factors = [f for f in range(2, 9) if size and size % f == 0 and size != f]
        sizes += [f := b.choice(factors), size // f] if factors and b.chance(0.4) else [size]
    if b.chance(0.4) and 0 not in sizes:
        sizes[b.integer(0, len(sizes) - 1)] = -1
    b.add("Reshape", [x, b.numbers(sizes)])


def _transpose(b: Builder) -> None:
    x = _any(b, 2)
    b.add("Transpose", [x], {"perm": [int(one) for one in b.random.permutation(b.arrays[x].ndim)]})


def _concat(b: Builder) -> None:
    x = _any(b)
    axis = b.integer(-b.arrays[x].ndim, b.arrays[x].ndim - 1)
    shape = list(b.arrays[x].shape)
    others = []
    for _ in range(b.integer(1, 2)):
        shape[axis] = max(1, b.size())
        others.append(x if b.chance(0.2) else b.new(shape, b.arrays[x].dtype.name))
    b.add("Concat", [x, *others], {"axis": axis})


def _slice(b: Builder) -> None:
    x = _any(b)
    shape = b.arrays[x].shape
    axes = sorted(b.random.choice(len(shape), b.integer(1, min(2, len(shape))), replace=False).tolist())
    starts, ends, steps = [], [], []
    for axis in axes:
        step = b.choice([1, 1, 1, 2, 3, -1, -2])
        low, high = sorted(b.integer(-shape[axis] - 1, shape[axis] + 1) for _ in "ab")
        begin, end = (low, high) if step > 0 else (high, low)
        if b.chance(0.3):
            begin, end = (-1, 1 << 62) if b.chance(0.5) else ((0, 1 << 62) if step > 0 else (-1, -(1 << 62)))
        starts.append(begin), ends.append(end), steps.append(step)
    b.add("Slice", [x, b.numbers(starts), b.numbers(ends), b.numbers(axes), b.numbers(steps)])


def _flipped(b: Builder) -> None:
    """Add a slice that turns an axis around."""
    x = _any(b)
    axis = b.integer(0, b.arrays[x].ndim - 1)
    b.add("Slice", [x, b.numbers([-1]), b.numbers([-(1 << 62)]), b.numbers([axis]), b.numbers([-1])])


def _split(b: Builder) -> None:
    x = _any(b)
    axis = b.integer(0, b.arrays[x].ndim - 1)
    size = b.arrays[x].shape[axis]
    if size < 2:
        raise Skip
    first = b.integer(1, size - 1)
    b.add("Split", [x, b.numbers([first, size - first])], {"axis": axis}, outputs=2)


def _squeeze(b: Builder) -> None:
    x = _any(b)
    ones = [axis for axis, size in enumerate(b.arrays[x].shape) if size == 1]
    if not ones:
        raise Skip
    b.add("Squeeze", [x, b.numbers([b.choice(ones)])] if b.chance(0.7) else [x])


def _unsqueeze(b: Builder) -> None:
    x = _any(b, 0, 4)
    b.add("Unsqueeze", [x, b.numbers([b.integer(-b.arrays[x].ndim - 1, b.arrays[x].ndim)])])


def _expand(b: Builder) -> None:
    x = _any(b, 0, 4)
    shape = [b.size() or 1 if size == 1 and b.chance(0.7) else size for size in b.arrays[x].shape]
    b.add("Expand", [x, b.numbers([b.integer(1, 3), *shape] if b.chance(0.3) else shape)])


def _tile(b: Builder) -> None:
    x = _any(b, 1, 4)
    b.add("Tile", [x, b.numbers([b.integer(1, 3) for _ in b.arrays[x].shape])])


def _pad(b: Builder) -> None:
    x = _any(b, 1, 4)
    array = b.arrays[x]
    mode = b.choice(["constant", "constant", "edge", "reflect", "wrap" if b.opset >= 19 else "edge"])
    low = -1 if mode == "constant" and b.chance(0.2) else 0
    most = 3 if mode in ("constant", "edge") else max(0, min(2, *(size - 1 for size in array.shape), 2))
    pads = [b.integer(low, most) for _ in range(2 * array.ndim)]
    inputs = [x, b.numbers(pads)]
    if mode == "constant" and b.chance(0.4):
        inputs.append(b.given(np.array(b.choice([0, 1, 3]), array.dtype), weight=True))
    b.add("Pad", inputs, {"mode": mode})


def _flatten(b: Builder) -> None:
    x = _any(b)
    b.add("Flatten", [x], {"axis": b.integer(-b.arrays[x].ndim, b.arrays[x].ndim)})


def _blocks(op: str, b: Builder) -> None:
    size = b.integer(1, 3)
    n, c, h, w = b.integer(1, 3), b.integer(1, 3), b.integer(1, 4), b.integer(1, 4)
    shape = (n, c * size * size, h, w) if op == "DepthToSpace" else (n, c, h * size, w * size)
    x = b.new(shape, weight=False)
    b.add(op, [x], {"blocksize": size, "mode": b.choice([None, "CRD"]) if op == "DepthToSpace" else None})


def _shape(b: Builder) -> None:
    x = _any(b)
    b.add("Shape", [x], {"start": b.choice([None, 1, -1]) if b.opset >= 15 else None})


def _trilu(b: Builder) -> None:
    x = _any(b, 2, 4)
    b.add("Trilu", [x, b.given(np.array(b.integer(-3, 3)), weight=True)], {"upper": b.choice([0, 1])})


def _crop(b: Builder) -> None:
    x = _any(b, 1, 4)
    b.add("CenterCropPad", [x, b.numbers([max(1, b.size()) for _ in b.arrays[x].shape])])


def _constant_of_shape(b: Builder) -> None:
    value = helper.make_tensor("value", TensorProto.FLOAT, [1], [b.choice([0.0, 1.5])])
    x = b.add("ConstantOfShape", [b.numbers(b.shape(1, 2))], {"value": value})
    b.add("Add", [x, b.like(x)])


def _constant(b: Builder) -> None:
    shape = b.shape(1, 2)
    numbers = np.asarray(b.random.standard_normal(shape), "float32").reshape(-1)
    x = b.add("Constant", [], {"value": helper.make_tensor("value", TensorProto.FLOAT, shape, numbers)})
    b.add("Mul", [x, b.new(shape, "float32", weight=False)])


def _eye(b: Builder) -> None:
    x = b.pick((b.dtype, "int32"), 2, 2)
    b.add("Add", [x, b.add("EyeLike", [x], {"k": b.integer(-2, 2)})])


def _range(b: Builder) -> None:
    x = b.add("Range", [b.given(np.array(one, "int64"), weight=True) for one in (0, b.integer(1, 9), b.integer(1, 2))])
    b.add("Cast", [x], {"to": 1})


def _dropout(b: Builder) -> None:
    b.add("Dropout", [b.pick()])


# ---- indices ----


def _gather(b: Builder) -> None:
    x = _any(b)
    axis = b.integer(0, b.arrays[x].ndim - 1)
    size = b.arrays[x].shape[axis]
    shape = b.shape(0, 2) if b.chance(0.8) else ()
    b.add("Gather", [x, b.indices(shape, -size, size, dtype=b.choice(["int64", "int32"]))], {"axis": axis})


def _gather_elements(b: Builder) -> None:
    x = _any(b)
    axis, shape = b.integer(0, b.arrays[x].ndim - 1), list(b.arrays[x].shape)
    size = shape[axis]
    shape[axis] = b.integer(1, 5)
    b.add("GatherElements", [x, b.indices(shape, -size, size)], {"axis": axis})


def _gather_nd(b: Builder) -> None:
    x = _any(b, 1, 4)
    array = b.arrays[x]
    depth = b.integer(1, array.ndim)
    shape = (*b.shape(1, 2), depth)
    b.add("GatherND", [x, b.indices(shape, 0, min([2, *array.shape[:depth]]))])


def _scatter_elements(b: Builder) -> None:
    x = b.pick((b.dtype, b.dtype, "int64", "int32"), 1, 4)
    array = b.arrays[x]
    axis, shape = b.integer(0, array.ndim - 1), list(array.shape)
    size = shape[axis]
    reduction = b.choice(["add", "mul", "max", "min"]) if b.opset >= 18 and b.chance(0.6) else None
    count = b.integer(1, 5) if reduction else min(size, b.integer(1, 3))
    shape[axis] = count
    if reduction:
        where = b.indices(shape, -size, size)
    else:  # places differ: the order of updates is open
        where = b.given(
            np.broadcast_to(
                b.random.permutation(size)[:count].reshape([-1 if one == axis else 1 for one in range(array.ndim)]),
                shape,
            ).astype("int64"),
            weight=True,
        )
    b.add("ScatterElements", [x, where, b.new(shape, array.dtype.name)], {"axis": axis, "reduction": reduction})


def _scatter_nd(b: Builder) -> None:
    x = b.pick((b.dtype, b.dtype, "int64"), 1, 4)
    array = b.arrays[x]
    reduction = b.choice(["add", "mul", "max", "min"]) if b.opset >= 18 and b.chance(0.6) else None
    count = b.integer(1, 4) if reduction else 1
    where = b.indices((count, 1), 0, array.shape[0])
    b.add("ScatterND", [x, where, b.new((count, *array.shape[1:]), array.dtype.name)], {"reduction": reduction})


def _one_hot(b: Builder) -> None:
    depth = b.integer(1, 9)
    where = b.indices(b.shape(1, 2), -depth, depth, weight=False)
    b.add("OneHot", [where, b.given(np.array(depth), weight=True), b.given(np.array([0, b.choice([1, 3])], b.dtype), weight=True)],
          {"axis": b.choice([-1, 0])})  # fmt: skip


def _reverse_sequence(b: Builder) -> None:
    x = b.pick(low=2, high=4)
    time, batch = b.arrays[x].shape[:2]
    if not time * batch:
        raise Skip
    b.add("ReverseSequence", [x, b.indices((batch,), 1, time + 1)], {"time_axis": 0, "batch_axis": 1})


def _compress(b: Builder) -> None:
    x = _any(b)
    axis = b.integer(0, b.arrays[x].ndim - 1)
    b.add("Compress", [x, b.given(b.random.random(b.arrays[x].shape[axis]) < 0.6, weight=True)], {"axis": axis})


# ---- reductions ----


def _reduce(op: str, b: Builder) -> None:
    x = b.pick((b.dtype,) * 4 + ("int32", "int64") + (("uint8", "int8") if op in ("ReduceMax", "ReduceMin") else ()))
    rank = b.arrays[x].ndim
    axes = (
        sorted(b.random.choice(rank, b.integer(1, rank), replace=False).tolist()) if rank and b.chance(0.85) else None
    )
    as_input = b.opset >= (13 if op == "ReduceSum" else 18)
    attributes = {"keepdims": b.choice([0, 1]), "axes": None if as_input else axes}
    b.add(op, [x, b.numbers(axes)] if as_input and axes else [x], attributes)


def _arg(op: str, b: Builder) -> None:
    x = b.pick((b.dtype,) * 3 + ("uint8", "int8", "int32", "int64"), 1)
    axis = b.integer(-b.arrays[x].ndim, b.arrays[x].ndim - 1)
    b.add(op, [x], {"axis": axis, "keepdims": b.choice([0, 1]), "select_last_index": b.choice([None, None, 1])})


def _softmax(op: str, b: Builder) -> None:
    x = b.pick(low=1)
    b.add(op, [x], {"axis": b.integer(-b.arrays[x].ndim, b.arrays[x].ndim - 1)})


def _cumulative(op: str, b: Builder) -> None:
    x = b.pick((b.dtype, b.dtype, "int32", "int64"), 1)
    axis = b.given(np.array(b.integer(-b.arrays[x].ndim, b.arrays[x].ndim - 1)), weight=True)
    b.add(op, [x, axis], {"exclusive": b.choice([None, 1]), "reverse": b.choice([None, 1])})


def _top_k(b: Builder) -> None:
    x = b.pick((b.dtype,) * 3 + ("int32", "int64", "uint8" if b.opset >= 24 else "int32"), 1)
    axis = b.integer(0, b.arrays[x].ndim - 1)
    count = b.integer(1, max(1, b.arrays[x].shape[axis]))
    b.add("TopK", [x, b.numbers([count])], {"axis": axis, "largest": b.choice([0, 1])}, outputs=2)


_UNARY = [
    "Abs",
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "Ceil",
    "Cos",
    "Cosh",
    "Erf",
    "Exp",
    "Floor",
    "HardSwish",
    "IsNaN",
    "Log",
    "Mish",
    "Neg",
    "Reciprocal",
    "Relu",
    "Round",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Tan",
    "Tanh",
]
_SMALL = (1e-8, 1e-5, -1e-5, 1e-3, 0.1, 0.5, 1.0, 1.5)

OPERATORS: dict[str, Draw] = {
    **{op: functools.partial(_unary, op) for op in _UNARY},
    **{f"{op} of numbers": functools.partial(_numeric, op) for op in ("Abs", "Neg", "Sign", "Relu")},
    **{op: functools.partial(_unary, op, alpha=_SMALL) for op in ("Celu", "Elu", "LeakyRelu", "ThresholdedRelu", "Swish")},
    "HardSigmoid": functools.partial(_unary, "HardSigmoid", alpha=(0.2, 1.0, 1e-5), beta=(0.5, 0.0, 1e-5)),
    "Selu": functools.partial(_unary, "Selu", alpha=(1.5, 1.0), gamma=(1.1, 1.0)),
    "Gelu": functools.partial(_unary, "Gelu", approximate=("tanh", "none")),
    "Shrink": functools.partial(_unary, "Shrink", lambd=(0.5, 1e-5), bias=(0.0, 0.5, 1e-5)),
    **{op: functools.partial(_pair, op) for op in ("Add", "Sub", "Mul", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")},
    **{op: functools.partial(_logical, op) for op in ("And", "Or", "Xor")},
    **{op: functools.partial(_bits, op) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")},
    "BitwiseNot": lambda b: b.add("BitwiseNot", [b.pick(INTEGERS)]), "Not": lambda b: b.add("Not", [b.pick(("bool",))]),
    **{op: functools.partial(_many, op) for op in ("Max", "Min", "Mean", "Sum")},
    "BitShift": _shift, "Cast": _cast, "CastLike": _cast_like, "Clip": _clip, "Dropout": _dropout, "IsInf": _is_inf,
    "Identity": lambda b: b.add("Identity", [_any(b)]), "Mod": _mod, "PRelu": _prelu, "Pow": _pow, "Where": _where,
    "CenterCropPad": _crop, "Concat": _concat, "Constant": _constant, "ConstantOfShape": _constant_of_shape,
    **{op: functools.partial(_blocks, op) for op in ("DepthToSpace", "SpaceToDepth")}, "Expand": _expand, "EyeLike": _eye,
    "Flatten": _flatten, "Pad": _pad, "Range": _range, "Reshape": _reshape, "Shape": _shape, "Slice": _slice,
    "Slice that flips": _flipped, "Size": lambda b: b.add("Size", [_any(b)]), "Split": _split, "Squeeze": _squeeze,
    "Tile": _tile, "Transpose": _transpose, "Trilu": _trilu, "Unsqueeze": _unsqueeze,
    "Compress": _compress, "Gather": _gather, "GatherElements": _gather_elements, "GatherND": _gather_nd, "OneHot": _one_hot,
    "ReverseSequence": _reverse_sequence, "ScatterElements": _scatter_elements, "ScatterND": _scatter_nd,
    **{op: functools.partial(_reduce, op) for op in ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax",
       "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare")},
    **{op: functools.partial(_arg, op) for op in ("ArgMax", "ArgMin")},
    **{op: functools.partial(_softmax, op) for op in ("Softmax", "LogSoftmax", "Hardmax")},
    **{op: functools.partial(_cumulative, op) for op in ("CumSum", "CumProd")}, "TopK": _top_k,
    **LAYERS,
}  # fmt: skip
"""Name -> what adds it; words behind an operator's name say which of its forms."""

_ML, _TEXT = "of ai.onnx.ml, always refused", "of text, always refused"
_SEQUENCE, _RANDOM, _DATA = (
    "of sequences, always refused",
    "random numbers, always refused",
    "sizes that depend on data",
)
NO_GENERATOR: dict[str, str] = {
    **dict.fromkeys(["ArrayFeatureExtractor", "Binarizer", "CastMap", "CategoryMapper", "DictVectorizer", "FeatureVectorizer", "Imputer", "LabelEncoder", "LinearClassifier", "LinearRegressor", "Normalizer", "OneHotEncoder", "SVMClassifier", "SVMRegressor", "Scaler", "TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor", "ZipMap"], _ML),
    **dict.fromkeys(["RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer"], _TEXT),
    **dict.fromkeys(["ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength", "SequenceMap", "SplitToSequence", "Optional", "OptionalGetElement", "OptionalHasElement"], _SEQUENCE),
    **dict.fromkeys(["Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"], _RANDOM),
    **dict.fromkeys(["NonMaxSuppression", "NonZero", "Unique"], _DATA),
    "ImageDecoder": "files of images, always refused",
    "Scatter": "older name of ScatterElements, which the reference evaluator does not have",
    "Upsample": "older form of Resize, which current opsets do not have",
    "BitCast": "known numbers alone, folded when they are read",
    **dict.fromkeys(["EmbedLayerNormalization", "PagedAttention", "MatMulNBits", "MatMulInteger16", "QGemm", "QLinearAveragePool", "QLinearConcat", "QLinearGlobalAveragePool", "QLinearReduceMean", "QLinearSoftmax", "QLinearWhere"],
        "of com.microsoft, without a reference in float64 so far"),
}  # fmt: skip
"""Operator that is read -> why no generator draws it."""
