"""The activations that can be fused into a kernel's stores, as functions on float64 arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float64]


def _normal(x: _Floats) -> _Floats:
    from scipy.special import ndtr  # here: what only counts and plans needs no scipy

    probabilities: _Floats = ndtr(x)
    return probabilities


def _logistic(x: _Floats) -> _Floats:
    with np.errstate(over="ignore"):
        return 1.0 / (1.0 + np.exp(-x))


ACTIVATIONS: dict[str, Callable[[_Floats], _Floats]] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "relu6": lambda x: np.clip(x, 0.0, 6.0),
    "silu": lambda x: x * _logistic(x),
    "gelu": lambda x: x * _normal(x),
    "gelu_tanh": lambda x: x * _logistic(2.0 * np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)),
}
"""Fused step -> its function."""
