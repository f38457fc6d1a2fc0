"""Block tiles of any product on any device: times within physics, what is kept is a prefix, the default stays."""

from types import SimpleNamespace

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from anatune.adapters.triton import matmul_pruner, moe_pruner
from anatune.adapters.triton.tiles import propose
from anatune.core.hardware.files import hardware
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.resources import multiply_adds_per_cycle
from anatune.templates.triton.tiles import Tiles
from anatune.templates.triton.times import score_tiles, tile_order
from tests.kernel_arguments import expert_arguments

SPECS = [hardware(name) for name in ("a100_sxm", "rtx3090", "rtx4090", "h100_sxm", "b200", "t4", "gtx1080ti", "mi300x")]
specs = st.sampled_from(SPECS)
extents = st.integers(1, 10_000)
DTYPES = ("bfloat16", "float16", "float32", "fp8", "tf32")
"""What all of them multiply: "fp8" is the type of 8-bit floats that the device has."""
problems = st.builds(
    MatmulProblem, extents, extents, extents, st.sampled_from(DTYPES), st.sampled_from((0, 2, 4)),
    st.booleans(), st.booleans(),
)  # fmt: skip
blocks = st.sampled_from((16, 32, 64, 128, 256))
tiles = st.tuples(
    blocks, blocks, st.sampled_from((16, 32, 64, 128)), st.sampled_from((1, 2, 4, 8, 16)), st.integers(1, 6),
    st.sampled_from((1, 2, 8)), st.sampled_from((1, 8)),
)  # fmt: skip
batches = st.lists(tiles, min_size=1, max_size=30)


@given(problems, batches, specs)
@settings(max_examples=60, deadline=None)
def test_no_tile_is_faster_than_the_device(problem, rows, spec):
    scores = score_tiles(problem, Tiles.of(rows), spec)
    assert np.isfinite(scores.time_s).all()
    rates = np.array(
        [multiply_adds_per_cycle(spec, problem.dtype, unit) for unit in set(scores.resources.unit.tolist())]
    )
    compute_s = float(problem.m) * problem.n * problem.k / rates.max() / spec.compute.num_sms / spec.compute.clock_hz
    operand_bytes = (problem.m + problem.n) * problem.k * problem.element_bytes
    dram_s = (operand_bytes + problem.m * problem.n * problem.result_bytes) / spec.dram.bandwidth_bytes_per_s
    assert (scores.time_s >= max(compute_s, dram_s, spec.launch.overhead_s)).all()


@given(problems, batches, specs)
@settings(max_examples=60, deadline=None)
def test_a_tile_does_not_depend_on_the_others(problem, rows, spec):
    together = score_tiles(problem, Tiles.of(rows), spec)
    alone = [score_tiles(problem, Tiles.of([row]), spec) for row in rows]
    np.testing.assert_array_equal(together.time_s, [scores.time_s[0] for scores in alone])
    np.testing.assert_array_equal(together.resources.rule, [scores.resources.rule[0] for scores in alone])


@given(problems, batches, specs)
@settings(max_examples=60, deadline=None)
def test_the_order_holds_every_legal_tile_once_the_fastest_first(problem, rows, spec):
    batch = Tiles.of(rows)
    scores = score_tiles(problem, batch, spec)
    order = tile_order(scores, problem, batch)
    assert sorted(order) == np.flatnonzero(scores.resources.rule == 0).tolist()
    if len(order):
        assert scores.time_s[order[0]] <= 1.0011 * scores.time_s[order].min()


@given(problems, batches, specs, st.one_of(st.integers(1, 12), st.floats(0.01, 0.99)))
@settings(max_examples=60, deadline=None)
def test_the_kept_ones_are_a_prefix_and_the_default_stays(problem, rows, spec, keep):
    configs = [
        SimpleNamespace(
            kwargs={"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "SPLIT_K": split, "GROUP_M": group},
            num_warps=warps,
            num_stages=stages,
        )
        for m, n, k, warps, stages, split, group in rows
    ]
    call = {"M": problem.m, "N": problem.n, "K": problem.k}
    pruner = matmul_pruner(spec, keep, dtype=problem.dtype)
    kept = pruner.early_config_prune(configs, call)
    plain = MatmulProblem(problem.m, problem.n, problem.k, problem.dtype)  # all that the call says
    if (score_tiles(plain, Tiles.of(rows), spec).resources.rule > 0).all():
        assert [id(config) for config in kept] == [id(config) for config in configs]  # nothing is legal: all stay
        return
    more = matmul_pruner(spec, len(rows), dtype=problem.dtype).early_config_prune(configs, call)
    assert any(config is (configs if len(kept) > 1 else more)[0] for config in kept)  # one: the best predicted
    assert len(kept) <= max(1, keep if isinstance(keep, int) else round(keep * len(rows) + 1))
    without = [config for config in kept if config is not configs[0]]
    prefix = [config for config in more if config is not configs[0]][: len(without)]
    assert [id(config) for config in without] == [id(config) for config in prefix]
    assert [id(c) for c in pruner.early_config_prune(configs, call)] == [id(c) for c in kept]


@given(problems, specs)
@example(MatmulProblem(1, 1, 1, "fp8"), SPECS[0])  # its least block_k is larger than k rounded up
@settings(max_examples=15, deadline=None)
def test_proposals_are_legal_and_in_order(problem, spec):
    found = propose(problem, spec, split_k=True, group_m=True)
    assert found
    batch = Tiles.of([list(proposal.tile.values()) for proposal in found])
    scores = score_tiles(problem, batch, spec)
    assert (scores.resources.rule == 0).all()
    np.testing.assert_allclose(scores.time_s, [proposal.time_s for proposal in found])
    assert len({tuple(proposal.tile.values()) for proposal in found}) == len(found)


experts = st.builds(
    expert_arguments, st.integers(1, 5000), st.sampled_from((8, 64, 257)), st.integers(1, 8), extents, extents,
    st.sampled_from(("torch.bfloat16", "torch.float8_e4m3fn", "torch.int8")),
    group_k=st.sampled_from((0, 128)), down=st.booleans(),
)  # fmt: skip


@given(experts, batches, st.sampled_from(SPECS[2:5]), st.integers(1, 12), st.sampled_from(("uniform", "power:1.2")))
@settings(max_examples=40, deadline=None)
def test_kept_ones_of_experts_are_a_prefix_and_the_default_stays(call, rows, spec, keep, routing):
    configs = [
        SimpleNamespace(
            kwargs={"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": n, "BLOCK_SIZE_K": k, "GROUP_SIZE_M": group},
            num_warps=warps,
            num_stages=stages,
        )
        for m, n, k, warps, stages, _, group in rows
    ]
    pruner, whole = (moe_pruner(spec, count, routing=routing) for count in (keep, len(rows)))
    kept, more = (one.early_config_prune(configs, call) for one in (pruner, whole))
    if not any(pruner.explain(config).place for config in configs):
        assert kept == configs  # nothing is legal: all stay
        return
    assert len(kept) == min(keep, len(more))
    assert any(config is (configs if len(kept) > 1 else more)[0] for config in kept)
    without = [config for config in kept if config is not configs[0]]
    prefix = [config for config in more if config is not configs[0]][: len(without)]
    assert [id(config) for config in without] == [id(config) for config in prefix]
    seconds = [pruner.explain(config).time_s for config in more]
    assert all(np.isfinite(seconds))
