"""oneDNN's own bfloat16 and int8 kernels through PyTorch, with prepacked weights, as ways to run a layer.

bfloat16: operands and results; int8: uint8 data with int8 weights of one scale a channel, results of float32 (the sums
scaled) or, where a kernel has no such results, uint8. anatune computes int32 sums beside them. PyTorch's calls are
checked by `bench.cpu.rivals`, which also reads oneDNN's own times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.layers import Convolution, Matmul

__all__ = ["DTYPES", "narrow_calls"]

DTYPES = ("float32", "bfloat16", "uint8xint8")
Calls = dict[str, Callable[[], Any]]


def narrow_calls(torch: Any, layer: Matmul | Convolution, dtype: str) -> tuple[Calls, Any]:
    """Return the ways to run `layer` in a narrow dtype in PyTorch, and the right result in float32."""
    if dtype == "bfloat16":
        return _bfloat16(torch, layer)
    return _int8(torch, layer)


def _bfloat16(torch: Any, layer: Matmul | Convolution) -> tuple[Calls, Any]:
    ops, one, none = torch.ops.mkldnn, [1, 1], [0, 0]
    if isinstance(layer, Matmul):
        a = (torch.rand(layer.m, layer.k) - 0.5).bfloat16()
        w = (torch.rand(layer.n, layer.k) - 0.5).bfloat16()
        linear = ops._reorder_linear_weight(w, layer.m)
        image = a.reshape(1, 32, layer.m // 32, layer.k).permute(0, 3, 1, 2)
        packed = ops._reorder_convolution_weight(
            w.reshape(layer.n, layer.k, 1, 1), none, one, one, 1, list(image.shape)
        )
        return {
            "torch:linear": lambda: ops._linear_pointwise.default(a, linear, None, "none", [], ""),
            "torch:conv": lambda: ops._convolution_pointwise.default(
                image, packed, None, none, one, one, 1, "none", [], ""
            ),
        }, a.float() @ w.float().t()
    x, w = _convolution_operands(torch, layer)
    x, w = x.bfloat16().to(memory_format=torch.channels_last), w.bfloat16().to(memory_format=torch.channels_last)
    pad, stride = [layer.padding] * 2, [layer.stride] * 2
    packed = ops._reorder_convolution_weight(w, pad, stride, one, 1, list(x.shape))
    calls: Calls = {
        "torch:nhwc": lambda: ops._convolution_pointwise.default(x, packed, None, pad, stride, one, 1, "none", [], "")
    }
    if layer.kernel == 1 and layer.stride == 1:
        rows = x.permute(0, 2, 3, 1).reshape(layer.size**2, layer.channels)
        linear = ops._reorder_linear_weight(w.reshape(layer.filters, layer.channels).contiguous(), rows.shape[0])
        calls["torch:linear"] = lambda: ops._linear_pointwise.default(rows, linear, None, "none", [], "")
    return calls, torch.nn.functional.conv2d(x.float(), w.float(), None, layer.stride, layer.padding)


def _convolution_operands(torch: Any, layer: Convolution) -> tuple[Any, Any]:
    x = torch.rand(1, layer.channels, layer.size, layer.size) - 0.5
    return x, torch.rand(layer.filters, layer.channels, layer.kernel, layer.kernel) - 0.5


def _int8(torch: Any, layer: Matmul | Convolution) -> tuple[Calls, Any]:
    ops, one = torch.ops.onednn, [1, 1]
    filters = layer.n if isinstance(layer, Matmul) else layer.filters
    scales, zeros = torch.ones(filters), torch.zeros(filters, dtype=torch.int64)

    def whole(low: int, high: int, dtype: Any, *shape: int) -> Any:
        return torch.randint(low, high, shape, dtype=dtype)

    def linear(rows: Any, weights: Any) -> Callable[[], Any]:
        packed = ops.qlinear_prepack(weights, list(rows.shape))
        return lambda: ops.qlinear_pointwise.default(
            rows, 1.0, 0, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )

    if isinstance(layer, Matmul):
        a = whole(0, 256, torch.uint8, layer.m, layer.k)
        w = whole(-128, 128, torch.int8, layer.n, layer.k)
        return {"torch:linear": linear(a, w)}, a.float() @ w.float().t()
    x = whole(0, 256, torch.uint8, 1, layer.channels, layer.size, layer.size)
    x = x.to(memory_format=torch.channels_last)
    w = whole(-128, 128, torch.int8, layer.filters, layer.channels, layer.kernel, layer.kernel)
    pad, stride = [layer.padding] * 2, [layer.stride] * 2
    packed = ops.qconv_prepack(w, scales, 1.0, 0, stride, pad, one, 1, list(x.shape))
    calls: Calls = {
        "torch:nhwc": lambda: ops.qconv_pointwise.default(
            x, 1.0, 0, packed, scales, zeros, None, stride, pad, one, 1, 1.0, 0, torch.float32, "none", [], ""
        )
    }
    if layer.kernel == 1 and layer.stride == 1:
        rows = x.permute(0, 2, 3, 1).reshape(layer.size**2, layer.channels).contiguous()
        calls["torch:linear"] = linear(rows, w.reshape(layer.filters, layer.channels))
    return calls, torch.nn.functional.conv2d(x.float(), w.float(), None, layer.stride, layer.padding)
