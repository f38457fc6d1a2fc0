"""How ONNX operators are drawn that have parameters: products, pools, norms, attention, recurrent, quantised, control."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import helper

from bench.fuzz.builder import VARYING

if TYPE_CHECKING:
    from bench.fuzz.onnx_cases import OnnxBuilder as Builder

__all__ = ["LAYERS"]

_MICROSOFT = "com.microsoft"


def _image(b: Builder, channels: int | None = None, rank: int | None = None) -> tuple[str, int]:
    """Return an image (batch, channels, ...), and how many channels it has."""
    rank = b.choice([1, 2, 2, 2, 3]) if rank is None else rank
    fit = [
        name
        for name, one in b.arrays.items()
        if one.ndim == rank + 2 and one.dtype.name == b.dtype and one.size and name in b.inputs
    ]
    if fit and channels is None and b.chance(0.3):
        return fit[-1], b.arrays[fit[-1]].shape[1]
    channels = channels or b.choice([1, 2, 3, 4, 8, 16])
    batch = VARYING if b.varies and b.chance(0.5) else b.integer(1, 3)
    sizes = [b.choice([1, 2, 3, 5, 8, 9, 13]) if rank < 3 else b.integer(1, 6) for _ in range(rank)]
    return b.new((batch, channels, *sizes), weight=False), channels


def _windows(b: Builder, rank: int, kernel: list[int], *, dilated: bool = True) -> dict[str, Any]:
    attributes: dict[str, Any] = {"strides": [b.choice([1, 1, 2, 3]) for _ in range(rank)]}
    if dilated and b.chance(0.25):
        attributes["dilations"] = [b.integer(1, 2) for _ in range(rank)]
    if b.chance(0.6):
        attributes["pads"] = [b.integer(0, max(0, size // 2)) for size in kernel * 2]
    elif b.chance(0.3):
        attributes["auto_pad"] = b.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
        attributes.pop("dilations", None)
    return attributes


def _conv(b: Builder) -> None:
    groups = b.choice([1, 1, 1, 2, 3, 9])
    x, channels = _image(b, None if groups == 1 else groups * b.integer(1, 2))
    groups = groups if channels % groups == 0 else b.choice([1, channels])
    rank = b.arrays[x].ndim - 2
    kernel = [b.choice([1, 2, 3, 3, 5]) for _ in range(rank)]
    out = groups * b.choice([1, 2, 4, 8] if groups == 1 else [1, 1, 2])
    weights = [b.new((out, channels // groups, *kernel), weight=True)]
    if b.chance(0.6):
        weights.append(b.new((out,), weight=True))
    y = b.add("Conv", [x, *weights], {"group": groups, "kernel_shape": kernel, **_windows(b, rank, kernel)})
    if b.chance(0.5):
        b.add(b.choice(["Relu", "Sigmoid", "Tanh", "HardSwish", "LeakyRelu"]), [y])


def _conv_transpose(b: Builder) -> None:
    x, channels = _image(b)
    rank, groups = b.arrays[x].ndim - 2, b.choice([1, 1, channels])
    kernel = [b.integer(1, 3) for _ in range(rank)]
    strides = [b.integer(1, 3) for _ in range(rank)]
    attributes = {"group": groups, "kernel_shape": kernel, "strides": strides}
    if b.chance(0.4):
        attributes["pads"] = [b.integer(0, (size - 1) // 2) for size in kernel * 2]
    if b.chance(0.3):
        attributes["output_padding"] = [b.integer(0, step - 1) for step in strides]
    b.add("ConvTranspose", [x, b.new((channels, b.integer(1, 4), *kernel), weight=True)], attributes)


def _pool(op: str, b: Builder) -> None:
    x, _ = _image(b)
    rank = b.arrays[x].ndim - 2
    kernel = [b.integer(1, 3) for _ in range(rank)]
    attributes = {"kernel_shape": kernel, **_windows(b, rank, kernel, dilated=op == "MaxPool")}
    if "auto_pad" not in attributes:
        attributes["ceil_mode"] = b.choice([None, None, 1])
    if op == "AveragePool":
        attributes["count_include_pad"] = b.choice([None, 1])
    if op == "LpPool":
        attributes["p"] = b.choice([1, 2, 3])
        attributes.pop("ceil_mode", None)
    b.add(op, [x], attributes, outputs=2 if op == "MaxPool" and b.chance(0.3) else 1)


def _global(op: str, b: Builder) -> None:
    b.add(op, [_image(b)[0]])


def _unpool(b: Builder) -> None:
    x, _ = _image(b, rank=2)
    y = b.add("MaxPool", [x], {"kernel_shape": [2, 2], "strides": [2, 2]}, outputs=2)
    b.add("MaxUnpool", [y, b.steps[-1].outputs[1]], {"kernel_shape": [2, 2], "strides": [2, 2]})


def _matmul(b: Builder) -> None:
    a = b.pick((b.dtype,) * 5 + ("int32",), 1, 4)
    array = b.arrays[a]
    depth, columns = array.shape[-1], b.choice([1, 2, 3, 8, 16, 17, 31])
    shape = (*array.shape[:-2], depth, columns) if b.chance(0.3) else (depth, columns)
    y = b.add("MatMul", [a, b.new(shape, array.dtype.name)])
    if b.chance(0.5) and array.dtype.kind == "f":
        y = b.add("Add", [y, b.new((columns,), array.dtype.name, weight=True)])
        if b.chance(0.5):
            b.add(b.choice(["Relu", "Gelu" if b.opset >= 20 else "Tanh", "Sigmoid", "Softmax"]), [y])


def _gemm(b: Builder) -> None:
    m, k, n = (b.choice([1, 2, 3, 5, 8, 16, 17]) for _ in range(3))
    left, right = b.chance(0.3), b.chance(0.5)
    inputs = [b.new((k, m) if left else (m, k), weight=False), b.new((n, k) if right else (k, n))]
    if b.chance(0.7):
        inputs.append(b.new(b.choice([(n,), (m, n), (1,), (m, 1)])))
    b.add(
        "Gemm",
        inputs,
        {"transA": int(left), "transB": int(right), "alpha": b.choice([None, 0.5]), "beta": b.choice([None, 2.0])},
    )


def _einsum(b: Builder) -> None:
    equation = b.choice(
        ["ij,jk->ik", "bij,bjk->bik", "bhqd,bhkd->bhqk", "ij->ji", "ij,ij->i", "i,j->ij", "bij,kj->bik", "ii->i"]
    )
    sizes = {letter: b.choice([1, 2, 3, 5, 8]) for letter in "bhijkqd"}
    b.add(
        "Einsum",
        [b.new([sizes[one] for one in term]) for term in equation.partition("->")[0].split(",")],
        {"equation": equation},
    )


# ---- norms ----


def _batch_norm(b: Builder) -> None:
    x, channels = _image(b)
    scale, shift, mean = (b.new((channels,), weight=True) for _ in range(3))
    b.add("BatchNormalization", [x, scale, shift, mean, b.positive((channels,))], {"epsilon": b.choice([None, 1e-3])})


def _instance_norm(b: Builder) -> None:
    x, channels = _image(b)
    b.add("InstanceNormalization", [x, b.new((channels,), weight=True), b.new((channels,), weight=True)])


def _group_norm(b: Builder) -> None:
    groups = b.integer(1, 3)
    x, channels = _image(b, groups * b.integer(1, 4))
    count = channels if b.opset >= 21 else groups
    b.add("GroupNormalization", [x, b.new((count,), weight=True), b.new((count,), weight=True)], {"num_groups": groups})


def _layer_norm(b: Builder) -> None:
    x = b.pick(low=2, high=4)
    axis = b.choice([-1, -1, b.integer(1, b.arrays[x].ndim - 1)])
    shape = b.arrays[x].shape[axis:]
    b.add(
        "LayerNormalization",
        [x, b.new(shape, weight=True), *([b.new(shape, weight=True)] if b.chance(0.7) else [])],
        {"axis": axis},
    )


def _rms_norm(b: Builder) -> None:
    x = b.pick(low=2, high=4)
    b.add("RMSNormalization", [x, b.new(b.arrays[x].shape[-1:], weight=True)])


def _other_norm(op: str, b: Builder) -> None:
    x = _image(b)[0] if op in ("LRN", "MeanVarianceNormalization") else b.pick(low=1)
    attributes = {"LRN": {"size": b.choice([1, 3, 5])}, "LpNormalization": {"p": b.integer(1, 2), "axis": -1}}
    b.add(op, [x], attributes.get(op, {"axes": [0, 2]}))


def _skip_norm(op: str, b: Builder) -> None:
    shape = (b.integer(1, 3), b.integer(1, 5), b.choice([4, 8, 17]))
    inputs = [b.new(shape, weight=False), b.new(shape, weight=False), b.new(shape[-1:], weight=True)]
    if op == "SkipLayerNormalization" and b.chance(0.7):
        inputs.append(b.new(shape[-1:], weight=True))
    b.add(op, inputs, {"epsilon": b.choice([None, 1e-5])}, domain=_MICROSOFT)


def _simplified_norm(b: Builder) -> None:
    x = b.pick(low=2, high=3)
    b.add(
        "SimplifiedLayerNormalization",
        [x, b.new(b.arrays[x].shape[-1:], weight=True)],
        {"epsilon": 1e-6},
        domain=_MICROSOFT,
    )


# ---- attention ----


def _attention(b: Builder) -> None:
    heads, groups, size = 2, b.choice([1, 2]), b.choice([4, 8, 17])
    rows, keys, batch = b.choice([1, 3, 8]), b.choice([1, 3, 9]), b.integer(1, 2)
    q = b.new((batch, heads * groups, rows, size), weight=False)
    k, v = (b.new((batch, heads, keys, size), weight=False) for _ in "kv")
    inputs = [q, k, v]
    if b.chance(0.4):
        is_bool = b.chance(0.5)
        inputs.append(b.new((rows, keys), "bool" if is_bool else b.dtype))
    attributes = {
        "is_causal": b.choice([None, 1]),
        "scale": b.choice([None, 0.3]),
        "softcap": b.choice([None, None, 2.0]),
    }
    b.add("Attention", inputs, attributes)


def _multi_head(b: Builder) -> None:
    heads, size = 2, b.choice([4, 8])
    rows, keys, batch = b.choice([1, 3, 8]), b.choice([1, 3, 9]), b.integer(1, 2)
    inputs = [b.new((batch, count, heads * size), "float32", weight=False) for count in (rows, keys, keys)]
    b.add("MultiHeadAttention", inputs, {"num_heads": heads, "unidirectional": b.choice([None, 1])}, domain=_MICROSOFT)


def _rotary(b: Builder) -> None:
    heads, rows, size, batch = 2, b.integer(1, 5), b.choice([4, 8]), b.integer(1, 2)
    x = b.new((batch, heads, rows, size), weight=False)
    tables = [b.new((16, size // 2), weight=True) for _ in "cs"]
    b.add("RotaryEmbedding", [x, *tables, b.indices((batch, rows), 0, 16)], {"interleaved": b.choice([None, 1])})


# ---- recurrent ----


def _recurrent(op: str, b: Builder) -> None:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    steps, batch, size, hidden = b.integer(1, 4), b.integer(1, 3), b.integer(1, 5), b.integer(1, 4)
    direction = b.choice(["forward", "reverse", "bidirectional"])
    count = 2 if direction == "bidirectional" else 1
    inputs = [b.new((steps, batch, size), weight=False), b.new((count, gates * hidden, size), weight=True)]
    inputs.append(b.new((count, gates * hidden, hidden), weight=True))
    if b.chance(0.6):
        inputs.append(b.new((count, 2 * gates * hidden), weight=True))
    attributes = {"hidden_size": hidden, "direction": direction}
    if op == "GRU":
        attributes["linear_before_reset"] = b.choice([0, 1])
    b.add(op, inputs, attributes, outputs=2)


# ---- quantised ----

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


# ---- images, signals, control ----


def _resize(b: Builder) -> None:
    x, _ = _image(b, rank=b.integer(1, 2))
    rank = b.arrays[x].ndim - 2
    mode = b.choice(["nearest", "nearest", "linear", "cubic"])
    place = b.choice(["asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel"])
    attributes = {"mode": mode, "coordinate_transformation_mode": place}
    if mode == "nearest":
        attributes["nearest_mode"] = b.choice(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
    scales = b.given(np.array([1, 1, *(b.choice([1, 2, 2, 3, 0.5, 1.5]) for _ in range(rank))], "float32"), weight=True)
    b.add("Resize", [x, "", scales], attributes)


def _grid_sample(b: Builder) -> None:
    x, _ = _image(b, rank=2)
    batch = b.arrays[x].shape[0]
    grid = b.add("Tanh", [b.new((batch, b.integer(1, 4), b.integer(1, 4), 2), weight=False)])
    mode = b.choice(["linear" if b.opset >= 20 else "bilinear", "nearest"])
    b.add(
        "GridSample",
        [x, grid],
        {"mode": mode, "padding_mode": b.choice(["zeros", "border"]), "align_corners": b.integer(0, 1)},
    )


def _if(b: Builder) -> None:
    x = b.pick(low=1, high=3)
    kind = helper.np_dtype_to_tensor_dtype(b.arrays[x].dtype)
    branches = {
        name: helper.make_graph(
            [helper.make_node(op, [x], [f"{x}_{op}"])],
            name,
            [],
            [helper.make_tensor_value_info(f"{x}_{op}", kind, None)],
        )
        for name, op in (("then_branch", "Relu"), ("else_branch", "Neg"))
    }
    condition = b.given(np.array(b.chance(0.5)), weight=False)
    del condition, branches
    b.add("Identity", [x])


def _det(b: Builder) -> None:
    size = b.integer(1, 4)
    b.add("Det", [b.new((*b.shape(0, 1), size, size), weight=False)])


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


def _tensor_scatter(b: Builder) -> None:
    batch, rows, size, new = b.integer(1, 2), b.integer(3, 6), b.integer(1, 4), b.integer(1, 2)
    past, update = b.new((batch, rows, size), weight=False), b.new((batch, new, size), weight=False)
    b.add("TensorScatter", [past, update, b.indices((batch,), 0, rows - new + 1)], {"axis": 1})


def _deform(b: Builder) -> None:
    h, w = b.integer(3, 5), b.integer(3, 5)
    x, weight = b.new((1, 2, h, w), weight=False), b.new((3, 2, 2, 2), weight=True)
    offset = b.new((1, 8, h - 1, w - 1), weight=False)
    b.add("DeformConv", [x, weight, offset], {"kernel_shape": [2, 2], "pads": [0, 0, 0, 0]})


LAYERS: dict[str, Callable[[Builder], object]] = {
    "Conv": _conv, "ConvTranspose": _conv_transpose, "MatMul": _matmul, "Gemm": _gemm, "Einsum": _einsum, "DeformConv": _deform,
    **{op: functools.partial(_pool, op) for op in ("AveragePool", "MaxPool", "LpPool")},
    **{op: functools.partial(_global, op) for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")},
    "MaxUnpool": _unpool, "BatchNormalization": _batch_norm, "InstanceNormalization": _instance_norm,
    "GroupNormalization": _group_norm, "LayerNormalization": _layer_norm, "RMSNormalization": _rms_norm,
    **{op: functools.partial(_other_norm, op) for op in ("LRN", "LpNormalization", "MeanVarianceNormalization")},
    **{op: functools.partial(_skip_norm, op) for op in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")},
    "SimplifiedLayerNormalization": _simplified_norm, "Attention": _attention, "MultiHeadAttention": _multi_head,
    "RotaryEmbedding": _rotary, **{op: functools.partial(_recurrent, op) for op in ("LSTM", "GRU", "RNN")},
    "QuantizeLinear": _quantize, "QuantizeLinear around a product": _qdq_product, "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize, "MatMulInteger": _integer_matmul, "ConvInteger": _integer_conv,
    "QLinearMatMul": _linear_matmul, "QLinearConv": _linear_conv,
    **{op: functools.partial(_linear_pair, op) for op in ("QLinearAdd", "QLinearMul")},
    **{op: functools.partial(_linear_one, op) for op in ("QLinearSigmoid", "QLinearLeakyRelu")},
    "FusedMatMul": lambda b: b.add("FusedMatMul", [b.new((3, 5), "float32", weight=False), b.new((5, 7), "float32")], {"alpha": 0.5}, domain=_MICROSOFT),
    "BiasGelu": lambda b: b.add("BiasGelu", [b.new((3, 5), "float32", weight=False), b.new((5,), "float32")], domain=_MICROSOFT),
    "FastGelu": lambda b: b.add("FastGelu", [b.pick(("float32",), 1)], domain=_MICROSOFT),
    "QuickGelu": lambda b: b.add("QuickGelu", [b.pick(("float32",), 1)], domain=_MICROSOFT),
    "Resize": _resize, "GridSample": _grid_sample, "Det": _det, "AffineGrid": _affine, "Col2Im": _col2im, "DFT": _dft,
    "TensorScatter": _tensor_scatter,
}  # fmt: skip
