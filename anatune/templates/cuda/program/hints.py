"""Information for the compiler that improves the machine code of kernels for CUDA cores."""

from __future__ import annotations

import re

from anatune.templates.cuda.program.nest import CudaNest

__all__ = ["expected_blocks", "use_byte_offsets"]

_CONSTANT = re.compile(r" \+ (\d+)$")
"""A constant at the end of an index."""
_FACTOR = re.compile(r"\* (\d+)\)*$")
"""A constant factor at the end of a term."""
_ELEMENT_BYTES = {"float": 4, "int": 4, "half": 2, "nv_bfloat16": 2}
_OTHER_REGISTERS = 32
"""Registers of a thread beside its accumulators and fragments: addresses, conditions, elements being copied."""


def expected_blocks(nest: CudaNest) -> int:
    """Return how many blocks of a kernel with dynamic shared memory an SM will hold.

    The compiler does not know the size of dynamic shared memory of a launch. It assumes none, and spills registers
    to make room for blocks that will never be resident. The number is also limited so that it causes no spills itself:
    the registers must hold the accumulators, fragments and some addresses of so many blocks.
    """
    hardware = nest.hardware
    shared, registers, compute = hardware.shared_memory, hardware.registers, hardware.compute
    warps = -(-nest.num_threads // compute.warp_size)
    fragments = sum(nest.register_extent(tile.access) for tile in nest.tiles)
    needed = min(nest.num_accumulators + fragments + _OTHER_REGISTERS, registers.per_thread)
    blocks = min(
        shared.per_sm_bytes // (nest.shared_bytes + shared.reserved_per_block_bytes),
        compute.max_warps_per_sm // warps,
        registers.per_sm // (warps * compute.warp_size * needed),
    )
    return max(1, blocks)


def use_byte_offsets(body: str) -> str:
    """Rewrite indices of shared memory so that their constants become byte offsets from the start of the array.

    The compiler puts the constant part of an unrolled loop's index into the offset of a load. If the index has a second
    constant, the compiler often adds both in a register for every load (bench/gpu/machine_code.py counts). It separates
    32-bit offsets in bytes most reliably, but then it no longer merges neighbouring loads into one. Therefore vectors
    stay unchanged, and so do indices that move by 1 along a loop and begin at aligned positions.
    """
    declared = re.search(r"(\w+) smem_ptr\[", body)
    if declared is None or declared[1] not in _ELEMENT_BYTES:
        return body
    element_type, size = declared[1], _ELEMENT_BYTES[declared[1]]
    pieces, start = [], 0
    for use in re.finditer(r"smem_ptr\[\(", body):
        stop = _closing(body, use.end() - 1)
        constant = _CONSTANT.search(body, use.end(), stop)
        index = body[use.end() : constant.start()] if constant else ""
        if constant is None or _has_neighbours(index):
            continue
        address = f"(char*)smem_ptr + {int(constant[1]) * size} + ({index}) * {size}"
        pieces += [body[start : use.start()], f"(*({element_type}*)({address}))"]
        start = stop + len(")]")
    return "".join([*pieces, body[start:]])


def _has_neighbours(index: str) -> bool:
    """Return whether an index moves by 1 along one loop and otherwise by even numbers: two loads may become one."""
    factors = [(int(match[1]) if (match := _FACTOR.search(term)) else 1, term) for term in index.split(" + ")]
    ones = [term for factor, term in factors if factor == 1]
    return len(ones) == 1 and "threadIdx" not in ones[0] and sum(f % 2 for f, _ in factors) == 1


def _closing(text: str, start: int) -> int:
    """Return the position at which the parenthesis that opens at `start` closes."""
    depth = 0
    for match in re.compile(r"[()]").finditer(text, start):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    raise AssertionError("TVM's parentheses are balanced")
