"""How other ONNX operators are drawn: numbers of 8 bits, images, signals, control."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto, helper

from bench.fuzz.builder import Draw
from bench.fuzz.onnx.layers import image_of
from bench.fuzz.program import words

if TYPE_CHECKING:
    from bench.fuzz.onnx.cases import OnnxBuilder as Builder

__all__ = ["OTHERS"]


_MICROSOFT = "com.microsoft"
_BYTES = ("uint8", "int8")


def _scale(b: Builder, count: int | None = None) -> str:
    array = (b.random.random(() if count is None else count) * 0.1 + 0.01).astype("float32")
    return b.given(array, weight=True)


def _zero(b: Builder, dtype: str, count: int | None = None) -> str:
    low, high = (0, 256) if dtype == "uint8" else (-128, 128)
    return b.indices(() if count is None else (count,), low, high, dtype=dtype, weight=True)


def _quantize(b: Builder) -> None:
    x = b.pick(("float32",), 1, 4)
    dtype = b.choice(_BYTES)
    y = b.add("QuantizeLinear", [x, scale := _scale(b), zero := _zero(b, dtype)])
    if b.chance(0.8):
        b.add("DequantizeLinear", [y, scale, zero])


def _qdq_product(b: Builder) -> None:
    """Add a product between conversions, as quantisers write it."""
    m, k, n, dtype = b.integer(1, 5), b.choice([3, 8, 16]), b.choice([2, 8, 17]), b.choice(_BYTES)
    x = b.new((m, k), "float32", weight=False)
    scale, zero = _scale(b), _zero(b, dtype)
    left = b.add("DequantizeLinear", [b.add("QuantizeLinear", [x, scale, zero]), scale, zero])
    weight = b.given(b.random.integers(-127, 128, (k, n)).astype("int8"), weight=True)
    right = b.add("DequantizeLinear", [weight, _scale(b, n), b.given(np.zeros(n, "int8"), weight=True)], {"axis": 1})
    y = b.add("MatMul", [left, right])
    y = b.add("Add", [y, b.new((n,), "float32", weight=True)]) if b.chance(0.5) else y
    b.add("DequantizeLinear", [b.add("QuantizeLinear", [y, out := _scale(b), zero]), out, zero])


def _dequantize(b: Builder) -> None:
    x = b.pick(_BYTES, 1, 4)
    b.add("DequantizeLinear", [x, _scale(b), _zero(b, b.arrays[x].dtype.name)])


def _dynamic_quantize(b: Builder) -> None:
    b.add("DynamicQuantizeLinear", [b.pick(("float32",), 1, 4)], outputs=3)


def _integer_matmul(b: Builder) -> None:
    m, k, n = (b.choice([1, 3, 8, 17]) for _ in range(3))
    a, w = b.choice(_BYTES), b.choice(_BYTES)
    b.add("MatMulInteger", [b.new((m, k), a, weight=False), b.new((k, n), w), _zero(b, a), _zero(b, w)])


def _integer_conv(b: Builder) -> None:
    channels, out = b.choice([1, 2, 4]), b.choice([1, 4])
    groups = channels if b.chance(0.3) else 1
    x = b.new((b.integer(1, 2), channels, 5, b.integer(3, 6)), "uint8", weight=False)
    w = b.new((groups * out, channels // groups, 3, 3), b.choice(_BYTES), weight=True)
    b.add("ConvInteger", [x, w, _zero(b, "uint8")], {"group": groups, "pads": [1, 1, 1, 1] if b.chance(0.5) else None})


def _linear_matmul(b: Builder) -> None:
    m, k, n, dtype = b.integer(1, 5), b.choice([3, 8]), b.choice([2, 8]), b.choice(_BYTES)
    a = [b.new((m, k), dtype, weight=False), _scale(b), _zero(b, dtype)]
    b.add("QLinearMatMul", [*a, b.new((k, n), dtype), _scale(b), _zero(b, dtype), _scale(b), _zero(b, dtype)])


def _linear_conv(b: Builder) -> None:
    channels, out = b.choice([1, 2, 4]), b.choice([1, 4])
    x = b.new((b.integer(1, 2), channels, 5, b.integer(3, 6)), "uint8", weight=False)
    w = b.new((out, channels, 3, 3), "int8", weight=True)
    zero = b.given(np.array(0, "int8"), weight=True)
    b.add(
        "QLinearConv",
        [x, _scale(b), _zero(b, "uint8"), w, _scale(b), zero, _scale(b), _zero(b, "uint8")],
        {"pads": [1, 1, 1, 1]},
    )


def _linear_pair(op: str, b: Builder) -> None:
    shape, dtype = b.shape(1, 3), b.choice(_BYTES)
    operands = [name for _ in range(2) for name in (b.new(shape, dtype, weight=False), _scale(b), _zero(b, dtype))]
    b.add(op, [*operands, _scale(b), _zero(b, dtype)], domain=_MICROSOFT)


def _linear_one(op: str, b: Builder) -> None:
    dtype = b.choice(_BYTES)
    attributes = {"alpha": 0.1} if op == "QLinearLeakyRelu" else {}
    b.add(
        op,
        [b.new(b.shape(1, 3), dtype, weight=False), _scale(b), _zero(b, dtype), _scale(b), _zero(b, dtype)],
        attributes,
        domain=_MICROSOFT,
    )


def _resize(b: Builder) -> None:
    x, _ = image_of(b, rank=b.integer(1, 2))
    rank = b.arrays[x].ndim - 2
    mode = b.choice(["nearest", "nearest", "linear", "cubic"])
    place = b.choice(["asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel"])
    attributes = {"mode": mode, "coordinate_transformation_mode": place}
    if mode == "nearest":
        attributes["nearest_mode"] = b.choice(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
    scales = b.given(np.array([1, 1, *(b.choice([1, 2, 2, 3, 0.5, 1.5]) for _ in range(rank))], "float32"), weight=True)
    b.add("Resize", [x, "", scales], attributes)


def _grid_sample(b: Builder) -> None:
    x, _ = image_of(b, rank=2)
    batch = b.arrays[x].shape[0]
    grid = b.add("Tanh", [b.new((batch, b.integer(1, 4), b.integer(1, 4), 2), weight=False)])
    mode = b.choice(["linear" if b.opset >= 20 else "bilinear", "nearest"])
    b.add(
        "GridSample",
        [x, grid],
        {"mode": mode, "padding_mode": b.choice(["zeros", "border"]), "align_corners": b.integer(0, 1)},
    )


def _if(b: Builder) -> None:
    shape = b.shape(1, 2)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(b.dtype))
    branches = {}
    for place, name in enumerate(("then_branch", "else_branch")):
        numbers = np.asarray(b.random.standard_normal(shape), b.dtype)
        value = helper.make_tensor("value", kind, shape, numbers.reshape(-1))
        node = helper.make_node("Constant", [], [f"branch{place}"], value=value)
        branches[name] = helper.make_graph(
            [node], name, [], [helper.make_tensor_value_info(f"branch{place}", kind, shape)]
        )
    y = b.add("If", [b.given(np.array(b.chance(0.5)), weight=b.chance(0.5))], branches)
    b.add("Mul", [y, b.like(y)])


def _body(b: Builder, inputs: list[Any], outputs: list[Any], nodes: list[tuple[str, list[str], str]]) -> Any:
    made = [helper.make_node(op, read, [name]) for op, read, name in nodes]
    return helper.make_graph(made, "body", inputs, outputs)


def _loop(b: Builder) -> None:
    x = b.pick(low=1, high=3)
    kind, shape = helper.np_dtype_to_tensor_dtype(b.arrays[x].dtype), b.arrays[x].shape
    info = helper.make_tensor_value_info
    body = _body(
        b, [info("step", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("state", kind, shape)],
        [info("goes", TensorProto.BOOL, []), info("next", kind, shape)],
        [("Identity", ["go"], "goes"), (b.choice(["Tanh", "Neg", "Sigmoid"]), ["state"], "next")],
    )  # fmt: skip
    count = b.given(np.array(b.integer(1, 4), "int64"), weight=True)
    b.add("Loop", [count, b.given(np.array(True), weight=True), x], {"body": body})


def _scan(b: Builder) -> None:
    steps, size = b.integer(1, 5), b.integer(1, 5)
    kind, info = helper.np_dtype_to_tensor_dtype(np.dtype(b.dtype)), helper.make_tensor_value_info
    body = _body(
        b,
        [info("state", kind, [size]), info("row", kind, [size])],
        [info("next", kind, [size]), info("told", kind, [size])],
        [("Add", ["state", "row"], "next"), (b.choice(["Tanh", "Relu"]), ["next"], "told")],
    )
    inputs = [b.new((size,), weight=False), b.new((steps, size), weight=False)]
    b.add("Scan", inputs, {"body": body, "num_scan_inputs": 1, "scan_input_directions": [0]}, outputs=2)


def _regions(b: Builder) -> None:
    """Add a pool of regions, corners in order."""
    x = b.new((2, b.integer(1, 3), 8, 9), weight=False)
    corners = np.sort(b.random.uniform(0, 7, (3, 2, 2)), 1).reshape(3, 4)
    mode = {"coordinate_transformation_mode": b.choice(["half_pixel", "output_half_pixel"])}
    size = {"output_height": b.integer(1, 3), "output_width": b.integer(1, 3), "sampling_ratio": 2}
    b.add("RoiAlign", [x, b.given(corners.astype(b.dtype), weight=True), b.indices((3,), 0, 2)], {**mode, **size})


def _stft(b: Builder) -> None:
    x = b.new((b.integer(1, 2), 24, 1), "float32", weight=False)
    step, length = (b.given(np.array(one, "int64"), weight=True) for one in (b.integer(2, 5), 8))
    b.add("STFT", [x, step, "", length], {"onesided": b.integer(0, 1)})


def _affine(b: Builder) -> None:
    b.add(
        "AffineGrid",
        [b.new((2, 2, 3), weight=False), b.numbers([2, 1, b.integer(1, 4), b.integer(1, 4)])],
        {"align_corners": b.integer(0, 1)},
    )


def _col2im(b: Builder) -> None:
    h, w, k = b.integer(3, 5), b.integer(3, 5), 2
    x = b.new((1, 2 * k * k, (h - 1) * (w - 1)), weight=False)
    b.add("Col2Im", [x, b.numbers([h, w]), b.numbers([k, k])])


def _dft(b: Builder) -> None:
    x = b.new((b.integer(1, 2), b.integer(1, 9), 1), "float32", weight=False)
    b.add("DFT", [x], {"axis": 1, "onesided": b.choice([0, 1])} if b.opset < 20 else {})


_STRANGERS = ("acme.custom", "qonnx.custom_op.channels_last", "com.microsoft.nchwc")
"""Domains that nobody knows, or that are of onnxruntime's own memory layouts."""


def _of_strangers(b: Builder) -> None:
    """Add an operator that is called like one of the standard's: it has to be refused."""
    op = b.choice(words("Relu Softmax Sigmoid Tanh Identity LeakyRelu"))
    b.add(op, [b.pick(low=1)], {"temperature": 0.1} if b.chance(0.3) else {}, domain=b.choice(_STRANGERS))


OTHERS: dict[str, Draw] = {
    "Relu of a domain that nobody knows": _of_strangers,
    "QuantizeLinear": _quantize,
    "QuantizeLinear around a product": _qdq_product,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "MatMulInteger": _integer_matmul,
    "ConvInteger": _integer_conv,
    "QLinearMatMul": _linear_matmul,
    "QLinearConv": _linear_conv,
    **{op: functools.partial(_linear_pair, op) for op in ("QLinearAdd", "QLinearMul")},
    **{op: functools.partial(_linear_one, op) for op in ("QLinearSigmoid", "QLinearLeakyRelu")},
    "Resize": _resize,
    "GridSample": _grid_sample,
    "AffineGrid": _affine,
    "Col2Im": _col2im,
    "DFT": _dft,
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
    "STFT": _stft,
    "RoiAlign": _regions,
}
"""As `ELEMENTS`."""
