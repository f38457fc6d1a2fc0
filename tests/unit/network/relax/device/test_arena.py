"""Memory between launches: nothing overlaps while both are needed, and no gaps are left."""

import random

from anatune.network.relax.device.arena import Lifetime, place_tensors
from anatune.network.relax.device.program import ALIGNMENT


def test_random_lives_never_share_memory_at_a_time():
    for seed in range(50):
        rng = random.Random(seed)
        lives = {}
        for number in range(rng.randint(1, 40)):
            first = rng.randint(0, 20)
            lives[number] = Lifetime(rng.randint(1, 5000), first, first + rng.randint(0, 6))
        offsets, total = place_tensors(lives)
        for one, life in lives.items():
            assert offsets[one] % ALIGNMENT == 0
            assert offsets[one] + life.num_bytes <= total
            for other, beside in lives.items():
                if one < other and life.first <= beside.last and beside.first <= life.last:
                    assert (
                        offsets[one] + life.num_bytes <= offsets[other]
                        or offsets[other] + beside.num_bytes <= offsets[one]
                    )


def test_a_chain_needs_two_places():
    lives = {number: Lifetime(1024, number, number + 1) for number in range(20)}
    assert place_tensors(lives)[1] == 2048
    assert place_tensors({}) == ({}, 0)
