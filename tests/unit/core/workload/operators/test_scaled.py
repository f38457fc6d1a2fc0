import pytest

import anatune
from anatune.core.workload.nest import Workload
from anatune.core.workload.text import parse_workload, workload_to_text
from anatune.errors import WorkloadError
from tests.wording import refuses


def shapes(text: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    workload = parse_workload(text)
    return {access.tensor: (access.dtype, access.shape) for access in (*workload.reads, workload.write)}


@pytest.mark.parametrize(
    ("words", "more"),
    [
        ("", {"weight_scales": (1,), "data_scales": (1,)}),
        ("--scales rows", {"weight_scales": (200,), "data_scales": (33,)}),
        ("--scales blocks", {"weight_scales": (2, 3), "data_scales": (33, 3)}),
    ],
)
def test_operands_of_8_bits_have_float32_scales(words: str, more: dict[str, tuple[int, ...]]) -> None:
    found = shapes(f"scaled_matmul 33x200x320 {words}")
    assert found["data"] == ("float8_e4m3fn", (33, 320))
    assert found["weight"] == ("float8_e4m3fn", (200, 320))
    assert found["output"] == ("bfloat16", (33, 200))
    assert {name: found[name] for name in more} == {name: ("float32", shape) for name, shape in more.items()}


def test_formats_lie_in_memory_as_they_say() -> None:
    packed = shapes("scaled_matmul 33x40x128 --dtype float16xint4 --group 32 --zero-points")
    assert packed["weight"] == ("uint8", (40, 64))
    assert packed["weight_scales"] == ("float16", (40, 4))
    assert packed["weight_zeros"] == ("uint8", (40, 4))
    nvfp4 = shapes("scaled_matmul 33x40x128 --dtype nvfp4")
    assert nvfp4["data"] == ("uint8", (33, 64))
    assert nvfp4["data_scales"] == ("float8_e4m3fn", (33, 8))
    assert nvfp4["factor"] == ("float32", (1,))
    assert shapes("scaled_matmul 33x40x128 --dtype mxfp8")["weight_scales"] == ("uint8", (40, 4))


def test_experts_have_weights_and_scales_each() -> None:
    found = shapes("grouped_matmul 12x5x2x136x256 --dtype float8_e4m3fn --scales blocks --activation")
    assert found["data"] == ("float8_e4m3fn", (12, 256))
    assert found["weight"] == ("float8_e4m3fn", (5, 272, 256))
    assert found["weight_scales"] == ("float32", (5, 3, 2))
    assert found["order"] == ("int32", (24,))
    assert found["ends"] == ("int32", (5,))
    assert found["output"] == ("bfloat16", (24, 136))
    assert shapes("grouped_matmul 12x5x2x136x256 --dtype nvfp4")["factor"] == ("float32", (5,))
    assert shapes("grouped_matmul 12x5x2x136x256 --expanded")["data"] == ("bfloat16", (24, 256))


def test_operations_and_bytes_are_those_of_rows_and_of_experts_that_have_some() -> None:
    plain = anatune.grouped_matmul(12, 5, 2, 136, 256)
    assert plain.flop == 2 * 24 * 136 * 256
    assert anatune.grouped_matmul(12, 5, 2, 136, 256, activation=True).flop == 2 * plain.flop
    all_of_them = anatune.grouped_matmul(12, 5, 2, 136, 256, routing="balanced")
    two = anatune.grouped_matmul(12, 5, 2, 136, 256, routing=(12, 12, 0, 0, 0))
    assert all_of_them.compulsory_bytes - two.compulsory_bytes == 3 * 136 * 256 * 2
    four_bits = anatune.scaled_matmul(16, 1024, 1024, "bfloat16xint4", group=128)
    assert four_bits.compulsory_bytes == 16 * 1024 * 2 + 512 * 1024 + 1024 * 8 * 2 + 16 * 1024 * 2


@pytest.mark.parametrize(
    "text",
    [
        "scaled_matmul 33x200x320",
        "scaled_matmul 33x200x320 --dtype int8:float16 --scales blocks",
        "scaled_matmul 33x200x320 --dtype bfloat16xint4 --group 64 --zero-points",
        "grouped_matmul 12x5x2x136x256 --dtype mxfp4 --activation --routing power:1.2",
        "grouped_matmul 12x5x2x136x256 --expanded --routing 10,0,4,0,10",
    ],
)
def test_text_and_json_go_both_ways(text: str) -> None:
    workload = parse_workload(text)
    assert set(workload_to_text(workload).split()) == set(text.split())
    assert parse_workload(workload_to_text(workload)) == workload
    assert Workload.from_json(workload.to_json()) == workload
    assert getattr(anatune, workload.operator)(**workload.attribute) == workload


@pytest.mark.parametrize(
    "text",
    [
        "scaled_matmul 8x8x64 --dtype bfloat16",
        "scaled_matmul 8x8x64 --dtype mxfp8 --scales rows",
        "scaled_matmul 8x8x64 --dtype bfloat16xint4 --group 48",
        "scaled_matmul 8x8x96 --dtype bfloat16xint4 --group 64",
        "scaled_matmul 8x8x64 --group 64",
        "scaled_matmul 8x8x64 --dtype bfloat16xint8 --zero-points",
        "scaled_matmul 8x8x40 --dtype mxfp4",
        "scaled_matmul 8x8x33 --dtype bfloat16xint4",
        "scaled_matmul 8x8x64 --dtype int8:float32",
        "scaled_matmul 8x8x64 --dtype fp4",
        "grouped_matmul 8x4x5x8x64",
        "grouped_matmul 8x4x2x8x64 --routing 1,2,3",
        "grouped_matmul 8x4x2x8x64 --routing power:x",
        "grouped_matmul 8x4x2x8x64 --scales blocks",
    ],
)
def test_what_cannot_be_is_said_in_one_line(text: str) -> None:
    with refuses(WorkloadError) as caught:
        parse_workload(text)
    assert "\n" not in str(caught.value)
