"""What a layer of the kernel benchmarks is, and how layers are chosen by name; lists: `cpu.layers`, `gpu.layers`."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass

import anatune
from anatune.core.workload.nest import Workload

__all__ = ["EXTRA", "Convolution", "Layer", "Matmul", "Words", "choose"]

EXTRA = "extra"
"""Group of the layers that are measured only where they are asked for."""


@dataclass(frozen=True)
class Matmul:
    """C[m, n] = sum over k of A[m, k] B[k, n], row-major; on CPUs B is constant (packed ahead of time)."""

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
        """Bytes of the operands and the result in float32, each once."""
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

    def workload(self, layout: str = "NHWC", dtype: str = "float32") -> Workload:
        """Return anatune's workload; the layout "NT" stores B as [n, k], others mean nothing here."""
        return anatune.matmul(self.m, self.n, self.k, dtype=dtype, transpose_b=layout == "NT")


@dataclass(frozen=True)
class Convolution:
    """Square images and kernel, no bias; on CPUs the weights are constant (packed ahead of time)."""

    name: str
    group: str
    channels: int
    size: int
    filters: int
    kernel: int
    stride: int
    padding: int
    images: int = 1

    @property
    def output_size(self) -> int:
        """Height and width of the result."""
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def flop(self) -> int:
        """Floating-point operations of one run; products with the padding's zeros count, as is usual."""
        return 2 * self.images * self.channels * self.filters * self.kernel**2 * self.output_size**2

    @property
    def compulsory_bytes(self) -> int:
        """Bytes of all operands in float32, each once; of the input only the rows and columns that are read."""
        read = min(self.size, self.output_size * self.kernel)
        weights = self.channels * self.filters * self.kernel**2
        return 4 * (weights + self.images * (self.channels * read**2 + self.filters * self.output_size**2))

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

    def workload(self, layout: str = "NHWC", dtype: str = "float32") -> Workload:
        """Return anatune's workload in `layout`."""
        size, kernel = (self.size, self.size), (self.kernel, self.kernel)
        return anatune.conv2d(
            self.images, self.channels, *size, self.filters, *kernel,
            stride=self.stride, padding=self.padding, layout=layout, dtype=dtype,
        )  # fmt: skip


@dataclass(frozen=True)
class Words:
    """A workload in the words of the command line, its dtypes among them."""

    name: str
    group: str
    text: str

    @property
    def flop(self) -> int:
        """Operations of one run."""
        return self.workload().flop

    def workload(self, layout: str = "", dtype: str = "") -> Workload:
        """Return anatune's workload; the words say all of it."""
        return anatune.parse_workload(self.text)


Layer = Matmul | Convolution | Words


def choose(text: str | None, layers: Mapping[str, Layer]) -> list[Layer]:
    """Return the layers that a comma-separated list of names, groups and patterns asks for, in the order of `layers`.

    Nothing asked means all but the group `EXTRA`.

    Raises
    ------
    SystemExit
        A name is unknown.
    """
    if not text:
        return [layer for layer in layers.values() if layer.group != EXTRA]
    chosen: set[str] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        found = [n for n, layer in layers.items() if fnmatch.fnmatch(n, part.upper()) or layer.group == part.lower()]
        if not found:
            groups = dict.fromkeys(layer.group for layer in layers.values() if layer.group != EXTRA)
            raise SystemExit(
                f"--layers: {part!r} is unknown, expected names of {', '.join(layers)}, a pattern (R*) or a group "
                f"({', '.join(groups)})"
            )
        chosen.update(found)
    return [layer for name, layer in layers.items() if name in chosen]
