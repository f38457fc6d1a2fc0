"""Triton's interpreter with mended arithmetic: numbers computed by hand, and what no kernel may do."""

from __future__ import annotations

import importlib.util
import random

import numpy as np
import pytest

import anatune
from anatune.core.activations import ACTIVATIONS
from anatune.core.workload.nest import Workload
from anatune.emit.buffer import Buffer
from anatune.errors import RunError
from anatune.measure.emulate.triton_interpreter import UNSEEN, check_program, interpret
from anatune.measure.run.correctness import Array, compute_expected, random_inputs
from anatune.templates.triton.program import TritonKernel, TritonProgram, triton_program
from bench.gpu.triton_mutants import mutants
from bench.gpu.triton_points import random_schedule
from tests.wording import refuses

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
ml_dtypes = pytest.importorskip("ml_dtypes")

HEAD = """import triton
import triton.language as tl


@triton.jit
def kernel(A_ptr, B_ptr, C_ptr):
    i = tl.arange(0, 16)
    at = i[:, None] * 16 + i[None, :]
"""
DOT = HEAD + "    tl.store(C_ptr + at, tl.dot(tl.load(A_ptr + at), tl.load(B_ptr + at)))\n"
FLOATS = ("float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")


def run(source: str, left: Array, right: Array, result: str = "float32", grid: int = 1) -> Array:
    tensors = {"A": left, "B": right}
    parameters = (*(Buffer(name, str(array.dtype), array.shape) for name, array in tensors.items()),)
    parameters += (Buffer("C", result, (16, 16)),)
    kernel = TritonKernel("kernel", parameters, grid, 4, 1, {})
    return interpret(TritonProgram("", source, (kernel,), "C"), tensors, 60.0)["C"]


def matrix(values: list[float], dtype: str, *, column: bool = False) -> Array:
    whole = np.zeros((16, 16), np.float32)
    whole[0, : len(values)] = values
    kind = getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
    return np.ascontiguousarray(whole.T if column else whole).astype(kind)


@pytest.mark.parametrize("dtype", FLOATS)
def test_products_of_floats_are_what_they_are(dtype: str) -> None:
    made = run(DOT, matrix([1.5, 2, -3, 0.5], dtype), matrix([2, 0.25, 1, 4], dtype, column=True))
    assert made[0, 0] == 1.5 * 2 + 2 * 0.25 - 3 * 1 + 0.5 * 4 == 2.5
    assert np.count_nonzero(made) == 1


def test_products_of_bytes_are_summed_in_32_bits() -> None:
    made = run(DOT, matrix([-128] * 16, "int8"), matrix([-128] * 15 + [1], "int8", column=True), "int32")
    assert made[0, 0] == 15 * 128 * 128 - 128


def test_operands_are_rounded_to_tf32() -> None:
    """11 bits are kept; a half goes away from zero, as in `measure.run.rounding.as_tf32`."""
    ulp = 2.0**-10
    made = run(DOT, matrix([1 + 0.5 * ulp, 0], "float32"), matrix([1], "float32", column=True))
    assert made[0, 0] == 1 + ulp
    made = run(DOT, matrix([1 + 0.49 * ulp], "float32"), matrix([-1], "float32", column=True))
    assert made[0, 0] == -1


@pytest.mark.parametrize("step", sorted(ACTIVATIONS))
def test_fused_steps_are_right_in_tails(step: str) -> None:
    """Products by the unit matrix: the results are the steps of the left operand, whose numbers TF32 keeps."""
    steps = np.concatenate([np.linspace(-12.5, 12.5, 201), [0, 15, 100, 1e-6, -1e-6, 2.0**-120, -(2.0**-120)]])
    x = (steps.astype(np.float32).view(np.int32) & -(1 << 13)).view(np.float32)
    x = np.resize(x, (16, 16))
    workload = anatune.matmul(16, 16, 16, dtype="float32", epilogue=(step,))
    space = anatune.space(workload, anatune.hardware("a100"), template="triton")
    program = triton_program(space.schedule({"m": 16, "n": 16, "k": 16}))
    names = [name for name in program.tensors if name != program.result]
    made = interpret(program, dict(zip(names, (x, np.eye(16, dtype=np.float32)), strict=True)), 60.0)[program.result]
    want = ACTIVATIONS[step](x.astype(np.float64))
    assert np.all(np.abs(made - want) <= 2e-5 * np.abs(want) + 1e-37)


