"""The bench of the structured space: its pairs, candidates and splits, its quick form, and what it joins."""

import anatune
from anatune.templates.cpu.model.model import CpuModel
from bench.cpu.layers import LAYERS
from bench.experiments.structured_space import best_around, pair_gain, pairs_of, paper_candidates, split

HARDWARE = anatune.hardware("xeon_gold_6130").with_threads(1)


def test_all_pairs_cover_their_segment():
    pairs = list(pairs_of(34, 17))
    assert {(2, 11, 1, 12), (1, 8, 2, 13), (17, 2, 0, 2)} <= set(pairs)
    assert len(set(pairs)) == len(pairs)
    assert all(first * small + second * large == 34 for first, small, second, large in pairs)


def test_a_pair_gains_where_the_sizes_between_are_slow():
    shares = {(rows, 1): 1.0 for rows in range(4, 14)}
    assert pair_gain(17, shares)[0] == 1.0
    slow = shares | {(rows, 1): 0.5 for rows in (4, 5, 6, 8, 9)}
    assert pair_gain(17, slow) == (2.0, (1, 7, 1, 10))
    assert pair_gain(8, {(4, 1): 1.0, (8, 1): 1.0}) == (1.0, (0, 0, 0, 0))


def test_the_papers_candidates():
    known = paper_candidates()
    assert len(set(known)) == len(known) == 2043
    assert (2, 12, 1, 1, 1, 1) in known  # BLIS's
    assert len({(w * h, k, c * r * s) for k, w, h, c, r, s in known}) == 298


def test_a_split_has_all_filters():
    whole, rest = split(LAYERS["Y6"], 96)
    assert (whole.filters, rest.filters, whole.size) == (480, 32, 34)


def test_the_best_around_a_pair_has_it():
    model = CpuModel(anatune.matmul(34, 64, 32), HARDWARE)
    point = best_around(model, {"i.register": 34, "pair.i": 3, "j.register": 32}, count=500)
    schedule = model.space.schedule_of(point)
    assert schedule.options["pair.i"] == (2, 11, 1, 12)
    assert model.check(point[None, :]) == 0
