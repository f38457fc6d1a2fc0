"""Probe kernels: what they compute, their work, and that the multiply-adds stay in registers."""

import dataclasses
import re

import msgspec
import numpy as np
import pytest

from anatune.codegen import compat
from anatune.codegen.compat import PARTS_OF_ISA, compile_module, parse_program, target_of
from anatune.codegen.cpu import machine_probes, probes
from anatune.codegen.cpu.machine_probes import TILE_COUNTS, tile_unit_probe
from anatune.core.hardware.files import hardware
from anatune.measure.cpu.detect import detect_cpu
from tests.instructions import refused_tiles, without_tiles

tvm = pytest.importorskip("tvm")


@pytest.fixture(scope="module")
def host():
    return detect_cpu()


def arrays(probe, seed=0):
    """Aligned tensors for a probe's arguments and their NumPy views."""
    from anatune.measure.cpu.blocks import ArgumentBlock

    rng = np.random.default_rng(seed)
    blocks = [ArgumentBlock("float32", (size,)) for size in probe.sizes]
    for block in blocks:
        block.array[...] = rng.random(block.shape) - 0.5
    return blocks


def call(function, blocks):
    function(*(block.tensor for block in blocks))


def test_gemm_probe_is_a_library_that_multiplies(host, tmp_path):
    from anatune.measure.cpu.blocks import ArgumentBlock
    from anatune.measure.cpu.kernel import KernelLibrary

    artifact = probes.compile_probe("gemm", host, tmp_path)
    assert artifact.facts["flop"] > 0
    assert artifact.facts["spill_ops"] == 0
    blocks = [ArgumentBlock(buffer.dtype, buffer.shape) for buffer in artifact.arguments]
    rng = np.random.default_rng(1)
    for block in blocks[:2]:
        block.array[...] = rng.random(block.shape) - 0.5
    blocks[2].array[...] = np.nan
    KernelLibrary(artifact).main(*(block.tensor for block in blocks))
    rows, width = (14 if host.compute.num_vector_registers >= 32 else 6), 2 * host.fp32_lanes
    a = blocks[0].array.reshape(probes.DEPTH, rows).astype(np.float64)
    b = blocks[1].array.reshape(-1, probes.DEPTH, width).astype(np.float64)
    want = np.einsum("kr,pkw->prw", a, b)
    np.testing.assert_allclose(blocks[2].array.reshape(want.shape), want, rtol=1e-4, atol=1e-4)
    b_bytes = blocks[1].array.nbytes
    assert host.l1.size_bytes < b_bytes <= host.l2.size_bytes / 2


