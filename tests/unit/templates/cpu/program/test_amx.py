"""Microkernels on AMX's tiles: which instructions they are made of, and what they compute with loops in their place."""

import errno
import random
import re

import msgspec
import pytest

import anatune
from anatune import api
from anatune.errors import BuildError, RunError, SpaceError
from anatune.measure.cpu.detect import detect_cpu
from anatune.templates.cpu.dot import tile_depths, tiles_apply
from tests.instructions import refused_tiles, without_tiles

pytest.importorskip("tvm", reason="code generation needs apache-tvm")

from anatune.codegen import compat
from anatune.codegen.cpu import lower as lowering
from anatune.codegen.cpu.lower import lower
from anatune.export.cpu.write import write_c_library
from anatune.measure.cpu import features as tiles
from anatune.measure.cpu import kernel as calls
from tests.wording import refuses

HOST = detect_cpu()
SAPPHIRE_RAPIDS = api.hardware("xeon_8480")
GRANITE_RAPIDS = msgspec.structs.replace(SAPPHIRE_RAPIDS, arch="graniterapids", amx=(*SAPPHIRE_RAPIDS.amx, "tdpfp16ps"))
MATMUL = {"i": (1, 1, 1, 2, 32), "j": (1, 1, 1, 3, 32)}
PRODUCTS = {
    "bfloat16": (anatune.matmul(64, 96, 256, dtype="bfloat16"), {**MATMUL, "k": (1, 1, 8, 32)}),
    "float16": (anatune.matmul(64, 96, 256, dtype="float16"), {**MATMUL, "k": (1, 1, 8, 32)}),
    "bfloat16_partial": (
        anatune.matmul(32, 48, 256, dtype="bfloat16", epilogue=("bias", "relu")),
        {"i": (1, 1, 2, 1, 16), "j": (1, 1, 1, 1, 48), "k": (2, 2, 2, 32)},
    ),
    "two_products_a_pass": (
        anatune.matmul(32, 32, 128, dtype="bfloat16:float32"),
        {"i": (1, 1, 1, 1, 32), "j": (1, 1, 1, 1, 32), "k": (1, 1, 2, 64)},
    ),
    "few_rows_and_columns": (
        anatune.matmul(21, 40, 40, dtype="bfloat16"),
        {"i": (1, 1, 1, 1, 21), "j": (1, 1, 1, 2, 20), "k": (1, 1, 1, 40)},
    ),
    "uint8xint8": (anatune.matmul(64, 96, 256, dtype="uint8xint8"), {**MATMUL, "k": (1, 1, 4, 64)}),
    "uint8_zero_point": (
        anatune.matmul(32, 32, 128, dtype="uint8xint8", input_zero_point=131, epilogue=("bias", "requantize")),
        {"i": (1, 1, 1, 1, 32), "j": (1, 1, 1, 1, 32), "k": (1, 2, 1, 64)},
    ),
    "int8": (anatune.matmul(64, 96, 256, dtype="int8"), {**MATMUL, "k": (1, 1, 4, 64)}),
    "int8_nhwc": (
        anatune.conv2d(1, 64, 6, 18, 32, 3, 3, layout="NHWC", dtype="int8"),
        {"x": (1, 1, 1, 1, 16), "f": (1, 1, 1, 1, 32), "rc": (1, 1, 1, 64), "ry": (1, 3, 1), "rx": (1, 3, 1)},
    ),
}
INSTRUCTION = {"bfloat16": "tdpbf16ps", "float16": "tdpfp16ps", "uint8xint8": "tdpbusd", "int8": "tdpbssd"}


def tiled(name, hardware=GRANITE_RAPIDS):
    workload, tiles = PRODUCTS[name]
    tiles_of_workload = {axis: factors for axis, factors in tiles.items() if axis in workload.extents}
    schedule = anatune.space(workload, hardware).schedule(tiles_of_workload)
    return msgspec.structs.replace(schedule, options={**schedule.options, "extension": "amx"}).check()


def assembly_of(schedule):
    lowered = lower(schedule)
    return compat.compile_module(lowered.module, lowered.target).mod.inspect_source("asm")


