"""The block of a thin point: its tiles, loads and resources, and the first rule that it breaks.

Notation
--------
step : what a block reads before it goes on along k: ``depth`` elements of each of its columns.
few : elements of the small operand.
lanes : threads of a warp that share a result and add up by shuffles; slots : sums of a result in shared memory.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from anatune.numerics._jit import jit_sequence
from anatune.numerics.columns import Ints
from anatune.templates.gpu.times.columns import Gpu
from anatune.templates.gpu.times.occupancy import ceil_div
from anatune.templates.gpu.times.waves import MAX_GRID
from anatune.templates.thin.times.columns import Stream

__all__ = ["MOST_PRODUCTS", "Block", "ThinRule", "block_one", "flight_one", "registers_one", "rule_one"]

ThinRule = IntEnum(
    "ThinRule",
    "threads_per_block shared_bytes_per_block registers_per_thread products_per_step split grid_blocks",
)
"""Ids of rules -> what `rule_one` says of points that break them."""
MOST_PRODUCTS = 1024
"""Products of a thread and step: they are unrolled, and code must fit the instruction cache."""
BASE_REGISTERS = 16
"""Loop counter, addresses of three tensors, predicates. This and the weights in `registers_one` fit 143 kernels that
were compiled for sm_80 (float32, float16, int8, 1 to 16 rows): 12 registers off on average."""
AHEAD_ROWS = 4
"""Rows of the small operand that the compiler loads ahead of their use. From the same kernels."""
SUNK_LOADS = 2
"""Loads in flight where they are used in the same turn of the loop: the compiler moves each to its use. From the
machine code of kernels with a single step."""
LEAST_REGISTERS = 12
"""Of them, where registers are short."""


class Block(NamedTuple):
    """Tiles of a point, and how many there are."""

    threads: int
    warps: int
    columns: int
    """Elements along n; then along k in a step."""
    depth: int
    tiles: float
    """Blocks along n of all batch entries."""
    blocks: float
    """Those times the parts that sums are split into."""
    split: int
    steps: int
    """Of a block."""
    all_steps: int
    """Of all parts together."""
    loads: int
    """Of the large operand, a thread and step; then elements of one, and registers that it fills."""
    load: int
    load_words: int
    few_loads: int
    """Of the small operand, a thread and step; then elements of one, and registers of what is needed together."""
    few_load: int
    few_words: int
    products: int
    """Of a thread and step."""
    chain: int
    """Those that depend on each other."""
    accumulators: int
    lanes: int
    rounds: int
    """Shuffles of each sum."""
    slots: int
    results: int
    turns: int
    """Results that a thread stores, of those that store any."""
    kept: int
    """Sums that a part of a split sum keeps."""


@jit_sequence
def block_one(point: Ints, stream: Stream) -> Block:
    """Return the tiles of a point (columns of `ThinSpace`)."""
    n_thread, n_each, n_vector = point[0], point[1], point[2]
    k_thread, k_each, k_vector, split = point[3], point[4], point[5], point[6]
    threads = n_thread * k_thread
    columns, depth = n_thread * n_each * n_vector, k_thread * k_each * k_vector
    tiles = float(stream.batch) * ceil_div(stream.n, columns)
    all_steps = ceil_div(stream.k, depth)
    load = n_vector * k_vector
    # elements of the small operand that a thread needs together, and how it loads them
    few = k_vector if stream.along_k == 1 else k_each
    few_load = 1
    while few_load * 2 <= stream.few_width and few % (few_load * 2) == 0:
        few_load *= 2
    groups = k_each if stream.along_k == 1 else 1
    few_loads = stream.products * groups * stream.m * (few // few_load)
    few_words = stream.products * (few // few_load) * ceil_div(few_load * stream.element_bytes, 4)
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
    return Block(
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
        few_loads,
        few_load,
        few_words,
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


@jit_sequence
def flight_one(block: Block) -> int:
    """Return the loads of the large operand that a thread has in flight: all of a step where another one follows."""
    return block.loads if block.steps > 1 else min(block.loads, SUNK_LOADS)


@jit_sequence
def registers_one(block: Block, rows: int) -> int:
    """Return the registers that a thread would like: sums, loads in flight, the small operand's rows, addresses."""
    held = flight_one(block) * (block.load_words + 1)
    return BASE_REGISTERS + 6 * block.accumulators // 5 + held + min(rows, AHEAD_ROWS) * block.few_words


@jit_sequence
def rule_one(block: Block, shared_bytes: int, cap: int, gpu: Gpu) -> int:
    """Return the code of the first broken rule, 0 where legal; `cap` is the most registers that a thread can have."""
    fewest = LEAST_REGISTERS + block.accumulators + block.loads * block.load_words + block.few_words
    code = ThinRule.grid_blocks if block.blocks > MAX_GRID else 0
    code = ThinRule.split if ceil_div(block.all_steps, block.steps) != block.split else code
    code = ThinRule.products_per_step if block.products > MOST_PRODUCTS else code
    code = ThinRule.registers_per_thread if fewest > cap else code
    code = ThinRule.shared_bytes_per_block if shared_bytes > gpu.shared_block_bytes else code
    return ThinRule.threads_per_block if block.threads > gpu.max_threads_block else code
