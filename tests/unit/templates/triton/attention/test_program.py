"""Attention's kernels in Triton's interpreter against float64, and what their text says."""

import importlib.util

import numpy as np
import pytest

import anatune
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.core.workload.operators.attention import strided_attention
from anatune.measure.emulate.triton_interpreter import check_program
from anatune.measure.run.correctness import compute_expected, random_inputs
from anatune.templates.triton import TRITON
from anatune.templates.triton.attention.space import AttentionSpace

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def schedule_of(workload: Workload, block_m: int, block_n: int, **options: int) -> Schedule:
    spec = anatune.hardware("h100")
    assert isinstance(spec, anatune.GpuSpec)
    space = AttentionSpace(workload, spec, lambda points: np.ones(len(points), dtype=bool))
    return space.schedule({"m": block_m, "n": block_n}, **options)


CASES = [
    ((1, 2, 2, 40, 40, 32), {}, (16, 16), {}),
    ((2, 4, 2, 17, 50, 40), {"causal": True}, (32, 16), {}),
    ((1, 6, 2, 70, 70, 16), {"causal": True, "window": 30, "dtype": "bfloat16"}, (64, 16), {"descriptors": 1}),
    ((1, 3, 1, 64, 164, 16), {"causal": True, "window": 7}, (16, 16), {"split_kv": 3}),
    ((2, 8, 2, 1, 100, 32), {"page_size": 16}, (16, 32), {"split_kv": 4}),
    ((2, 4, 2, 3, 90, 32), {"causal": True, "page_size": 64, "window": 40}, (16, 32), {"split_kv": 2}),
    ((1, 2, 1, 33, 65, 32), {"causal": True, "dtype": "float8_e4m3fn"}, (32, 32), {"descriptors": 1}),
    ((1, 2, 1, 3, 5, 64), {"causal": True}, (16, 64), {"split_kv": 8}),
]


@needs_triton
@pytest.mark.parametrize(("sizes", "more", "tile", "options"), CASES)
def test_results_are_those_of_float64(sizes, more, tile, options) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("ml_dtypes")
    workload = anatune.attention(*sizes, **more)
    inputs = random_inputs(workload, seed=3)
    program = TRITON.program(schedule_of(workload, *tile, **options))
    comparison = check_program(workload, program, inputs, compute_expected(workload, inputs))
    assert comparison.ok, comparison.message


STRIDED = [
    # three matrices side by side; queries beside a wider cache; keys head by head, values as rows of tokens
    ((2, 3, 3, 33, 33, 32), False, [(33 * 288, 32, 288)] * 3, (16, 16), {}),
    ((1, 4, 2, 40, 70, 40), True, [(0, 40, 160), *[(0, 40, 240)] * 2], (32, 32), {"split_kv": 2}),
    ((2, 4, 2, 17, 20, 64), True, [(4352, 1088, 64), (3200, 1600, 64), (2560, 64, 128)], (16, 16), {}),
]
STEP = ((3, 4, 2, 1, 50, 32), False, [(128, 32, 128), *[(3200, 1600, 32)] * 2], (16, 16), {"split_kv": 4})


@needs_triton
@pytest.mark.parametrize("seed", [None, 1, 2, 3])
@pytest.mark.parametrize(("sizes", "causal", "strides", "tile", "options"), [*STRIDED, STEP])
def test_operands_may_lie_in_any_order(sizes, causal, strides, tile, options, seed) -> None:  # type: ignore[no-untyped-def]
    """Seeds: how many keys there are is an operand."""
    plain = anatune.attention(*sizes, causal=causal, dtype="bfloat16")
    workload = strided_attention(plain, strides, counted="" if seed is None else "held")
    schedule = schedule_of(workload, *tile, **options)
    assert "descriptors" not in schedule.options
    inputs = random_inputs(workload, seed=seed or 3)
    comparison = check_program(workload, TRITON.program(schedule), inputs, compute_expected(workload, inputs))
    assert comparison.ok, comparison.message
    assert Schedule.from_json(schedule.to_json()) == schedule


PAGED = [
    # pages of which a step is a part, and of which a step has several; keys and values that lie in different ways
    ((3, 8, 2, 1, 96, 32), {"page_size": 32}, [(256, 32, 256), *[(2048, 32, 64)] * 2], (16, 16), {"split_kv": 2}),
    ((2, 4, 2, 5, 60, 32), {"page_size": 20, "causal": True}, [(640, 32, 128), *[(1280, 32, 64)] * 2], (16, 32), {}),
    ((2, 2, 2, 3, 64, 40), {"page_size": 16}, [(240, 40, 80), (1280, 40, 80), (2560, 80, 160)], (16, 32), {}),
    (
        (2, 2, 1, 7, 64, 16),
        {"page_size": 16, "causal": True},
        [(224, 16, 32), *[(256, 0, 16)] * 2],
        (16, 16),
        {"split_kv": 3},
    ),
    ((3, 2, 1, 4, 50, 32), {"causal": True}, [(256, 32, 64), *[(1600, 0, 32)] * 2], (16, 32), {}),
    (
        (2, 4, 2, 5, 64, 32), {"page_size": 16, "causal": True, "window": 9},
        [(640, 32, 128), *[(1024, 32, 64)] * 2], (16, 16), {},
    ),
    (
        (3, 4, 2, 1, 96, 32), {"page_size": 32, "causal": True, "window": 40},
        [(128, 32, 128), *[(2048, 32, 64)] * 2], (16, 16), {"split_kv": 2},
    ),
    ((3, 2, 1, 4, 50, 32), {}, [(256, 32, 64), *[(1600, 0, 32)] * 2], (16, 32), {}),
]  # fmt: skip


