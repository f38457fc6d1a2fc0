"""Compiled outputs beside the original's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anatune.errors import RunError
from anatune.graph.summary import Check

__all__ = ["TOLERANCE", "compared"]

TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2, "float64": 1e-10}
"""Largest error of an output, over its largest magnitude; integers and truth values have to be equal."""


def compared(got: Sequence[NDArray[Any]], want: Sequence[NDArray[Any]], names: Sequence[str], reference: str) -> Check:
    """Return how far outputs are from the original's.

    Raises
    ------
    RunError
        One is further than `TOLERANCE`, or of another shape; the message names it.
    """
    if len(got) != len(want):
        raise RunError(f"check: the compiled model has {len(got)} outputs, {reference} {len(want)}")
    worst, limit = 0.0, max(TOLERANCE.get(one.dtype.name, 0.0) for one in got)
    for name, own, other in zip(names, got, want, strict=True):
        if own.shape != other.shape:
            raise RunError(f"check: output {name} has shape {own.shape}, {reference} says {other.shape}")
        error = _error(own, other)
        tolerance = TOLERANCE.get(own.dtype.name, 0.0)
        if not error <= tolerance:
            raise RunError(
                f"check: output {name} is wrong by {error:.3g} of its largest magnitude beside {reference}, "
                f"expected at most {tolerance:g}; check=False (--no-check) builds it all the same"
            )
        worst = max(worst, error)
    return Check(worst, limit, reference)


def _error(own: NDArray[Any], other: NDArray[Any]) -> float:
    """Return the largest difference over the largest magnitude; equal infinities and NaNs do not differ."""
    if not own.size:
        return 0.0
    if own.dtype.kind not in "fc":
        return 0.0 if np.array_equal(own, other) else float("inf")
    first, second = own.astype(np.float64), other.astype(np.float64)
    same = (first == second) | (np.isnan(first) & np.isnan(second))
    finite = np.abs(second[np.isfinite(second)])
    scale = float(finite.max()) if finite.size else 0.0
    with np.errstate(invalid="ignore"):
        difference = np.where(same, 0.0, np.abs(first - second))
    worst = float(np.nan_to_num(difference, nan=np.inf).max())
    return worst / scale if scale else worst
