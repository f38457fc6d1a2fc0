"""Routings of tokens to experts: histograms of the rows of an expert, as expected values if the routing is random."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anatune.arguments import quote
from anatune.errors import WorkloadError

Floats = NDArray[np.float64]

_LEAST_SHARE, _MOST_SHARE = 1.0, 0.8
"""Rows of the least popular expert in a power law, and share of the tokens that the most popular one gets. Source: the
tables of aiconfigurator, which are drawn in this way (ai-dynamo/aiconfigurator, collector/helper.py)."""
_FEW = (0.01, 2.0)
"""The same two numbers if there are fewer rows than experts."""
_UNLIKELY = 1e-12


@dataclass(frozen=True, eq=False)
class Routing:
    """A histogram of the rows of an expert.

    Attributes
    ----------
    rows : (num_counts,) float64
        Numbers of rows, >= 1; experts without rows are left out.
    experts : (num_counts,) float64
        Expected number of experts with so many rows.
    """

    rows: Floats
    experts: Floats

    @property
    def num_rows(self) -> float:
        """Number of rows of all experts."""
        return float(self.rows @ self.experts)

    @property
    def num_active(self) -> float:
        """Expected number of experts that have a row."""
        return float(self.experts.sum())

    def blocks(self, block_rows: NDArray[np.int64]) -> Floats:
        """Return how many blocks of `block_rows` rows cover the rows of all experts, (num_sizes,)."""
        sizes, inverse = np.unique(block_rows, return_inverse=True)
        block_counts = np.ceil(self.rows[:, None] / sizes) * self.experts[:, None]
        total: Floats = block_counts.sum(axis=0)[inverse]
        return total


def make_uniform_routing(tokens: int, experts: int, top_k: int) -> Routing:
    """Return the expected routing if every token takes `top_k` different experts at random.

    The rows of an expert have a binomial distribution.
    """
    share = min(1.0, top_k / experts)
    if share == 1.0:
        return Routing(np.array([float(tokens)]), np.array([float(experts)]))
    mean, deviation = tokens * share, math.sqrt(tokens * share * (1.0 - share))
    most = min(tokens, int(mean + 9.0 * deviation + 12.0))
    least = max(1, int(mean - 9.0 * deviation))
    rows = np.arange(least, most + 1)
    logs = np.array(
        [
            math.lgamma(tokens + 1) - math.lgamma(c + 1) - math.lgamma(tokens - c + 1)
            + c * math.log(share) + (tokens - c) * math.log1p(-share)
            for c in rows
        ]
    )  # fmt: skip
    likely = np.exp(logs)
    kept = likely > _UNLIKELY
    return Routing(rows[kept].astype(np.float64), likely[kept] * experts)


def make_balanced_routing(tokens: int, experts: int, top_k: int) -> Routing:
    """Return the routing that gives all experts as equal numbers of rows as possible."""
    return routing_from_counts(_spread_rows(tokens * top_k, np.ones(experts), tokens))


def make_power_law_routing(tokens: int, experts: int, top_k: int, exponent: float) -> Routing:
    """Return a routing whose popularities follow a power law, taken at the quantiles of its distribution."""
    least, most = (_LEAST_SHARE, _MOST_SHARE * tokens) if tokens * top_k > experts else _FEW
    if most <= least:
        return make_balanced_routing(tokens, experts, top_k)
    quantiles = (np.arange(experts) + 0.5) / experts
    if abs(exponent - 1.0) < 1e-9:
        popular = least * (most / least) ** quantiles
    else:
        power = 1.0 - exponent  # quantiles of [least, most], by logarithms: powers themselves overflow
        popular = least * np.exp(np.log1p(quantiles * math.expm1(power * math.log(most / least))) / power)
    return routing_from_counts(_spread_rows(tokens * top_k, popular, tokens))


def routing_from_counts(counts: Sequence[int] | NDArray[np.int64]) -> Routing:
    """Return the routing with these numbers of rows for the experts.

    Raises
    ------
    WorkloadError
        A count is negative, or all are 0.
    """
    table = np.asarray(counts)
    if table.ndim != 1 or not len(table) or (table < 0).any() or not table.any():
        raise WorkloadError(f"routing: counts are {quote(counts)}, expected the rows of each expert, not all 0")
    rows, experts = np.unique(table[table > 0], return_counts=True)
    return Routing(rows.astype(np.float64), experts.astype(np.float64))


def parse_routing(value: str | Sequence[int], tokens: int, experts: int, top_k: int) -> Routing:
    """Return the routing that a workload names (`operators.scaled.grouped_matmul`)."""
    if not isinstance(value, str):
        return routing_from_counts(value)
    if value.startswith("power:"):
        return make_power_law_routing(tokens, experts, top_k, float(value[6:]))
    return {"uniform": make_uniform_routing, "balanced": make_balanced_routing}[value](tokens, experts, top_k)


def _spread_rows(total: int, popular: Floats, most: int) -> NDArray[np.int64]:
    """Return the number of rows of each expert, proportional to its popularity and at most `most`.

    Shares are rounded; missing rows go to the most popular experts, surplus rows are taken from the least popular ones.
    """
    counts: NDArray[np.int64] = np.minimum(np.rint(popular / popular.sum() * total), most).astype(np.int64)
    order = np.argsort(-popular, kind="stable")
    while missing := total - int(counts.sum()):
        positions = order[counts[order] < most] if missing > 0 else order[counts[order] > 0][::-1]
        counts[positions[: abs(missing)]] += 1 if missing > 0 else -1
    return counts