@needs_triton
@pytest.mark.parametrize("seed", [None, 1, 2, 3])
@pytest.mark.parametrize(("sizes", "more", "strides", "tile", "options"), PAGED)
def test_pages_of_a_pool_and_sequences_of_their_own_lengths(sizes, more, strides, tile, options, seed) -> None:  # type: ignore[no-untyped-def]
    plain = anatune.attention(*sizes, dtype="bfloat16", **more)
    workload = strided_attention(plain, strides, counted="" if seed is None else "lengths", pool=11)
    schedule = schedule_of(workload, *tile, **options)
    inputs = random_inputs(workload, seed=seed or 3)
    if seed == 1:
        inputs["lengths"][:2] = 0, sizes[4] + 3  # none, and more than there are places for
    comparison = check_program(workload, TRITON.program(schedule), inputs, compute_expected(workload, inputs))
    assert comparison.ok, comparison.message
    assert Schedule.from_json(schedule.to_json()) == schedule


@needs_triton
def test_windows_behind_all_keys_are_empty() -> None:
    plain = anatune.attention(2, 2, 2, 4, 40, 32, causal=True, window=3, dtype="bfloat16")
    strides = [(4 * 64, 32, 64), *[(40 * 64, 32, 64)] * 2]
    workload = strided_attention(plain, strides, counted="lengths")
    inputs = random_inputs(workload, seed=1)
    inputs["lengths"][:] = 43, 44  # the last query, and the last two, see no key
    comparison = check_program(
        workload, TRITON.program(schedule_of(workload, 16, 16)), inputs, compute_expected(workload, inputs)
    )
    assert comparison.ok, comparison.message


@needs_triton
@pytest.mark.parametrize("more", [{}, {"causal": True}, {"causal": True, "window": 9}])
@pytest.mark.parametrize("sign", [1, -1])
def test_scores_of_any_magnitude(more, sign) -> None:  # type: ignore[no-untyped-def]
    """The largest score is taken off before the scale, whose product processors would round once, and once not."""
    pytest.importorskip("ml_dtypes")
    workload = anatune.attention(1, 2, 2, 40, 40, 16, dtype="bfloat16", **more)
    inputs, rng = random_inputs(workload, seed=3), np.random.default_rng(0)
    for tensor, factor in (("queries", 2.0**57), ("keys", sign * 2.0**57)):
        whole = rng.integers(1, 4, inputs[tensor].shape) * factor
        inputs[tensor] = whole.astype(inputs[tensor].dtype)
    program = TRITON.program(schedule_of(workload, 16, 16))
    assert "SCALE -" not in program.source
    comparison = check_program(workload, program, inputs, compute_expected(workload, inputs))
    assert comparison.ok, comparison.message


@needs_triton
def test_a_seeded_fault_is_found() -> None:
    workload = anatune.attention(1, 2, 2, 40, 40, 32, causal=True)
    program = TRITON.program(schedule_of(workload, 16, 16))
    inputs = random_inputs(workload, seed=3)
    want = compute_expected(workload, inputs)
    for before, after in (
        ("<= query", "< query"),
        ("* shrink[:, None]", "* 1.0"),
        ("tl.max(scores, 1)", "0.0 * query"),
    ):
        assert before in program.source
        broken = type(program)(
            program.schedule_key, program.source.replace(before, after), program.kernels, program.result
        )
        same = check_program(workload, broken, inputs, want)
        # without the maximum powers of small scores are as right: the softmax does not change
        assert same.ok == before.startswith("tl.max")


def test_masks_are_only_where_they_are_needed() -> None:
    plain = TRITON.program(schedule_of(anatune.attention(1, 2, 2, 64, 64, 64), 64, 64)).source
    assert "mask" not in plain.lower().split('"""')[2]
    causal = TRITON.program(schedule_of(anatune.attention(1, 2, 2, 128, 128, 64, causal=True), 64, 64)).source
    assert causal.count("attend(") == 3  # its definition, keys that all rows see, keys on the diagonal
    assert "tl.load(keys_ptr + places)" in causal
