"""The layers of the GPU benchmark: BERT M0-M5, ResNet-50 R0-R12, Yolo-9000 Y0-Y10, one image each; L0 for matrix units.

They are `anatune.layer`'s ("Accelerated Auto-Tuning of GPU Kernels for Tensor Computations", Table 1), NCHW. L0, a
matmul of 4096x4096x4096, is measured only where it is asked for and by the stage `tensorcore`.
"""

from __future__ import annotations

import anatune
from anatune.core.workload.layers import layer_names
from bench.layers import EXTRA, Convolution, Layer, Matmul

__all__ = ["LAYERS"]

_GROUPS = ("bert", "resnet50", "yolo9000")


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
        Matmul("L0", EXTRA, 4096, 4096, 4096),
    )
}
