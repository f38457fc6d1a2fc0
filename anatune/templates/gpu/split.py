"""Split reductions: the options "split", "whole" and "atomic" that GPU templates share.

Notation
--------
tile : the results that one block of an ordinary kernel computes. Tiles are numbered as the kernel numbers its blocks.
step : one iteration of the loop that stages operands. A tile needs ``num_steps`` of them.
split : the number of parts that the steps of a tile are divided into. A block computes a part: part s has the steps
    ``s * per`` to ``(s + 1) * per``, the last part has what remains.
whole : the number of tiles, counted from the first, that are not divided. They fill whole waves of blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from anatune.core.accuracy import RELAXED, STANDARD
from anatune.core.schedule import Schedule
from anatune.core.workload.access import ACCUMULATOR_DTYPE
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.base.values import check_count

__all__ = [
    "SPLIT",
    "SPLIT_MEANINGS",
    "Split",
    "atomic_limit",
    "check_split",
    "needed_accuracy",
    "num_steps",
    "num_tiles",
    "split_of",
    "splits_of",
]

SPLIT = {"split": 1, "whole": 0, "atomic": 0}
"""Options of split reductions and their default values."""

SPLIT_MEANINGS = {
    "split": "blocks that share the reduction of a tile",
    "whole": "first tiles that are not shared, equally many for each multiprocessor",
    "atomic": "1 if the blocks add their parts to the result atomically, 0 if a second kernel adds them in order",
}


class Split(NamedTuple):
    """The division of the reductions of a schedule's tiles.

    Attributes
    ----------
    split : int
        Parts of a tile that is divided. 1: no tile is divided.
    whole : int
        Tiles that are not divided, counted from the first.
    atomic : bool
        True: each part is added to the result, which a kernel zeroes before. False: a kernel afterwards sums the parts.
    """

    split: int
    whole: int
    atomic: bool

    @property
    def is_split(self) -> bool:
        """True if tiles are divided, so that parts have to be summed."""
        return self.split > 1

    def num_blocks(self, tiles: int) -> int:
        """Return the blocks of the principal kernel."""
        return self.whole + (tiles - self.whole) * self.split

    def num_parts(self, tiles: int) -> int:
        """Return the blocks that compute a part of a tile."""
        return (tiles - self.whole) * self.split if self.is_split else 0

    def steps(self, num_steps: int) -> int:
        """Return the largest number of steps of a part."""
        return -(-num_steps // self.split)


def split_of(options: Mapping[str, object]) -> Split:
    """Return how the options of a checked schedule divide its reductions."""
    split, whole, atomic = (int(options.get(name, least)) for name, least in SPLIT.items())  # type: ignore[call-overload]
    return Split(split, whole, bool(atomic))


def splits_of(num_steps: int, most: int) -> tuple[int, ...]:
    """Return the numbers of parts from 1 to `most` that leave no part without a step, ascending."""
    return tuple(split for split in range(1, min(num_steps, most) + 1) if _count_parts(num_steps, split) == split)


def _count_parts(num_steps: int, split: int) -> int:
    """Return how many of `split` parts have a step."""
    return -(-num_steps // -(-num_steps // split))


def num_tiles(tiles: Mapping[str, tuple[int, ...]], workload: Workload) -> int:
    """Return the number of tiles of a schedule for CUDA cores: the blocks along all spatial axes."""
    return math.prod(tiles[axis.name][0] for axis in workload.spatial_axes)


def num_steps(tiles: Mapping[str, tuple[int, ...]], workload: Workload) -> int:
    """Return the number of staging steps of a schedule for CUDA cores: the iterations of all k0 loops."""
    return math.prod(tiles[axis.name][0] for axis in workload.reduction_axes)


def atomic_limit(workload: Workload) -> str:
    """Return why the parts of a result cannot be added atomically, or "" if they can."""
    if workload.body in ("max", "average"):
        return f"results of the body {workload.body} are not sums"
    if workload.epilogue:
        return f"the epilogue ({', '.join(workload.epilogue)}) needs complete sums"
    if workload.write.dtype != ACCUMULATOR_DTYPE[workload.dtype]:
        return f"results are {workload.write.dtype} and sums are {ACCUMULATOR_DTYPE[workload.dtype]}"
    return ""


def check_split(workload: Workload, options: Mapping[str, object], tiles: int, steps: int) -> None:
    """Raise SpaceError unless the options of split reductions fit a schedule with these numbers of tiles and steps.

    Raises
    ------
    SpaceError
        An option has a wrong value; a part would have no step; whole tiles or atomics are asked for but nothing is
        split; or the parts cannot be added atomically.
    """
    if not any(name in options for name in SPLIT):
        return
    split, whole, atomic = (
        check_count(f"option {name}", options.get(name, least), least, most)
        for (name, least), most in zip(SPLIT.items(), (steps, tiles - 1, 1), strict=True)
    )
    if (parts := _count_parts(steps, split)) != split:
        raise SpaceError(
            f"option split is {split}, but {steps} steps in parts of {-(-steps // split)} make {parts}; choose {parts}"
        )
    for name, value in (("whole", whole), ("atomic", atomic)):
        if value and split == 1:
            raise SpaceError(f"option {name} is {value}, but nothing is split; expected 0")
    if atomic and (limit := atomic_limit(workload)):
        raise SpaceError(f"option atomic is 1, but {limit}; expected 0")


def needed_accuracy(schedule: Schedule) -> str:
    """Return the accuracy that a schedule needs. Atomic sums may differ from run to run."""
    return RELAXED if split_of(schedule.options).atomic else STANDARD
