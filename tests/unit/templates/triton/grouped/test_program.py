"""Kernels of products with scales and of experts in Triton's interpreter against float64, and what their text says."""

import importlib.util

import msgspec
import numpy as np
import pytest

import anatune
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.errors import RunError
from anatune.measure.emulate.triton_interpreter import check_program
from anatune.measure.run.correctness import compute_expected, random_inputs
from anatune.templates.triton import TRITON
from anatune.templates.triton.grouped.space import GroupedSpace

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def schedule_of(workload: Workload, tile: tuple[int, int, int], device: str = "", **options: int) -> Schedule:
    """Return a schedule on a B200, which has most formats, or where small tiles have scales; legal or not."""
    of_small_tiles = str(workload.attribute["dtype"]) in ("mxfp8", "mxfp4", "nvfp4") and tile[0] < 128
    spec = anatune.hardware(device or ("rtx5090" if of_small_tiles else "b200"))
    assert isinstance(spec, anatune.GpuSpec)
    space = GroupedSpace(workload, spec, lambda points: np.ones(len(points), dtype=bool))
    return space.schedule(dict(zip("mnk", tile, strict=True)), **options)


def source_of(words: str, tile: tuple[int, int, int], device: str = "", **options: int) -> str:
    return TRITON.program(schedule_of(anatune.parse_workload(words), tile, device, **options)).source


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
    ("scaled_matmul 20x40x256 --dtype nvfp4", (128, 32, 128), {"split_k": 2}),
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
    comparison = check_program(workload, program, inputs, compute_expected(workload, inputs))
    assert comparison.ok, f"{comparison.message}\n{program.source}"


@needs_triton
@pytest.mark.parametrize(
    ("words", "tile", "faults"),
    [
        (
            "grouped_matmul 12x3x2x40x96 --dtype bfloat16xint4 --group 32 --activation",
            (16, 32, 64),
            (
                ("weight & 15, weight >> 4", "weight >> 4, weight & 15"),
                ("pair // 2 + pair % 2 * WIDTH", "pair"),
                ("starts + (", "starts + 1 + ("),
                ("- 8", "- 7"),
            ),
        ),
        (
            "scaled_matmul 20x136x256 --scales blocks",
            (16, 64, 64),
            (("first_k // SIDE", "0"), (" * data_scale[:, None]", ""), ("row < M", "row < M - 1")),
        ),
    ],
)
def test_seeded_faults_are_found(words: str, tile: tuple[int, int, int], faults: tuple[tuple[str, str], ...]) -> None:
    workload = anatune.parse_workload(words)
    program = TRITON.program(schedule_of(workload, tile))
    inputs = random_inputs(workload, seed=3)
    want = compute_expected(workload, inputs)
    for before, after in faults:
        assert before in program.source
        mutant = msgspec.structs.replace(program, source=program.source.replace(before, after))
        try:
            message = check_program(workload, mutant, inputs, want).message
        except RunError as error:
            message = str(error)
        assert "are wrong" in message or "outside" in message, f"{before}: {message}"


def test_rows_of_padding_are_not_fetched() -> None:
    text = source_of("grouped_matmul 33x5x2x64x64", (16, 32, 32))
    assert "tl.load(data_ptr + at_data + first_k, mask=(place < end)[:, None], other=0.0)" in text
    assert "weight_ptr += expert.to(tl.int64) * (COLUMNS * WEIGHT_ROW)" in text


def test_elements_of_an_expert_are_counted_in_32_bits() -> None:
    text = source_of("grouped_matmul 64x256x8x2048x7168 --dtype float8_e4m3fn --scales blocks", (64, 64, 128))
    assert "col = first_n + tl.arange(0, BLOCK_N)\n" in text
    assert text.count("tl.int64") == 2  # where an expert's weights and scales begin


def test_elements_are_counted_in_64_bits_where_a_tensor_has_more() -> None:
    wide = source_of("scaled_matmul 65536x4096x32768 --scales rows", (128, 128, 128))
    assert "row = (first_m + tl.arange(0, BLOCK_M)).to(tl.int64)" in wide
    assert "int64" not in source_of("scaled_matmul 32768x4096x32768 --scales rows", (128, 128, 128))
    parts = source_of("scaled_matmul 65536x16384x4096", (128, 128, 128), split_k=2)
    assert "part.to(tl.int64) * RESULTS" in parts
    assert "tl.program_id(0).to(tl.int64) * BLOCK" in parts


def test_sums_leave_tensor_cores_that_keep_few_bits() -> None:
    words = "scaled_matmul 64x64x512"
    assert "max_num_imprecise_acc=128" in source_of(words, (64, 64, 256), "h100")
    assert "max_num_imprecise_acc" not in source_of(words, (64, 64, 256), "b200")
    schedule = schedule_of(anatune.parse_workload(words), (64, 64, 128), "h100")
    assert TRITON.error_of(schedule) > 0.0 == TRITON.error_of(schedule_of(schedule.workload, (64, 64, 128), "b200"))


def test_tiles_that_divide_have_no_masks() -> None:
    assert "mask" not in source_of("scaled_matmul 64x64x256 --scales blocks", (64, 64, 128))
    assert "mask" not in source_of("scaled_matmul 128x64x256 --dtype mxfp8", (128, 64, 128))
    assert "mask" in source_of("scaled_matmul 64x64x272 --dtype nvfp4", (64, 64, 128))
