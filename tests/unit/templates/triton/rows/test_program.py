"""Kernels on rows in Triton's interpreter, against float64: whole rows and steps, masks, further results."""

from __future__ import annotations

import msgspec
import pytest

import anatune
from anatune.measure.emulate.triton_interpreter import check_program
from anatune.measure.run.correctness import Correctness, compute_expected, random_inputs
from anatune.templates.triton.rows.program import row_program

pytest.importorskip("triton")


def checked(text: str, rows: int, cols: int, *fault: str) -> Correctness:
    """Verify a schedule; `fault`: a piece of its text, and what stands there instead."""
    workload = anatune.parse_workload(text)
    space = anatune.space(workload, "h100", template="triton")
    program = row_program(space.schedule({"rows": rows, "cols": cols}, num_warps=2))
    if fault:
        assert fault[0] in program.source
        program = msgspec.structs.replace(program, source=program.source.replace(*fault))
    inputs = random_inputs(workload, 1)
    return check_program(workload, program, inputs, compute_expected(workload, inputs))


@pytest.mark.parametrize(
    ("text", "rows", "cols"),
    [
        ("softmax 3x100", 1, 128),
        ("softmax 3x100 --dtype bfloat16", 2, 32),
        ("layer_norm 3x100 --dtype float16", 2, 128),
        ("layer_norm 2x96", 1, 32),
        ("rms_norm 3x64 --dtype bfloat16", 4, 64),
        ("add_rms_norm 3x100 --dtype bfloat16", 1, 64),
        ("silu_multiply 3x100 --dtype float16", 2, 32),
        ("rotary 3x2x20", 4, 16),
        ("quantise_tensor 3x100", 2, 64),
        ("quantise_rows 3x100 --dtype float32:int8", 2, 64),
        ("quantise_groups 3x128x64", 2, 64),
    ],
)
def test_results_are_those_of_float64(text: str, rows: int, cols: int) -> None:
    answer = checked(text, rows, cols)
    assert answer.ok, answer.message


@pytest.mark.parametrize(
    ("text", "fault", "said"),
    [
        ("rms_norm 2x64", ("/ COLS", "/ (COLS - 8)"), "output"),
        ("softmax 2x50", (', other=-float("inf")', ", other=0.0"), "output"),
        (
            "quantise_rows 2x50 --dtype float32:int8",
            ("scales_ptr + row, scale", "scales_ptr + row, 2.0 * scale"),
            "scales",
        ),
        (
            "add_rms_norm 2x64",
            ("tl.store(sum_ptr + row * COLS + col, x", "tl.store(sum_ptr + row * COLS + col, -x"),
            "sum",
        ),
    ],
)
def test_faults_are_found_in_every_result(text: str, fault: tuple[str, str], said: str) -> None:
    answer = checked(text, 1, 64, *fault)
    assert not answer.ok
    assert answer.message.startswith(f"{said}[")
