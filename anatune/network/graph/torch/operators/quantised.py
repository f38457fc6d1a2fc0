"""Readers of quantised operators: numbers of 8 bits with scales and zero points, as exported by PT2E and torchao."""

from __future__ import annotations

import numpy as np

from anatune.core.workload.access import INTEGER_RANGE
from anatune.network.graph.building import cast, constant, elementwise, reshape
from anatune.network.graph.integers.scaled import QuantisationScale, constant_scale, dequantize, quantize
from anatune.network.graph.nodes import Constant, Value, tensor_type
from anatune.network.graph.torch.call import Convert, RefusedError, TorchCall

__all__ = ["READERS"]


def _broadcast_parameter(call: TorchCall, name: str, dtype: str) -> Value:
    """Return a scale or a zero point of the whole tensor, or in a shape that broadcasts along the axis of channels."""
    argument = call.get(name)
    value = argument if isinstance(argument, Value) else constant(0 if argument is None else argument, dtype)
    if tensor_type(value).shape in ((), (1,)):
        return reshape(cast(value, dtype), ())
    rank = len(call.shape("input"))
    axis = call["axis"] % rank
    return reshape(cast(value, dtype), [-1 if dimension == axis else 1 for dimension in range(rank)])


def _scale_and_zero(call: TorchCall, dtype: str) -> tuple[Value, Value, QuantisationScale | None]:
    """Return a scale, a zero point, and both as one constant if they are constants for 8-bit integers."""
    of_channels = "per_channel" in call.name
    scale = _broadcast_parameter(call, "scales" if of_channels else "scale", "float32")
    zero = _broadcast_parameter(call, "zero_points" if of_channels else "zero_point", "int32")
    try:
        return scale, zero, constant_scale(scale, zero, dtype)
    except ValueError as error:
        raise RefusedError(str(error)) from None


def _quantize(call: TorchCall) -> Value:
    dtype = call.kind.dtype
    scale, zero, fixed = _scale_and_zero(call, dtype)
    low, high = int(call["quant_min"]), int(call["quant_max"])
    data = cast(call["input"], "float32")
    if fixed is not None:
        limits = INTEGER_RANGE[dtype]
        return quantize(data, fixed, dtype, (max(low, limits[0]), min(high, limits[1])))
    whole = elementwise("add", elementwise("round", elementwise("divide", data, scale)), cast(zero, "float32"))
    return cast(elementwise("minimum", elementwise("maximum", whole, low), high), dtype)


def _dequantize(call: TorchCall) -> Value:
    data = call["input"]
    scale, zero, fixed = _scale_and_zero(call, tensor_type(data).dtype)
    if fixed is not None:
        return cast(dequantize(data, fixed), call.kind.dtype)
    if not (isinstance(zero, Constant) and not np.any(zero.array)):
        data = elementwise("subtract", cast(data, "int32"), zero)
    return cast(elementwise("multiply", cast(data, "float32"), scale), call.kind.dtype)


def _dequantize_affine(call: TorchCall) -> Value:
    """Return dequantised weights whose neighbours along the last dimension share a scale (torchao)."""
    numbers, scale = call.constant_values("input", "the weights"), call.constant_values("scale", "the scales")
    *rows, size = map(int, call["block_size"])
    if set(rows) - {1}:
        raise RefusedError(f"has blocks of {'x'.join(map(str, call['block_size']))}, expected blocks within rows")
    if not np.isfinite(scale).all():
        raise RefusedError("has scales that are not finite, expected finite numbers")
    shape = (*numbers.shape[:-1], -1, 1)
    zero = 0 if call["zero_point"] is None else call.constant_values("zero_point", "the zero points")
    zeros = np.broadcast_to(np.asarray(zero, np.int32), scale.shape)
    of_groups = QuantisationScale(scale.astype(np.float32).reshape(shape), zeros.reshape(shape))
    grouped = dequantize(Constant(numbers.reshape(*shape[:-2], -1, size)), of_groups)
    return cast(reshape(grouped, numbers.shape), call.kind.dtype)


READERS: dict[str, Convert] = {
    "dequantize_affine": _dequantize_affine,
    "dequantize_per_channel": _dequantize,
    "dequantize_per_tensor": _dequantize,
    "quantize_per_channel": _quantize,
    "quantize_per_tensor": _quantize,
}
