"""Place the tensors of a run in one block of memory, where tensors with different lifetimes share space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from anatune.network.relax.device.program import ALIGNMENT

__all__ = ["Lifetime", "place_tensors"]

Key = TypeVar("Key")


class Lifetime(NamedTuple):
    """The size of a tensor in bytes, and the first and last launch that need it, both included."""

    num_bytes: int
    first: int
    last: int


def place_tensors(lives: Mapping[Key, Lifetime]) -> tuple[dict[Key, int], int]:
    """Return the offset of each tensor, and the bytes of the arena.

    The largest tensor comes first; each takes the lowest gap between the tensors with overlapping lifetimes.
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
