"""The bench of two microkernels against one: its spaces, draws and sizes."""

import anatune
from bench.cpu.layers import LAYERS
from bench.experiments import microkernels
from bench.experiments.microkernel_spaces import blis_like, draws, either, ends, one, padded, space_of
from bench.layers import Matmul

HARDWARE = anatune.hardware("xeon_gold_6130").with_threads(1)
PRIME = Matmul("prime", "made up", 17, 32, 16)
"""Small enough to be ranked whole."""


def has_pair(schedule):
    return any(name.startswith("pair.") for name in schedule.options)


def test_one_is_either_without_pairs():
    single, both = (made(PRIME.workload(), HARDWARE) for made in (one, either))
    found = both.space.points_at(range(0, both.space.size, max(1, both.space.size // 5000)))
    pairs = [both.space.columns.index(name) for name in both.space.columns if name.startswith("pair.")]
    assert single.space.columns == both.space.columns
    assert found[:, pairs].any()
    points = single.space.points_at(range(0, single.space.size, max(1, single.space.size // 5000)))
    assert not points[:, pairs].any()
    assert (single.times(points)[0] == both.times(points)[0]).all()
    assert single.rank(1).num_legal < both.rank(1).num_legal


def test_a_pair_covers_what_no_kernel_divides():
    spaces = {kind: space_of(PRIME, kind, HARDWARE)[0] for kind in microkernels.KINDS}
    assert spaces["either"].has_pair
    assert not spaces["one"].has_pair
    assert not spaces["padded"].has_pair
    assert spaces["either"].time_s < spaces["one"].time_s
    assert {space.guarantee for space in spaces.values()} <= {"exhaustive", "certified"}
    assert all(not has_pair(schedule) for schedule in ends(one(PRIME.workload(), HARDWARE), 3))


def test_draws_are_no_faster_than_the_proven_best():
    space, model = space_of(PRIME, "either", HARDWARE)
    assert min(draws(model, 20, 0)) >= space.time_s * (1 - 1e-9)


def test_padding_adds_columns_of_results_only():
    layer = LAYERS["R9"]  # of stride 2
    before, after = layer.workload("NHWC"), padded(layer, 3)
    assert after.extents == before.extents | {"x": before.extents["x"] + 3}
    assert padded(PRIME, 2).extents["i"] == 19


def test_the_kernel_of_blis_covers_all_rows():
    assert blis_like(128, 128, 17, HARDWARE).tiles["i"] == (1, 1, 1, 2, 12)
