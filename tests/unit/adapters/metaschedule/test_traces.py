"""Traces of MetaSchedule as JSON, what they mean, and the time of nests as LLVM compiles them: no TVM is needed."""

import numpy as np
import pytest

import anatune
from anatune.adapters.metaschedule.traces import nests_of
from anatune.adapters.tvm_tiles.tvm_nest import INLINED, NO_PRODUCER, PARTS, CompiledNestModel
from anatune.core.hardware.files import hardware
from anatune.errors import SpaceError
from anatune.records.traces import CPU_TILING, GPU_TILING, Tiling, UnfitError, match_axes, read_trace
from anatune.search.learning.kriging import Residuals
from tests.wording import refuses

CPU = hardware("intel_xeon_gold_6230r")  # AVX-512: 16 lanes, 32 registers
MATMUL = anatune.matmul(256, 256, 256)
CONV = anatune.conv2d(1, 16, 28, 28, 32, 3, 3, padding=1)


def trace(structure=CPU_TILING, tiles=((32, 1, 2, 4), (2, 2, 4, 16), (64, 4)), more=(), decisions=()):
    """Return [instructions, decisions] as MetaSchedule writes them."""
    steps = [
        ["GetSBlock", [], ["C", "main"], ["b0"]],
        ["GetSBlock", [], ["root", "main"], ["b1"]],
        ["Annotate", ["b0", f'"{structure}"'], ["meta_schedule.tiling_structure"], []],
    ]
    decided = []
    for number, factors in enumerate(tiles):
        decided.append([len(steps), list(factors)])
        steps.append(["SamplePerfectTile", [f"l{number}"], [len(factors), 64], [f"v{number}{i}" for i in range(5)]])
    for step, decision in more:
        if decision is not None:
            decided.append([len(steps), decision])
        steps.append(step)
    return [steps, decided]


def categorical(name, candidates, chosen):
    return (["SampleCategorical", [], [candidates, [1.0 / len(candidates)] * len(candidates)], [name]], chosen)


def tiling(tiles, **fields):
    return Tiling(CPU_TILING, "C", tuple(map(tuple, tiles)), **{"vectorize": 64, "parallel": 16, **fields})


def test_cpu_decisions():
    more = [
        (["Reorder", [f"l{at}" for at in range(10)], [], []], None),
        (["CacheWrite", ["b0", []], [0, "global"], ["b9"]], None),
        (["ReverseComputeAt", ["b9", "l3"], [1, -1], []], None),
        (["Annotate", ["b1", 16], ["meta_schedule.parallel"], []], None),
        (["Annotate", ["b1", 64], ["meta_schedule.vectorize"], []], None),
        categorical("v90", [0, 16, 64, 512], 2),
        (["Annotate", ["b1", "v90"], ["meta_schedule.unroll_explicit"], []], None),
        (["GetSBlock", [], ["pad", "main"], ["b7"]], None),
        (["SampleComputeLocation", ["b7"], [], ["l80"]], -2),
    ]
    found = read_trace(*trace(more=more))
    assert found == tiling(
        [(32, 1, 2, 4), (2, 2, 4, 16), (64, 4)], unroll=64, write_depth=3, producers={"pad": INLINED}
    )


def test_gpu_decisions():
    more = [
        (["CacheRead", ["b0", ["b0"]], [1, "shared"], ["b4"]], None),
        categorical("v80", [1, 2, 3, 4], 3),
        (["Annotate", ["b4", "v80"], ["meta_schedule.cooperative_fetch"], []], None),
        (["Annotate", ["l1", [0, 0, 2]], ["software_pipeline_stage"], []], None),
        categorical("v90", [0, 16, 64, 512], 3),
        (["Annotate", ["b1", "v90"], ["meta_schedule.unroll_explicit"], []], None),
        (["EnterPostproc", [], [], []], None),
        (["Annotate", ["b1", 5], ["meta_schedule.unroll_explicit"], []], None),
    ]
    tiles = ((4, 1, 8, 2, 4), (2, 1, 16, 1, 8), (16, 4, 4))
    found = read_trace(*trace(GPU_TILING, tiles, more))
    assert found.tiles == tiles
    assert (found.unroll, found.fetch, found.stages) == (512, {1: 4}, 3)
    assert match_axes(found, MATMUL) == dict(zip("ijk", tiles, strict=True))


@pytest.mark.parametrize(
    "recorded",
    [
        trace("SSRSRS", more=[(["RFactor", ["l1"], [0], ["b5"]], None)]),
        trace(more=[(["Tensorize", ["b0", "x"], [], []], None)]),
        trace(more=[(["Annotate", ["b0", "x"], ["meta_schedule.auto_tensorize"], []], None)]),
        trace(more=[(["Annotate", ["b0", '"SSRSRS"'], ["meta_schedule.tiling_structure"], []], None)]),
        trace("SSSRRSRST"),
        [[["GetSBlock", [], ["C", "main"], ["b0"]]], []],
        trace(more=[(["Annotate", ["b1", "v99"], ["meta_schedule.unroll_explicit"], []], None)]),
    ],
)
def test_what_is_not_understood_says_why(recorded):
    with refuses(UnfitError):
        read_trace(*recorded)


def test_loops_of_one_iteration_may_be_left_out():
    whole = tiling([(1, 1, 1, 1), (2, 1, 4, 4), (7, 1, 1, 4), (2, 1, 1, 14), (4, 4), (1, 3), (3, 1)], write_depth=3)
    short = anatune.core.workload.nest.Workload.from_json(CONV.to_json())
    assert match_axes(whole, short)["f"] == (2, 1, 4, 4)
    dropped = nests_of(_without_units(CONV), [whole]).write_depth.tolist()
    assert (nests_of(CONV, [whole]).write_depth.tolist(), dropped) == ([3], [2])
    with refuses(UnfitError):
        match_axes(whole, MATMUL)
    with refuses(UnfitError):
        nests_of(MATMUL, [whole._replace(structure=GPU_TILING)])


