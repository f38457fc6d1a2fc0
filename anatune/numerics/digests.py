"""Digests of memory, which say whether its contents have changed.

Keys are added to the words of a block, and their low halves multiplied by their high ones (as NH of UMAC, RFC 4418);
the products are added up and, apart from that, combined by exclusive or. Two different contents have the same sum with
a probability of about 2**-32, and rarely the same of both.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anatune.numerics._jit import jit, jit_inline

NUM_KEYS = 512
"""Words of a block: its keys stay in the first cache."""
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
        Of what was added before; zero at first.
    """
    state = _mix(digest[0], np.uint64(data.size + 1))
    words = data[: data.size - data.size % 8].view(np.uint64)
    for begin in range(0, words.size, NUM_KEYS):
        block = words[begin : begin + NUM_KEYS]
        total = parity = np.uint64(0)
        for place in range(block.size):
            word = block[place] + keys[place]
            product = (word & _LOW) * (word >> _HALF)
            total += product
            parity ^= product
        state = _mix(_mix(state, total), parity)
    for place in range(8 * words.size, data.size):
        state = _mix(state, np.uint64(data[place]))
    digest[0] = state
