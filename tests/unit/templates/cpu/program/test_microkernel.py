"""Microkernels that sum products of neighbours: what they compute, and which instructions they are made of."""

import re

import msgspec
import pytest

import anatune
from anatune import api
from anatune.core.accuracy import error_of
from anatune.core.hardware.dot import dot_instructions
from anatune.measure.cpu.detect import detect_cpu

pytest.importorskip("tvm", reason="code generation needs apache-tvm")

from anatune.codegen import compat
from anatune.codegen.compat import compile_module
from anatune.codegen.cpu.lower import lower
from anatune.measure.cpu import kernel as calls

HOST = detect_cpu()
PAIRS = {
    "matmul": anatune.matmul(13, 48, 64, dtype="bfloat16"),
    "matmul_odd": anatune.matmul(7, 33, 35, dtype="bfloat16", epilogue=("bias", "relu")),
    "matmul_ta": anatune.matmul(8, 20, 15, dtype="bfloat16", transpose_a=True),
    "matmul_tb": anatune.matmul(8, 20, 15, dtype="bfloat16", transpose_b=True),
    "one_row": anatune.matmul(1, 20, 9, dtype="bfloat16"),
    "batch": anatune.batch_matmul(3, 8, 20, 6, dtype="bfloat16"),
    "nhwc": anatune.conv2d(1, 6, 9, 9, 20, 3, 3, padding=1, layout="NHWC", dtype="bfloat16"),
    "nhwc_odd_channels": anatune.conv2d(1, 3, 9, 9, 20, 3, 3, padding=1, stride=2, layout="NHWC", dtype="bfloat16"),
    "nchw": anatune.conv2d(1, 4, 9, 9, 20, 3, 3, padding=1, dtype="bfloat16"),
    "nchw_odd_channels": anatune.conv2d(1, 5, 7, 7, 20, 1, 1, dtype="bfloat16"),
}

HALVES = {
    "matmul": anatune.matmul(13, 48, 256, dtype="float16"),
    "matmul_sums": anatune.matmul(5, 48, 256, dtype="float16:float32"),
    "matmul_odd": anatune.matmul(7, 33, 35, dtype="float16", epilogue=("bias", "relu")),
    "matmul_ta": anatune.matmul(8, 20, 50, dtype="float16", transpose_a=True),
    "one_row": anatune.matmul(1, 20, 99, dtype="float16"),
    "nhwc": anatune.conv2d(1, 6, 9, 9, 20, 3, 3, padding=1, layout="NHWC", dtype="float16"),
    "nhwc_stride": anatune.conv2d(1, 64, 9, 9, 20, 3, 3, padding=1, stride=2, layout="NHWC", dtype="float16"),
    "nchw_odd_channels": anatune.conv2d(1, 5, 9, 9, 20, 3, 3, padding=1, dtype="float16"),
}

FOURS = {
    "u8": anatune.matmul(7, 33, 35, dtype="uint8xint8"),
    "s8": anatune.matmul(6, 48, 64, dtype="int8"),
    "s8_odd": anatune.matmul(7, 33, 35, dtype="int8"),
    "u8_zero_point": anatune.matmul(5, 40, 26, dtype="uint8xint8", input_zero_point=131),
    "s8_batch": anatune.batch_matmul(3, 8, 20, 6, dtype="int8"),
    "u8_nhwc": anatune.conv2d(1, 8, 9, 9, 20, 3, 3, padding=1, layout="NHWC", dtype="uint8xint8"),
    "s8_nhwc": anatune.conv2d(1, 8, 9, 9, 20, 3, 3, padding=1, layout="NHWC", dtype="int8"),
    "u8_three_channels": anatune.conv2d(
        1, 3, 9, 9, 20, 3, 3, padding=1, stride=2, layout="NHWC", dtype="uint8xint8", input_zero_point=7
    ),
    "s8_nchw": anatune.conv2d(1, 5, 9, 9, 20, 3, 3, padding=1, dtype="int8"),
}


def assembly_of(schedule):
    lowered = lower(schedule)
    return compile_module(lowered.module, lowered.target).mod.inspect_source("asm")


@pytest.mark.skipif("vdpbf16ps" not in dot_instructions(HOST), reason="this CPU has no AVX512_BF16")
@pytest.mark.parametrize("name", PAIRS)
def test_pairs_are_summed_as_the_workload_says(name):
    space = anatune.space(PAIRS[name], HOST)
    assert space.dot.instruction == "vdpbf16ps"
    for schedule in space.sample(5, seed=3):
        verification = anatune.verify(schedule)
        assert verification.ok, (verification, schedule)


@pytest.mark.skipif("vpdpbusd" not in dot_instructions(HOST), reason="this CPU has no AVX512_VNNI or AVX_VNNI")
@pytest.mark.parametrize("name", FOURS)
def test_fours_are_summed_exactly(name):
    space = anatune.space(FOURS[name], HOST)
    assert space.dot.instruction == "vpdpbusd"
    for schedule in space.sample(5, seed=4):
        verification = anatune.verify(schedule)
        assert verification.ok, (verification, schedule)
        assert verification.max_rel_error == 0.0


