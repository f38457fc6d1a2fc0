"""Other people's bfloat16 and int8 kernels with prepacked weights, as ways to run a layer.

Through PyTorch oneDNN's own, and FBGEMM's of 8 bits; those of ONNX Runtime where it is installed (MatMulInteger and
ConvInteger, whose results are the int32 sums, and QLinearMatMul and QLinearConv, uint8).

bfloat16: operands and results; int8: uint8 data with int8 weights of one scale a channel, results of float32 (the sums
scaled) or, where a kernel has no such results, uint8. anatune computes int32 sums beside them. PyTorch's calls are
checked by `bench.cpu.rivals`, which also reads oneDNN's own times. Unsigned data have 7 bits, as PyTorch and ONNX
Runtime ask for where there is no VNNI: sums of two products saturate in their kernels for AVX2 (VPMADDUBSW).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.layers import Convolution, Matmul

__all__ = ["DTYPES", "REQUANTISED", "narrow_calls"]

DTYPES = ("float32", "bfloat16", "uint8xint8")
REQUANTISED = ("torch:fbgemm", "ort:qlinear")
"""Calls whose results are rounded to uint8."""
_MOST = 127
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
    is_matmul = isinstance(layer, Matmul)
    filters = layer.n if isinstance(layer, Matmul) else layer.filters
    scales, zeros = torch.ones(filters), torch.zeros(filters, dtype=torch.int64)

    def linear(rows: Any, weights: Any) -> Callable[[], Any]:
        packed = ops.qlinear_prepack(weights, list(rows.shape))
        return lambda: ops.qlinear_pointwise.default(
            rows, 1.0, 0, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )

    if isinstance(layer, Matmul):
        x = torch.randint(0, _MOST + 1, (layer.m, layer.k), dtype=torch.uint8)
        w = torch.randint(-128, 128, (layer.n, layer.k), dtype=torch.int8)
        expected, calls = x.float() @ w.float().t(), {"torch:linear": linear(x, w)}
    else:
        x = torch.randint(0, _MOST + 1, (1, layer.channels, layer.size, layer.size), dtype=torch.uint8)
        w = torch.randint(-128, 128, (layer.filters, layer.channels, layer.kernel, layer.kernel), dtype=torch.int8)
        pad, stride = [layer.padding] * 2, [layer.stride] * 2
        expected = torch.nn.functional.conv2d(x.float(), w.float(), None, layer.stride, layer.padding)
        last = x.to(memory_format=torch.channels_last)
        packed = ops.qconv_prepack(w, scales, 1.0, 0, stride, pad, one, 1, list(x.shape))
        calls = {
            "torch:nhwc": lambda: ops.qconv_pointwise.default(
                last, 1.0, 0, packed, scales, zeros, None, stride, pad, one, 1, 1.0, 0, torch.float32, "none", [], ""
            )
        }
        if layer.kernel == 1 and layer.stride == 1:
            rows = last.permute(0, 2, 3, 1).reshape(layer.size**2, layer.channels).contiguous()
            calls["torch:linear"] = linear(rows, w.reshape(layer.filters, layer.channels))
    scale = float(expected.abs().max()) / 127
    calls["torch:fbgemm"] = _fbgemm(torch, layer, x, w, scale)
    if importlib.util.find_spec("onnxruntime") is not None and importlib.util.find_spec("onnx") is not None:
        operands = (x.numpy(), w.t().contiguous().numpy() if is_matmul else w.numpy())
        calls["ort:integer"] = _onnxruntime(torch, layer, operands, 0.0)
        calls["ort:qlinear"] = _onnxruntime(torch, layer, operands, scale)
    return calls, expected


def _fbgemm(torch: Any, layer: Matmul | Convolution, x: Any, w: Any, scale: float) -> Callable[[], Any]:
    """Return PyTorch's own quantised operator; the result is uint8, its zero point 128."""
    torch.backends.quantized.engine = "x86" if "x86" in torch.backends.quantized.supported_engines else "fbgemm"
    ops = torch.ops.quantized
    data = torch._make_per_tensor_quantized_tensor(x, 1.0, 0)
    weights = torch._make_per_tensor_quantized_tensor(w, 1.0, 0)
    if isinstance(layer, Matmul):
        packed = ops.linear_prepack(weights, None)
        return _Dequantised(lambda: ops.linear(data, packed, scale, 128))
    data = data.to(memory_format=torch.channels_last)
    packed = ops.conv2d_prepack(weights, None, [layer.stride] * 2, [layer.padding] * 2, [1, 1], 1)
    return _Dequantised(lambda: ops.conv2d(data, packed, scale, 128))


class _Dequantised:
    """A call whose first result is given in float32, to be compared; all others are as they come."""

    def __init__(self, call: Callable[[], Any], scale: float = 0.0) -> None:
        self._call, self._scale, self._is_first = call, scale, True

    def __call__(self) -> Any:
        result = self._call()
        if not self._is_first:
            return result
        self._is_first = False
        if self._scale:
            return (result.float() - 128) * self._scale
        return result.dequantize() if result.is_quantized else result


def _onnxruntime(torch: Any, layer: Matmul | Convolution, operands: tuple[Any, Any], scale: float) -> Callable[[], Any]:
    """Return a session's run of MatMulInteger or ConvInteger, or of the QLinear form where there is a `scale`."""
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper

    x, w = operands
    is_matmul = isinstance(layer, Matmul)
    one, zero = np.float32(1.0), np.uint8(0)
    names, values = ["x", "w"], {"w": w}
    if scale:
        values |= {"one": one, "zero": zero, "none": np.int8(0), "scale": np.float32(scale), "middle": np.uint8(128)}
        names = ["x", "one", "zero", "w", "one", "none", "scale", "middle"]
    kind = ("QLinearMatMul" if scale else "MatMulInteger") if is_matmul else "QLinearConv" if scale else "ConvInteger"
    own = {} if isinstance(layer, Matmul) else {"strides": [layer.stride] * 2, "pads": [layer.padding] * 4}
    types = onnx.TensorProto
    graph = helper.make_graph(
        [helper.make_node(kind, names, ["y"], **own)],
        "layer",
        [helper.make_tensor_value_info("x", types.UINT8, x.shape)],
        [helper.make_tensor_value_info("y", types.UINT8 if scale else types.INT32, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return _Dequantised(lambda: torch.from_numpy(session.run(None, {"x": x})[0]), scale)
