"""Times that all GPU models are composed of: sectors, waves of blocks, the second kernel of split reductions.

Four functions return the cycles of blocks that run in waves. Each was calibrated with its template:

| function | used by | tail (the last, partly filled wave) | start of a block |
|---|---|---|---|
| `even_waves_one` | "cuda", compiled | overlaps the wave before by a constant share | is paid in every wave |
| `waves_one` | "thin", compiled | overlaps less after more whole waves | is hidden by other blocks |
| `cycles_in_waves` | "triton", arrays | overlaps less with more blocks per SM | is hidden as the caller says |
| `cycles_in_uneven_waves` | masked attention, arrays | is a quarter of a wave: blocks end apart | as the caller says |

`norm4` is a p-norm for compiled code with p = 4, without a power function. `norm` takes arrays and any p.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from anatune.numerics._jit import jit_helper, jit_inline
from anatune.numerics.columns import Floats
from anatune.templates.gpu.times.columns import Gpu

__all__ = [
    "SECTOR",
    "SM_FILL_BYTES",
    "TAIL_OVERLAP",
    "Waves",
    "combine_s_one",
    "cycles_in_uneven_waves",
    "cycles_in_waves",
    "even_waves_one",
    "is_broken_split",
    "norm",
    "norm4",
    "sector_bytes_one",
    "waves_one",
]

SECTOR = 32.0
"""Bytes of the smallest transfer between L2 and an SM."""
TAIL_OVERLAP = 0.7
"""Length of the last, partly filled wave relative to a wave that starts after all blocks ended. It is shorter because
blocks start as soon as earlier ones end. Calibrated."""
COMBINE_LOADS = 32.0
"""Loads that a thread of the second kernel has in flight, of one or several parts; `gpu.splitting` writes as many."""
ATOMIC_BYTES = 32.0
"""Bytes that L2 handles for each atomic addition of a float: it reads, adds and writes a sector. Assumed."""
SM_FILL_BYTES = 64.0
"""Bytes an SM takes from L2 per cycle. Source: [Accel-Sim] L1 fill width."""


@jit_inline
def norm4(a: float, b: float, c: float) -> float:
    """Return the 4-norm, a smooth maximum that is close to the maximum: for resources that overlap well."""
    a, b, c = a * a, b * b, c * c
    return math.sqrt(math.sqrt(a * a + b * b + c * c))


def norm(exponent: Floats | float, *values: Floats) -> Floats:
    """Return the p-norm (a^p + b^p + ...)^(1/p) with p = `exponent`."""
    largest = np.maximum(np.maximum.reduce(values), 1e-30)
    total: Floats = largest * sum((value / largest) ** exponent for value in values) ** (1.0 / exponent)
    return total


@jit_inline
def sector_bytes_one(footprint: float, run: float, misaligned: int, element_bytes: float) -> float:
    """Return the bytes of the 32-byte sectors that a tile with rows of `run` elements touches.

    The average row that may start anywhere covers (bytes - element) / 32 + 1 sectors.
    """
    row = run * element_bytes
    rows = footprint / run
    loose = misaligned == 1 or (row > SECTOR and row != math.floor(row / SECTOR) * SECTOR)
    return rows * (row + SECTOR - element_bytes) if loose else rows * max(SECTOR, row)


@jit_inline
def is_broken_split(split: float, leftovers: float, tiles: float, steps: float, num_sms: float) -> bool:
    """Return whether a split is illegal: a part has no step, or there are no complete rounds or no leftovers.

    `find_broken_splits` of `gpu.split_space` is the same for arrays.
    """
    if split == 1.0:
        return False
    rounds = math.floor(tiles / num_sms)
    without = leftovers == 1.0 and (rounds == 0.0 or rounds * num_sms == tiles)
    return without or math.ceil(steps / math.ceil(steps / split)) != split


@jit_inline
def combine_s_one(
    split: float,
    tiles: float,
    accumulators: float,
    threads: float,
    part_bytes: float,
    atomic: float,
    result_bytes: float,
    resident: float,
    gpu: Gpu,
) -> float:
    """Return the seconds of the kernel that sums `split` parts of `tiles` tiles, or of zeroing and atomic additions.

    Parts are read from L2 if they fill less than half of it, else from DRAM. A thread loads some parts at a time and
    waits for them.
    """
    if atomic == 1.0:
        zeroing = result_bytes / gpu.l2_bytes_cycle
        adding = part_bytes * ATOMIC_BYTES / 4.0 / gpu.l2_bytes_cycle
        return (zeroing + adding) / gpu.clock_hz + gpu.launch_s
    in_l2 = part_bytes < 0.5 * gpu.l2_bytes
    rate = gpu.l2_bytes_cycle if in_l2 else gpu.dram_bytes_cycle
    latency = gpu.l2_latency if in_l2 else gpu.dram_latency
    sm_rate = min(rate, min(float(gpu.num_sms), max(1.0, tiles)) * SM_FILL_BYTES)  # no tiles: rejected points
    at_once = max(1.0, math.floor(COMBINE_LOADS / accumulators))
    turns = math.ceil(split / at_once) * math.ceil(tiles / (gpu.num_sms * resident))
    cycles = norm4(part_bytes / sm_rate, turns * latency, 0.0) + latency + result_bytes / rate
    return cycles / gpu.clock_hz + gpu.launch_s


@jit_inline
def even_waves_one(
    blocks: float,
    stages: float,
    busy_one: float,
    alone: float,
    store: float,
    once: float,
    resident: float,
    num_sms: float,
) -> float:
    """Return the cycles of equal blocks in full waves and a tail that begins before all earlier blocks have ended.

    Parameters
    ----------
    stages : float
        Staging steps of a block.
    busy_one, alone : float
        Cycles that a step of one block keeps an SM busy; cycles of a step if the block runs alone.
    store, once : float
        Cycles of a block's stores; cycles that each wave waits once.
    resident : float
        Resident blocks of an SM.
    """
    per_wave = num_sms * resident
    whole_waves = math.floor(blocks / per_wave)
    remaining = blocks - whole_waves * per_wave
    wave_cycles = stages * max(resident * busy_one, alone) + resident * store + once
    tail = 0.0
    if remaining > 0.0:
        last = math.ceil(remaining / num_sms)
        tail = stages * max(last * busy_one, alone) + last * store + once
        if whole_waves > 0.0:
            tail = max(tail * TAIL_OVERLAP, wave_cycles * remaining / per_wave)
    cycles: float = whole_waves * wave_cycles + tail
    return cycles


class Waves(NamedTuple):
    """The waves of a kernel: cycles of all, how many they are, cycles of each."""

    cycles: float
    number: float
    each: float


@jit_helper
def waves_one(
    blocks: float,
    steps: int,
    busy: float,
    alone: float,
    start: float,
    end: tuple[float, float],
    resident: int,
    num_sms: float,
) -> Waves:
    """Return the cycles of equal blocks, each of which starts, runs its steps and ends.

    Parameters
    ----------
    busy, alone : float
        Cycles that a step of one block keeps an SM busy; cycles of a step if the block runs alone.
    start : float
        Cycles before the first step. Other resident blocks hide them.
    end : tuple of float
        Cycles that the end of a block keeps an SM busy; cycles that it takes.
    resident : int
        Resident blocks of an SM.
    """
    per_wave = num_sms * resident
    waves = blocks / per_wave
    wave = steps * max(resident * busy, alone) + max(resident * end[0], end[1]) + start
    whole_waves = math.floor(waves)
    remaining = blocks - whole_waves * per_wave
    tail = 0.0
    if remaining > 0.0:
        last = math.ceil(remaining / num_sms)
        tail = steps * max(last * busy, alone) + max(last * end[0], end[1]) + start
        if whole_waves > 0.0:
            # equal blocks that start together end together, but drift apart after many waves
            overlap = TAIL_OVERLAP + (1.0 - TAIL_OVERLAP) / whole_waves
            tail = max(tail * overlap, wave * remaining / per_wave)
    # blocks of later waves start as earlier ones end
    if resident > 1 and whole_waves > 1.0:
        wave -= start * (1.0 - 1.0 / resident)
    return Waves(whole_waves * wave + tail, waves, wave)


def cycles_in_waves(
    blocks: Floats,
    resident: Floats,
    num_sms: float,
    block_cycles: Callable[[Floats], Floats],
    hidden: Floats | float,
    tail_overlap: float,
) -> tuple[Floats, Floats]:
    """Return (cycles of a whole wave, cycles of all blocks). The last wave overlaps the one before it in part.

    Parameters
    ----------
    blocks, resident : (num_tiles,)
        Blocks of the grid; resident blocks of an SM.
    block_cycles : callable
        Number of blocks on an SM -> cycles until all of them end.
    hidden
        Cycles of a wave that earlier waves hide.
    tail_overlap
        Length of the last, partly filled wave relative to a wave that starts after all blocks ended.
    """
    per_wave = num_sms * resident
    whole = np.floor(blocks / per_wave)
    wave = block_cycles(resident)
    remaining = blocks - whole * per_wave
    tail = block_cycles(np.ceil(remaining / num_sms))
    # SMs drift apart with every block that one of them runs
    overlap = tail_overlap + (1.0 - tail_overlap) / np.maximum(np.floor(blocks / num_sms), 1.0)
    tail = np.where(whole > 0, np.maximum(tail * overlap, wave * remaining / per_wave), tail)
    tail = np.where(remaining > 0, tail, 0.0)
    wave = wave - np.where(whole > 1, hidden, 0.0)
    return wave, whole * wave + tail


def cycles_in_uneven_waves(
    blocks: Floats,
    resident: Floats,
    num_sms: float,
    block_cycles: Callable[[Floats], Floats],
    longest_cycles: Callable[[Floats], Floats],
    hidden: Floats,
) -> tuple[Floats, Floats]:
    """Return the same as `cycles_in_waves` for blocks that have different numbers of steps.

    SMs take the next block when one ends, so that the last ones end a quarter of a wave late.

    Parameters
    ----------
    block_cycles, longest_cycles : callable
        Number of blocks on an SM -> cycles until all of them end, for average blocks and for the longest blocks.
    """
    per_wave = num_sms * resident
    one_wave = longest_cycles(np.ceil(np.minimum(blocks, per_wave) / num_sms))
    wave = block_cycles(resident) - np.where(blocks > per_wave, hidden, 0.0)
    even = blocks / per_wave * wave
    return wave, np.where(blocks <= per_wave, one_wave, np.maximum(even + 0.25 * wave, one_wave))
