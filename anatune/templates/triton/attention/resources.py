"""Resources of blocks of attention: matrix unit, registers, shared memory, and rules.

The numbers were read off kernels that Triton 3.9 compiled for sm_80, sm_90, sm_100 and gfx942.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import GpuSpec
from anatune.templates.base.model import Rule
from anatune.templates.base.rules import Limit, find_first_broken
from anatune.templates.gpu.rules import GRID_RULE, block_rules
from anatune.templates.triton.attention.problem import AttentionProblem, AttentionTiles
from anatune.templates.triton.instructions import DotUnit, instructions_of
from anatune.templates.triton.resources import (
    LEAST_REGISTERS,
    Resources,
    depth_rule,
    is_wide,
    register_cap,
    registers_rule,
    residency,
    wide_units,
)

__all__ = ["OWN_REGISTERS", "attention_resources", "attention_rules", "attention_units", "repetition", "warp_grid"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

OWN_REGISTERS = 44.0
"""Registers of a thread for addresses, counters and running values. Read off compiled kernels."""
_BARRIERS = 1024
"""Bytes of barriers, and of the values that two groups of warps exchange in reductions."""


_PAGE_RULE = Rule("page", "keys per step that descriptors copy across pages", 0.0)


def _least_depth(spec: GpuSpec, problem: AttentionProblem) -> int:
    instructions = instructions_of(spec.arch, problem.dtype)
    return 16 if instructions is None else max(16, instructions[0].least_depth)


@lru_cache(maxsize=64)
def attention_rules(problem: AttentionProblem, spec: GpuSpec) -> tuple[Rule, ...]:
    """Return the rules for tiles on a device, in the order in which they are tested."""
    return attention_resources(problem, AttentionTiles.of([]), spec).rules


def attention_units(problem: AttentionProblem, tiles: AttentionTiles, spec: GpuSpec) -> Ints:
    """Return the codes of `DotUnit` that multiply."""
    instructions = instructions_of(spec.arch, problem.dtype)
    assert instructions is not None
    return wide_units(tiles.block_m, tiles.num_warps, *instructions)


def warp_grid(tiles: AttentionTiles) -> tuple[Floats, Floats]:
    """Return the warps along rows and along keys, for units that read registers. Rows come first."""
    rows = np.minimum(tiles.num_warps, np.maximum(1, tiles.block_m // 16)).astype(np.float64)
    return rows, tiles.num_warps / rows


def repetition(problem: AttentionProblem, tiles: AttentionTiles) -> Floats:
    """Return how often products are computed by units that read registers: too many warps repeat each other's work."""
    columns = np.minimum(tiles.block_n, problem.depth) / 8.0
    factor: Floats = np.maximum(1.0, warp_grid(tiles)[1] / columns)
    return factor


def _shared_bytes(problem: AttentionProblem, tiles: AttentionTiles, unit: Ints) -> Ints:
    """Return the bytes of queries, of the stages of keys and values, and of data that warps exchange.

    Queries stay in shared memory (not on AMD). Warps along keys exchange scores, too. With one stage, keys and values
    take turns. 8-bit values without descriptors are transposed in registers. Within 1 KiB are 81 % of 90 programs of
    Triton 3.9 for sm_90 and 87 % of 47 for sm_80; others, mostly small tiles, use up to 16 KiB more.
    """
    element, wide = problem.element_bytes, is_wide(unit)
    queries = tiles.block_m * problem.depth * element
    tile = tiles.block_n * problem.depth * element
    turned = (element == 1) & (tiles.descriptors == 0)
    held = np.where(wide, np.where(turned, tiles.num_stages + 1, 2 * tiles.num_stages), 2 * (tiles.num_stages - 1))
    staged = np.where(tiles.num_stages == 1, 1, held) * tile
    exchanged = queries + tiles.block_m * tiles.block_n * element
    along_keys = warp_grid(tiles)[1] > 1
    by_registers = np.where(unit == DotUnit.MFMA, 0, queries + along_keys * (exchanged - queries))
    beside = np.where(wide, queries + np.where(tiles.descriptors > 0, _BARRIERS, 0), by_registers)
    total: Ints = np.maximum(staged + beside, queries).astype(np.int64)
    return total


def attention_resources(
    problem: AttentionProblem, tiles: AttentionTiles, spec: GpuSpec, compiled: Floats | None = None
) -> Resources:
    """Return the resources of the blocks of `tiles` on a device, and the first rule that each tile breaks.

    `compiled` has a compiler's numbers, (3, num_tiles): registers, shared bytes, spilled registers of a thread.
    """
    unit = attention_units(problem, tiles, spec)
    threads = spec.compute.warp_size * tiles.num_warps
    lanes = threads.astype(np.float64)
    repeated = np.where(is_wide(unit), 1.0, repetition(problem, tiles))
    along_rows = warp_grid(tiles)[1] == 1
    sums = tiles.block_m * problem.depth * repeated / lanes
    scores = tiles.block_m * tiles.block_n * repeated / lanes
    holds_queries = (unit == DotUnit.MMA) & along_rows
    queries = np.where(holds_queries, tiles.block_m * problem.depth / lanes * problem.element_bytes / 4.0, 0.0)
    # sums of tcgen05 are in tensor memory, but pass through registers to be scaled
    needed = np.ceil(OWN_REGISTERS + sums + 1.5 * scores + queries)
    cap = register_cap(tiles.num_warps, spec)
    registers = np.minimum(needed, cap).astype(np.int64)
    shared = _shared_bytes(problem, tiles, unit)
    if compiled is not None:
        registers, shared = compiled[:2].astype(np.int64)
    blocks = problem.groups * -(-problem.rows // tiles.block_m) * tiles.split_kv
    least = np.where(unit == DotUnit.TCGEN05, 0.5, 1.0) * (sums + scores) + LEAST_REGISTERS
    shallowest, described = _least_depth(spec, problem), (tiles.descriptors == 1) & (problem.page_size > 0)
    threads_rule, shared_rule = block_rules(spec, "bytes of queries and stages")
    table = (
        Limit(depth_rule("block_n", shallowest), tiles.block_n, tiles.block_n < shallowest),
        Limit(threads_rule, threads),
        Limit(shared_rule, shared),
        Limit(registers_rule("sums and scores of a thread", spec), least, least > cap),
        Limit(GRID_RULE, blocks),
        Limit(_PAGE_RULE, tiles.block_n, described),
    )
    resident, limiter = residency(spec, threads, registers, shared)
    spilled = np.maximum(0.0, needed - cap) if compiled is None else compiled[2]
    accumulators = np.maximum(1, np.ceil(sums)).astype(np.int64)
    return Resources(
        unit, threads, accumulators, registers, spilled, shared, blocks, resident, limiter, *find_first_broken(table)
    )