def test_fours_of_other_processors():
    cascade_lake = anatune.plan(FOURS["s8"], "xeon_gold_6230r", 1).schedules[0]
    assert "vpdpbusd" in assembly_of(cascade_lake)
    narrow = msgspec.structs.replace(
        api.hardware("ryzen_3700x"), arch="sierraforest",
        vpdpbusd=api.hardware("xeon_8480").vpdpbusd, vpdpbssd=api.hardware("xeon_8480").vpdpbusd,
    )  # fmt: skip
    text = assembly_of(anatune.plan(FOURS["u8"], narrow, 1).schedules[0])
    assert "vpdpbusd" in text
    assert "zmm" not in text
    assert "vpdpbssd" in assembly_of(anatune.plan(FOURS["s8"], narrow, 1).schedules[0])


def test_halves_of_sapphire_rapids_stay_in_registers():
    """32 halves of each accumulator in one multiply-add, no spill, and each sum becomes float32 once a call."""
    spec = api.hardware("xeon_8480")
    schedule = anatune.plan(
        anatune.matmul(256, 256, 1024, dtype="float16"), spec, 1, threads=1, accuracy="relaxed"
    ).best
    text = assembly_of(schedule)
    kernels = lower(schedule).program.kernels
    loops = re.findall(r"^(?:\.LBB\w+):[^\n]*\n((?:(?!^\.LBB).*\n)*?)\s+j\w+\s+\.LBB\w+\n", text, re.M)
    counts = sorted(len(re.findall(r"vfmadd\d+ph\b.*%zmm", body)) for body in loops if "vfmadd" in body)
    tiles = [len(kernel.result.rows) * kernel.num_vectors for kernel in kernels]
    assert counts == sorted(tile * kernel.num_steps for tile, kernel in zip(tiles, kernels, strict=True))
    assert not any(re.search(r"%zmm\d+, .*\(%rsp\)|vcvt", body) for body in loops if "vfmadd" in body)
    assert text.count("vcvtph2psx") == sum(tiles)
    assert "vfmadd231ps" not in text


@pytest.mark.skipif(HOST.compute.isa != "avx512", reason="this CPU has no AVX-512")
@pytest.mark.parametrize("name", HALVES)
def test_sums_of_halves_are_right_where_llvm_takes_the_instruction_apart(name, monkeypatch):
    """Without the feature LLVM multiplies and adds halves one by one, rounded alike: that runs anywhere."""
    monkeypatch.setattr(compat, "dot_features", lambda hardware: ())
    spec = msgspec.structs.replace(HOST, vfmaddph=api.hardware("xeon_8480").vfmaddph)
    monkeypatch.setattr(calls, "check_instructions", lambda hardware: None)
    space = anatune.space(HALVES[name], spec, template="fp16_accumulation")
    for schedule in space.sample(5, seed=3):
        verification = anatune.verify(schedule)
        assert verification.ok, (verification, schedule)
        assert verification.tolerance == error_of(schedule)
        assert verification.max_rel_error < 0.2 * error_of(schedule)


@pytest.mark.parametrize("name", HALVES)
def test_halves_without_the_instruction_are_converted(name):
    for schedule in anatune.space(HALVES[name], HOST, template="cpu").sample(3, seed=3):
        verification = anatune.verify(schedule)
        assert verification.ok, (verification, schedule)
        assert verification.tolerance < 0.002


def test_conversions_of_other_processors():
    for name in ("xeon_gold_6230r", "ryzen_3700x", "xeon_8480"):
        text = assembly_of(anatune.plan(HALVES["matmul"], name, 1).best)
        assert "vcvtph2ps" in text
        assert re.search(r"vfmadd\d+ps", text)
        assert not re.search(r"vfmadd\d+ph", text)


def without_pairs(spec):
    return msgspec.structs.replace(spec, vdpbf16ps=msgspec.UNSET)


def test_code_for_other_processors_has_the_instruction():
    for name in ("xeon_8480", "ryzen_9950x"):
        spec = api.hardware(name)
        schedule, without = (
            anatune.plan(PAIRS["matmul"], one, 1, template="cpu").schedules[0] for one in (spec, without_pairs(spec))
        )
        assert "vdpbf16ps" in assembly_of(schedule)
        assert "vdpbf16ps" not in assembly_of(without)


def test_a_processor_that_llvm_does_not_know_to_have_it():
    spec = msgspec.structs.replace(api.hardware("ryzen_7950x"), arch="x86-64-v4")
    assert "vdpbf16ps" in assembly_of(anatune.plan(PAIRS["nhwc"], spec, 1).schedules[0])


def test_without_the_instruction_the_sums_are_right():
    spec = msgspec.structs.replace(without_pairs(HOST), vpdpbusd=msgspec.UNSET)
    for workload in (PAIRS["matmul_odd"], PAIRS["nhwc_odd_channels"], FOURS["s8_odd"], FOURS["u8_three_channels"]):
        for schedule in anatune.space(workload, spec).sample(2, seed=1):
            assert anatune.verify(schedule).ok
