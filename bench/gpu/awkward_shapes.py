"""Sixty awkward workloads, whose extents have few divisors or little work, each with the smooth shape above it.

A smooth neighbour has every extent of a product rounded up to a multiple of 64, every side of an output image to a
multiple of 8, channels to multiples of 64; batches, windows, strides and paddings stay. All are float32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import anatune
from anatune.core.workload.nest import Workload

__all__ = ["AWKWARD", "FOUR", "MATVECS", "Convolution", "Product", "Reduction", "Shape"]


def _up(extent: int, multiple: int) -> int:
    return -(-extent // multiple) * multiple


@dataclass(frozen=True)
class Product:
    """C[m, n] = sum over k of A[m, k] B[k, n]; with `batch` as many of them."""

    m: int
    n: int
    k: int
    batch: int = 0

    @property
    def name(self) -> str:
        """As the command line takes it."""
        return f"batch_matmul {self.batch}x{self._text}" if self.batch else f"matmul {self._text}"

    @property
    def _text(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    def workload(self) -> Workload:
        """Return anatune's workload."""
        if self.batch:
            return anatune.batch_matmul(self.batch, self.m, self.n, self.k)
        return anatune.matmul(self.m, self.n, self.k)

    def neighbour(self) -> Product:
        """Return the smooth shape above."""
        return replace(self, m=_up(self.m, 64), n=_up(self.n, 64), k=_up(self.k, 64))


@dataclass(frozen=True)
class Convolution:
    """`images` of c x side x side (NCHW), k filters of c x window[0] x window[1]."""

    c: int
    side: int
    k: int
    window: tuple[int, int]
    stride: int = 1
    padding: tuple[int, int] = (0, 0)
    images: int = 1

    @property
    def name(self) -> str:
        """As the command line takes it."""
        text = f"conv2d {self.images}x{self.c}x{self.side}x{self.side} {self.k}x{self.c}x{_by(self.window)}"
        text += f" --stride {self.stride}" if self.stride > 1 else ""
        return text + (f" --padding {_by(self.padding)}" if any(self.padding) else "")

    def workload(self) -> Workload:
        """Return anatune's workload."""
        return anatune.conv2d(
            self.images, self.c, self.side, self.side, self.k, *self.window, stride=self.stride, padding=self.padding
        )

    def neighbour(self) -> Convolution:
        """Return the smooth shape above: the image is as large as outputs of a multiple of 8 rows and columns take.

        Windows that are not square keep the size of the image only in one way of padding: rows and columns then grow
        alike.
        """
        shrink = self.window[0] - 2 * self.padding[0]
        output = (self.side - shrink) // self.stride + 1
        return replace(self, c=_up(self.c, 64), k=_up(self.k, 64), side=(_up(output, 8) - 1) * self.stride + shrink)


@dataclass(frozen=True)
class Reduction:
    """Sums over some dimensions of a tensor."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]

    @property
    def name(self) -> str:
        """As the command line takes it."""
        return f"reduction {_by(self.shape)} --axes {','.join(map(str, self.axes))}"

    def workload(self) -> Workload:
        """Return anatune's workload."""
        return anatune.reduction(self.shape, axes=self.axes)

    def neighbour(self) -> Reduction:
        """Return the smooth shape above: the last two of four dimensions are an image's sides, batches stay."""
        if len(self.shape) == 4:
            batch, channels, *sides = self.shape
            return replace(self, shape=(batch, _up(channels, 64), *(_up(side, 8) for side in sides)))
        return replace(self, shape=tuple(_up(extent, 64) for extent in self.shape))


Shape = Product | Convolution | Reduction


def _by(numbers: tuple[int, ...]) -> str:
    return "x".join(map(str, numbers))


def _square(
    c: int, side: int, k: int, window: int, *, stride: int = 1, valid: bool = False, images: int = 1
) -> Convolution:
    """Return a convolution of a square window, by default padded so that the image keeps its size."""
    padding = 0 if valid else window // 2
    return Convolution(c, side, k, (window, window), stride, (padding, padding), images)


AWKWARD: tuple[Shape, ...] = (
    # primes
    Product(127, 127, 127),
    Product(251, 509, 1021),
    Product(509, 4099, 1021),
    Product(1021, 1021, 1021),
    Product(2039, 2039, 2039),
    Product(4093, 127, 509),
    # vision transformers: 14 x 14 or 24 x 24 patches and a class, windows of 7 x 7
    Product(197, 768, 768),
    Product(197, 3072, 768),
    Product(197, 768, 3072),
    Product(577, 1024, 1024),
    Product(577, 4096, 1024),
    Product(577, 768, 768),
    Product(49, 1024, 1024),
    Product(49, 384, 1536),
    # sequences
    Product(35, 1024, 1024),
    Product(73, 4096, 1024),
    Product(147, 768, 768),
    # tall
    Product(100_003, 67, 67),
    Product(50_021, 64, 576),
    Product(12_347, 96, 96),
    # thin: few rows, or few results and a long sum
    Product(7, 4096, 4096),
    Product(13, 4096, 11_008),
    Product(35, 35, 65_537),
    # batches: attention of 197, 577, 73, 35 tokens, windows of 49, primes
    Product(197, 197, 64, batch=12),
    Product(197, 64, 197, batch=12),
    Product(577, 577, 64, batch=12),
    Product(73, 73, 64, batch=12),
    Product(35, 35, 64, batch=16),
    Product(49, 49, 32, batch=64),
    Product(509, 509, 127, batch=3),
    Product(61, 1021, 1021, batch=5),
    # images of 7 x 7
    _square(512, 7, 512, 3),
    _square(2048, 7, 512, 1),
    _square(512, 7, 2048, 1),
    _square(160, 7, 960, 1),
    _square(512, 14, 512, 3, stride=2),
    _square(512, 7, 512, 3, images=2),
    # of 14 x 14, 13 x 13
    _square(256, 14, 256, 3),
    _square(1024, 14, 256, 1),
    _square(256, 14, 1024, 1),
    _square(112, 14, 672, 1),
    _square(256, 14, 256, 3, images=3),
    _square(256, 13, 384, 3),
    _square(512, 13, 1024, 3),
    # of 17 x 17, 35 x 35, 73 x 73, 147 x 147
    _square(768, 17, 192, 1),
    Convolution(192, 17, 192, (1, 7), padding=(0, 3)),
    Convolution(128, 17, 128, (7, 1), padding=(3, 0)),
    _square(288, 35, 384, 3, stride=2, valid=True),
    _square(192, 35, 64, 1),
    _square(64, 35, 96, 3),
    _square(96, 35, 96, 3),
    _square(48, 35, 64, 5),
    _square(64, 35, 96, 3, images=5),
    _square(64, 73, 80, 1),
    _square(32, 149, 32, 3, valid=True),
    _square(32, 147, 64, 3),
    # sums
    Reduction((197, 768), (1,)),
    Reduction((509, 4099), (1,)),
    Reduction((4099, 1021), (0,)),
    Reduction((3, 2048, 7, 7), (2, 3)),
)
"""The fixed list; a new one is a new list, with its own results."""

FOUR = (Product(509, 4099, 1021), Product(197, 768, 768), Product(16, 16, 65_536), Product(128, 128, 64, batch=12))
"""Those that the work on awkward shapes began with."""

MATVECS = tuple(Product(1, n, k) for n in (4096, 8192, 16_384) for k in (4096, 8192, 16_384))
"""Matrix times vector."""
