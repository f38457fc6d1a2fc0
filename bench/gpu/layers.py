"""The layers of the GPU benchmark: BERT M0-M5, ResNet-50 R0-R12, Yolo-9000 Y0-Y10, one image each; L0 for matrix units.

They are `anatune.layer`'s ("Accelerated Auto-Tuning of GPU Kernels for Tensor Computations", Table 1), NCHW. L0, a
matmul of 4096x4096x4096, is measured only where it is asked for and by the stage `tensorcore`.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass

import anatune
from anatune.core.workload.layers import layer_names
from anatune.core.workload.nest import Workload

__all__ = ["GROUPS", "LAYERS", "Convolution", "Layer", "Matmul", "choose_layers"]

GROUPS = ("bert", "resnet50", "yolo9000")
_EXTRA = "extra"


@dataclass(frozen=True)
class Matmul:
    """C[m, n] = sum over k of A[m, k] B[k, n]."""

    m: int
    n: int
    k: int


@dataclass(frozen=True)
class Convolution:
    """One image, square input and kernel, zeros around it."""

    channels: int
    size: int
    filters: int
    kernel: int
    stride: int
    padding: int


@dataclass(frozen=True)
class Layer:
    """A layer by its short name."""

    name: str
    group: str
    shape: Matmul | Convolution

    def workload(self, dtype: str = "float32") -> Workload:
        """Return what anatune computes."""
        shape = self.shape
        if isinstance(shape, Matmul):
            return anatune.matmul(shape.m, shape.n, shape.k, dtype=dtype)
        return anatune.conv2d(
            1,
            shape.channels,
            shape.size,
            shape.size,
            shape.filters,
            shape.kernel,
            shape.kernel,
            stride=shape.stride,
            padding=shape.padding,
            dtype=dtype,
        )

    @property
    def text(self) -> str:
        """The shape in a few characters."""
        shape = self.shape
        if isinstance(shape, Matmul):
            return f"{shape.m}x{shape.n}x{shape.k}"
        stride = f" s{shape.stride}" if shape.stride > 1 else ""
        return f"{shape.channels},{shape.size} -> {shape.filters}, {shape.kernel}x{shape.kernel}{stride}"


def _shape(workload: Workload) -> Matmul | Convolution:
    """Return the shape of a layer of the papers."""
    extents = workload.extents
    if workload.operator == "matmul":
        return Matmul(extents["i"], extents["j"], extents["k"])
    data, kernel = workload.reads[0].shape, extents["ry"]
    padding = kernel // 2
    stride = max(1, round((data[2] + 2 * padding - kernel) / max(1, extents["y"] - 1)))
    return Convolution(extents["rc"], data[2], extents["f"], kernel, stride, padding)


def _papers_layers() -> dict[str, Layer]:
    found = {}
    for full in layer_names():
        group, _, name = full.partition(":")
        if group in GROUPS and name[0].isalpha():
            found[name] = Layer(name, group, _shape(anatune.layer(full)))
    return found


LAYERS: dict[str, Layer] = {**_papers_layers(), "L0": Layer("L0", _EXTRA, Matmul(4096, 4096, 4096))}


def choose_layers(text: str | None) -> list[Layer]:
    """Return the layers that a comma-separated list of names, groups and patterns asks for, in the order of `LAYERS`.

    Nothing asked means all but L0.

    Raises
    ------
    SystemExit
        A name is unknown.
    """
    if not text:
        return [layer for layer in LAYERS.values() if layer.group != _EXTRA]
    chosen: set[str] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        found = [n for n, layer in LAYERS.items() if fnmatch.fnmatch(n, part.upper()) or layer.group == part.lower()]
        if not found:
            raise SystemExit(
                f"--layers: {part!r} is unknown, expected names of {', '.join(LAYERS)}, a pattern (R*) or a group "
                f"({', '.join(GROUPS)})"
            )
        chosen.update(found)
    return [layer for name, layer in LAYERS.items() if name in chosen]