@pytest.mark.parametrize("name", INSTRUCTION)
def test_four_products_need_four_loads_and_no_tile_leaves_its_register(name):
    text = assembly_of(tiled(name))
    loops = re.findall(r"^\.LBB\w+:[^\n]*\n((?:(?!^\.LBB).*\n)*?)\s+j\w+\s+\.LBB\w+\n", text, re.M)
    (body,) = (body for body in loops if "tdp" in body)
    instructions = re.findall(r"^\s+(t\w+)", body, re.M)
    assert instructions == ["tileloadd"] * 4 + [INSTRUCTION[name]] * 4
    counts = {word: len(re.findall(rf"^\s+{word}\b", text, re.M)) for word in ("tilezero", "tilestored", "tileloadd")}
    assert counts == {"tilezero": 4, "tilestored": 4, "tileloadd": 4}
    assert len(re.findall(r"^\s+ldtilecfg\b", text, re.M)) == 1
    assert not re.search(r"\bvdpbf16ps|\bvpdpbusd", text)
    assert anatune.inspect(tiled(name))["num_instructions"] > 0


@pytest.fixture
def with_loops(monkeypatch):
    """The present CPU with AMX, whose instructions loops stand for; what was compiled comes into its list."""
    hardware = msgspec.structs.replace(HOST, amx=GRANITE_RAPIDS.amx)
    if HOST.compute.isa != "avx512":  # vectors of 16 lanes in registers of the present CPU
        if HOST.compute.isa not in ("avx", "avx2"):
            pytest.skip("this CPU has no AVX")
        host_fields = {"arch": HOST.arch, "hidden_features": HOST.hidden_features}
        without = dict.fromkeys(("vdpbf16ps", "vfmaddph", "vpdpbusd"), msgspec.UNSET)
        hardware = msgspec.structs.replace(GRANITE_RAPIDS, **host_fields, **without)
        monkeypatch.setattr(calls, "check_instructions", lambda hardware: None)
    read, texts = lowering.parse_program, []

    def parse(text, llvm):
        texts.append(llvm)
        return read(text, without_tiles(llvm) if "x86_amx" in llvm else llvm)

    monkeypatch.setattr(lowering, "parse_program", parse)
    monkeypatch.setattr(compat, "tile_features", lambda hardware: ())
    monkeypatch.setattr(calls, "allow_runs", lambda schedule: None)
    return hardware, texts


@pytest.mark.parametrize(
    ("workload", "is_pair"),
    [
        (anatune.matmul(53, 80, 96, dtype="bfloat16", epilogue=("bias", "relu")), True),
        (anatune.matmul(64, 64, 256, dtype="uint8xint8", input_zero_point=3), False),
        (anatune.conv2d(1, 64, 12, 12, 48, 3, 3, padding=1, layout="NHWC", dtype="int8"), False),
        (anatune.conv2d(1, 3, 17, 17, 32, 3, 3, stride=2, padding=1, layout="NHWC", dtype="bfloat16"), False),
    ],
)
def test_plans_are_on_tiles_and_right(workload, is_pair, with_loops):
    hardware, texts = with_loops
    plan = anatune.plan(workload, hardware.with_threads(1), top_k=1, template="amx")
    assert plan.schedules[0].template == "amx"
    assert ("pair.i" in plan.schedules[0].options) is is_pair
    verification = anatune.verify(plan.schedules[0])
    assert any("tdp" in text for text in texts)
    assert verification.ok, verification


@pytest.mark.parametrize("name", PRODUCTS)
def test_with_loops_in_the_place_of_the_instructions_sums_are_right(name, with_loops):
    hardware, texts = with_loops
    verification = anatune.verify(tiled(name, hardware))
    assert any("tdp" in text for text in texts)
    assert verification.ok, verification
    assert verification.max_rel_error == 0.0 or "float16" in PRODUCTS[name][0].dtype


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("dtype", INSTRUCTION)
def test_products_of_few_rows_or_columns_are_right(dtype, transpose_b, with_loops):
    hardware, texts = with_loops
    for m, n in ((3, 40), (40, 3), (3, 5), (1, 40), (40, 1)):
        for transpose_a in (False, True):
            workload = anatune.matmul(m, n, 64, dtype=dtype, transpose_a=transpose_a, transpose_b=transpose_b)
            if not tiles_apply(workload, hardware):
                continue
            schedule = anatune.space(workload, hardware, template="amx").schedule({"k": (1, 1, 1, 64)}).check()
            verification = anatune.verify(schedule)
            assert verification.ok, (workload, verification)
    assert any("tdp" in text for text in texts)


