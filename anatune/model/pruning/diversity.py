"""Which points are kept when few are: those whose best is expected to be fastest, not the first ones of the order.

The first points of a predicted order are near copies of each other, and what the model gets wrong of one it gets wrong
of its copies. The error, log(measured / predicted), is taken for a Gaussian process over what a kernel's speed rests on
(`QUANTITIES`): what two points have in common of it falls with their distance. Points are chosen one by one, each the
one that lowers the expected minimum of all chosen most: the multi-points expected improvement of [GINSBOURGER],
greedily, over draws of the process.

The process is an assumption, and what many are chosen by are its draws, so the more are chosen, the more of them are
the first ones of the order (`first_of`). That matters where many candidates are predicted alike because the model does
not see what they differ in: of the first 1 % of a list of CLBlast's configurations 5 % are different for the model, and
those alike differ by 22 % in time; of TVM's 33 % and 7 %, which is what the process believes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anatune.templates.base.model import Model
from anatune.templates.base.ranking import apart

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MOST_DIVERSE = 256
"""Most points that are chosen so: the beginning of the order is then long enough to hold all kinds."""
POOL, POOL_SHARE = 256, 4
"""Points from which is chosen: so many, and so many for each one chosen."""
QUANTITIES = (
    "threads", "accumulators", "steps", "fragments_per_accumulator", "loads_per_fma", "wavefronts_per_fma",
    "fetches_per_fma", "bytes_per_fma", "lines_per_byte", "sectors_over_bytes",
)  # fmt: skip
"""Features (base-2 logarithms all of them) over which errors change: the block's shape, and what a multiply-add costs
in shared loads, their wavefronts, fetches, bytes, cache lines and sectors."""

ERROR_STD, ERROR_LENGTH, NOISE_STD = 0.18, 1.1, 0.08
"""Standard deviation of the error (of log time), the distance over which it changes, and each point's own part of it.
Marginal likelihood of the faster half of 60 recorded Ansor and AutoTVM workloads, errors above 0.2 clipped: kernels are
slower than predicted by any factor, and here it counts how much faster they may be. Not fitted on GEMM tables. Halving
or doubling one of them, or leaving a device out of the fit, moves the medians by a hundredth
(docs/bench/replay.pruning.md)."""
_DRAWS = 256


def error_quantities(model: Model, points: Integers) -> Floats:
    """Return what the errors of points rest on, (num_points, num_quantities): distances of 1 are factors of 2.

    `model` is of a `diverse` template, corrected or not.
    """
    table = model.feature_table(points)
    return table.values[:, [table.names.index(name) for name in QUANTITIES]]


def common_error(quantities: Floats, others: Floats) -> Floats:
    """Return the correlation of the errors of points with those of others, each one's own part apart.

    1 where all quantities are equal, exp(-1/2) at a distance of `ERROR_LENGTH`: (num_points, num_others) float64.
    """
    squares = np.square(quantities).sum(axis=1)[:, None] + np.square(others).sum(axis=1)[None, :]
    apart = np.maximum(squares - 2.0 * quantities @ others.T, 0.0)
    common: Floats = np.exp(-0.5 * apart / ERROR_LENGTH**2)
    return common


def beginning(time_s: Floats, count: int) -> Integers:
    """Return the rows of a predicted order from which `count` are chosen, ascending.

    The first ones, and the first ones of different predicted times: a list may begin with hundreds of ties.
    """
    most = max(POOL, POOL_SHARE * count)
    different = np.flatnonzero(apart(time_s))[:most]
    return np.union1d(np.arange(min(most, len(time_s))), different)


def first_of(count: int) -> int:
    """Return how many of the beginning of an order are among `count` chosen ones: the share count / (count + draws).

    The more are chosen, the more the choice fits the draws of the process and not the process. Of this
    rule, none, the root and other constants, this or the root is best for each device's tables when chosen on those of
    the others (docs/bench/replay.pruning.md).
    """
    return -(-(count**2) // (count + _DRAWS)) if count > 0 else 0


def choose(time_s: Floats, quantities: Floats, count: int) -> Integers:
    """Return the rows of `count` points, at most all, in the order in which they are chosen: (count,) int64.

    The first `first_of(count)` rows come first.

    Parameters
    ----------
    time_s : (num_points,) float64
        Predicted seconds, ascending.
    quantities : (num_points, num_quantities) float64
        What errors rest on, such as `error_quantities`.

    Notes
    -----
    Deterministic. Time: O(num_points^3) once, O(num_points) for each point chosen.
    """
    size = len(time_s)
    if count >= size or count < 1:
        return np.arange(min(max(count, 0), size))
    covariance = ERROR_STD**2 * common_error(quantities, quantities)
    covariance[np.diag_indices(size)] += NOISE_STD**2
    normal = np.random.default_rng(0).standard_normal((size, _DRAWS))
    draws = np.log(time_s)[:, None] + np.linalg.cholesky(covariance) @ normal
    first = first_of(count)
    chosen, fastest = list(range(first)), draws[:first].min(axis=0)
    left = np.arange(size) >= first
    while len(chosen) < count:
        expected = np.minimum(draws, fastest).mean(axis=1)
        row = int(np.argmin(np.where(left, expected, np.inf)))
        chosen.append(row)
        left[row] = False
        np.minimum(fastest, draws[row], out=fastest)
    return np.array(chosen, dtype=np.int64)
