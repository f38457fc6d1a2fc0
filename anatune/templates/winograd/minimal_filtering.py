"""Winograd's minimal filtering F(m, 3): the matrices of its transforms, what they cost, how far they spread errors.

A tile of ``m x m`` outputs of a 3x3 convolution is ``A^T [ (G g G^T) * (B^T d B) ] A``, with d the ``(m + 2)^2``
inputs, g the window, and * element by element, summed over channels: ``(m + 2)^2`` products instead of ``9 m^2``.

Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (2015). The matrices are those of Cook and
Toom for the points 0, a, -a, b, -b and infinity. F(2, 3): a = 1. F(4, 3): a = sqrt(1/2), b = sqrt(2), as ncnn has them;
in float32 with 64 channels the largest error against float64 is 1.3e-6 of the largest output, with Lavin's points 0, 1,
-1, 2, -2 it is 5.8e-6, with 2/3 and 3/2 1.4e-6; F(2, 3) 3.3e-7 (operands uniform around 0, NumPy, 3 seeds).

Integers of 8 bits stay integers in F(2, 3) with 2 G in the place of G: the inputs of a product have 16 bits (1020 = 4
255 and 1143 = 9 127 at most), and outputs are four times as large. They are exact modulo 2**32, whatever sums of
products overflow on the way. The multiply-adds of 16 bits (VPMADDWD) are the ones that 8 bits take anyway where there
is no VNNI, 4 instead of 9 of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["TAPS", "Filtering", "filtering"]

TAPS = 3
_POINTS: dict[int, tuple[float, ...]] = {2: (1.0,), 4: (math.sqrt(0.5), math.sqrt(2.0))}
"""Outputs -> the positive points."""


@dataclass(frozen=True, eq=False)
class Filtering:
    """F(m, 3) of one dimension.

    Attributes
    ----------
    outputs, inputs : int
        m and m + 2.
    points : tuple of float
        The positive ones; each comes with its negative, besides 0 and infinity.
    data, kernel, result : (inputs, inputs), (inputs, 3), (m, inputs) float64
        B^T, G and A^T.
    """

    outputs: int
    inputs: int
    points: tuple[float, ...]
    data: NDArray[np.float64]
    kernel: NDArray[np.float64]
    result: NDArray[np.float64]

    @property
    def frequencies(self) -> int:
        """Products of a tile, an input and an output channel."""
        return self.inputs**2

    @property
    def data_operations(self) -> int:
        """Vector operations of the input transform of a tile, as `winograd.program.transforms` writes them."""
        each = 4 if len(self.points) == 1 else 4 + 4 * len(self.points)
        return 2 * self.inputs * each

    @property
    def result_operations(self) -> int:
        """Vector operations of the output transform of a tile, as `winograd.program.transforms` writes them."""
        each = 4 if len(self.points) == 1 else 4 + 4 * len(self.points)
        return (self.inputs + self.outputs) * each

    def error_growth(self, channels: int) -> float:
        """Return the errors of an output over those of a direct sum, for random operands; at least 1.

        An error of frequency t reaches output i through ``A^T[i, t]``, and is as large as what it belongs to: the
        spread of the products of t, ``|B^T[t]| |G[t]|`` (Euclidean norms of rows). So it grows by the largest
        ``sqrt(sum over t of (A^T[i, t] |B^T[t]| |G[t]|)^2 / 3)``, once for each dimension. Sums are shorter: one
        product a channel instead of 9, and as many additions as the transforms have terms (a sum of K errs by sqrt(K)).
        """
        spread = np.square(self.data).sum(axis=1) * np.square(self.kernel).sum(axis=1)
        growth = float((np.square(self.result) @ spread).max()) / TAPS
        terms = sum(
            int(np.count_nonzero(matrix, axis=1).max()) ** 2 for matrix in (self.data, self.kernel, self.result)
        )
        return max(1.0, growth * math.sqrt((channels + terms) / (TAPS**2 * channels)))


@lru_cache(maxsize=8)
def filtering(outputs: int) -> Filtering:
    """Return F(`outputs`, 3); there are F(2, 3) and F(4, 3)."""
    positive = _POINTS[outputs]
    points = [0.0, *(sign * point for point in positive for sign in (1.0, -1.0))]
    inputs = len(points) + 1
    data, kernel = np.zeros((inputs, inputs)), np.zeros((inputs, TAPS))
    result = np.zeros((outputs, inputs))
    for row, point in enumerate(points):
        others = [other for other in points if other != point]
        # coefficients, of the lowest power first, of the polynomial that vanishes at all other points
        data[row, : inputs - 1] = np.poly(others)[::-1]
        kernel[row] = point ** np.arange(TAPS) / math.prod(point - other for other in others)
        result[:, row] = point ** np.arange(outputs)
    data[-1] = np.poly(points)[::-1]
    kernel[-1, -1] = 1.0
    result[-1, -1] = 1.0
    return Filtering(outputs, inputs, positive, data, kernel, result)
