"""Loads that a thread saves because windows of its results overlap, where loops over a window are unrolled.

The template's model counts one load for each result and step. Compilers load an element once a thread, however many of
its windows hold it: in 56 unrolled convolution kernels that NVRTC 12.9 compiled (15 x 15 filter, 1 to 4 by 1 to 4
results a thread, 1 or 4 rows of threads apart) the loads were exactly the different elements of all windows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anatune.core.workload.nest import Access, Workload

__all__ = ["shared_by_windows"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def shared_by_windows(workload: Workload, points: Integers) -> Floats:
    """Return the share of a thread's loads that is left, (num_points,) float64 in (0, 1]; 1 where nothing overlaps.

    `points` are those of the template `cuda`, (num_points, num_columns); windows are unrolled within a stage.
    """
    spatial = {axis.name: 5 * at for at, axis in enumerate(workload.spatial_axes)}
    first = 5 * len(spatial)
    reduction = {axis.name: first + 3 * at for at, axis in enumerate(workload.reduction_axes)}
    each, left = np.zeros(len(points)), np.zeros(len(points))
    for access in workload.reads:
        loads = np.ones(len(points))
        for name, at in spatial.items():
            if access.uses(name):
                loads *= points[:, at + 1] * points[:, at + 3] * points[:, at + 4]
        each += loads
        left += loads * _different(access, spatial, reduction, points)
    found: Floats = left / each
    return found


def _different(access: Access, spatial: dict[str, int], reduction: dict[str, int], points: Integers) -> Floats:
    """Return different elements over elements of all windows, of one operand."""
    share = np.ones(len(points))
    for terms in access.indices:
        along = [term for term in terms if term.axis in spatial]
        within = [term for term in terms if term.axis in reduction]
        if len(along) != 1 or len(within) != 1:
            continue
        at, step = spatial[along[0].axis], reduction[within[0].axis]
        columns = points[:, [at + 1, at + 2, at + 3, at + 4, step + 1, step + 2]]
        kinds, which = np.unique(columns, axis=0, return_inverse=True)
        shares = [_share(kind, along[0].coefficient, within[0].coefficient) for kind in kinds.tolist()]
        share *= np.array(shares)[which.reshape(-1)]
    return share


def _share(kind: list[int], stride: int, dilation: int) -> float:
    """Return different elements over all of one dimension: results lie `threads` times `inner` apart."""
    apart, threads, outer, inner, steps, innermost = kind
    beside = outer * inner
    results = np.arange(apart)[:, None] * threads * beside + np.arange(beside)[None, :]
    window = np.arange(steps * innermost) * dilation
    held = (results.reshape(-1, 1) * stride + window[None, :]).reshape(-1)
    return len(np.unique(held)) / len(held)
