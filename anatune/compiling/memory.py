"""A model's weights in memory: one piece, of which each weight is a view. What runs a model needs no more than this."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from anatune.graph.summary import WeightPlace
from anatune.measure.cpu.blocks import ALIGNMENT_BYTES

__all__ = ["Memory", "give_back", "new_memory", "views"]

Memory = NDArray[np.uint8]
"""(num_bytes,) uint8, aligned for vectors."""


def new_memory(num_bytes: int) -> Memory:
    """Return memory of zeros; pages that nobody has written to take no space."""
    raw = np.zeros(num_bytes + ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[start : start + num_bytes]


def views(memory: Memory, places: Iterable[WeightPlace]) -> list[NDArray[np.generic]]:
    """Return the weights that lie in `memory`, without copying."""
    found = []
    for place in places:
        kind = np.dtype(place.dtype)
        size = math.prod(place.shape) * kind.itemsize
        found.append(memory[place.offset : place.offset + size].view(kind).reshape(place.shape))
    return found


def give_back() -> None:
    """Give memory that was freed back to the system: glibc keeps what lies below something that is still used."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
