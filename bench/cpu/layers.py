"""The layers of the CPU benchmarks: BERT M0-M5, twelve of ResNet-18 (R0-R11), eleven of Yolo-9000 (Y0-Y10), MX.

The names are those of "Vendor libraries and MetaSchedule on one shared 2-core Cascade Lake machine" and differ from
`anatune.layer`: R0-R11 here are ResNet-18 (there ResNet-50), and the 1x1 kernels have no padding. MX is one more
matmul, 512x1024x1024, which is measured only where it is asked for.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anatune.core.workload.nest import Workload

__all__ = ["LAYERS", "Convolution", "Layer", "Matmul", "choose_layers"]


@dataclass(frozen=True)
class Matmul:
    """C[m, n] = sum over k of A[m, k] B[k, n], float32; B is constant (packed ahead of time)."""

    name: str
    group: str
    m: int
    n: int
    k: int

    @property
    def flop(self) -> int:
        """Floating-point operations of one run."""
        return 2 * self.m * self.n * self.k

    @property
    def compulsory_bytes(self) -> int:
        """Bytes of the operands and the result, each once."""
        return 4 * (self.m * self.k + self.k * self.n + self.m * self.n)

    @property
    def text(self) -> str:
        """The shape in a few characters."""
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def in_bounds(self) -> float:
        """Share of `flop` that is needed: all."""
        return 1.0

    @property
    def is_dense(self) -> bool:
        """Whether the share of the peak is judged: matmuls and 3x3 convolutions."""
        return True

    def workload(self, layout: str = "NHWC") -> Workload:
        """Return anatune's workload; `layout` means nothing here."""
        import anatune

        return anatune.matmul(self.m, self.n, self.k)


@dataclass(frozen=True)
class Convolution:
    """One image, square input and kernel, float32, no bias; the weights are constant (packed ahead of time)."""

    name: str
    group: str
    channels: int
    size: int
    filters: int
    kernel: int
    stride: int
    padding: int

    @property
    def output_size(self) -> int:
        """Height and width of the result."""
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def flop(self) -> int:
        """Floating-point operations of one run; products with the padding's zeros count, as is usual."""
        return 2 * self.channels * self.filters * self.kernel**2 * self.output_size**2

    @property
    def compulsory_bytes(self) -> int:
        """Bytes of the operands and the result, each once; of the input only the rows and columns that are read."""
        read = min(self.size, self.output_size * self.kernel)
        weights = self.channels * self.filters * self.kernel**2
        return 4 * (self.channels * read**2 + weights + self.filters * self.output_size**2)

    @property
    def text(self) -> str:
        """The shape in a few characters."""
        stride = f" s{self.stride}" if self.stride > 1 else ""
        return f"{self.channels},{self.size} -> {self.filters}, {self.kernel}x{self.kernel}{stride}"

    @property
    def in_bounds(self) -> float:
        """Share of `flop` that is needed: oneDNN's kernels leave out products with the padding's zeros."""
        taps = sum(
            0 <= y * self.stride + tap - self.padding < self.size
            for y in range(self.output_size)
            for tap in range(self.kernel)
        )
        return (taps / (self.output_size * self.kernel)) ** 2

    @property
    def is_dense(self) -> bool:
        """Whether the share of the peak is judged: matmuls and 3x3 convolutions."""
        return self.kernel == 3

    def workload(self, layout: str = "NHWC") -> Workload:
        """Return anatune's workload in `layout`."""
        import anatune

        return anatune.conv2d(
            1,
            self.channels,
            self.size,
            self.size,
            self.filters,
            self.kernel,
            self.kernel,
            stride=self.stride,
            padding=self.padding,
            layout=layout,
        )


Layer = Matmul | Convolution

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
        Matmul("MX", "extra", 512, 1024, 1024),
    )
}


def choose_layers(text: str | None) -> list[Layer]:
    """Return the layers that a comma-separated list of names, groups and patterns asks for, in the order of `LAYERS`.

    Nothing asked means all but MX.

    Raises
    ------
    SystemExit
        A name is unknown.
    """
    if not text:
        return [layer for layer in LAYERS.values() if layer.group != "extra"]
    chosen: set[str] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        found = [n for n, layer in LAYERS.items() if fnmatch.fnmatch(n, part.upper()) or layer.group == part.lower()]
        if not found:
            raise SystemExit(
                f"--layers: {part!r} is unknown, expected names of {', '.join(LAYERS)}, a pattern (R*) or a group "
                "(bert, resnet18, yolo9000)"
            )
        chosen.update(found)
    return [layer for name, layer in LAYERS.items() if name in chosen]
