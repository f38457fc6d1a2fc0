"""Which splits of reductions the spaces of GPUs list: none where a device is full anyway, leftovers where waves waste.

A row is (split, whole, atomic), see `anatune.templates.gpu.split`; of `whole` a point says only whether there are whole
tiles (1): then they are all full rounds of one tile a multiprocessor, and the tiles behind them are split. Source:
[Stream-K] Sec. 5.2, data-parallel tiles and a remainder in stream-K order.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from anatune.core.accuracy import STANDARD
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import OptionValue, Schedule
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.base.space import Part, listed
from anatune.templates.gpu.rules import gpu_of
from anatune.templates.gpu.split import SPLIT, Split, atomic_limit, split_of

__all__ = ["SPLIT_COLUMNS", "broken_splits", "canonical_whole", "split_of_point", "split_options", "split_part"]

SPLIT_COLUMNS = tuple(SPLIT)
TILE_RESULTS = 64 * 64
"""Results of a block on CUDA cores that reads its operands seldom enough."""
MOST_PARTS = 256
LEAST_DEPTH = 32
"""Iterations of the reduction that a part must have at least: below, starting it takes longer than computing it."""
LEFTOVER_PARTS = (2, 4, 8)
MOST_ROUNDS = 24
"""Tiles a multiprocessor above which an unfinished round is a small part of the whole."""

Integers = NDArray[np.int64]


def split_part(
    workload: Workload,
    hardware: GpuSpec,
    accuracy: str,
    tile_results: int = TILE_RESULTS,
    least_depth: int = LEAST_DEPTH,
) -> Part | None:
    """Return the list of splits, the first row (1, 0, 0); None where there is no other.

    Atomics, whose sums come in another order each time, are listed with the accuracy "relaxed" only. With as many
    blocks of `tile_results` results as there are multiprocessors, the device counts as full; parts have at least
    `least_depth` iterations of the reduction.
    """
    rows = _rows(workload, hardware, accuracy, tile_results, least_depth)
    return listed("split", SPLIT_COLUMNS, rows, "a split of the space") if len(rows) > 1 else None


def _rows(workload: Workload, hardware: GpuSpec, accuracy: str, tile_results: int, least_depth: int) -> Integers:
    depth = math.prod(axis.extent for axis in workload.reduction_axes)
    results = math.prod(axis.extent for axis in workload.spatial_axes)
    full = hardware.compute.num_sms * tile_results
    most = min(MOST_PARTS, depth // least_depth, math.ceil(2 * full / results))
    parts = [2**e for e in range(1, most.bit_length())] if workload.reduction_axes else []
    atomics = (0,) if accuracy == STANDARD or atomic_limit(workload) else (0, 1)
    rows = [(1, 0, 0), *((split, 0, atomic) for split in parts for atomic in atomics)]
    if workload.reduction_axes and full // 4 <= results <= MOST_ROUNDS * full:
        rows += [(split, 1, atomic) for split in LEFTOVER_PARTS if split * least_depth <= depth for atomic in atomics]
    return np.array(rows, dtype=np.int64)


def canonical_whole(tiles: int, num_sms: int) -> int:
    """Return the whole tiles of a schedule whose leftovers are split: full rounds of one tile a multiprocessor."""
    return tiles // num_sms * num_sms


def broken_splits(row: Integers, tiles: Integers, steps: Integers, num_sms: int) -> NDArray[np.bool_]:
    """Return which of some choices a split does not fit; as `gpu.times.waves.split_is_broken`."""
    split, leftovers, _ = row.tolist()
    per = -(-steps // split)
    broken = -(-steps // per) != split
    if leftovers:
        broken |= (tiles < num_sms) | (tiles % num_sms == 0)
    return np.asarray(broken)


def split_options(row: tuple[int, ...], tiles: int, hardware: GpuSpec) -> dict[str, OptionValue]:
    """Return the options of a schedule, of as many tiles, that a row of the list stands for; none where it has none."""
    split, whole, atomic = row
    if split == 1:
        return {}
    found = {
        "split": split,
        "whole": canonical_whole(tiles, hardware.compute.num_sms) if whole else 0,
        "atomic": atomic,
    }
    return {name: value for name, value in found.items() if value}


def split_of_point(schedule: Schedule, tiles: int, *, listed: bool) -> tuple[int, ...]:
    """Return the row that stands for a schedule's split; () where the space lists none and nothing is split.

    Raises
    ------
    SpaceError
        The space has no splits; whole tiles are no full rounds.
    """
    split: Split = split_of(schedule.options)
    if not listed:
        if split.is_split:
            raise SpaceError(
                f"option split is {split.split}, but {schedule.workload.describe()} fills {schedule.hardware.name}: "
                "its space has no splits; expected 1"
            )
        return ()
    full = canonical_whole(tiles, gpu_of(schedule).compute.num_sms)
    if split.whole not in (0, full):
        raise SpaceError(f"option whole is {split.whole}, expected 0 or {full}: full rounds of the device")
    return (split.split, int(split.whole > 0), int(split.atomic))
