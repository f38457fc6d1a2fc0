"""The table of instructions: what it says of a few devices, and what it refuses in one line."""

import pytest

from anatune.core.hardware.files import hardware
from anatune.errors import SpaceError
from anatune.templates.triton.instructions import (
    ARCHS,
    DotUnit,
    instruction_of,
    instructions_of,
    known_operands,
    scaled_instruction,
)


@pytest.mark.parametrize(
    ("arch", "dtype", "unit", "as_dtype", "least"),
    [
        ("sm_80", "float8_e5m2", DotUnit.MMA, "float16", 32),
        ("sm_86", "int8", DotUnit.MMA, "int8", 32),
        ("sm_89", "float8_e4m3fn", DotUnit.MMA, "float8_e4m3fn", 32),
        ("sm_90", "tf32", DotUnit.WGMMA, "tf32", 8),
        ("sm_90", "float32", DotUnit.FMA, "float32", 1),
        ("sm_100", "int8", DotUnit.TCGEN05, "int8", 32),
        ("sm_103", "int8", DotUnit.MMA, "int8", 32),
        ("sm_110", "float16", DotUnit.TCGEN05, "float16", 16),
        ("sm_110", "int8", DotUnit.MMA, "int8", 32),
        ("sm_121", "bfloat16", DotUnit.MMA, "bfloat16", 16),
        ("gfx90a", "float8_e4m3fnuz", DotUnit.FMA, "float32", 1),
        ("gfx942", "float8_e4m3fn", DotUnit.MFMA, "float16", 8),
        ("gfx942", "fp8", DotUnit.MFMA, "float8_e4m3fnuz", 16),
        ("gfx950", "fp8", DotUnit.MFMA, "float8_e4m3fn", 16),
        ("gfx950", "float32", DotUnit.MFMA, "float32", 2),
    ],
)
def test_wide_tiles(arch, dtype, unit, as_dtype, least):
    wide, _small = instructions_of(arch, dtype)
    assert (wide.unit, wide.as_dtype, wide.least_depth) == (unit, as_dtype, least)
    assert wide.emulated == (as_dtype != dtype and dtype != "fp8")


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_small_tiles_of_8_bit_floats_are_converted(arch):
    wide, small = instructions_of(arch, "float8_e4m3fn")
    assert not wide.emulated
    assert (small.unit, small.as_dtype, small.depth, small.emulated) == (DotUnit.MMA, "float16", 16, True)
    assert instruction_of(hardware("h100_sxm"), "float8_e4m3fn", DotUnit.MMA) == small


def test_what_nothing_is_made_of():
    assert instructions_of("gfx906", "float16") is None
    assert instructions_of("sm_75", "float16") is None
    assert [instructions_of(arch, "tf32") for arch in ("gfx90a", "gfx950")] == [None, None]
    assert all(instructions_of(arch, "float8_e5m2fnuz") is None for arch in ARCHS if arch.startswith("sm_"))
    assert known_operands("gfx906") == ()


def test_who_multiplies_with_scales():
    archs_of_format = {
        word: [arch for arch in ARCHS if scaled_instruction(arch, word)] for word in ("mxfp8", "mxfp4", "nvfp4")
    }
    blackwell = ["sm_100", "sm_103", "sm_120"]
    assert archs_of_format == {"mxfp8": [*blackwell, "gfx950"], "mxfp4": [*blackwell, "gfx950"], "nvfp4": blackwell}
    assert scaled_instruction("sm_121", "nvfp4").unit == DotUnit.MMA
    assert (scaled_instruction("sm_100", "mxfp8").depth, scaled_instruction("sm_100", "mxfp4").depth) == (32, 64)
    assert scaled_instruction("gfx906", "mxfp8") is scaled_instruction("sm_100", "float8_e4m3fn") is None


@pytest.mark.parametrize(
    ("spec", "dtype", "words"),
    [
        ("a100_sxm", "float8_e4m3fn", ["a100_sxm (sm_80)", "float8_e4m3fn", "float8_e5m2 (as float16)"]),
        ("mi355x", "tf32", ["mi355x (gfx950)", "tf32", "float32"]),
        ("mi50", "float16", ["mi50 (gfx906)", "no matrix units", "gfx942"]),
    ],
)
def test_refusals_are_one_line(spec, dtype, words):
    with pytest.raises(SpaceError) as caught:
        instruction_of(hardware(spec), dtype)
    assert all(word in str(caught.value) for word in words)
    assert "\n" not in str(caught.value)
