"""The layers of the CPU benchmarks: BERT M0-M5, twelve of ResNet-18 (R0-R11), eleven of Yolo-9000 (Y0-Y10), MX.

The names are those of "Vendor libraries and MetaSchedule on one shared 2-core Cascade Lake machine" and differ from
`anatune.layer`: R0-R11 here are ResNet-18 (there ResNet-50), and the 1x1 kernels have no padding. MX is one more
matmul, 512x1024x1024, which is measured only where it is asked for.
"""

from __future__ import annotations

from bench.layers import EXTRA, Convolution, Layer, Matmul

__all__ = ["LAYERS"]

_BERT = [(512, 64, 1024), (512, 4096, 1024), (512, 64, 768), (512, 3072, 768), (512, 1024, 4096), (512, 768, 3072)]
_RESNET18 = [  # channels, size, filters, kernel, stride, padding
    (3, 224, 64, 7, 2, 3),
    (64, 56, 64, 3, 1, 1),
    (64, 56, 64, 1, 1, 0),
    (64, 56, 128, 3, 2, 1),
    (64, 56, 128, 1, 2, 0),
    (128, 28, 128, 3, 1, 1),
    (128, 28, 256, 3, 2, 1),
    (128, 28, 256, 1, 2, 0),
    (256, 14, 256, 3, 1, 1),
    (256, 14, 512, 3, 2, 1),
    (256, 14, 512, 1, 2, 0),
    (512, 7, 512, 3, 1, 1),
]
_YOLO9000 = [  # channels, size, filters, kernel; stride 1, zeros of half the kernel
    (3, 544, 32, 3),
    (32, 272, 64, 3),
    (64, 136, 128, 3),
    (128, 136, 64, 1),
    (128, 68, 256, 3),
    (256, 68, 128, 1),
    (256, 34, 512, 3),
    (512, 34, 256, 1),
    (512, 17, 1024, 3),
    (1024, 17, 512, 1),
    (1024, 17, 28269, 1),
]

LAYERS: dict[str, Layer] = {
    layer.name: layer
    for layer in (
        *(Matmul(f"M{i}", "bert", *row) for i, row in enumerate(_BERT)),
        *(Convolution(f"R{i}", "resnet18", *row) for i, row in enumerate(_RESNET18)),
        *(Convolution(f"Y{i}", "yolo9000", *row, 1, row[3] // 2) for i, row in enumerate(_YOLO9000)),
        Matmul("MX", EXTRA, 512, 1024, 1024),
    )
}