def test_fma_probe_does_its_work_in_registers(host):
    probe = probes.fma_probe(host, "peak", seconds=1e-5)
    module = probes.build_probes([probe], host)
    blocks = arrays(probe)
    before = [block.array.copy() for block in blocks]
    call(module.functions["peak"], blocks)
    steps = probe.work // (2 * blocks[2].array.size)
    want = before[2] + steps * np.tile(before[0] * before[1], blocks[2].array.size // host.fp32_lanes)
    np.testing.assert_allclose(blocks[2].array, want, rtol=1e-2, atol=0.5)
    if host.compute.isa in ("avx512", "avx2"):
        loop = max(re.findall(r"(?:\tvfmadd[^\n]*\n)+", module.assembly), key=len)
        assert loop.count("vfmadd") >= (24 if host.compute.num_vector_registers >= 32 else 12)
        assert "(" not in loop


def test_unrolled_tiles_multiply(host):
    probe = probes.tile_probe(host, "t3x2", probes.RegisterTile(3, 2, 4), depth=32, panels=2, seconds=1e-6)
    module = probes.build_probes([probe], host)
    blocks = arrays(probe)
    call(module.functions["t3x2"], blocks)
    a = blocks[0].array.reshape(32, 3)
    b = blocks[1].array.reshape(2, 32, 2 * host.fp32_lanes)
    want = np.einsum("kr,pkw->prw", a, b).reshape(-1)
    np.testing.assert_allclose(blocks[2].array, want, rtol=1e-4, atol=1e-4)


def test_walks_touch_what_they_say(host):
    size = 16 * host.compute.simd_bits // 8 * 4
    store = machine_probes.walk_probe(host, "put", "store", size)
    load = machine_probes.walk_probe(host, "get", "load", size, passes=3)
    chase = machine_probes.chase_probe("follow", 4096, 40)
    clock = machine_probes.clock_probe(host, "ticks", seconds=1e-6)
    module = probes.build_probes([store, load, chase, clock], host)
    blocks = arrays(store)
    call(module.functions["put"], blocks)
    assert not blocks[2].array.any()
    assert store.work == size
    blocks = arrays(load)
    call(module.functions["get"], blocks)
    assert load.work == 3 * size
    blocks = arrays(chase)
    offsets = blocks[0].array.view(np.int64)
    offsets[::8] = (np.arange(64) + 1) % 64 * 64
    blocks[2].array.view(np.int64)[0] = 0
    call(module.functions["follow"], blocks)
    assert chase.work == 40
    assert blocks[2].array.view(np.int64)[0] == 40 * 64
    call(module.functions["ticks"], arrays(clock))
    assert clock.work > 0


def test_parallel_probes_give_every_thread_its_part(host):
    begin = machine_probes.start_probe("begin", 2)
    store = machine_probes.walk_probe(host, "put", "store", 1 << 14, threads=2)
    peak = probes.fma_probe(host, "peak", seconds=1e-6, threads=2)
    module = probes.build_probes([begin, store, peak], host, threads=2)
    blocks = arrays(begin)
    call(module.functions["begin"], blocks)
    assert (blocks[2].array[::16] == 1).all()
    blocks = arrays(store)
    call(module.functions["put"], blocks)
    assert store.work == blocks[2].array.nbytes == 1 << 15
    assert not blocks[2].array.any()
    blocks = arrays(peak)
    before = blocks[2].array.copy()
    call(module.functions["peak"], blocks)
    assert (blocks[2].array != before).all()
    assert peak.work == 2 * probes.fma_probe(host, "one", seconds=1e-6).work


@pytest.mark.parametrize("name", ["cortex_a72", "xeon_gold_6230r", "ryzen_3700x"])
def test_probes_of_other_machines_are_described(name):
    spec = hardware(name)
    assert spec.compute.isa in PARTS_OF_ISA
    probe = probes.tile_probe(spec, "t", probes.RegisterTile(4, 2))
    assert probe.work % (2 * 4 * 2 * spec.fp32_lanes) == 0
    assert probes.fma_probe(spec, "f").sizes[1] == spec.fp32_lanes


@pytest.mark.parametrize(("instruction", "name"), [("vdpbf16ps", "vdpbf16ps"), ("vfmaddph", r"vfmadd\d+ph")])
def test_peaks_of_instructions_are_loops_of_nothing_else(instruction, name):
    spec = hardware("xeon_8480")
    for chains in (24, 1):
        probe = probes.fma_probe(spec, "peak", instruction=instruction, chains=chains)
        module = tvm.IRModule({probe.name: parse_program(probe.text, probe.llvm)})
        text = compile_module(module, target_of(spec)).mod.inspect_source("asm")
        assert len(re.findall(rf"\b{name}\b.*%zmm", text)) == 48


TILE_LOOPS = {
    "product_cycles": ["tdpbf16ps"] * 4,
    "latency_cycles": ["tdpbf16ps"],
    "load_cycles": ["tileloadd"] * 6,
    "store_cycles": ["tilestored"] * 4,
}


@pytest.mark.parametrize("number", TILE_LOOPS)
def test_probes_of_tiles_are_loops_of_one_instruction(number):
    spec = hardware("xeon_8480")
    probe = tile_unit_probe(spec, number)
    assert probe.work % TILE_COUNTS[number] == 0
    text = probes.build_probes([probe], spec).assembly
    loops = re.findall(r"^\.LBB\w+:[^\n]*\n((?:(?!^\.LBB).*\n)*?)\s+j\w+\s+\.LBB\w+\n", text, re.M)
    assert [re.findall(r"^\s+(t\w+)", body, re.M) for body in loops if "tmm" in body] == [TILE_LOOPS[number]]


def moved_by(number, spec, rewritten):
    """Return A and C before and after a probe of tiles, A's first half zeros where products are made."""
    probe = tile_unit_probe(spec, number, seconds=1e-6)
    module = probes.build_probes([dataclasses.replace(probe, llvm=rewritten(probe.llvm))], spec)
    blocks = arrays(probe)
    if "tdp" in TILE_LOOPS[number][0]:
        blocks[0].array[...] = 0.0
    before = blocks[2].array.copy()
    call(module.functions[number], blocks)
    return blocks[0].array, before, blocks[2].array


def check_tile_probes(spec, rewritten):
    for number, count in TILE_COUNTS.items():
        source, before, after = moved_by(number, spec, rewritten)
        want = before.copy()
        if number in ("load_cycles", "store_cycles"):
            want[: 256 * count] = source[: 256 * count]
        np.testing.assert_array_equal(after.view(np.int32), want.view(np.int32))


def test_probes_of_tiles_move_what_they_say(host, monkeypatch):
    spec = msgspec.structs.replace(host, amx=("tdpbssd",))
    monkeypatch.setattr(compat, "tile_features", lambda hardware: ())
    check_tile_probes(spec, without_tiles)


@pytest.mark.skipif(bool(refused_tiles()), reason=refused_tiles())
def test_probes_of_tiles_run_on_a_processor_that_has_them(host):
    check_tile_probes(msgspec.structs.replace(host, amx=("tdpbssd",)), lambda llvm: llvm)
