"""Winograd's minimal filtering F(m, 3): the matrices of its transforms, their cost, and their growth of errors.

A tile of ``m x m`` outputs of a 3x3 convolution is ``A^T [ (G g G^T) * (B^T d B) ] A``, with the ``(m + 2)^2`` inputs
d, the window g, and the elementwise product *, summed over channels. It takes ``(m + 2)^2`` products instead of ``9
m^2``.

Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (2015). The matrices are those of Cook and
Toom for the points 0, a, -a, b, -b and infinity. F(2, 3): a = 1. F(4, 3): a = sqrt(1/2), b = sqrt(2), as in ncnn. In
float32 with 64 channels, the largest error against float64 is 1.3e-6 of the largest output; with Lavin's points 0, 1,
-1, 2, -2 it is 5.8e-6, with 2/3 and 3/2 1.4e-6; for F(2, 3) it is 3.3e-7 (operands uniform around 0, NumPy, 3 seeds).

8-bit integers stay integers in F(2, 3) with 2 G instead of G. The operands of a product have 16 bits (at most 1020 = 4
255 and 1143 = 9 127), and outputs are four times as large. Outputs are exact modulo 2**32, even if sums of products
overflow on the way. CPUs without VNNI use 16-bit multiply-adds (VPMADDWD) for 8-bit operands anyway; here they need 4
instead of 9 of them.
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
"""Number of outputs -> the positive points."""


@dataclass(frozen=True, eq=False)
class Filtering:
    """The transforms of F(m, 3) in one dimension.

    Attributes
    ----------
    outputs, inputs : int
        m and m + 2.
    points : tuple of float
        The positive points. Each comes with its negative; 0 and infinity are added.
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
        """Products for each tile, input channel and output channel."""
        return self.inputs**2

    @property
    def data_operations(self) -> int:
        """Vector operations of the input transform of a tile, as in `winograd.program.transforms`."""
        each = 4 if len(self.points) == 1 else 4 + 4 * len(self.points)
        return 2 * self.inputs * each

    @property
    def result_operations(self) -> int:
        """Vector operations of the output transform of a tile, as in `winograd.program.transforms`."""
        each = 4 if len(self.points) == 1 else 4 + 4 * len(self.points)
        return (self.inputs + self.outputs) * each

    def error_growth(self, channels: int) -> float:
        """Return the ratio of the errors of an output to those of a direct sum, for random operands; at least 1.

        An error of frequency t reaches output i through ``A^T[i, t]``. It is proportional to the spread of the products
        of t, ``|B^T[t]| |G[t]|`` (Euclidean norms of rows). So it grows by the largest ``sqrt(sum over t of (A^T[i, t]
        |B^T[t]| |G[t]|)^2 / 3)``, once for each dimension. Sums are shorter: one product for each channel instead of 9,
        and as many additions as the transforms have terms (a sum of K has an error of sqrt(K)).
        """
        spread = np.square(self.data).sum(axis=1) * np.square(self.kernel).sum(axis=1)
        growth = float((np.square(self.result) @ spread).max()) / TAPS
        terms = sum(
            int(np.count_nonzero(matrix, axis=1).max()) ** 2 for matrix in (self.data, self.kernel, self.result)
        )
        return max(1.0, growth * math.sqrt((channels + terms) / (TAPS**2 * channels)))


@lru_cache(maxsize=8)
def filtering(outputs: int) -> Filtering:
    """Return F(`outputs`, 3), which exists for 2 and 4 outputs."""
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
