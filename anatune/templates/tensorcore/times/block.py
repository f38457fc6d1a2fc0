"""The block of a tensor-core point: its tiles, copies and resources, and the first rule that it breaks.

Notation
--------
block : tile of m x n results that an SM computes; stage : one step of its loop over k.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from anatune.numerics._jit import jit_inline, jit_sequence
from anatune.numerics.columns import Ints
from anatune.templates.gpu.times.columns import Gpu
from anatune.templates.gpu.times.occupancy import ceil_div
from anatune.templates.gpu.times.waves import MAX_GRID, sector_bytes_one, split_is_broken
from anatune.templates.tensorcore.times.columns import Product

__all__ = [
    "COPY_INSTRUCTIONS",
    "MOST_COPIES",
    "RULE_SPLIT",
    "WARP",
    "Block",
    "Copies",
    "block_one",
    "copies_one",
    "registers_one",
    "rule_one",
    "shared_bytes_one",
]

RULE_THREADS, RULE_SHARED, RULE_REGISTERS, RULE_COPIES, RULE_GRID, RULE_SPLIT = 1, 2, 3, 4, 5, 6
MOST_COPIES = 64
"""Copies of a thread and stage: they are unrolled, and code must fit the instruction cache."""
BASE_REGISTERS = 18
"""Loop counters and addresses. This and the weights in `registers_one` fit 147 kernels compiled for sm_80 to sm_90
(16-bit and tf32, products and convolutions): 20 registers off on average, as the compiler keeps addresses in whatever
registers are left; 5 off for 64 x 64 results a warp with wide copies."""
LEAST_REGISTERS = 24
"""Addresses and loop counters when registers are short."""
COPY_INSTRUCTIONS = 3.0
"""Copy and the additions that move its two addresses."""
WARP = 32.0


class Block(NamedTuple):
    """Tiles of a point, and how many there are."""

    m_mma: int
    """Instructions of a warp along m; then along n, and along k in a stage."""
    n_mma: int
    k_mma: int
    stages: int
    """Buffers of the ring."""
    group: int
    """Rows of blocks that are walked together."""
    m: int
    """Results along m; then along n, and elements of k in a stage."""
    n: int
    k: int
    rows: int
    """Blocks along m; then along n."""
    columns: int
    steps: int
    """Stages from the first k to the last."""
    tiles: float
    """Of all batch entries."""
    split: int
    """Parts of a tile that is split."""
    split_tiles: float
    part_steps: int
    """Stages of a part."""
    atomic: int
    rule: int
    """`RULE_SPLIT` where the split is none."""
    blocks: float
    """Of the grid: a block each for tiles and parts."""
    warps: int
    threads: int


class Copies(NamedTuple):
    """What fetching both operands' tiles of one stage takes."""

    most: int
    """Copies of a thread, of the operand that has more; then of both."""
    both: int
    through_registers: int
    """Those too narrow for cp.async."""
    slots: float
    """Issue slots of all warps."""
    lines: float
    """Cycles of the shared memory."""
    fill_bytes: float
    """Bytes from L2."""


@jit_sequence
def block_one(point: Ints, product: Product, num_sms: float) -> Block:
    """Return the tiles of a point (columns of `TensorCoreSpace`)."""
    m_warp, m_mma, n_warp, n_mma, k_mma = point[0], point[1], point[2], point[3], point[4]
    m, n, k = 16 * m_warp * m_mma, 8 * n_warp * n_mma, product.instruction_k * k_mma
    rows, columns = ceil_div(product.m, m), ceil_div(product.n, n)
    steps = ceil_div(product.k, k)
    tiles = float(product.batch) * rows * columns
    split, leftovers, atomic = 1, 0, 0
    if product.splits == 1:
        split, leftovers, atomic = point[9], point[10], point[11]
    rule = RULE_SPLIT if split_is_broken(float(split), float(leftovers), tiles, float(steps), num_sms) else 0
    whole = math.floor(tiles / num_sms) * num_sms if leftovers == 1 else 0.0
    split_tiles = tiles - whole if split > 1 else 0.0
    blocks = tiles + split_tiles * (split - 1)
    part_steps = ceil_div(steps, split)
    warps = m_warp * n_warp
    return Block(
        m_mma, n_mma, k_mma, point[5], point[6], m, n, k, rows, columns, steps, tiles, split, split_tiles, part_steps,
        atomic, rule, blocks, warps, 32 * warps,
    )  # fmt: skip


