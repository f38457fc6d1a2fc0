"""The resources of scales, compared with kernels that Triton 3.9 compiled (``bench.gpu.triton_compile``)."""

import numpy as np
import pytest

import anatune
from anatune.core.hardware.spec import GpuSpec
from anatune.templates.triton.grouped.model import GroupedModel
from anatune.templates.triton.grouped.needs import scaling_of
from anatune.templates.triton.resources import Resources
from anatune.templates.triton.tiles import Tiles


def model_of(words: str, device: str) -> GroupedModel:
    spec = anatune.hardware(device)
    assert isinstance(spec, GpuSpec)
    return GroupedModel(anatune.parse_workload(words), spec)


def resources(words: str, device: str, tile: tuple[int, int, int], **options: int) -> Resources:
    model = model_of(words, device)
    schedule = model.space.schedule(dict(zip("mnk", tile, strict=True)), **options)
    return model._scores(model.space.point_of(schedule)[None], None).resources


ZEROS = "scaled_matmul 16x4096x4096 --dtype bfloat16xint4 --group 32 --zero-points"
COMPILED = [
    ("scaled_matmul 512x4096x7168 --scales blocks", "h100", (128, 128, 128), (8, 3, 1), 98328),
    ("scaled_matmul 16x4096x4096 --dtype float16xint4 --group 128", "a100", (16, 64, 128), (2, 4, 0), 24704),
    (ZEROS, "a100", (16, 64, 128), (2, 4, 0), 26880),
    (ZEROS, "h100", (16, 64, 128), (2, 4, 1), 26904),
    ("scaled_matmul 4096x4096x4096 --dtype mxfp8", "rtx5090", (64, 128, 128), (4, 3, 1), 50448),
    ("scaled_matmul 4096x4096x4096 --dtype nvfp4", "rtx5090", (64, 128, 128), (4, 3, 1), 27664),
    ("scaled_matmul 32x4096x4096 --dtype nvfp4", "rtx5090", (32, 32, 512), (4, 5, 1), 73760),
    ("grouped_matmul 512x128x4x2880x2880 --dtype mxfp4 --activation", "rtx5090", (32, 256, 128), (4, 3, 0), 37888),
    ("grouped_matmul 512x128x4x2880x2880 --dtype nvfp4 --expanded", "rtx5090", (32, 128, 128), (4, 4, 0), 34048),
    (
        "grouped_matmul 512x256x8x2048x7168 --dtype float8_e4m3fn --scales blocks --activation",
        "b200", (64, 128, 128), (4, 4, 0), 98832,
    ),
    ("scaled_matmul 4096x4096x4096 --dtype int8 --scales blocks", "mi210", (128, 128, 64), (2, 2, 0), 16896),
]  # fmt: skip


@pytest.mark.parametrize(("words", "device", "tile", "how", "shared"), COMPILED)
def test_shared_bytes_are_the_compilers(
    words: str, device: str, tile: tuple[int, int, int], how: tuple[int, int, int], shared: int
) -> None:
    options = {"num_warps": how[0], "num_stages": how[1]} | ({"descriptors": 1} if how[2] else {})
    assert resources(words, device, tile, **options).shared_bytes[0] == shared


@pytest.mark.parametrize(
    ("words", "tile", "how", "least"),
    [
        ("scaled_matmul 4096x4096x4096 --dtype mxfp8", (128, 256, 128), (4, 3), 101384),
        ("scaled_matmul 4096x4096x4096 --dtype nvfp4", (128, 256, 256), (4, 2), 55304),
        ("grouped_matmul 512x128x4x2880x2880 --dtype nvfp4 --expanded", (128, 256, 128), (4, 6), 138248),
    ],
)
def test_tcgen05_with_scales_has_a_buffer_fewer(
    words: str, tile: tuple[int, int, int], how: tuple[int, int], least: int
) -> None:
    shared_bytes = resources(words, "b200", tile, num_warps=how[0], num_stages=how[1]).shared_bytes[0]
    assert least <= shared_bytes <= least + 2100


def test_sums_and_scales_share_tensor_memory() -> None:
    words = "scaled_matmul 4096x4096x4096 --dtype mxfp8"
    whole = resources(words, "b200", (256, 256, 128), num_warps=8)
    assert model_of(words, "b200").rules[whole.rule[0] - 1].id == "tensor_memory"
    wide = resources(words, "b200", (128, 256, 128), num_stages=2)
    assert (wide.rule[0], wide.resident[0]) == (0, 1)  # 256 columns of sums and some of scales: all 512


def test_weights_that_are_unpacked_and_scaled_take_registers_and_instructions() -> None:
    spec = anatune.hardware("a100")
    assert isinstance(spec, GpuSpec)
    tiles = Tiles.of([(16, 64, 128, 4, 3, 1, 1)])
    base = "scaled_matmul 16x4096x4096 --dtype bfloat16x"

    def needs(words: str) -> tuple[float, float, float]:
        scaling = scaling_of(model_of(base + words, "a100")._scaled_product, 0.0, tiles, spec)
        return tuple(float(np.asarray(value)[0]) for value in (scaling.registers, scaling.slots, scaling.stage_bytes))  # type: ignore[return-value]

    assert needs("int8") == (0.0, 0.0, 0.0)
    assert needs("int8 --group 128") == (48.0, 256.0, 128.0)
    assert needs("int4 --group 32") == (48.0, 512.0, 512.0)
    assert needs("int4 --group 32 --zero-points") == (48.0, 768.0, 768.0)


@pytest.mark.parametrize(
    ("words", "device", "tile", "warps", "registers"),
    [
        ("scaled_matmul 512x4096x7168", "rtx4090", (64, 128, 128), 4, 155),
        ("scaled_matmul 4096x4096x4096 --scales blocks", "rtx5090", (64, 128, 128), 4, 168),
        ("scaled_matmul 4096x4096x4096 --dtype int8 --scales blocks", "mi210", (128, 128, 64), 2, 333),
        ("scaled_matmul 16x4096x4096 --dtype bfloat16xint8 --group 128", "a100", (16, 64, 128), 2, 167),
    ],
)
def test_registers_are_near_the_compilers(
    words: str, device: str, tile: tuple[int, int, int], warps: int, registers: int
) -> None:
    need = resources(words, device, tile, num_warps=warps)
    assert need.registers[0] == pytest.approx(registers, rel=0.12)
    assert need.spilled[0] == 0


def test_many_sums_that_are_scaled_in_steps_are_said_to_spill() -> None:
    words = "scaled_matmul 4096x4096x4096 --scales blocks"
    assert resources(words, "rtx4090", (128, 128, 128), num_warps=4, num_stages=2).spilled[0] > 50  # 147 compiled