def test_what_has_no_tiles(tmp_path):
    good = tiled("bfloat16")
    with refuses(SpaceError):
        tiled("bfloat16", api.hardware("ryzen_9950x"))
    wide = {**good.tiles, "j": (1, 1, 1, 1, 96)}
    with refuses(SpaceError):
        msgspec.structs.replace(good, tiles=wide).check()
    with refuses(SpaceError):
        msgspec.structs.replace(good, options={**good.options, "extension": "avx"}).check()
    with refuses(SpaceError):
        anatune.predict(good.workload, good.hardware, [good])
    with refuses(BuildError):
        write_c_library(good, "kernel", tmp_path, threads=1)
    deep = {"i": (1, 1, 1, 2, 32), "j": (1, 1, 1, 3, 32), "k": (1, 4, 1, 70)}
    odd = anatune.space(anatune.matmul(64, 96, 280, dtype="bfloat16"), SAPPHIRE_RAPIDS).schedule(deep)
    assert tile_depths(35) == (16, 16, 3)
    with refuses(SpaceError):
        msgspec.structs.replace(odd, options={**odd.options, "extension": "amx"}).check()


def test_tiles_are_planned_beside_vectors():
    of = {size: anatune.plan(anatune.matmul(size, 64, 256, dtype="int8"), SAPPHIRE_RAPIDS, top_k=1) for size in (1, 64)}
    assert {size: plan.schedules[0].template for size, plan in of.items()} == {1: "cpu", 64: "amx"}


def test_products_of_a_call_have_one_depth_where_that_divides():
    assert [tile_depths(steps) for steps in (1, 16, 17, 20, 32, 36)] == [
        (1,), (16,), (16, 1), (10, 10), (16, 16), (12, 12, 12),
    ]  # fmt: skip


@pytest.mark.skipif(bool(refused_tiles()), reason=refused_tiles())
@pytest.mark.parametrize("name", PRODUCTS)
def test_on_a_processor_with_tiles_sums_are_right(name):
    result = anatune.verify(tiled(name, msgspec.structs.replace(HOST, amx=GRANITE_RAPIDS.amx)))
    assert result.ok, result
    assert result.max_rel_error == 0.0 or "float16" in PRODUCTS[name][0].dtype


def test_a_processor_without_tiles_is_told(monkeypatch):
    monkeypatch.setattr(tiles, "lacking_features", lambda features: ("amx-tile",))
    with refuses(RunError):
        calls.allow_runs(tiled("bfloat16"))
    monkeypatch.setattr(tiles, "lacking_features", lambda features: ())
    monkeypatch.setattr(tiles, "_refusal", lambda: errno.EPERM)
    with refuses(RunError):
        calls.allow_runs(tiled("bfloat16"))


def test_operands_that_one_stride_cannot_load_are_refused():
    workload = anatune.matmul(32, 32, 64, dtype="bfloat16", transpose_a=True)
    schedule = anatune.space(workload, SAPPHIRE_RAPIDS).schedule(
        {"i": (1, 1, 1, 1, 32), "j": (1, 1, 1, 1, 32), "k": (1, 1, 2, 32)}
    )
    with refuses(SpaceError):
        msgspec.structs.replace(schedule, options={**schedule.options, "extension": "amx"}).check()
    with refuses(SpaceError):
        anatune.plan(workload, SAPPHIRE_RAPIDS, template="amx")


def test_legal_schedules_compile_and_keep_their_tiles_in_registers():
    from bench.cpu.tile_schedules import compiled_wrongly, drawn

    for number in range(4):
        schedule = drawn(random.Random(number), SAPPHIRE_RAPIDS)
        assert compiled_wrongly(schedule) == "", schedule


def test_what_comes_next_is_asked_for():
    """Rows of the next call, weights that come from beyond L2, and lines of the result, as with vectors."""
    workload = anatune.matmul(512, 1024, 1024, dtype="bfloat16")
    program = lower(anatune.plan(workload, SAPPHIRE_RAPIDS, threads=1, template="amx").best).program
    assert any(operand.stream is not None for kernel in program.kernels for operand in kernel.operands)
    lines = program.llvm.splitlines()
    loads = [place for place, line in enumerate(lines) if "@llvm.x86.tileloadd64.internal(" in line and "call" in line]
    prefetch_lines = [place for place, line in enumerate(lines) if "@llvm.prefetch.p0(" in line and "call" in line]
    assert prefetch_lines
    assert any(place < loads[-1] for place in prefetch_lines)