@jit_inline
def _tile_bytes_one(rows: float, row: float, t: int, product: Product) -> float:
    """Return the bytes of the sectors that an operand's tile lies in."""
    element = float(product.element_bytes)
    run = min(row, float(product.run[t]))
    pieces = rows * row / run
    if product.step[t] <= 1:
        return sector_bytes_one(pieces * run, run, product.misaligned[t], element)
    return pieces * max(32.0, run * float(product.step[t]) * element)


@jit_sequence
def copies_one(point: Ints, block: Block, product: Product) -> Copies:
    """Return what fetching the tiles of a stage takes."""
    most = 0
    both = 0
    through_registers = 0
    slots = 0.0
    lines = 0.0
    fill_bytes = 0.0
    for t in range(2):
        edge = block.m if t == 0 else block.n
        width = point[7 + t]
        copies = ceil_div(edge * block.k // width, block.threads)
        most = max(most, copies)
        both += copies
        issued = math.ceil(edge * block.k / width / WARP)  # instructions of all warps
        cost = COPY_INSTRUCTIONS + product.address[t]
        if width * product.element_bytes < 4:
            through_registers += copies
            cost += 2.0
        slots += issued * cost
        lines += issued * max(1.0, WARP * width * float(product.element_bytes) / 128.0)
        inside = float(product.m) / block.rows if t == 0 else float(product.n) / block.columns  # padding is not fetched
        depth = float(product.k) / block.steps
        if product.along_k[t] == 1:
            fill_bytes += _tile_bytes_one(inside, depth, t, product)
        else:
            fill_bytes += _tile_bytes_one(depth, inside, t, product)
    return Copies(most, both, through_registers, slots, lines, fill_bytes)


@jit_sequence
def registers_one(block: Block, copies: int, guarded: int) -> int:
    """Return the registers that a thread would like: accumulators, fragments (two sets from k_mma 2 on), addresses."""
    accumulators, fragments = 4 * block.m_mma * block.n_mma, 4 * block.m_mma + 2 * block.n_mma
    more = 3 * fragments // 4 if block.k_mma > 1 else 0
    return BASE_REGISTERS + accumulators + 7 * fragments // 4 + more + copies // 2 + 3 * block.k_mma + 10 * guarded


@jit_sequence
def shared_bytes_one(block: Block, element_bytes: int) -> int:
    """Return the shared memory of a block: the ring, or the results on their way out, which take its place."""
    columns = 8 * block.n_mma
    pitch = columns + (8 if columns % 16 == 0 else 16)
    return max(block.stages * (block.m + block.n) * block.k * element_bytes, block.warps * 16 * pitch * 4)


@jit_sequence
def rule_one(block: Block, copies: Copies, shared_bytes: int, cap: int, gpu: Gpu) -> int:
    """Return the code of the first broken rule, 0 where legal; `cap` is the most registers that a thread can have."""
    fewest = 4 * block.m_mma * block.n_mma + 4 * block.m_mma + 2 * block.n_mma + LEAST_REGISTERS
    code = RULE_GRID if block.blocks > MAX_GRID else block.rule
    code = RULE_COPIES if copies.most > MOST_COPIES else code
    code = RULE_REGISTERS if fewest + copies.through_registers // 2 > cap else code
    code = RULE_SHARED if shared_bytes > gpu.shared_block_bytes else code
    return RULE_THREADS if block.threads > gpu.max_threads_block else code
