"""Where tensors lie that a run makes and reads: in one piece of memory, one after the other in the same place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from anatune.network.relax.device.program import ALIGNMENT

__all__ = ["Lifetime", "place_tensors"]

Key = TypeVar("Key")


class Lifetime(NamedTuple):
    """Bytes that are needed from one launch to another, both included."""

    num_bytes: int
    first: int
    last: int


def place_tensors(lives: Mapping[Key, Lifetime]) -> tuple[dict[Key, int], int]:
    """Return the offset of each tensor, and the bytes of all.

    The largest comes first; each lies in the lowest gap between those that are there at some time with it.
    Source: Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference, 2020, section 5.1
    (greedy by size).
    """
    offsets: dict[Key, int] = {}
    total = 0
    for key, life in sorted(lives.items(), key=lambda item: (-item[1].num_bytes, item[1].first)):
        size = -(-life.num_bytes // ALIGNMENT) * ALIGNMENT
        beside = sorted(
            (offset, lives[other].num_bytes)
            for other, offset in offsets.items()
            if lives[other].first <= life.last and life.first <= lives[other].last
        )
        start = 0
        for offset, num_bytes in beside:
            if start + size <= offset:
                break
            start = max(start, -(-(offset + num_bytes) // ALIGNMENT) * ALIGNMENT)
        offsets[key] = start
        total = max(total, start + size)
    return offsets, total
