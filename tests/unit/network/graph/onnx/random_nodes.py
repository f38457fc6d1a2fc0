"""Nodes of the standard with random attributes that their schemas allow, and operands that fit these."""

import numpy as np


def pick(rng, *values):
    return values[int(rng.integers(len(values)))]


def real(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def integers(*numbers):
    return np.array(numbers, np.int64)


def bytes_of(rng, *shape, dtype=np.uint8):
    return rng.integers(0, 120, shape).astype(dtype)


_ON = (0, 1)
VALUES = {
    "align_corners": _ON, "allowzero": (0,), "alpha": (0.3, 1.0, 2.0), "antialias": _ON,
    "approximate": ("none", "tanh"),
    "auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"), "axes": ([0], [1], [-1, 0]), "axis": (-1, 0, 1, 2, -2),
    "batch_dims": _ON, "beta": (0.3, 1.0, 0.0), "bias": (0.0, 0.2, 1.0), "blocksize": (2,), "broadcast": (0,),
    "ceil_mode": _ON, "coordinate_transformation_mode": (
        "half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric",
    ), "count_include_pad": _ON, "cubic_coeff_a": (-0.5, -0.75), "detect_negative": _ON, "detect_positive": _ON,
    "dilations": ([1, 1], [2, 1]), "direction": ("LEFT", "RIGHT"), "dtype": (1, 7), "end": (1, 2, -1, 9),
    "epsilon": (1e-5, 0.1), "exclude_outside": _ON, "exclusive": _ON, "extrapolation_value": (0.0, 3.0),
    "fmod": (1,), "gamma": (1.1, 2.0), "group": (1, 2), "hidden_size": (3,), "input_forget": _ON, "interleaved": _ON,
    "inverse": _ON, "is_causal": _ON, "is_test": _ON, "k": (0, 1, -1), "keepdims": _ON, "kernel_shape": ([2, 3],),
    "kv_num_heads": (2,), "lambd": (0.1, 0.5, 1.0), "largest": _ON, "layout": _ON, "left_window_size": (-1, 1),
    "linear_before_reset": _ON, "max": (0.5,), "min": (-0.5,), "momentum": (0.9, 0.5),
    "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"), "noop_with_empty_axes": _ON,
    "num_groups": (2,), "num_outputs": (2,), "offset_group": (1,), "onesided": _ON, "output_height": (2,),
    "output_padding": ([0, 0], [1, 0]), "output_width": (3,), "p": (1, 2), "padding_mode": (
        "zeros", "border", "reflection",
    ), "pads": ([0, 0, 0, 0], [1, 1, 0, 1], [0, 1, 1, 0]), "perm": ([0, 2, 1, 3], [3, 2, 1, 0]),
    "pooled_shape": ([2, 3],),
    "q_num_heads": (4,), "qk_matmul_output_mode": (0, 1, 2, 3), "ratio": (0.2, 0.5), "reduction": (
        "none", "add", "mul", "max", "min",
    ), "reverse": _ON, "right_window_size": (-1, 0), "rotary_embedding_dim": (0, 4), "sampling_ratio": (0, 2),
    "saturate": _ON, "scale": (0.3, 1.0), "scales": ([1.0, 1.0, 2.0, 3.0],), "select_last_index": _ON,
    "size": (1, 3, 5),
    "softcap": (0.0, 1.5), "softmax_precision": (1, 11), "spatial": (1,), "spatial_scale": (0.5, 1.0),
    "split": ([1, 3],),
    "stash_type": (1,), "start": (0, 1, -2), "storage_order": _ON, "strides": ([1, 1], [2, 1], [2, 3]),
    "to": (1, 6, 7, 9, 11),
    "training_mode": (0,), "transA": _ON, "transB": _ON, "upper": _ON,
}  # fmt: skip
"""Attribute -> its possible values for the operands below."""
OWN = {
    "CenterCropPad": {"axes": ([2, 3],)}, "Clip": {"max": (0.3,), "min": (-0.3,)}, "Concat": {"axis": (0, 1, -1)},
    "Compress": {"axis": (1, -1)}, "DFT": {"axis": (1, -2)},
    "DeformConv": dict.fromkeys(("dilations", "pads", "strides"), ()),
    "Col2Im": dict.fromkeys(("dilations", "pads", "strides"), ()), "DepthToSpace": {"mode": ("DCR", "CRD")},
    "DequantizeLinear": {"axis": (1,)}, "Einsum": {"equation": ("bij,bjk->bik", "bij,bjk->ik")},
    "GRU": {"direction": ("forward", "reverse")}, "GridSample": {"mode": ("linear", "nearest", "bilinear")},
    "GroupNormalization": {"stash_type": (1,)}, "LRN": {"alpha": (1e-2, 1.0), "bias": (1.0, 2.0)},
    "LSTM": {"direction": ("forward", "reverse")}, "LayerNormalization": {"axis": (-1, 3)},
    "MaxUnpool": {"kernel_shape": ([2, 2],), "pads": (), "strides": ([2, 2],)},
    "MeanVarianceNormalization": {"axes": ([0, 2, 3], [1])}, "OneHot": {"axis": (-1, 0, 1)}, "Pad": {
        "mode": ("constant", "reflect", "edge"), "pads": ([0, 1, 0, 1, 1, 0, 2, 0],), "value": (0.5,),
    }, "QuantizeLinear": {"axis": (1,)}, "RMSNormalization": {"axis": (-1, 3)},
    "RNN": {"direction": ("forward", "reverse")},
    "Resize": {"axes": ([2, 3],), "mode": ("nearest", "linear", "cubic")}, "RoiAlign": {
        "coordinate_transformation_mode": ("half_pixel", "output_half_pixel"), "mode": ("avg", "max"),
    }, "RotaryEmbedding": {"num_heads": (2,)}, "Scatter": {"axis": (1,)}, "ScatterElements": {"axis": (1, -3)},
    "Slice": {"axes": ([1, 3],), "ends": ([2, 9],), "starts": ([0, 1],)}, "SpaceToDepth": {"mode": ("DCR", "CRD")},
    "Split": {"axis": (1,)}, "Squeeze": {"axes": ([0], [2])},
    "TensorScatter": {"axis": (-2, 2), "mode": ("linear", "circular")},
    "TopK": {"axis": (-1, 3), "k": (3,)}, "Unique": {"axis": (0, 1)}, "Unsqueeze": {"axes": ([0], [2], [0, -1])},
    "Upsample": {"mode": ("nearest", "linear")},
}  # fmt: skip
"""Operator and attribute -> possible values of an operator with other ones."""


