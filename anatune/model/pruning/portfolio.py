"""Selection of candidates when nobody knows how well a predicted order suits them.

Keeping the first candidates relies on the order. Here each candidate has a probability of being kept instead: its
chance of being the fastest, averaged over possible qualities of the order. If times and predictions have the rank
correlation r (a Gaussian copula), the fastest of N is at the predicted place z with the density of a normal
distribution around r * z_b with variance 1 - r^2, where z_b is the place of the first of N, both as normal quantiles.
Part of the average is r = 0, where all candidates are equal: this part of the choice is random.

Guarantee: if r = 0 has the share s, the chance that all of the k fastest candidates are missed is at most that of a
random choice of s * count candidates, however wrong the order is. (One candidate is drawn from each of `count` layers
of equal probability, and a product of factors with a given sum is largest if they are equal.)
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

CORRELATIONS = (0.3, 0.6, 0.9)
"""Assumed rank correlations of an order with some value, equally likely. Recorded GEMM tables have about 0.8 with the
right axes, 0.5 with wrong axes or another device's spec (bench/replay/foreign_kernels.py)."""
_STEPS = 100


def choose_portfolio(time_s: Floats, coordinates: Floats, count: int, spread: float, seed: int = 0) -> Integers:
    """Return the rows of `count` candidates, ascending: the one predicted fastest, and others drawn at random.

    Parameters
    ----------
    time_s : (num_candidates,) float64
        Predicted seconds; NaN: unknown, such candidates are kept with the probability of a random choice.
    coordinates : (num_candidates, num_coordinates) float64
        Coordinates in [0, 1] over which the drawn candidates are spread.
    count : int
        Number of candidates to keep, at least 1; all are kept if there are no more.
    spread : float
        Share of the choice that ignores the order, in (0, 1].
    """
    size = len(time_s)
    if count >= size:
        return np.arange(size)
    rng = np.random.default_rng(seed)
    probabilities = keep_probabilities(time_s, count, spread)
    chosen = probabilities >= 1.0
    layers = _order_by_similarity(coordinates + rng.uniform(0.0, 1e-6, coordinates.shape))
    layers = layers[~chosen[layers]]
    num_drawn = count - int(chosen.sum())
    ends = np.cumsum(probabilities[layers])
    positions = np.searchsorted(
        ends / ends[-1] * num_drawn, np.arange(num_drawn) + rng.uniform(0.0, 1.0, num_drawn), side="right"
    )
    chosen[layers[np.minimum(positions, len(layers) - 1)]] = True
    missing = count - int(chosen.sum())  # two neighbouring layers may have drawn the same candidate
    chosen[rng.choice(np.flatnonzero(~chosen), missing, replace=False)] = True
    return np.flatnonzero(chosen)


def value_positions(values: Sequence[object]) -> Floats:
    """Return the positions of a parameter's values among its different values, in [0, 1], as a coordinate."""
    different = list(dict.fromkeys(values))
    with contextlib.suppress(TypeError):  # numbers and text cannot be sorted together
        different.sort()
    position = {value: at / max(1, len(different) - 1) for at, value in enumerate(different)}
    return np.array([position[value] for value in values], dtype=np.float64)


def keep_probabilities(time_s: Floats, count: int, spread: float) -> Floats:
    """Return the probability of each candidate to be kept, (num_candidates,) float64; they sum to `count`.

    Equal predictions have equal probabilities; the candidate predicted fastest has 1.
    """
    size = len(time_s)
    finite = np.flatnonzero(np.isfinite(time_s))
    likelihood = np.ones(size)
    if len(finite):
        order = finite[np.argsort(time_s[finite], kind="stable")]
        quantile = np.empty(size)
        quantile[order] = (np.arange(len(order)) + 0.5) / len(order)
        equal = np.unique(time_s[finite], return_inverse=True)[1].reshape(-1)
        quantile[finite] = (np.bincount(equal, quantile[finite]) / np.bincount(equal))[equal]
        likelihood[finite] = spread + (1.0 - spread) * _likelihood(quantile[finite], CORRELATIONS)
    low, high = 0.0, size / float(likelihood.min())
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if np.minimum(1.0, middle * likelihood).sum() < count else (low, middle)
    kept: Floats = np.minimum(1.0, high * likelihood)
    if len(finite):
        kept[order[0]] = 1.0
    return kept


def _likelihood(quantile: Floats, correlations: Sequence[float]) -> Floats:
    """Return the likelihood of the fastest candidate at places in (0, 1), over its mean, averaged over correlations."""
    z, best = ndtri(quantile), ndtri(1.0 / (len(quantile) + 1.0))
    logs = [
        -0.5 * ((z - r * best) ** 2 / (1.0 - r * r) - z**2 + np.log1p(-r * r)) for r in correlations
    ]  # fmt: skip
    likely: Floats = np.mean([np.exp(log) / np.exp(log).mean() for log in logs], axis=0)
    return likely


def _order_by_similarity(coordinates: Floats) -> Integers:
    """Return an order with similar neighbours: the candidates are repeatedly halved along the widest coordinate."""
    order = np.empty(len(coordinates), dtype=np.int64)
    parts = [(np.arange(len(coordinates)), 0)]
    while parts:
        rows, start = parts.pop()
        if len(rows) <= 2 or coordinates.shape[1] == 0:
            order[start : start + len(rows)] = rows
            continue
        part_coordinates = coordinates[rows]
        widest = int(np.argmax(part_coordinates.max(axis=0) - part_coordinates.min(axis=0)))
        half = len(rows) // 2
        halves = rows[np.argpartition(part_coordinates[:, widest], half)]
        parts += [(halves[:half], start), (halves[half:], start + half)]
    return order
