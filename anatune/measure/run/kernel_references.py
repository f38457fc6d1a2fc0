"""Float64 results of the bodies that are more than a statement (`core.workload.kernels`), and their random operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from anatune.core.workload.nest import Workload

__all__ = ["KERNEL_OPERANDS", "KERNEL_REFERENCES"]

Values = NDArray[np.float64]
Drawn = NDArray[np.generic]


def _softmax(workload: Workload, operands: Mapping[str, Values]) -> Values:
    """Over the last dimension of the first operand."""
    values = operands[workload.reads[0].tensor]
    powers = np.exp(values - values.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


KERNEL_REFERENCES: dict[str, Callable[[Workload, Mapping[str, Values]], Values]] = {"softmax": _softmax}
"""Body -> its result of float64 operands by tensor, in the result's shape."""

KERNEL_OPERANDS: dict[tuple[str, str], Callable[[Workload, np.random.Generator], Drawn]] = {}
"""(body, tensor) -> random elements of an operand that is no matter of chance alone: indices, positive factors."""