def attributes(rng, schema, share):
    """Return attributes of an operator: those that it needs, and others with a probability."""
    attributes, outcome = OWN.get(schema.name, {}), {}
    for name, item in schema.attributes.items():
        values = attributes.get(name, VALUES.get(name, ()))
        if values and (item.required or rng.random() < share):
            outcome[name] = pick(rng, *values)
    return outcome


def _image(rng, opset, attributes):
    return [real(rng, 2, 4, 4, 6)]


def _positive(rng, opset, attributes):
    return [np.abs(real(rng, 2, 4, 4, 6)) + 1]


def _small(rng, opset, attributes):
    return [np.tanh(real(rng, 2, 4, 4, 6))]


def _special(rng, opset, attributes):
    x = real(rng, 2, 3, 4)
    return [np.where(x > 1, np.inf, np.where(x < -1, -np.inf, np.where(x > 0.5, np.nan, x))).astype(np.float32)]


def _reduced(rng, opset, attributes, after=18):
    axes = [pick(rng, integers(1), integers(-1, 0), integers())] if opset >= after and rng.random() < 0.7 else []
    return [np.abs(real(rng, 2, 4, 4, 6)) + 0.1, *axes]


def _pair(rng, opset, attributes):
    return [real(rng, 2, 4, 4, 6), real(rng, *((2, 4, 4, 6) if opset < 7 else (4, 6)))]


