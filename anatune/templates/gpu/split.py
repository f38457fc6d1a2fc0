"""Split reductions: the options that all GPU templates with a reduction share, and what they mean in blocks and steps.

Notation
--------
tile : what one block of an ordinary kernel computes; tiles are numbered as the kernel numbers its blocks.
step : one turn of the loop that stages operands; a tile needs ``num_steps`` of them.
split : parts that the steps of a tile are divided into, a block each; part s has steps ``s * per`` up to ``(s + 1) *
    per``, the last one what is left.
whole : tiles at the beginning that are not divided: full waves of blocks, with only the rest of the tiles split.
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
"""Options of split reductions, and what they are where they are left out."""

SPLIT_MEANINGS = {
    "split": "blocks that share the reduction of a tile",
    "whole": "first tiles whose reduction is not shared, which fill the device in whole waves",
    "atomic": "1 if the blocks add their parts to the result atomically, 0 if a second kernel adds them in order",
}


class Split(NamedTuple):
    """How a schedule divides the reductions of its tiles.

    Attributes
    ----------
    split : int
        Parts of a tile that is divided; 1: none is.
    whole : int
        Tiles at the beginning that are not.
    atomic : bool
        Whether parts are added to the result, which a kernel before zeroes, not kept and summed by a kernel behind.
    """

    split: int
    whole: int
    atomic: bool

    @property
    def is_split(self) -> bool:
        """Whether there is anything to add up."""
        return self.split > 1

    def num_blocks(self, tiles: int) -> int:
        """Return the blocks of the principal kernel."""
        return self.whole + (tiles - self.whole) * self.split

    def num_parts(self, tiles: int) -> int:
        """Return the blocks that compute a part of a tile."""
        return (tiles - self.whole) * self.split if self.is_split else 0

    def steps(self, num_steps: int) -> int:
        """Return the most steps of a part."""
        return -(-num_steps // self.split)


def split_of(options: Mapping[str, object]) -> Split:
    """Return how a checked schedule's options divide its reductions."""
    split, whole, atomic = (int(options.get(name, least)) for name, least in SPLIT.items())  # type: ignore[call-overload]
    return Split(split, whole, bool(atomic))


def splits_of(num_steps: int, most: int) -> tuple[int, ...]:
    """Return the numbers of parts up to `most` that leave each part a step, 1 among them, ascending."""
    return tuple(split for split in range(1, min(num_steps, most) + 1) if _parts(num_steps, split) == split)


def _parts(num_steps: int, split: int) -> int:
    """Return how many of `split` parts have a step."""
    return -(-num_steps // -(-num_steps // split))


def num_tiles(tiles: Mapping[str, tuple[int, ...]], workload: Workload) -> int:
    """Return the tiles of a schedule on CUDA cores: blocks along all spatial axes."""
    return math.prod(tiles[axis.name][0] for axis in workload.spatial_axes)


def num_steps(tiles: Mapping[str, tuple[int, ...]], workload: Workload) -> int:
    """Return the staging steps of a schedule on CUDA cores: iterations of all k0 loops."""
    return math.prod(tiles[axis.name][0] for axis in workload.reduction_axes)


def atomic_limit(workload: Workload) -> str:
    """Return why parts of the workload's results cannot be added to memory atomically; "": they can."""
    if workload.body in ("max", "average"):
        return f"results of the body {workload.body} are no plain sums"
    if workload.epilogue:
        return f"the steps ({', '.join(workload.epilogue)}) need whole sums"
    if workload.write.dtype != ACCUMULATOR_DTYPE[workload.dtype]:
        return f"results are {workload.write.dtype}, sums {ACCUMULATOR_DTYPE[workload.dtype]}"
    return ""


def check_split(workload: Workload, options: Mapping[str, object], tiles: int, steps: int) -> None:
    """Raise SpaceError unless the options of split reductions fit a schedule of so many tiles and steps.

    Raises
    ------
    SpaceError
        One is no such number; a part would have no step; tiles are whole and nothing is split; atomics are asked for
        where nothing is split, or sums cannot be added in memory.
    """
    if not any(name in options for name in SPLIT):
        return
    split, whole, atomic = (
        check_count(f"option {name}", options.get(name, least), least, most)
        for (name, least), most in zip(SPLIT.items(), (steps, tiles - 1, 1), strict=True)
    )
    if (parts := _parts(steps, split)) != split:
        raise SpaceError(
            f"option split is {split}, but {steps} steps in parts of {-(-steps // split)} make {parts}; choose {parts}"
        )
    for name, value in (("whole", whole), ("atomic", atomic)):
        if value and split == 1:
            raise SpaceError(f"option {name} is {value}, but nothing is split; expected 0")
    if atomic and (limit := atomic_limit(workload)):
        raise SpaceError(f"option atomic is 1, but {limit}; expected 0")


def needed_accuracy(schedule: Schedule) -> str:
    """Return the accuracy that a schedule's arithmetic needs: atomic sums differ from run to run."""
    return RELAXED if split_of(schedule.options).atomic else STANDARD
