"""Digests of memory, which tell whether its contents have changed.

Keys are added to the words of a block, and the low half of each sum is multiplied by its high half (as in NH of UMAC,
RFC 4418). The products are combined in two ways: by addition and by exclusive or. Two different contents have the same
sum with a probability of about 2**-32, and rarely agree in both.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anatune.numerics._jit import jit, jit_inline

NUM_KEYS = 512
"""Words of a block; its keys stay in the L1 cache."""
_LOW, _HALF, _ODD = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(0x9E3779B97F4A7C15)


@jit_inline
def _mix(state: np.uint64, number: np.uint64) -> np.uint64:
    mixed = (state ^ number) * _ODD
    return mixed ^ (mixed >> _HALF)


@jit
def update_digest(data: NDArray[np.uint8], keys: NDArray[np.uint64], digest: NDArray[np.uint64]) -> None:
    """Add memory to a digest, in place.

    Parameters
    ----------
    data : (num_bytes,) uint8
    keys : (NUM_KEYS,) uint64
        Random; the same for all digests that are compared.
    digest : (1,) uint64
        The digest of what was added before; zero at first.
    """
    state = _mix(digest[0], np.uint64(data.size + 1))
    words = data[: data.size - data.size % 8].view(np.uint64)
    for begin in range(0, words.size, NUM_KEYS):
        block = words[begin : begin + NUM_KEYS]
        total = parity = np.uint64(0)
        for index in range(block.size):
            word = block[index] + keys[index]
            product = (word & _LOW) * (word >> _HALF)
            total += product
            parity ^= product
        state = _mix(_mix(state, total), parity)
    for index in range(8 * words.size, data.size):
        state = _mix(state, np.uint64(data[index]))
    digest[0] = state
