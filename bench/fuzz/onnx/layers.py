"""How ONNX operators with weights are drawn: products, pools, norms, attention, recurrent layers."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from bench.fuzz.builder import VARYING, Draw
from bench.fuzz.program import words

if TYPE_CHECKING:
    from bench.fuzz.onnx.cases import OnnxBuilder as Builder

__all__ = ["LAYERS", "image_of"]

_MICROSOFT = "com.microsoft"
_EQUATIONS = words("ij,jk->ik bij,bjk->bik bhqd,bhkd->bhqk ij->ji ij,ij->i i,j->ij bij,kj->bik ii->i")


def image_of(b: Builder, channels: int | None = None, rank: int | None = None) -> tuple[str, int]:
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
    x, channels = image_of(b, None if groups == 1 else groups * b.integer(1, 2))
    groups = groups if channels % groups == 0 else b.choice([1, channels])
    rank = b.arrays[x].ndim - 2
    kernel = [b.choice([1, 2, 3, 3, 5]) for _ in range(rank)]
    out = groups * b.choice([1, 2, 4, 8] if groups == 1 else [1, 1, 2])
    weights = [b.new((out, channels // groups, *kernel), weight=True)]
    if b.chance(0.6):
        weights.append(b.new((out,), weight=True))
    y = b.add("Conv", [x, *weights], {"group": groups, "kernel_shape": kernel, **_windows(b, rank, kernel)})
    if b.chance(0.5):
        op = b.choice(["Relu", "Sigmoid", "Tanh", "HardSwish", "LeakyRelu"])
        if op != "HardSwish" or b.dtype != "float64":  # whether its sixth is one of float32 is open
            b.add(op, [y])


def _conv_transpose(b: Builder) -> None:
    x, channels = image_of(b)
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
    x, _ = image_of(b)
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
    b.add(op, [image_of(b)[0]])


def _unpool(b: Builder) -> None:
    x, _ = image_of(b, rank=2)
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
    equation = b.choice(_EQUATIONS)
    sizes = {letter: b.choice([1, 2, 3, 5, 8]) for letter in "bhijkqd"}
    b.add(
        "Einsum",
        [b.new([sizes[one] for one in term]) for term in equation.partition("->")[0].split(",")],
        {"equation": equation},
    )


def _deform(b: Builder) -> None:
    h, w = b.integer(3, 5), b.integer(3, 5)
    x, weight = b.new((1, 2, h, w), weight=False), b.new((3, 2, 2, 2), weight=True)
    offset = b.new((1, 8, h - 1, w - 1), weight=False)
    b.add("DeformConv", [x, weight, offset], {"kernel_shape": [2, 2], "pads": [0, 0, 0, 0]})


def _batch_norm(b: Builder) -> None:
    x, channels = image_of(b)
    scale, shift, mean = (b.new((channels,), weight=True) for _ in range(3))
    b.add("BatchNormalization", [x, scale, shift, mean, b.positive((channels,))], {"epsilon": b.choice([None, 1e-3])})


def _instance_norm(b: Builder) -> None:
    x, channels = image_of(b)
    b.add("InstanceNormalization", [x, b.new((channels,), weight=True), b.new((channels,), weight=True)])


def _group_norm(b: Builder) -> None:
    groups = b.integer(1, 3)
    x, channels = image_of(b, groups * b.integer(1, 4))
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
    x = image_of(b)[0] if op in ("LRN", "MeanVarianceNormalization") else b.pick(low=1)
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
    # onnxruntime has it in the standard's domain
    b.add("SimplifiedLayerNormalization", [x, b.new(b.arrays[x].shape[-1:], weight=True)], {"epsilon": 1e-6})


def _fused(op: str, b: Builder) -> None:
    """Add an operator of onnxruntime's."""
    x = b.new((3, 5), "float32", weight=False)
    is_product = op.endswith("MatMul")
    more = [b.new((5, 7) if is_product else (5,), "float32")] if is_product or op == "BiasGelu" else []
    b.add(op, [x, *more], {"alpha": 0.5} if is_product else {}, domain=_MICROSOFT)


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
        "scale": b.choice([None, 0.25]),  # its root is exact: the standard takes it in float32 for float64, too
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


LAYERS: dict[str, Draw] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "DeformConv": _deform,
    **{op: functools.partial(_pool, op) for op in ("AveragePool", "MaxPool", "LpPool")},
    **{op: functools.partial(_global, op) for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")},
    "MaxUnpool": _unpool,
    "BatchNormalization": _batch_norm,
    "InstanceNormalization": _instance_norm,
    "GroupNormalization": _group_norm,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    **{op: functools.partial(_other_norm, op) for op in ("LRN", "LpNormalization", "MeanVarianceNormalization")},
    **{op: functools.partial(_skip_norm, op) for op in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")},
    "SimplifiedLayerNormalization": _simplified_norm,
    "Attention": _attention,
    "MultiHeadAttention": _multi_head,
    "RotaryEmbedding": _rotary,
    **{op: functools.partial(_recurrent, op) for op in ("LSTM", "GRU", "RNN")},
    **{
        op: functools.partial(_fused, op)
        for op in ("FusedMatMul", "TransposeMatMul", "BiasGelu", "FastGelu", "QuickGelu")
    },
}
"""As `ELEMENTS`."""