def _without_units(workload):
    import msgspec

    def kept(access):
        indices = tuple(tuple(t for t in terms if workload.extents[t.axis] > 1) for terms in access.indices)
        return msgspec.structs.replace(access, indices=indices)

    return msgspec.structs.replace(
        workload,
        axes=tuple(axis for axis in workload.axes if axis.extent > 1),
        reads=tuple(kept(access) for access in workload.reads),
        write=kept(workload.write),
    )


# ---- the time of compiled nests ------------------------------------------------------------------------------


def times(workload, *tilings, threads=1):
    return CompiledNestModel(workload, CPU, threads).evaluate(nests_of(workload, tilings))


GOOD = tiling([(64, 1, 1, 4), (4, 1, 2, 32), (64, 4)], unroll=64)


@pytest.mark.slow
def test_vectors_beat_scalars_and_registers_beat_memory():
    scalar = tiling([(64, 1, 1, 4), (128, 2, 1, 1), (64, 4)], unroll=64)
    in_memory = tiling([(4, 1, 1, 64), (4, 1, 2, 32), (64, 4)], unroll=0)
    found = times(MATMUL, GOOD, scalar, in_memory)
    assert found.time_s.argmin() == 0
    assert found.time_s[1] > 4 * found.time_s[0]
    assert found.columns["vector"].tolist() == [32, 1, 32]
    assert found.columns["held"].tolist() == [256, 256, 1]  # 64 rows of two vectors fit no registers


def test_no_nest_is_faster_than_arithmetic_alone():
    generator = np.random.default_rng(0)
    table = [f for f in np.ndindex(9, 9, 9) if sum(f) <= 8]
    tilings = []
    for _ in range(300):
        factors = []
        for width in (4, 4, 2):
            a, b, c = table[generator.integers(len(table))]
            factors.append((2 ** (8 - a - b - c), 2**a, 2**b, 2**c) if width == 4 else (2 ** (8 - a), 2**a))
        tilings.append(tiling(factors, unroll=int(generator.choice([0, 16, 64, 512]))))
    found = times(MATMUL, *tilings)
    peak_time_s = MATMUL.flop / (CPU.compute.fp32_peak_flop_per_s / CPU.compute.num_cores)
    assert (found.time_s >= peak_time_s).all()
    assert np.isfinite(found.time_s).all()
    assert all((found.columns[part] >= 0).all() for part in PARTS)
    single = [times(MATMUL, one).time_s[0] for one in tilings[:40]]
    np.testing.assert_array_equal(single, found.time_s[:40])  # what else is in the batch does not matter


def test_loops_that_llvm_vectorises_itself():
    middle = tiling([(64, 1, 2, 2), (4, 2, 32, 1), (256, 1)])  # j's innermost factor is 1, the one before it is not
    found = times(MATMUL, middle)
    assert found.columns["vector"].tolist() == [32]
    assert found.columns["held"].tolist() == [1]


def test_padding_inside_the_statement_costs_most():
    tiles = [(1, 1, 1, 1), (2, 1, 4, 4), (7, 1, 1, 4), (2, 1, 1, 14), (4, 4), (1, 3), (3, 1)]
    before, inside, each = (tiling(tiles, producers={"pad": depth}) for depth in (-1, 7, INLINED))
    found = times(CONV, before, inside, each)
    assert found.time_s[0] < found.time_s[1] < found.time_s[2]
    plain = times(MATMUL, GOOD)  # no operand is padded: where producers are makes no difference
    assert times(MATMUL, GOOD._replace(producers={"x": INLINED})).time_s[0] == plain.time_s[0]
    assert nests_of(MATMUL, [GOOD]).producer_depth.tolist() == [NO_PRODUCER]


def test_threads_share_the_chunks():
    one, many = times(MATMUL, GOOD).time_s[0], times(MATMUL, GOOD, threads=8).time_s[0]
    assert one / 8 < many < one / 2
    serial = GOOD._replace(parallel=0)
    assert times(MATMUL, serial, threads=8).columns["chunks"].tolist() == [1]


def test_only_sums_of_products_in_float32():
    with refuses(SpaceError):
        CompiledNestModel(anatune.matmul(64, 64, 64, dtype="float16"), CPU)


# ---- what measurements correct -------------------------------------------------------------------------------


def test_residuals_carry_over_to_what_is_alike():
    generator = np.random.default_rng(1)
    rows = generator.normal(size=(60, 5))
    truth = 0.8 * np.tanh(rows[:, 0]) + 0.3
    known = Residuals()
    assert known.predict(rows[:3]).tolist() == [0.0, 0.0, 0.0]
    known.observe(rows[:2], truth[:2])
    assert known.predict(rows[:1])[0] == pytest.approx(np.median(truth[:2]))
    known.observe(rows[2:40], truth[2:40])
    assert len(known) == 40
    guessed = known.predict(rows[40:])
    assert np.abs(guessed - truth[40:]).mean() < 0.6 * np.abs(np.median(truth[:40]) - truth[40:]).mean()
    again = Residuals.from_builtins(known.to_builtins())
    np.testing.assert_allclose(again.predict(rows), known.predict(rows))


def test_residuals_of_equal_points_are_fine():
    known = Residuals()
    known.observe(np.ones((8, 3)), np.full(8, 0.5))
    np.testing.assert_allclose(known.predict(np.ones((2, 3))), 0.5)
