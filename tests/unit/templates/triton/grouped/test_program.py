"""Kernels of products with scales and of experts in Triton's interpreter against float64, and what their text says."""

import importlib.util

import numpy as np
import pytest

import anatune
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.measure.emulate.triton_interpreter import check_program
from anatune.measure.run.correctness import expected, random_inputs
from anatune.templates.triton import TRITON
from anatune.templates.triton.grouped.space import ScaledSpace

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def schedule_of(workload: Workload, tile: tuple[int, int, int], device: str = "b200", **options: int) -> Schedule:
    spec = anatune.hardware(device)
    assert isinstance(spec, anatune.GpuSpec)
    space = ScaledSpace(workload, spec, lambda points: np.ones(len(points), dtype=bool))
    return space.schedule(dict(zip("mnk", tile, strict=True)), **options)


CASES = [
    ("scaled_matmul 33x72x96", (16, 32, 32), {}),
    ("scaled_matmul 64x72x96 --scales rows", (32, 32, 64), {"descriptors": 1, "split_k": 2}),
    ("scaled_matmul 33x200x320 --scales blocks", (16, 32, 64), {"group_m": 1}),
    ("scaled_matmul 32x200x288 --scales blocks", (32, 256, 32), {"descriptors": 1, "split_k": 4}),
    ("scaled_matmul 20x72x100 --dtype int8 --scales rows", (16, 32, 32), {}),
    ("scaled_matmul 20x136x256 --dtype int8:float16 --scales blocks", (16, 64, 128), {}),
    ("scaled_matmul 20x72x64 --dtype float16xint8", (16, 16, 32), {"split_k": 2}),
    ("scaled_matmul 20x72x128 --dtype bfloat16xint8 --group 64", (16, 16, 32), {}),
    ("scaled_matmul 20x40x128 --dtype bfloat16xint4 --group 32", (16, 16, 64), {"descriptors": 1}),
    ("scaled_matmul 20x40x192 --dtype float16xint4 --group 64 --zero-points", (16, 16, 128), {}),
    ("scaled_matmul 20x40x100 --dtype float16xint4", (16, 32, 32), {}),
    ("scaled_matmul 20x40x288 --dtype mxfp8", (16, 16, 128), {}),
    ("scaled_matmul 32x40x256 --dtype mxfp4", (32, 16, 128), {"descriptors": 1}),
    ("scaled_matmul 20x40x272 --dtype nvfp4", (16, 32, 128), {}),
    ("grouped_matmul 33x5x2x40x64", (16, 32, 32), {"group_m": 4}),
    ("grouped_matmul 9x6x2x24x48 --activation --routing power:1.2", (16, 16, 32), {}),
    (
        "grouped_matmul 17x3x2x40x256 --expanded --dtype float8_e4m3fn --scales blocks --routing 30,0,4",
        (16, 64, 64),
        {},
    ),
    ("grouped_matmul 17x1x1x136x256 --dtype float8_e4m3fn --scales rows --activation", (16, 64, 64), {}),
    ("grouped_matmul 12x7x3x40x64 --dtype float8_e4m3fn --routing balanced", (16, 32, 32), {}),
    ("grouped_matmul 12x3x2x136x256 --dtype float8_e4m3fn --scales blocks --activation", (16, 64, 64), {}),
    ("grouped_matmul 12x4x2x40x128 --dtype bfloat16xint4 --group 32 --zero-points", (16, 32, 64), {}),
    ("grouped_matmul 12x4x2x40x64 --dtype float16xint8 --expanded", (16, 32, 32), {}),
    ("grouped_matmul 12x4x2x40x128 --dtype nvfp4", (16, 32, 128), {}),
]


@needs_triton
@pytest.mark.parametrize(("words", "tile", "options"), CASES)
def test_results_are_those_of_float64(words: str, tile: tuple[int, int, int], options: dict[str, int]) -> None:
    pytest.importorskip("ml_dtypes")
    workload = anatune.parse_workload(words)
    inputs = random_inputs(workload, seed=3)
    program = TRITON.program(schedule_of(workload, tile, **options))
    found = check_program(workload, program, inputs, expected(workload, inputs))
    assert found.ok, f"{found.message}\n{program.source}"
