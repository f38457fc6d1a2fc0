"""How ONNX operators on elements and reductions are drawn."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
from onnx import helper

from bench.fuzz.builder import Draw, Skip
from bench.fuzz.program import words

if TYPE_CHECKING:
    from bench.fuzz.onnx.cases import OnnxBuilder as Builder

__all__ = ["_SLOPES"]

INTEGERS = ("int32", "int64", "uint8", "int8", "int16", "uint16", "uint32", "uint64")
FLOATS = ("float32", "float16", "float64")
_UNARY = words(
    """Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Erf Exp Floor HardSwish IsNaN Log Mish Neg Reciprocal Relu
    Round Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Tan Tanh"""
)
_SMALL = (1e-8, 1e-5, -1e-5, 1e-3, 0.1, 0.5, 1.0, 1.5)
_REDUCTIONS = words(
    """ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
    ReduceSumSquare"""
)
_PAIRS = words("Add Sub Mul Div Equal Greater GreaterOrEqual Less LessOrEqual")


def _unary(op: str, b: Builder, **numbers: tuple[float, ...]) -> None:
    """Add a function of floats; each of its attributes is left out, or one of some numbers."""
    if op == "HardSwish" and b.dtype == "float64":
        raise Skip  # whether its sixth is one of float32 is open
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


def _dropout(b: Builder) -> None:
    b.add("Dropout", [b.pick()])


def _reduce(op: str, b: Builder) -> None:
    x = b.pick((b.dtype,) * 4 + ("int32", "int64") + (("uint8", "int8") if op in ("ReduceMax", "ReduceMin") else ()))
    rank = b.arrays[x].ndim
    axes = (
        sorted(b.random.choice(rank, b.integer(1, rank), replace=False).tolist()) if rank and b.chance(0.85) else None
    )
    as_input = b.opset >= (13 if op == "ReduceSum" else 18)
    attributes = {"keepdims": b.choice([0, 1]), "axes": None if as_input else axes}
    b.add(op, [x, b.numbers(axes)] if as_input and axes else [x], attributes)


def _long(op: str, b: Builder) -> None:
    if b.opset < 18 or b.chance(0.5):
        raise Skip
    b.add(op, [b.long(), b.numbers([0])], {"keepdims": 0})


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


_SLOPES = words("Celu Elu LeakyRelu ThresholdedRelu Swish")
ELEMENTS: dict[str, Draw] = {
    "ReduceSum of very many": functools.partial(_long, "ReduceSum"),
    "ReduceMean of very many": functools.partial(_long, "ReduceMean"),
    **{op: functools.partial(_unary, op) for op in _UNARY},
    **{f"{op} of numbers": functools.partial(_numeric, op) for op in ("Abs", "Neg", "Sign", "Relu")},
    **{op: functools.partial(_unary, op, alpha=_SMALL) for op in _SLOPES},
    "HardSigmoid": functools.partial(_unary, "HardSigmoid", alpha=(0.2, 1.0, 1e-5), beta=(0.5, 0.0, 1e-5)),
    "Selu": functools.partial(_unary, "Selu", alpha=(1.5, 1.0), gamma=(1.1, 1.0)),
    "Gelu": functools.partial(_unary, "Gelu", approximate=("tanh", "none")),
    "Shrink": functools.partial(_unary, "Shrink", lambd=(0.5, 1e-5), bias=(0.0, 0.5, 1e-5)),
    **{op: functools.partial(_pair, op) for op in _PAIRS},
    **{op: functools.partial(_logical, op) for op in ("And", "Or", "Xor")},
    **{op: functools.partial(_bits, op) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")},
    "BitwiseNot": lambda b: b.add("BitwiseNot", [b.pick(INTEGERS)]),
    "Not": lambda b: b.add("Not", [b.pick(("bool",))]),
    **{op: functools.partial(_many, op) for op in ("Max", "Min", "Mean", "Sum")},
    "BitShift": _shift,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Clip": _clip,
    "Dropout": _dropout,
    "IsInf": _is_inf,
    "Mod": _mod,
    "PRelu": _prelu,
    "Pow": _pow,
    "Where": _where,
    **{op: functools.partial(_reduce, op) for op in _REDUCTIONS},
    **{op: functools.partial(_arg, op) for op in ("ArgMax", "ArgMin")},
    **{op: functools.partial(_softmax, op) for op in ("Softmax", "LogSoftmax", "Hardmax")},
    **{op: functools.partial(_cumulative, op) for op in ("CumSum", "CumProd")},
    "TopK": _top_k,
}
"""Name -> what adds it; words behind an operator's name say which of its forms."""
