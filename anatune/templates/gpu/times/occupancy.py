"""Resident blocks of a streaming multiprocessor: NVIDIA's occupancy calculator.

Notation
--------
resident : blocks of a kernel that an SM holds at the same time.
Source: [CUDA-occupancy] cuda_occupancy.h of CUDA 13.5; checked against 1800 rows of its output.
"""

from __future__ import annotations

from anatune.numerics._jit import jit, jit_scalar
from anatune.templates.gpu.times.columns import Gpu, Limiter

__all__ = ["ceil_div", "fill_register_tables", "resident_blocks_one"]

_THREADS = int(Limiter.THREADS)
_REGISTERS = int(Limiter.REGISTERS)
_SHARED = int(Limiter.SHARED)
_BLOCKS = int(Limiter.BLOCKS)

LAUNCH_PARTITIONS = 4
"""Least sub-partitions that a block's warps are rounded up to when a launch is checked: sm_60, which has 2, refuses
what its successors with 4 could not run. Source: [CUDA-occupancy] cudaOccMaxActiveBlocksPerMultiprocessor."""


@jit_scalar
def ceil_div(a: int, b: int) -> int:
    """Return a / b rounded up, for b > 0."""
    return -(-a // b)


@jit_scalar
def resident_blocks_one(threads: int, registers: int, shared_bytes: int, gpu: Gpu) -> tuple[int, int]:
    """Return (resident blocks of an SM, Limiter code); 0 blocks where a block cannot run at all.

    Registers are divided among the SM's sub-partitions: each holds a whole number of warps. The rounding up of a
    block's warps to sub-partitions (at least LAUNCH_PARTITIONS) applies to the legality of the block only.

    Parameters
    ----------
    threads, registers, shared_bytes : int
        Of a block, a thread, a block (static + dynamic).
    """
    warps = ceil_div(threads, gpu.warp_size)
    registers_warp = ceil_div(registers * gpu.warp_size, gpu.register_unit) * gpu.register_unit
    by_warps = gpu.max_warps_sm // warps
    if threads > gpu.max_threads_block or by_warps == 0:
        return 0, _THREADS
    partitions = max(gpu.sub_partitions, LAUNCH_PARTITIONS)
    rounded = ceil_div(warps, partitions) * partitions
    if registers > gpu.registers_thread or registers_warp * rounded > gpu.registers_block:
        return 0, _REGISTERS
    if shared_bytes > gpu.shared_block_bytes:
        return 0, _SHARED
    by_registers = 1 << 30
    if registers_warp > 0:
        by_registers = gpu.registers_sm // gpu.sub_partitions // registers_warp * gpu.sub_partitions // warps
    need = ceil_div(shared_bytes + gpu.shared_reserved_bytes, gpu.shared_unit_bytes) * gpu.shared_unit_bytes
    by_shared = gpu.shared_sm_bytes // need if need > 0 else 1 << 30
    resident, limiter = by_warps, _THREADS
    if by_registers < resident:
        resident, limiter = by_registers, _REGISTERS
    if by_shared < resident:
        resident, limiter = by_shared, _SHARED
    if gpu.max_blocks_sm < resident:
        resident, limiter = gpu.max_blocks_sm, _BLOCKS
    return resident, limiter


@jit
def fill_register_tables(gpu: Gpu) -> None:
    """Fill gpu.register_cap and gpu.resident_by_registers from the other fields (see Gpu)."""
    for warps in range(1, gpu.register_cap.shape[0]):
        partitions = max(gpu.sub_partitions, LAUNCH_PARTITIONS)
        rounded = ceil_div(warps, partitions) * partitions
        per_warp = gpu.registers_block // rounded // gpu.register_unit * gpu.register_unit
        cap = min(per_warp // gpu.warp_size, gpu.registers_thread)
        gpu.register_cap[warps] = cap
        threads = min(warps * gpu.warp_size, gpu.max_threads_block)
        for registers in range(cap + 1):
            gpu.resident_by_registers[warps, registers] = resident_blocks_one(threads, registers, 0, gpu)[0]
