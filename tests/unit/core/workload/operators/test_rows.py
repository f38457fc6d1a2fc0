"""Workloads on rows of activations: what they move, their further results, bad arguments, text and JSON."""

from __future__ import annotations

import pytest

import anatune
from anatune import Workload
from anatune.core.workload.operators import CONSTRUCTORS
from anatune.core.workload.text import workload_to_text
from anatune.errors import WorkloadError
from tests.wording import refuses

TEXTS = (
    "softmax 64x128",
    "layer_norm 64x100 --dtype float16",
    "rms_norm 4096x8192 --dtype bfloat16",
    "add_rms_norm 8x16",
    "silu_multiply 8x16",
    "rotary 8x4x64",
    "quantise_tensor 8x256",
    "quantise_rows 8x256 --dtype float16:int8",
    "quantise_groups 8x256x128",
)


@pytest.mark.parametrize("text", TEXTS)
def test_text_json_and_constructors_go_both_ways(text: str) -> None:
    workload = anatune.parse_workload(text)
    assert workload_to_text(workload) == text
    assert Workload.from_json(workload.to_json()) == workload
    assert CONSTRUCTORS[workload.operator](**workload.attribute) == workload


def test_bytes_and_operations_are_those_of_the_tensors() -> None:
    assert anatune.rms_norm(8, 64, "bfloat16").compulsory_bytes == 2 * (8 * 64 * 2 + 64)
    assert anatune.add_rms_norm(8, 64, "bfloat16").compulsory_bytes == 2 * (8 * 64 * 4 + 64)
    gated = anatune.silu_multiply(8, 64, "float16")
    assert (gated.compulsory_bytes, gated.flop) == (2 * 8 * 64 * 3, 5 * 8 * 64)
    assert anatune.rotary(8, 4, 64).compulsory_bytes == 4 * (2 * 8 * 4 * 64 + 2 * 8 * 32)
    assert anatune.quantise_tensor(8, 64).compulsory_bytes == 8 * 64 * 3 + 4


def test_what_is_quantised_has_a_scale_for_each_row_or_group() -> None:
    (of_rows,) = anatune.quantise_rows(8, 256).further
    (of_groups,) = anatune.quantise_groups(8, 256, 128).further
    assert (of_rows.shape, of_groups.shape) == ((8,), (8, 2))
    assert anatune.softmax(8, 256).further == ()
    assert anatune.quantise_rows(8, 256).formats == "bfloat16:float8_e4m3fn"


def test_impossible_arguments_are_told() -> None:
    for call in (
        lambda: anatune.rotary(8, 4, 63),
        lambda: anatune.quantise_groups(8, 200, 128),
        lambda: anatune.quantise_rows(8, 200, "bfloat16"),
        lambda: anatune.softmax(0, 8),
        lambda: anatune.parse_workload("rms_norm 8x8x8"),
    ):
        with refuses(WorkloadError):
            call()