def _truth(rng, opset, attributes):
    return [one > 0 for one in _pair(rng, opset, attributes)]


def _several(rng, opset, attributes):
    return [real(rng, 2, 4, 6), *(real(rng, *((2, 4, 6) if opset < 8 else shape)) for shape in ((4, 6), (1, 6)))]


def _whole(count):
    return lambda rng, opset, own: [rng.integers(0, 9, (3, 4)) for _ in range(count)]


def _pooled(rng, opset, attributes):
    return [real(rng, 2, 3, 7, 8)]


def _convolved(rng, opset, attributes):
    bias = [real(rng, 4)] if rng.random() < 0.5 else []
    return [real(rng, 2, 4, 7, 8), real(rng, 4, 4 // attributes.get("group", 1), 2, 3), *bias]


def _integer_convolution(rng, opset, attributes):
    zero = [np.uint8(7)] if rng.random() < 0.5 else []
    return [bytes_of(rng, 2, 4, 7, 8), bytes_of(rng, 4, 4 // attributes.get("group", 1), 2, 3, dtype=np.int8), *zero]


def _scaled(rng, opset, attributes, shapes, bias):
    first, second = bytes_of(rng, *shapes[0]), bytes_of(rng, *shapes[1], dtype=np.int8)
    scaled = [first, np.float32(0.02), np.uint8(128), second, np.float32(0.1), np.int8(0), np.float32(5), np.uint8(120)]
    return [*scaled, *([rng.integers(-99, 99, 4).astype(np.int32)] if bias and rng.random() < 0.5 else [])]


def _recurrent(gates):
    def operands(rng, opset, attributes):
        bias = real(rng, 1, 2 * gates * 3) if rng.random() < 0.5 else None
        data = real(rng, *((2, 5, 4) if attributes.get("layout") else (5, 2, 4)))
        return [data, real(rng, 1, gates * 3, 4), real(rng, 1, gates * 3, 3), bias]

    return operands


def _gemm(rng, opset, attributes):
    first, second = real(rng, 3, 4), real(rng, 4, 5)
    term = [real(rng, *((3, 5) if opset < 7 else (5,)))] if opset < 11 or rng.random() < 0.6 else []
    return [first.T if attributes.get("transA") else first, second.T if attributes.get("transB") else second, *term]


def _clipped(rng, opset, attributes):
    bounds = [pick(rng, np.float32(-0.3), None), pick(rng, np.float32(0.3), None)]
    return [real(rng, 3, 4), *(bounds if opset >= 11 else [])]


def _resized(rng, opset, attributes):
    x, has_axes = real(rng, 2, 4, 4, 6), "axes" in attributes
    scales = np.array([2, 0.6] if has_axes else [1, 1, 2, 0.6], np.float32)
    if opset < 11:
        return [x, scales]
    if rng.random() < 0.5:
        return [x, None, None, integers(7, 4) if has_axes else integers(2, 4, 7, 4)]
    return [x, pick(rng, None, np.zeros(0, np.float32)), scales]


def _weighed(rng, opset, attributes):
    mask = [real(rng, 3, 5)] if rng.random() < 0.5 else []
    if ("q_num_heads" in attributes) != ("kv_num_heads" in attributes):
        attributes |= {"q_num_heads": 4, "kv_num_heads": 2}
    if "q_num_heads" in attributes:
        return [real(rng, 2, 3, 32), real(rng, 2, 5, 16), real(rng, 2, 5, 16), *mask]
    return [real(rng, 2, 4, 3, 8), real(rng, 2, 2, 5, 8), real(rng, 2, 2, 5, 8), *mask]


def _rotated(rng, opset, attributes):
    half, data = (
        (attributes.get("rotary_embedding_dim") or 8) // 2,
        real(rng, *((2, 3, 16) if "num_heads" in attributes else (2, 2, 3, 8))),
    )
    if rng.random() < 0.5:
        return [data, real(rng, 2, 3, half), real(rng, 2, 3, half)]
    return [data, real(rng, 9, half), real(rng, 9, half), rng.integers(0, 9, (2, 3))]


def _quantised(rng, opset, attributes):
    if rng.random() < 0.5 or opset < 13:
        return [real(rng, 2, 4, 3), np.float32(0.1), pick(rng, np.uint8(100), np.int8(3))]
    return [real(rng, 2, 4, 3), np.abs(real(rng, 4)) + 0.1, np.arange(4).astype(np.uint8)]


def _numbers(rng, opset, attributes):
    if rng.random() < 0.5 or opset < 13:
        return [bytes_of(rng, 2, 4, 3), np.float32(0.1), np.uint8(100)]
    zero = [bytes_of(rng, 4)] if rng.random() < 0.5 else []
    return [bytes_of(rng, 2, 4, 3), np.abs(real(rng, 4)) + 0.1, *zero]


def _padded(rng, opset, attributes):
    value = [np.float32(0.5)] if rng.random() < 0.5 else []
    return [real(rng, 2, 4, 4, 6), *([integers(0, 1, 0, 1, 1, 0, 2, 0), *value] if opset >= 11 else [])]


def _updates(rng, opset, attributes):
    places = rng.permutation(3).reshape(1, 3, 1) * np.ones((2, 1, 2), np.int64)
    return [real(rng, 3, 3, 3), places, real(rng, 2, 3, 2)]


OPERANDS = {
    **dict.fromkeys((
        "Abs", "ArgMax", "ArgMin", "Atan", "Asinh", "Cast", "Ceil", "Celu", "Cos", "Cosh", "Dropout",
        "DynamicQuantizeLinear",
        "Elu", "Erf", "Exp", "Flatten", "Floor", "Gelu", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool",
        "HardSigmoid",
        "HardSwish", "Hardmax", "Identity", "LRN", "LeakyRelu", "LogSoftmax", "LpNormalization",
        "MeanVarianceNormalization",
        "Mish", "Neg", "NonZero", "Reciprocal", "Relu", "Round", "Selu", "Shape", "Shrink", "Sigmoid", "Sign", "Sin",
        "Sinh",
        "Size", "Softmax", "Softplus", "Softsign", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Transpose",
    ), _image),
    **dict.fromkeys(("Acosh", "Log", "Sqrt"), _positive), **dict.fromkeys(("Acos", "Asin", "Atanh"), _small),
    **dict.fromkeys(("IsInf", "IsNaN"), _special),
    **dict.fromkeys((f"Reduce{word}" for word in (
        "L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare",
    )), _reduced),
    "ReduceSum": lambda rng, opset, own: _reduced(rng, opset, own, after=13),
    **dict.fromkeys(("Add", "Div", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Mul", "Sub"), _pair),
    **dict.fromkeys(("And", "Or", "Xor"), _truth), **dict.fromkeys(("Max", "Mean", "Min", "Sum"), _several),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor", "Equal"), _whole(2)), "BitwiseNot": _whole(1),
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), _pooled), "Attention": _weighed,
    "AffineGrid": lambda rng, opset, own: [real(rng, 2, 2, 3), integers(2, 3, 4, 5)],
    "BatchNormalization": lambda rng, opset, own: [
        real(rng, 2, 4, 6), real(rng, 4), real(rng, 4), real(rng, 4), np.abs(real(rng, 4)) + 0.1,
    ],
    "BitShift": lambda rng, opset, own: [one.astype(np.uint32) for one in _whole(2)(rng, opset, own)],
    "CastLike": lambda rng, opset, own: [real(rng, 3, 4), integers(1)],
    "CenterCropPad": lambda rng, opset, own: [
        real(rng, 2, 4, 4, 6), integers(3, 9) if "axes" in own else integers(2, 3, 5, 8),
    ],
    "Clip": _clipped, "Col2Im": lambda rng, opset, own: [real(rng, 1, 6, 5), integers(5, 6)[[0, 0]], integers(1, 5)],
    "Compress": lambda rng, opset, own: [real(rng, 2, 3, 3), np.array([True, False, True])],
    "Concat": lambda rng, opset, own: [real(rng, 2, 2, 2), real(rng, 2, 2, 2)],
    "ConstantOfShape": lambda rng, opset, own: [integers(2, 3)], "Conv": _convolved,
    "ConvInteger": _integer_convolution,
    "ConvTranspose": lambda rng, opset, own: [real(rng, 1, 4, 5, 4), real(rng, 4, 4 // own.get("group", 1), 2, 3)],
    "CumSum": lambda rng, opset, own: [real(rng, 3, 4), np.int64(pick(rng, 0, 1, -1))],
    "DFT": lambda rng, opset, own: [real(rng, 2, 5, 6, pick(rng, 1, 2))],
    "DeformConv": lambda rng, opset, own: [
        real(rng, 1, 4, 5, 6), real(rng, 4, 4 // own.get("group", 1), 2, 3), real(rng, 1, 12, 4, 4),
    ],
    "DepthToSpace": lambda rng, opset, own: [real(rng, 1, 8, 4, 6)], "DequantizeLinear": _numbers,
    "Einsum": lambda rng, opset, own: [real(rng, 2, 3, 4), real(rng, 2, 4, 5)],
    "Expand": lambda rng, opset, own: [real(rng, 3, 1), integers(2, 1, 4)],
    "EyeLike": lambda rng, opset, own: [real(rng, 3, 4)], "GRU": _recurrent(3), "LSTM": _recurrent(4),
    "RNN": _recurrent(1),
    "Gather": lambda rng, opset, own: [real(rng, 2, 4, 4, 6), rng.integers(-2, 2, (2, 2))],
    "GatherElements": lambda rng, opset, own: [real(rng, 3, 3, 3), rng.integers(-3, 3, (3, 3, 3))],
    "GatherND": lambda rng, opset, own: [real(rng, 2, 3, 4), rng.integers(0, 2, (2, 1, 2))], "Gemm": _gemm,
    "GridSample": lambda rng, opset,
    own: [real(rng, 1, 2, 4, 5), rng.uniform(-1.3, 1.3, (1, 3, 4, 2)).astype(np.float32)],
    "GroupNormalization": lambda rng, opset, own: [
        real(rng, 2, 4, 4, 6), *(real(rng, 2 if opset < 21 else 4) for _ in range(2)),
    ],
    "InstanceNormalization": lambda rng, opset, own: [real(rng, 2, 4, 4, 6), real(rng, 4), real(rng, 4)],
    "LayerNormalization": lambda rng, opset, own: [
        real(rng, 2, 4, 4, 6), real(rng, 6), *([real(rng, 6)] if rng.random() < 0.7 else []),
    ],
    "MatMul": lambda rng, opset, own: [real(rng, 2, 3, 4), real(rng, 4, 5)],
    "MatMulInteger": lambda rng, opset, own: [bytes_of(rng, 3, 4), bytes_of(rng, 4, 5, dtype=np.int8), np.uint8(3)],
    "MaxUnpool": lambda rng, opset, own: [real(rng, 1, 1, 2, 2), integers(1, 3, 10, 15).reshape(1, 1, 2, 2)],
    "Mod": lambda rng, opset, own: [real(rng, 3, 4), real(rng, 4)] if own.get("fmod") else [
        rng.integers(-9, 9, (3, 4)), integers(-3, 2, 5, -7),
    ],
    "Not": lambda rng, opset, own: [real(rng, 3, 4) > 0],
    "OneHot": lambda rng, opset, own: [rng.integers(0, 3, (2, 2)), integers(4), np.array([2, 5], np.float32)],
    "PRelu": lambda rng, opset, own: [real(rng, 2, 4, 4, 6), real(rng, *((4, 1, 1) if opset >= 7 else (4,)))],
    "Pad": _padded, "Pow": lambda rng, opset, own: [_positive(rng, opset, own)[0], _pair(rng, opset, own)[1]],
    "QLinearConv": lambda rng, opset, own: _scaled(
        rng, opset, own, ((2, 4, 7, 8), (4, 4 // own.get("group", 1), 2, 3)), bias=True
    ),
    "QLinearMatMul": lambda rng, opset, own: _scaled(rng, opset, own, ((3, 4), (4, 5)), bias=False),
    "QuantizeLinear": _quantised, "RMSNormalization": lambda rng, opset, own: [real(rng, 2, 4, 4, 6), real(rng, 6)],
    "Range": lambda rng, opset, own: integers(1, 9, 3).tolist(),
    "Reshape": lambda rng, opset, own: [real(rng, 2, 6), pick(rng, integers(0, -1), integers(3, 4), integers(-1))],
    "Resize": _resized, "ReverseSequence": lambda rng, opset, own: [real(rng, 4, 4, 2), integers(1, 2, 3, 4)],
    "RoiAlign": lambda rng, opset, own: [
        real(rng, 2, 2, 8, 8), rng.uniform(0, 8, (3, 4)).astype(np.float32), integers(0, 1, 1),
    ],
    "RotaryEmbedding": _rotated, "ScatterElements": _updates, "Scatter": _updates,
    "ScatterND": lambda rng, opset, own: [real(rng, 3, 4), rng.permutation(3)[:2].reshape(2, 1), real(rng, 2, 4)],
    "Slice": lambda rng, opset, own: [
        real(rng, 2, 4, 4, 6),
        *([integers(0, 1), integers(2, 9), integers(1, 3), integers(1, 2)] if opset >= 10 else []),
    ],
    "SpaceToDepth": lambda rng, opset, own: [real(rng, 1, 8, 4, 6)],
    "Split": lambda rng, opset, own: [
        real(rng, 4, 4), *([integers(1, 3)] if opset >= 13 and "num_outputs" not in own and rng.random() < 0.5 else []),
    ],
    "Squeeze": lambda rng, opset, own: [
        real(rng, 1, 3, 1, 2), *([pick(rng, integers(0), integers(2))] if opset >= 13 and rng.random() < 0.5 else []),
    ],
    "TensorScatter": lambda rng, opset, own: [real(rng, 2, 3, 5, 4), real(rng, 2, 3, 2, 4), integers(0, 3)],
    "Tile": lambda rng, opset, own: [real(rng, 2, 3), integers(2, 2)],
    "TopK": lambda rng, opset, own: [real(rng, 2, 4, 4, 6), *([integers(3)] if opset >= 10 else [])],
    "Trilu": lambda rng, opset, own: [
        real(rng, 2, 4, 5), *([np.int64(pick(rng, 0, 1, -1))] if rng.random() < 0.5 else []),
    ],
    "Unique": lambda rng, opset, own: [np.round(real(rng, 3, 4))],
    "Unsqueeze": lambda rng, opset, own: [
        real(rng, 2, 3), *([pick(rng, integers(0), integers(0, -1))] if opset >= 13 else []),
    ],
    "Upsample": lambda rng, opset, own: [
        real(rng, 2, 4, 4, 6), *([np.array([1, 1, 2, 3], np.float32)] if opset >= 9 else []),
    ],
    "Where": lambda rng, opset, own: [real(rng, 4, 6) > 0, real(rng, 2, 4, 6), real(rng, 6)],
}  # fmt: skip
"""Operator -> what makes its operands for a version and attributes, which may be changed to fit each other."""
OUTPUTS = {"DynamicQuantizeLinear": 3, "GRU": 2, "LSTM": 3, "RNN": 2, "Split": 2, "TopK": 2, "Unique": 4}
