"""Diverse selection of few points: not the first of the order, but those whose fastest is expected to be fastest.

The first points of a predicted order are often almost equal, and the model makes the same error for all of them. The
error, log(measured / predicted), is modelled as a Gaussian process over the quantities that a kernel's speed depends on
(`QUANTITIES`): the errors of two points have less in common the further apart they are. Points are chosen one by one,
each time the one that lowers the expected minimum of all chosen points most: the multi-points expected improvement of
[GINSBOURGER], greedily, estimated from draws of the process.

The process is an assumption and its draws are few, so that the more points are chosen, the more of them are the first
of the order (`leading_count`). The selection matters where many candidates have equal predictions because the model
does not see their differences: in the first 1 % of a list of CLBlast's configurations, 5 % are different for the model,
and equal ones differ by 22 % in time; in TVM's lists 33 % and 7 %, as the process assumes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anatune.templates.base.model import Model
from anatune.templates.base.ranking import mark_distinct_times

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MOST_DIVERSE = 256
"""Largest number of points that are chosen in this way: the beginning of the order must contain all kinds."""
POOL, POOL_SHARE = 256, 4
"""Number of points to choose from: the first constant, or the second times the number of chosen points."""
QUANTITIES = (
    "threads", "accumulators", "steps", "fragments_per_accumulator", "loads_per_fma", "wavefronts_per_fma",
    "fetches_per_fma", "bytes_per_fma", "lines_per_byte", "sectors_over_bytes",
)  # fmt: skip
"""Features (all of them base-2 logarithms) that errors depend on: the block's shape, and what a multiply-add costs in
shared loads, their wavefronts, fetches, bytes, cache lines and sectors."""

ERROR_STD, ERROR_LENGTH, NOISE_STD = 0.18, 1.1, 0.08
"""Standard deviation of the error (of log time), the distance over which it changes, and the part of each single point.
Fitted by marginal likelihood to the faster half of 60 recorded Ansor and AutoTVM workloads, with errors above 0.2
clipped, because kernels can be slower than predicted by any factor and only their possible gain matters here. GEMM
tables were not used. Halving or doubling one of them, or leaving out a device, moves the medians by 0.01
(docs/bench/replay.pruning.md)."""
_DRAWS = 256


def error_quantities(model: Model, points: Integers) -> Floats:
    """Return the quantities that errors depend on, (num_points, num_quantities); a distance of 1 is a factor of 2.

    `model` belongs to a template with `diverse`; it may be corrected.
    """
    table = model.feature_table(points)
    return table.values[:, [table.names.index(name) for name in QUANTITIES]]


def common_error(quantities: Floats, others: Floats) -> Floats:
    """Return the correlation of the errors of points with those of others, without each point's own part.

    It is 1 for equal quantities and exp(-1/2) at a distance of `ERROR_LENGTH`: (num_points, num_others) float64.
    """
    squares = np.square(quantities).sum(axis=1)[:, None] + np.square(others).sum(axis=1)[None, :]
    apart = np.maximum(squares - 2.0 * quantities @ others.T, 0.0)
    common: Floats = np.exp(-0.5 * apart / ERROR_LENGTH**2)
    return common


def beginning_rows(time_s: Floats, count: int) -> Integers:
    """Return the rows of a predicted order from which `count` points are chosen, ascending.

    They are the first rows, and the first rows of different predicted times, because a list may begin with many ties.
    """
    most = max(POOL, POOL_SHARE * count)
    different = np.flatnonzero(mark_distinct_times(time_s))[:most]
    return np.union1d(np.arange(min(most, len(time_s))), different)


def leading_count(count: int) -> int:
    """Return how many of `count` chosen points are simply the first of the order: the share count / (count + draws).

    The more points are chosen, the more the choice fits the draws instead of the process. Compared with no such rule, a
    square root and other constants, this rule or the root is best for the tables of each device when chosen on those of
    the others (docs/bench/replay.pruning.md).
    """
    return -(-(count**2) // (count + _DRAWS)) if count > 0 else 0


def choose_diverse(time_s: Floats, quantities: Floats, count: int) -> Integers:
    """Return the rows of `count` points (at most all), in the order in which they are chosen: (count,) int64.

    The first `leading_count(count)` rows come first.

    Parameters
    ----------
    time_s : (num_points,) float64
        Predicted seconds, ascending.
    quantities : (num_points, num_quantities) float64
        Quantities that errors depend on, such as `error_quantities`.

    Notes
    -----
    The result is deterministic. Time: O(num_points^3) once, O(num_points) for each chosen point.
    """
    size = len(time_s)
    if count >= size or count < 1:
        return np.arange(min(max(count, 0), size))
    covariance = ERROR_STD**2 * common_error(quantities, quantities)
    covariance[np.diag_indices(size)] += NOISE_STD**2
    normal = np.random.default_rng(0).standard_normal((size, _DRAWS))
    draws = np.log(time_s)[:, None] + np.linalg.cholesky(covariance) @ normal
    num_leading = leading_count(count)
    chosen, fastest = list(range(num_leading)), draws[:num_leading].min(axis=0)
    is_left = np.arange(size) >= num_leading
    while len(chosen) < count:
        expected_minimum = np.minimum(draws, fastest).mean(axis=1)
        row = int(np.argmin(np.where(is_left, expected_minimum, np.inf)))
        chosen.append(row)
        is_left[row] = False
        np.minimum(fastest, draws[row], out=fastest)
    return np.array(chosen, dtype=np.int64)
