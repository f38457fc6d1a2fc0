"""A sample of the table of instructions and of random products, compiled; the bench compiles all of them."""

import random

import pytest

from anatune.templates.triton.instructions import DotUnit, instructions_of
from bench.gpu.triton_resources import agrees, compared, drawn, entry, scaled_as_said, scaled_entry
from bench.gpu.triton_worker import Built, Program, compiler

SAMPLE = [
    ("sm_80", "float8_e5m2", True),
    ("sm_90", "float8_e4m3fn", True),
    ("sm_90", "float8_e4m3fn", False),
    ("sm_103", "int8", True),
    ("gfx942", "float8_e4m3fnuz", True),
    ("gfx942", "float8_e4m3fn", True),
    ("gfx950", "float16", True),
]


@pytest.fixture(scope="module")
def build():
    pytest.importorskip("triton", reason="compiles with Triton")
    with compiler() as found:
        yield found


@pytest.mark.parametrize(("arch", "dtype", "wide"), SAMPLE)
def test_the_table_is_what_triton_makes(build, arch, dtype, wide):
    wanted = instructions_of(arch, dtype)[0 if wide else 1]
    assert agrees(wanted, build(entry(arch, dtype, wide=wide)))


@pytest.mark.parametrize(("arch", "dtype"), [("sm_80", "float8_e4m3fn"), ("gfx950", "tf32")])
def test_what_the_table_leaves_out_does_not_compile(build, arch, dtype):
    assert build(entry(arch, dtype, wide=True)).error
    assert instructions_of(arch, dtype) is None


@pytest.mark.parametrize(
    ("arch", "operands", "rows", "said"),
    [
        ("sm_100", ("nvfp4", "nvfp4"), 128, "TCGEN05"),
        ("sm_100", ("mxfp8", "mxfp8"), 32, "none in less than 128 rows"),
        ("sm_120", ("mxfp8", "mxfp8"), 32, "MMA"),
        ("sm_90", ("bfloat16", "mxfp4"), 128, "none"),
        ("gfx950", ("nvfp4", "nvfp4"), 128, "none"),
    ],
)
def test_products_with_scales_are_what_triton_makes(build, arch, operands, rows, said):
    text, right = scaled_as_said(arch, *operands, rows, build(scaled_entry(arch, *operands, rows)))
    assert text.startswith(said)
    assert right


@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
def test_block_k_16_is_too_little_for_8_bits(build, arch):
    small = Program(arch, "int8", "int8", "int32", 32, 32, 16, 4, 2)
    built = build(small)
    row = compared(small, built)
    assert row.legal == (arch == "gfx942") == (not built.error)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "gfx950"])
def test_shared_bytes_of_a_random_program(build, arch):
    program = drawn(random.Random(5), arch)
    built = build(program)
    assert not built.error
    assert compared(program, built).shared_bytes == built.shared_bytes


@pytest.mark.slow
def test_other_instructions_do_not_agree():
    wgmma, mma = instructions_of("sm_90", "float16")
    said = Built(instructions={"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32": 4})
    assert [agrees(wgmma, said), agrees(mma, said)] == [False, True]
    assert not agrees(mma, Built(instructions={"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32": 4}))
    assert not agrees(mma, Built(error="no"))
    lanes = instructions_of("sm_90", "float32")[0]
    assert (lanes.unit, agrees(lanes, Built()), agrees(lanes, said)) == (DotUnit.FMA, True, False)
