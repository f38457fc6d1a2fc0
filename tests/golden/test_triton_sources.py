"""Triton sources of named schedules must not change silently; they are read by people, too."""

from pathlib import Path

import pytest

import anatune
from anatune.templates import TRITON

FOLDER = Path(__file__).parent / "triton"
MATMUL = {"dtype": "float16", "epilogue": ("bias", "relu")}
IMAGES = {"padding": 1, "dtype": "bfloat16", "epilogue": ("bias", "add", "silu")}
CASES = {
    "matmul": ("a100", anatune.matmul(1000, 520, 264, **MATMUL), {"group_m": 4}),
    "matmul_descriptors": ("h100", anatune.matmul(1024, 512, 256, transpose_b=True, **MATMUL), {"descriptors": 1}),
    "matmul_parts": ("a100", anatune.matmul(128, 128, 4096, dtype="float32", epilogue=("gelu",)), {"split_k": 8}),
    "batch_persistent": (
        "b200", anatune.batch_matmul(16, 256, 512, 64, dtype="float16"), {"descriptors": 1, "persistent": 1},
    ),
    "matmul_specialised": (
        "b200", anatune.matmul(4096, 1024, 256, **MATMUL), {"descriptors": 1, "persistent": 1, "warp_specialize": 1},
    ),
    "conv2d_nhwc": ("mi300x", anatune.conv2d(8, 64, 28, 28, 128, 3, 3, stride=2, layout="NHWC", **IMAGES), {}),
    "conv2d_nchw": ("a100", anatune.conv2d(8, 64, 28, 28, 128, 3, 3, **IMAGES), {}),
    "scaled_blocks": ("h100", anatune.scaled_matmul(1000, 512, 256, scales="blocks"), {"descriptors": 1}),
    "scaled_nvfp4": ("b200", anatune.scaled_matmul(1000, 512, 272, "nvfp4"), {}),
    "experts_int4": (
        "a100", anatune.grouped_matmul(64, 8, 2, 256, 512, "bfloat16xint4", group=64, activation=True), {},
    ),
}  # fmt: skip
TILES = {"scaled_nvfp4": {"m": 128, "n": 64, "k": 128}, "experts_int4": {"m": 16, "n": 64, "k": 128}}


@pytest.mark.parametrize("name", CASES)
def test_sources_are_what_they_were(name, update_golden):
    device, workload, options = CASES[name]
    space = anatune.space(workload, anatune.hardware(device), template="triton")
    schedule = space.schedule(TILES.get(name, {"m": 64, "n": 64, "k": 32}), **options)
    source = TRITON.program(schedule).source.replace(schedule.key, "KEY")  # a spec's numbers are no part of the text
    path = FOLDER / f"{name}.py.txt"
    if update_golden:
        path.write_text(source)
    assert source == path.read_text(), "pytest tests/golden --update-golden rewrites it; say why in the commit"
