"""The block of a thin point: its tiles, loads and resources, and the first rule that it breaks.

Notation
--------
step : the part of a sum that a block reads before it goes on along k: ``depth`` elements of each of its columns.
small_* : quantities of the small operand.
lanes : threads of a warp that share a result and add their sums by shuffles.
slots : sums of a result in shared memory.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from anatune.numerics._jit import jit_helper
from anatune.numerics.columns import Ints
from anatune.templates.gpu.rules import MAX_GRID
from anatune.templates.gpu.times.columns import Gpu
from anatune.templates.gpu.times.occupancy import ceil_div
from anatune.templates.thin.times.columns import ThinStream

__all__ = ["MOST_PRODUCTS", "ThinBlock", "ThinRule", "broken_rule", "loads_in_flight", "make_block", "thread_registers"]

ThinRule = IntEnum(
    "ThinRule", "threads_per_block shared_bytes_per_block registers_per_thread products_per_step split grid_blocks"
)
"""Id of a rule -> its code, which `broken_rule` returns for points that break it."""
MOST_PRODUCTS = 1024
"""Most products of a thread and step. They are unrolled, and the code must fit the instruction cache."""
BASE_REGISTERS = 16
"""Registers of loop counter, addresses of three tensors, and predicates.

Source of this number and of the weights in `thread_registers`: a fit to 143 kernels compiled for sm_80 (float32,
float16, int8, 1 to 16 rows), which is off by 12 registers on average.
"""
AHEAD_ROWS = 4
"""Rows of the small operand that the compiler loads ahead of their use. Source: the same kernels."""
SUNK_LOADS = 2
"""Loads in flight if they are used in the same iteration: the compiler moves each load to its use.

Source: the machine code of kernels with a single step.
"""
LEAST_REGISTERS = 12
"""The part of `BASE_REGISTERS` that remains if registers are scarce. Not measured."""


class ThinBlock(NamedTuple):
    """Tiles and loads of a point."""

    threads: int
    warps: int
    columns: int
    """Elements along n; `depth` are those along k in a step."""
    depth: int
    tiles: float
    """Blocks along n of all batch entries, if no sum is split."""
    blocks: float
    """All blocks: the tiles times the parts into which sums are split."""
    split: int
    steps: int
    """Steps of a block."""
    all_steps: int
    """Steps of all parts of a sum."""
    loads: int
    """Loads of the large operand of a thread and step; `load` are the elements of one, `load_words` its registers."""
    load: int
    load_words: int
    small_loads: int
    """Loads of the small operand of a thread and step, elements of one, and registers of loads in flight."""
    small_load: int
    small_words: int
    products: int
    """Products of a thread and step."""
    chain: int
    """Products in a chain of dependent ones."""
    accumulators: int
    lanes: int
    rounds: int
    """Shuffles for each sum."""
    slots: int
    results: int
    turns: int
    """Results that each storing thread stores."""
    kept: int
    """Sums of a block that a split sum writes to memory."""


@jit_helper
def make_block(point: Ints, stream: ThinStream) -> ThinBlock:
    """Return the tiles and loads of a point (columns of `ThinSpace`)."""
    n_thread, n_each, n_vector = point[0], point[1], point[2]
    k_thread, k_each, k_vector, split = point[3], point[4], point[5], point[6]
    threads = n_thread * k_thread
    columns, depth = n_thread * n_each * n_vector, k_thread * k_each * k_vector
    tiles = float(stream.batch) * ceil_div(stream.n, columns)
    all_steps = ceil_div(stream.k, depth)
    load = n_vector * k_vector
    # elements of the small operand that a thread needs at the same time, and how it loads them
    small_depth = k_vector if stream.along_k == 1 else k_each
    small_load = 1
    while small_load * 2 <= stream.small_width and small_depth % (small_load * 2) == 0:
        small_load *= 2
    groups = k_each if stream.along_k == 1 else 1
    small_loads = stream.products * groups * stream.m * (small_depth // small_load)
    small_words = stream.products * (small_depth // small_load) * ceil_div(small_load * stream.element_bytes, 4)
    stride = 1 if stream.along_k == 1 else n_thread
    lanes = max(1, min(k_thread, 32 // min(stride, 32)))
    if stride > 32:
        lanes = 1
    results = stream.m * columns
    keepers = min(threads, ceil_div(results, 32) * 32)
    turns = ceil_div(results, keepers)
    rounds = 0
    while (1 << rounds) < lanes:
        rounds += 1
    return ThinBlock(
        threads,
        ceil_div(threads, 32),
        columns,
        depth,
        tiles,
        tiles * split,
        split,
        ceil_div(all_steps, split),
        all_steps,
        n_each * k_each,
        load,
        ceil_div(load * stream.element_bytes, 4),
        small_loads,
        small_load,
        small_words,
        stream.m * n_each * k_each * load,
        k_each * k_vector,
        stream.m * n_each * n_vector,
        lanes,
        rounds,
        k_thread // lanes,
        results,
        turns,
        keepers * turns,
    )


@jit_helper
def loads_in_flight(block: ThinBlock) -> int:
    """Return the loads of the large operand that a thread has in flight: all of a step if another step follows."""
    return block.loads if block.steps > 1 else min(block.loads, SUNK_LOADS)


@jit_helper
def thread_registers(block: ThinBlock, rows: int) -> int:
    """Return the registers that a thread needs: sums, loads in flight, rows of the small operand, addresses."""
    held = loads_in_flight(block) * (block.load_words + 1)
    return BASE_REGISTERS + 6 * block.accumulators // 5 + held + min(rows, AHEAD_ROWS) * block.small_words


@jit_helper
def broken_rule(block: ThinBlock, shared_bytes: int, cap: int, gpu: Gpu) -> int:
    """Return the code of the first broken rule, 0 if legal; `cap` is the most registers that a thread can have."""
    fewest = LEAST_REGISTERS + block.accumulators + block.loads * block.load_words + block.small_words
    code = ThinRule.grid_blocks if block.blocks > MAX_GRID else 0
    code = ThinRule.split if ceil_div(block.all_steps, block.steps) != block.split else code
    code = ThinRule.products_per_step if block.products > MOST_PRODUCTS else code
    code = ThinRule.registers_per_thread if fewest > cap else code
    code = ThinRule.shared_bytes_per_block if shared_bytes > gpu.shared_block_bytes else code
    return ThinRule.threads_per_block if block.threads > gpu.max_threads_block else code