@pytest.mark.parametrize(
    ("dtype", "bits"), [("bfloat16", 7), ("float16", 10), ("float8_e4m3fn", 3), ("float8_e5m2", 2)]
)
def test_results_are_rounded_to_nearest_even(dtype: str, bits: int) -> None:
    types = {"float8_e4m3fn": "float8e4nv", "float8_e5m2": "float8e5"}
    ulp = 2.0**-bits
    given = [1 + 0.5 * ulp, 1 + 1.5 * ulp, 1 + 0.625 * ulp, -1 - 0.5 * ulp, 2 - 0.5 * ulp]
    # back to float32 in the kernel: a cast each way
    source = HEAD + f"    x = tl.load(A_ptr + at).to(tl.{types.get(dtype, dtype)})\n"
    made = run(source + "    tl.store(C_ptr + at, x.to(tl.float32))\n", matrix(given, "float32"), matrix([], "int8"))
    assert made[0, :5].tolist() == [1, 1 + 2 * ulp, 1 + ulp, -1, 2]


def test_bytes_too_large_for_their_type_are_saturated() -> None:
    source = HEAD + "    x = tl.load(A_ptr + at).to(tl.float8e4nv).to(tl.float32)\n    tl.store(C_ptr + at, x)\n"
    assert run(source, matrix([1e6, -500], "float32"), matrix([], "int8"))[0, :2].tolist() == [448, -448]


@pytest.mark.parametrize(
    "lines",
    [
        "tl.store(C_ptr + at, tl.load(A_ptr + at + 1))",
        "tl.store(C_ptr + at, tl.load(A_ptr + at - 16))",
        "tl.store(C_ptr + at - 1, tl.load(A_ptr + at))",
        "tl.store(A_ptr + at, tl.load(B_ptr + at).to(tl.float32))",
        "tl.store(C_ptr + at, tl.load(C_ptr + at))",
        "tl.store(C_ptr + at * 0, tl.load(A_ptr + at))",
        "tl.store(C_ptr + nothing, 0)",
    ],
)
def test_what_no_kernel_may_do_is_an_error_of_one_line(lines: str) -> None:
    ones = np.ones((16, 16), np.float32)
    with refuses(RunError) as caught:
        run(f"{HEAD}    {lines}\n", ones, ones)
    assert "\n" not in str(caught.value)


def test_two_programs_that_write_the_same_are_found() -> None:
    ones = np.ones((16, 16), np.float32)
    with refuses(RunError):
        run(HEAD + "    tl.store(C_ptr + at, tl.load(A_ptr + at))\n", ones, ones, grid=2)


def test_masked_elements_that_nobody_names_are_not_zero() -> None:
    ones = np.ones((16, 16), np.float32)
    made = run(HEAD + "    tl.store(C_ptr + at, tl.load(A_ptr + at, mask=at > 0))\n", ones, ones)
    assert np.isnan(made[0, 0])
    assert (made.reshape(-1)[1:] == 1).all()


def test_verify_interprets_and_says_what_it_cannot_see() -> None:
    workload = anatune.matmul(72, 40, 56, dtype="bfloat16", epilogue=("bias", "relu"))
    space = anatune.space(workload, anatune.hardware("h100"), template="triton")
    answer = anatune.verify(space.schedule({"m": 32, "n": 16, "k": 16}, descriptors=1))
    assert answer.ok, answer.message
    assert answer.note == UNSEEN


@pytest.mark.parametrize("seed", range(12))
def test_random_schedules_are_right(seed: int) -> None:
    schedule = random_schedule(random.Random(seed))
    answer = anatune.verify(schedule)
    assert answer.ok, f"{schedule}: {answer.message}"


@pytest.mark.parametrize(
    ("workload", "options"),
    [
        (anatune.matmul(80, 40, 72, dtype="float16", epilogue=("bias", "add", "relu")), {"group_m": 2}),
        (anatune.conv2d(2, 8, 6, 5, 24, 3, 3, padding=1, dtype="bfloat16", epilogue=("silu",)), {"split_k": 2}),
    ],
)
def test_faults_put_into_sources_are_found(workload: Workload, options: dict[str, int]) -> None:
    space = anatune.space(workload, anatune.hardware("h100"), template="triton")
    schedule = space.schedule({"m": 16, "n": 16, "k": 32}, **options)
    inputs = random_inputs(workload)
    want = compute_expected(workload, inputs)
    kinds = dict(mutants(triton_program(schedule)))  # one of each kind
    assert len(kinds) >= 7
    for what, mutant in kinds.items():
        try:
            assert not check_program(workload, mutant, inputs, want).ok, what
        except RunError:
            continue
