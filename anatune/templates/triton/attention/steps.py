"""The number of steps of keys that each block computes, counted tile by tile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anatune.templates.triton.attention.problem import AttentionProblem, AttentionTiles

__all__ = ["StepCounts", "count_steps"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class StepCounts:
    """The numbers of steps of the blocks, (num_tiles,) each."""

    blocks: Floats
    """Blocks of the grid, including parts of keys."""
    mean: Floats
    """Mean number of steps of a block."""
    most: Floats
    """Steps of the longest block."""
    masked: Floats
    """Share of the steps in which some keys are not seen."""


def count_steps(problem: AttentionProblem, tiles: AttentionTiles) -> StepCounts:
    """Return the numbers of steps of every tile's blocks."""
    sizes = np.stack([tiles.block_m, tiles.block_n])
    distinct, positions = np.unique(sizes, axis=1, return_inverse=True)
    table = np.array([_count_block_steps(problem, int(m), int(n)) for m, n in distinct.T])[positions.reshape(-1)].T
    per_group, mean, most, masked = table
    split = tiles.split_kv.astype(np.float64)
    parts = np.ceil(mean / split)
    return StepCounts(problem.groups * per_group * split, parts, np.ceil(most / split), masked)


def _count_block_steps(problem: AttentionProblem, block_m: int, block_n: int) -> tuple[float, float, float, float]:
    """Return (tiles of a group, mean and largest number of steps, share of masked steps)."""
    count = -(-problem.rows // block_m)
    later = problem.seq_kv - problem.seq_q
    if not problem.causal:
        every = -(-problem.seq_kv // block_n)
        return float(count), float(every), float(every), (problem.seq_kv % block_n > 0) / every
    first_row = np.arange(count, dtype=np.int64) * block_m
    lowest = first_row // problem.shared
    largest = (np.minimum(first_row + block_m, problem.rows) - 1) // problem.shared
    first = np.zeros_like(lowest)
    after = first
    if problem.window:
        first = np.maximum(lowest + later - problem.window + 1, 0) // block_n
        after = (np.maximum(largest + later - problem.window + 1, 0) + block_n - 1) // block_n
    end = (largest + later + block_n) // block_n
    seen = np.maximum(0, (lowest + later + 1) // block_n - after)
    steps = end - first
    return float(count), float(steps.mean()), float(steps.max()), float(1.0 - seen.sum() / steps.sum())
