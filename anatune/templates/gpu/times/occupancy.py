"""Resident blocks of a streaming multiprocessor: NVIDIA's occupancy calculator.

A block is *resident* while an SM holds it. Compiled models call these functions point by point. The model of Triton's
tiles calls them with arrays: it runs inside other programs, where the time to compile would be noticed.

Source: [CUDA-occupancy] cuda_occupancy.h of CUDA 13.5; checked against 1800 rows of its output.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np

from anatune.numerics._jit import jit_inline
from anatune.numerics.columns import Ints
from anatune.templates.gpu.times.columns import Gpu, Limiter

__all__ = ["blocks_from_table_one", "ceil_div", "register_limit", "resident_blocks", "resident_blocks_one"]

Number = TypeVar("Number", int, Ints)

_THREADS = int(Limiter.THREADS)
_REGISTERS = int(Limiter.REGISTERS)
_SHARED = int(Limiter.SHARED)
_BLOCKS = int(Limiter.BLOCKS)

LAUNCH_PARTITIONS = 4
"""Fewest sub-partitions that a block's warps are rounded up to when a launch is checked. sm_60 has 2, but refuses what
its successors with 4 could not run. Source: [CUDA-occupancy] cudaOccMaxActiveBlocksPerMultiprocessor."""


@jit_inline
def ceil_div(a: int, b: int) -> int:
    """Return a / b rounded up, for b > 0."""
    return -(-a // b)


def register_limit(warps: Number, gpu: Gpu) -> Number:
    """Return the most registers of a thread in a block of `warps` > 0 warps. Takes arrays or numbers."""
    partitions = max(gpu.sub_partitions, LAUNCH_PARTITIONS)
    rounded = -(-warps // partitions) * partitions
    of_warp = gpu.registers_block // rounded // gpu.register_unit * gpu.register_unit
    limit: Number = np.minimum(of_warp // gpu.warp_size, gpu.registers_thread)
    return limit


def resident_blocks(threads: Number, registers: Number, shared_bytes: Number, gpu: Gpu) -> tuple[Number, Number]:
    """Return (resident blocks of an SM, Limiter codes). 0 blocks: a block cannot run at all.

    It takes numbers, or arrays of one shape. `resident_blocks_one` is the same function, compiled for numbers.

    Registers are divided among the sub-partitions of the SM; each holds a whole number of warps. Rounding the warps of
    a block up to sub-partitions (at least LAUNCH_PARTITIONS) decides only whether the block can run.

    Parameters
    ----------
    threads, registers, shared_bytes
        Threads of a block, registers of a thread, shared memory of a block (static + dynamic).
    """
    warps = -(-threads // gpu.warp_size)
    registers_warp = -(-registers * gpu.warp_size // gpu.register_unit) * gpu.register_unit
    by_warps = gpu.max_warps_sm // warps
    registers_warp = np.maximum(registers_warp, 1)
    by_registers = gpu.registers_sm // gpu.sub_partitions // registers_warp * gpu.sub_partitions // warps
    unit = gpu.shared_unit_bytes
    need = -(-(shared_bytes + gpu.shared_reserved_bytes) // unit) * unit
    by_shared = gpu.shared_sm_bytes // np.maximum(need, 1)
    # products with conditions work for numbers and for arrays
    limiter = _THREADS + (_REGISTERS - _THREADS) * (by_registers < by_warps)
    resident = np.minimum(by_warps, by_registers)
    limiter = limiter + (_SHARED - limiter) * (by_shared < resident)
    resident = np.minimum(resident, by_shared)
    limiter = limiter + (_BLOCKS - limiter) * (gpu.max_blocks_sm < resident)
    resident = np.minimum(resident, gpu.max_blocks_sm)
    partitions = max(gpu.sub_partitions, LAUNCH_PARTITIONS)
    rounded = -(-warps // partitions) * partitions
    too_many = (registers > gpu.registers_thread) | (registers_warp * rounded > gpu.registers_block)
    too_large = (threads > gpu.max_threads_block) | (by_warps == 0)
    no_room = shared_bytes > gpu.shared_block_bytes
    limiter = limiter + (_SHARED - limiter) * no_room
    limiter = limiter + (_REGISTERS - limiter) * too_many
    limiter = limiter + (_THREADS - limiter) * too_large
    return resident * (1 - (no_room | too_many | too_large)), limiter


resident_blocks_one = jit_inline(resident_blocks)


@jit_inline
def blocks_from_table_one(warps: int, registers: int, shared_bytes: float, gpu: Gpu) -> float:
    """Return `resident_blocks` of a block that can run, at least 1. It reads a table, so that loops vectorise."""
    need = math.ceil((shared_bytes + gpu.shared_reserved_bytes) / gpu.shared_unit_bytes) * gpu.shared_unit_bytes
    by_registers = gpu.resident_by_registers[warps, registers]
    by_shared = math.floor(gpu.shared_sm_bytes / max(1.0, float(need)))
    return float(max(1, min(by_registers, by_shared)))
