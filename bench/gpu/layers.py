"""The layers of the GPU benchmark, and which workload a layer is in a dtype.

BERT M0-M5, ResNet-50 R0-R12, Yolo-9000 Y0-Y10 are `anatune.layer`'s ("Accelerated Auto-Tuning of GPU Kernels for
Tensor Computations", Table 1). Measured only where they are asked for and by the stage `triton`: products L0-L7 of many
sizes, convolutions C0-C3 of 32 images as in ResNet-50, W0, whose left operand and result have more than 2^31
elements (int8: 4 and 9 GiB), with rows that no tensor descriptor describes, and K0-K13, kernels of language models.
"""

from __future__ import annotations

import anatune
from anatune.core.workload.layers import layer_names
from anatune.core.workload.nest import Workload
from bench.layers import EXTRA, Convolution, Layer, Matmul, Words

__all__ = ["DTYPES", "KERNELS", "LAYERS", "TENSOR_LAYERS", "is_asked", "template_of", "workload_of"]

KERNELS = "kernels"
"""Stands for the dtypes of layers that say theirs."""
DTYPES = ("float32", "float16", "bfloat16", "tfloat32", "float8_e4m3fn", "int8", KERNELS)
"""Of operands; the matrix units' are all but the first. "tfloat32": float32 that is rounded to it."""
TENSOR_LAYERS = "M0,M2,M5,L*,C*,W0,K*"
"""What the stage `triton` takes if nothing is asked for."""

_GROUPS = ("bert", "resnet50", "yolo9000")
_WIDE = "W0"
_CONVOLVED = ("float32", "float16", "bfloat16", "tfloat32")
_ALONG_K = ("tfloat32", "float8_e4m3fn", "int8")
"""Whose B lies along k, as weights of linear layers do: Hopper's matrix units read these types in no other way.
Source: PTX ISA 8.5, ``wgmma.mma_async`` (transposing is for 16-bit types)."""
_PRODUCTS = (
    (4096, 4096, 4096),
    (512, 512, 512),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (8192, 8192, 8192),
    (16, 4096, 4096),
    (8192, 1024, 4096),
    (1000, 528, 272),
)
_CONVOLUTIONS = ((64, 56, 64, 3), (128, 28, 128, 3), (1024, 14, 256, 1), (512, 7, 512, 3))
"""Channels, height and width, filters, size of the kernel."""
_KERNELS = (
    "attention 1x32x8x2048x2048x128 --causal --dtype bfloat16",
    "attention 2x16x16x2048x2048x64 --dtype float16",
    "attention 32x32x8x1x4096x128 --dtype bfloat16",
    "attention 4x32x8x1x8192x128 --page-size 16 --dtype bfloat16",
    "softmax 8192x4096 --dtype bfloat16",
    "rms_norm 4096x8192 --dtype bfloat16",
    "add_rms_norm 4096x4096 --dtype bfloat16",
    "silu_multiply 4096x14336 --dtype bfloat16",
    "rotary 4096x32x128 --dtype bfloat16",
    "quantise_groups 4096x7168x128 --dtype bfloat16:float8_e4m3fn",
    "scaled_matmul 4096x4096x4096 --scales rows",
    "scaled_matmul 4096x4096x4096 --scales blocks",
    "scaled_matmul 16x8192x8192 --dtype bfloat16xint4 --group 128",
    "grouped_matmul 512x32x4x1024x2048 --dtype bfloat16 --activation",
)
"""Prompts and decoding, kernels on rows, products with scales, experts."""


def _layer(full: str) -> Layer:
    """Return a layer of the papers by its name, "resnet50:R5"."""
    group, _, name = full.partition(":")
    workload = anatune.layer(full)
    extents = workload.extents
    if workload.operator == "matmul":
        return Matmul(name, group, extents["i"], extents["j"], extents["k"])
    size, kernel = workload.reads[0].shape[2], extents["ry"]
    padding = kernel // 2
    stride = max(1, round((size + 2 * padding - kernel) / max(1, extents["y"] - 1)))
    return Convolution(name, group, extents["rc"], size, extents["f"], kernel, stride, padding)


LAYERS: dict[str, Layer] = {
    layer.name: layer
    for layer in (
        *(_layer(name) for name in layer_names() if name.split(":")[0] in _GROUPS and name.split(":")[1][0].isalpha()),
        *(Matmul(f"L{i}", EXTRA, *sizes) for i, sizes in enumerate(_PRODUCTS)),
        *(Convolution(f"C{i}", EXTRA, *sizes, 1, sizes[3] // 2, images=32) for i, sizes in enumerate(_CONVOLUTIONS)),
        Matmul(_WIDE, EXTRA, 1 << 20, 2056, 4104),
        *(Words(f"K{i}", EXTRA, text) for i, text in enumerate(_KERNELS)),
    )
}


def is_asked(layer: Layer, dtype: str) -> bool:
    """Whether a layer is measured in a dtype: convolutions of 8 bits have no rival, the wide product is of int8."""
    if isinstance(layer, Words) or dtype == KERNELS:
        return isinstance(layer, Words) and dtype == KERNELS
    if layer.name == _WIDE:
        return dtype == "int8"
    return isinstance(layer, Matmul) or dtype in _CONVOLVED


def workload_of(layer: Layer, dtype: str) -> Workload:
    """Return a layer's workload in one of `DTYPES`: float32 convolutions are NCHW, others NHWC."""
    operands = "float32" if dtype == "tfloat32" else dtype
    if isinstance(layer, Matmul):
        return layer.workload("NT" if dtype in _ALONG_K else "NN", operands)
    return layer.workload("NCHW" if dtype == "float32" else "NHWC", operands)


def template_of(dtype: str) -> str:
    """Return the template of schedules for a dtype."""
    return "pipelined" if dtype == "float32" else "triton"
