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


def portfolio(time_s: Floats, coordinates: Floats, count: int, spread: float, seed: int = 0) -> Integers:
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
    kept = keep_probabilities(time_s, count, spread)
    chosen = kept >= 1.0
    layers = _layers(coordinates + rng.uniform(0.0, 1e-6, coordinates.shape))
    layers = layers[~chosen[layers]]
    drawn = count - int(chosen.sum())
    ends = np.cumsum(kept[layers])
    at = np.searchsorted(ends / ends[-1] * drawn, np.arange(drawn) + rng.uniform(0.0, 1.0, drawn), side="right")
    chosen[layers[np.minimum(at, len(layers) - 1)]] = True
    missing = count - int(chosen.sum())  # two neighbouring layers may have drawn the same candidate
    chosen[rng.choice(np.flatnonzero(~chosen), missing, replace=False)] = True
    return np.flatnonzero(chosen)


def value_places(values: Sequence[object]) -> Floats:
    """Return the positions of a parameter's values among its different values, in [0, 1], as a coordinate."""
    different = list(dict.fromkeys(values))
    with contextlib.suppress(TypeError):  # numbers and text cannot be sorted together
        different.sort()
    place = {value: at / max(1, len(different) - 1) for at, value in enumerate(different)}
    return np.array([place[value] for value in values], dtype=np.float64)


def keep_probabilities(time_s: Floats, count: int, spread: float) -> Floats:
    """Return the probability of each candidate to be kept, (num_candidates,) float64; they sum to `count`.

    Equal predictions have equal probabilities; the candidate predicted fastest has 1.
    """
    size = len(time_s)
    known = np.flatnonzero(np.isfinite(time_s))
    likely = np.ones(size)
    if len(known):
        order = known[np.argsort(time_s[known], kind="stable")]
        place = np.empty(size)
        place[order] = (np.arange(len(order)) + 0.5) / len(order)
        equal = np.unique(time_s[known], return_inverse=True)[1].reshape(-1)
        place[known] = (np.bincount(equal, place[known]) / np.bincount(equal))[equal]
        likely[known] = spread + (1.0 - spread) * _likelihood(place[known], CORRELATIONS)
    low, high = 0.0, size / float(likely.min())
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if np.minimum(1.0, middle * likely).sum() < count else (low, middle)
    kept: Floats = np.minimum(1.0, high * likely)
    if len(known):
        kept[order[0]] = 1.0
    return kept


def _likelihood(place: Floats, correlations: Sequence[float]) -> Floats:
    """Return the likelihood of the fastest candidate at places in (0, 1), over its mean, averaged over correlations."""
    z, best = ndtri(place), ndtri(1.0 / (len(place) + 1.0))
    logs = [
        -0.5 * ((z - r * best) ** 2 / (1.0 - r * r) - z**2 + np.log1p(-r * r)) for r in correlations
    ]  # fmt: skip
    likely: Floats = np.mean([np.exp(log) / np.exp(log).mean() for log in logs], axis=0)
    return likely


def _layers(coordinates: Floats) -> Integers:
    """Return an order with similar neighbours: the candidates are repeatedly halved along the widest coordinate."""
    found = np.empty(len(coordinates), dtype=np.int64)
    parts = [(np.arange(len(coordinates)), 0)]
    while parts:
        rows, start = parts.pop()
        if len(rows) <= 2 or coordinates.shape[1] == 0:
            found[start : start + len(rows)] = rows
            continue
        own = coordinates[rows]
        widest = int(np.argmax(own.max(axis=0) - own.min(axis=0)))
        half = len(rows) // 2
        halves = rows[np.argpartition(own[:, widest], half)]
        parts += [(halves[:half], start), (halves[half:], start + half)]
    return found
