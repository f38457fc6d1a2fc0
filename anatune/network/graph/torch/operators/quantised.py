"""Numbers of 8 bits with scales and zero points, as PyTorch's exported quantisation (PT2E) has them."""

from __future__ import annotations

import numpy as np

from anatune.core.workload.access import INTEGER_RANGE
from anatune.network.graph.building import cast, constant, elementwise, reshape
from anatune.network.graph.integers.scaled import Scale, constant_scale, dequantized, quantized
from anatune.network.graph.nodes import Constant, Value, tensor_type
from anatune.network.graph.torch.call import Call, Convert, RefusedError

__all__ = ["READERS"]


def _operand(call: Call, name: str, dtype: str) -> Value:
    """Return a scale or a zero point, of the whole tensor or as it is broadcast along the axis of channels."""
    given = call.get(name)
    value = given if isinstance(given, Value) else constant(0 if given is None else given, dtype)
    if tensor_type(value).shape in ((), (1,)):
        return reshape(cast(value, dtype), ())
    rank = len(call.shape("input"))
    axis = call["axis"] % rank
    return reshape(cast(value, dtype), [-1 if place == axis else 1 for place in range(rank)])


def _scale(call: Call, dtype: str) -> tuple[Value, Value, Scale | None]:
    """Return a scale, a zero point, and both together where they are known and of 8 bits."""
    of_channels = "per_channel" in call.name
    scale = _operand(call, "scales" if of_channels else "scale", "float32")
    zero = _operand(call, "zero_points" if of_channels else "zero_point", "int32")
    try:
        return scale, zero, constant_scale(scale, zero, dtype)
    except ValueError as error:
        raise RefusedError(str(error)) from None


def _quantize(call: Call) -> Value:
    dtype = call.kind.dtype
    scale, zero, known = _scale(call, dtype)
    low, high = int(call["quant_min"]), int(call["quant_max"])
    data = cast(call["input"], "float32")
    if known is not None:
        limits = INTEGER_RANGE[dtype]
        return quantized(data, known, dtype, (max(low, limits[0]), min(high, limits[1])))
    whole = elementwise("add", elementwise("round", elementwise("divide", data, scale)), cast(zero, "float32"))
    return cast(elementwise("minimum", elementwise("maximum", whole, low), high), dtype)


def _dequantize(call: Call) -> Value:
    data = call["input"]
    scale, zero, known = _scale(call, tensor_type(data).dtype)
    if known is not None:
        return cast(dequantized(data, known), call.kind.dtype)
    if not (isinstance(zero, Constant) and not np.any(zero.array)):
        data = elementwise("subtract", cast(data, "int32"), zero)
    return cast(elementwise("multiply", cast(data, "float32"), scale), call.kind.dtype)


def _dequantize_affine(call: Call) -> Value:
    """Return weights of which neighbours along the last dimension share a scale (torchao's)."""
    numbers, scale = call.known("input", "the weights"), call.known("scale", "the scales")
    *rows, size = map(int, call["block_size"])
    if set(rows) - {1}:
        raise RefusedError(f"has blocks of {'x'.join(map(str, call['block_size']))}, expected parts of rows")
    if not np.isfinite(scale).all():
        raise RefusedError("has scales that are not finite, expected numbers")
    shape = (*numbers.shape[:-1], -1, 1)
    zero = 0 if call["zero_point"] is None else call.known("zero_point", "the zero points")
    zeros = np.broadcast_to(np.asarray(zero, np.int32), scale.shape)
    of_groups = Scale(scale.astype(np.float32).reshape(shape), zeros.reshape(shape))
    apart = dequantized(Constant(numbers.reshape(*shape[:-2], -1, size)), of_groups)
    return cast(reshape(apart, numbers.shape), call.kind.dtype)


READERS: dict[str, Convert] = {
    "dequantize_affine": _dequantize_affine,
    "dequantize_per_channel": _dequantize,
    "dequantize_per_tensor": _dequantize,
    "quantize_per_channel": _quantize,
    "quantize_per_tensor": _quantize,
}
