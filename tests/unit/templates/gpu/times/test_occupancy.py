"""Occupancy agrees with NVIDIA's calculator: 1800 random cases and the hand-picked vectors.

occupancy_oracle.csv: output of cuda_occupancy.h (CUDA 13.5), maximum shared carve-out, opt-in dynamic shared memory.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from numba import njit

from anatune.core.hardware.files import list_hardware
from anatune.core.hardware.spec import GpuSpec
from anatune.templates.gpu.pack import pack_gpu
from anatune.templates.gpu.times.columns import Gpu, Limiter
from anatune.templates.gpu.times.occupancy import blocks_from_table_one, ceil_div, resident_blocks, resident_blocks_one
from tests import naive_gpu

ORACLE = Path(__file__).parent / "occupancy_oracle.csv"

# compute capability -> KB of an SM, KB of a block, reserved bytes, granularity, blocks, warps, registers of a block,
# sub-partitions. Source: cuda_occupancy.h of CUDA 13.5.
LIMITS = {
    5.3: (64, 48, 0, 256, 32, 64, 32768, 4),
    6.0: (64, 48, 0, 256, 32, 64, 65536, 2),
    6.1: (96, 48, 0, 256, 32, 64, 65536, 4),
    6.2: (64, 48, 0, 256, 32, 64, 32768, 4),
    7.0: (96, 96, 0, 256, 32, 64, 65536, 4),
    7.5: (64, 64, 0, 256, 16, 32, 65536, 4),
    8.0: (164, 163, 1024, 128, 32, 64, 65536, 4),
    8.6: (100, 99, 1024, 128, 16, 48, 65536, 4),
    8.9: (100, 99, 1024, 128, 24, 48, 65536, 4),
    9.0: (228, 227, 1024, 128, 32, 64, 65536, 4),
    10.0: (228, 227, 1024, 128, 32, 64, 65536, 4),
    12.0: (100, 99, 1024, 128, 24, 48, 65536, 4),
}
VECTORS = """
128 255 0     2 2 2 2 2 2 2 2 2 2 2 2
256 128 0     2 2 2 2 2 2 2 2 2 2 2 2
256 96 16384  2 2 2 2 2 2 2 2 2 2 2 2
256 64 33280  1 1 2 1 2 1 4 2 2 4 4 2
128 168 40960 1 1 2 1 2 1 3 2 2 3 3 2
512 64 49152  1 1 2 1 2 1 2 2 2 2 2 2
1024 64 32768 0 1 1 0 1 1 1 1 1 1 1 1
64 32 1024    32 32 32 32 32 16 32 16 24 32 32 24
32 16 0       32 32 32 32 32 16 32 16 24 32 32 24
96 200 8192   2 3 2 2 2 2 2 2 2 2 2 2
256 40 50176  0 0 0 0 1 1 3 2 2 4 4 2
256 40 50177  0 0 0 0 1 1 3 1 1 4 4 1
"""
CHECKED = (
    "max_warps_sm", "max_blocks_sm", "registers_sm", "registers_block", "registers_thread", "register_unit",
    "sub_partitions", "shared_sm_bytes", "shared_block_bytes", "shared_reserved_bytes", "shared_unit_bytes",
    "warp_size", "max_threads_block",
)  # fmt: skip


def gpu_of(capability: float) -> Gpu:
    sm_kb, block_kb, reserved, unit, blocks, warps, registers, partitions = LIMITS[capability]
    return pack_gpu(naive_gpu.gpu("rtx3090"), "float32")._replace(
        warp_size=32,
        max_threads_block=1024,
        max_warps_sm=warps,
        max_blocks_sm=blocks,
        registers_sm=65536,
        registers_block=registers,
        registers_thread=255,
        register_unit=256,
        sub_partitions=partitions,
        shared_sm_bytes=1024 * sm_kb,
        shared_block_bytes=1024 * block_kb,
        shared_reserved_bytes=reserved,
        shared_unit_bytes=unit,
    )


def oracle() -> dict[float, list[tuple[int, ...]]]:
    rows: dict[float, list[tuple[int, ...]]] = {}
    with ORACLE.open() as file:
        for row in csv.DictReader(file):
            values = tuple(int(row[name]) for name in ("threads", "regs", "dyn_smem", "blocks"))
            rows.setdefault(float(row["sm"]), []).append(values)
    return rows


def test_the_oracle_has_all_devices_and_rows() -> None:
    rows = oracle()
    assert sorted(rows) == sorted(LIMITS)
    assert [len(part) for part in rows.values()] == [150] * 12


@pytest.mark.parametrize("capability", LIMITS)
def test_agrees_with_nvidias_calculator(capability: float) -> None:
    packed = gpu_of(capability)
    for *block, blocks in oracle()[capability]:
        resident, limiter = resident_blocks_one(*block, packed)
        assert resident == blocks
        assert limiter in {int(name) for name in Limiter}


@pytest.mark.parametrize("line", VECTORS.strip().splitlines())
def test_hand_picked_vectors(line: str) -> None:
    threads, registers, shared_bytes, *expected = (int(word) for word in line.split())
    blocks = [resident_blocks_one(threads, registers, shared_bytes, gpu_of(sm))[0] for sm in LIMITS]
    assert blocks == expected


def test_packaged_specs_have_the_calculators_limits(tmp_path: Path) -> None:
    checked = set()
    for spec in list_hardware(user_folder=tmp_path):
        if not isinstance(spec, GpuSpec) or spec.compute_capability not in LIMITS:
            continue
        expected, packed = gpu_of(spec.compute_capability), pack_gpu(spec, "float32")
        wrong = {name for name in CHECKED if getattr(packed, name) != getattr(expected, name)}
        assert not wrong, (spec.name, wrong)
        checked.add(spec.compute_capability)
    assert checked == set(LIMITS)


@pytest.mark.parametrize("name", ["rtx3090", "k80", "mi50", "p100", "tx2", "h100_sxm", "t4"])
def test_agrees_with_placing_blocks_one_by_one(name: str) -> None:
    spec = naive_gpu.gpu(name)
    packed = pack_gpu(spec, "float32")
    rng = np.random.default_rng(1)
    for _ in range(400):
        threads, registers = int(rng.integers(1, 1100)), int(rng.integers(0, 260))
        shared_bytes = int(rng.integers(0, 1 + rng.choice([1024, 16384, 65536, 120000])))
        blocks = resident_blocks_one(threads, registers, shared_bytes, packed)[0]
        assert blocks == naive_gpu.resident_blocks(spec, threads, registers, shared_bytes)


@pytest.mark.parametrize("name", ["rtx3090", "k80", "mi50", "p100", "tx2"])
def test_register_tables(name: str) -> None:
    spec = naive_gpu.gpu(name)
    packed = pack_gpu(spec, "float32")
    for warps in range(1, len(packed.register_cap)):
        threads = min(warps * packed.warp_size, packed.max_threads_block)
        cap = packed.register_cap[warps]
        assert cap == naive_gpu.register_cap(spec, threads)
        for registers in range(1, cap + 1, 7):
            by_registers = packed.resident_by_registers[warps, registers]
            assert by_registers == naive_gpu.resident_blocks(spec, threads, registers, 0)


@pytest.mark.parametrize("name", ["rtx3090", "k80", "mi50", "p100", "tx2", "h100_sxm", "t4", "mi300x"])
def test_arrays_numbers_and_tables_agree(name: str) -> None:
    spec = naive_gpu.gpu(name)
    packed, rng = pack_gpu(spec, "float32"), np.random.default_rng(2)
    threads, registers, shared = (
        rng.integers(least, most, 1000) for least, most in ((1, 1100), (0, 260), (0, 120_000))
    )
    blocks, limiter = resident_blocks(threads, registers, shared, packed)
    for number, block in enumerate(zip(threads.tolist(), registers.tolist(), shared.tolist(), strict=True)):
        assert resident_blocks_one(*block, packed) == (blocks[number], limiter[number])
        if blocks[number]:
            warps = -(-block[0] // packed.warp_size)
            assert from_table(warps, *block[1:], packed) == blocks[number]


@njit
def from_table(warps: int, registers: int, shared_bytes: int, packed: Gpu) -> float:
    return blocks_from_table_one(warps, registers, shared_bytes, packed)  # cannot be called from Python


def test_never_rises_with_registers_or_shared_memory() -> None:
    packed = gpu_of(8.6)
    for threads in (32, 96, 250, 256, 1024):
        by_registers = [resident_blocks_one(threads, registers, 8192, packed)[0] for registers in range(256)]
        by_bytes = [resident_blocks_one(threads, 40, size, packed)[0] for size in range(0, 110_000, 500)]
        assert by_registers == sorted(by_registers, reverse=True)
        assert by_bytes == sorted(by_bytes, reverse=True)
        assert 0 < max(by_registers) * ceil_div(threads, 32) <= packed.max_warps_sm


def test_limiters() -> None:
    packed = gpu_of(8.6)
    cases = {
        Limiter.THREADS: (768, 40, 0),
        Limiter.REGISTERS: (256, 128, 0),
        Limiter.SHARED: (256, 40, 50_000),
        Limiter.BLOCKS: (32, 16, 0),
    }
    assert {name: resident_blocks_one(*case, packed)[1] for name, case in cases.items()} == {
        name: int(name) for name in cases
    }
    assert resident_blocks_one(1056, 16, 0, packed) == (0, Limiter.THREADS)
    assert resident_blocks_one(32, 256, 0, packed) == (0, Limiter.REGISTERS)
    assert resident_blocks_one(32, 16, 102_000, packed) == (0, Limiter.SHARED)


def test_ceil_div() -> None:
    assert [ceil_div(a, 4) for a in range(9)] == [0, 1, 1, 1, 1, 2, 2, 2, 2]
