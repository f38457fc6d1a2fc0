"""The splits of reductions that the spaces of GPU templates list.

A device that is full without a split needs none. Where the last wave would be mostly empty, only the tiles of that
wave are split.

A row of the list is (split, leftovers, atomic), see `anatune.templates.gpu.split`. With leftovers = 1 the whole tiles
fill all complete rounds of one tile per multiprocessor, and only the remaining tiles are split.
Source: [Stream-K] Sec. 5.2, data-parallel tiles and a remainder in stream-K order.
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
from anatune.templates.base.space import SpacePart, table_part
from anatune.templates.gpu.rules import gpu_of
from anatune.templates.gpu.split import SPLIT, Split, atomic_limit, split_of

__all__ = ["SPLIT_COLUMNS", "canonical_whole", "find_broken_splits", "split_of_point", "split_options", "split_part"]

SPLIT_COLUMNS = tuple(SPLIT)
TILE_RESULTS = 64 * 64
"""Results of a block on CUDA cores that is large enough to reuse its operands well."""
MOST_PARTS = 256
LEAST_DEPTH = 32
"""Fewest iterations of the reduction in a part. A smaller part takes longer to start than to compute."""
LEFTOVER_PARTS = (2, 4, 8)
MOST_ROUNDS = 24
"""Most tiles per multiprocessor for which leftovers are split. With more, the unfinished round is a small share."""

Integers = NDArray[np.int64]


def split_part(
    workload: Workload,
    hardware: GpuSpec,
    accuracy: str,
    tile_results: int = TILE_RESULTS,
    least_depth: int = LEAST_DEPTH,
) -> SpacePart | None:
    """Return the list of splits, whose first row is (1, 0, 0), or None if it would have no other row.

    Parameters
    ----------
    accuracy : str
        Atomic parts are listed with "relaxed" only: their sums are added in a different order in each run.
    tile_results : int
        Results of a block. The device counts as full with one such block per multiprocessor.
    least_depth : int
        Fewest iterations of the reduction in a part.
    """
    rows = _rows(workload, hardware, accuracy, tile_results, least_depth)
    return table_part("split", SPLIT_COLUMNS, rows, "a split of the space") if len(rows) > 1 else None


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
    """Return the whole tiles of a schedule whose leftovers are split: those of all complete rounds of the device."""
    return tiles // num_sms * num_sms


def find_broken_splits(row: Integers, tiles: Integers, steps: Integers, num_sms: int) -> NDArray[np.bool_]:
    """Return which choices of tiles and steps a row of splits does not fit; see `gpu.times.waves.is_broken_split`."""
    split, leftovers, _ = row.tolist()
    per = -(-steps // split)
    broken = -(-steps // per) != split
    if leftovers:
        broken |= (tiles < num_sms) | (tiles % num_sms == 0)
    return np.asarray(broken)


def split_options(row: tuple[int, ...], tiles: int, hardware: GpuSpec) -> dict[str, OptionValue]:
    """Return the options that a row of the list stands for in a schedule with so many tiles. Nothing split: {}."""
    split, whole, atomic = row
    if split == 1:
        return {}
    options = {
        "split": split,
        "whole": canonical_whole(tiles, hardware.compute.num_sms) if whole else 0,
        "atomic": atomic,
    }
    return {name: value for name, value in options.items() if value}


def split_of_point(schedule: Schedule, tiles: int, *, listed: bool) -> tuple[int, ...]:
    """Return the row that stands for a schedule's split, or () if the space lists no splits and nothing is split.

    Raises
    ------
    SpaceError
        The space lists no splits but the schedule has one, or its whole tiles are not complete rounds.
    """
    split: Split = split_of(schedule.options)
    if not listed:
        if split.is_split:
            raise SpaceError(
                f"option split is {split.split}, but {schedule.workload.describe()} fills {schedule.hardware.name} "
                "without a split, so its space has none; expected 1"
            )
        return ()
    full = canonical_whole(tiles, gpu_of(schedule).compute.num_sms)
    if split.whole not in (0, full):
        raise SpaceError(f"option whole is {split.whole}, expected 0 or {full} (an even share for all SMs)")
    return (split.split, int(split.whole > 0), int(split.atomic))
