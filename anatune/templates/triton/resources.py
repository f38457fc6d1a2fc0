"""Resources and rules of the block tiles of a matrix product, as Triton compiles them.

Notation
--------
tile : block_m x block_n results of a block, block_k steps of k per stage, warps, stages, split_k blocks that
    share one tile of the result, and group_m rows of blocks that run together.
unit : the hardware that multiplies, see `instructions`. On AMD's GPUs an SM is a CU and a warp is a wave of 64 lanes.

All functions take whole batches as NumPy arrays: a few hundred tiles are scored inside other programs, where the time
to compile the models of `numerics` would be noticed. Constants that both need are those of `numerics`.

The unit and the resources of a tile were read off kernels that Triton 3.9 compiled for sm_80 to sm_120 and gfx90a to
gfx950.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import GpuSpec
from anatune.errors import SpecError
from anatune.templates.base.model import Rule
from anatune.templates.base.rules import Limit, find_first_broken
from anatune.templates.gpu.pack import pack_gpu
from anatune.templates.gpu.rules import GRID_RULE, block_rules
from anatune.templates.gpu.times.columns import Gpu
from anatune.templates.gpu.times.occupancy import register_limit, resident_blocks
from anatune.templates.triton import cdna
from anatune.templates.triton.instructions import (
    TENSOR_COLUMNS,
    DotUnit,
    Instruction,
    instruction_of,
    instructions_of,
    known_operands,
)
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.shared import shared_bytes
from anatune.templates.triton.tiles import OPTION_FIELDS, TILE_FIELDS, Tiles

__all__ = [
    "GRID",
    "OPTION_FIELDS",
    "TILE_FIELDS",
    "DotUnit",
    "ExtraNeeds",
    "Resources",
    "Tiles",
    "depth_rule",
    "is_wide",
    "least_depth",
    "most_registers",
    "multiply_adds_per_cycle",
    "register_cap",
    "registers_rule",
    "residency",
    "resources",
    "wide_units",
]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

WARP = 32
LEAST_CAPABILITY = 8.0
"""Least compute capability for which Triton 3 uses tensor cores and asynchronous copies."""
LEAST_REGISTERS = 24
"""Registers for addresses and loop counters when registers are scarce."""
GRID = 2**31 - 1
_DESCRIBED_REGISTERS = 26.0
"""Registers of a thread beside its sums for wgmma with tensor descriptors. Read off Triton 3.9 (128 sums: 154)."""
_MOVED_REGISTERS = 118.0
"""The same for tcgen05 with sums that are scaled after each step. Read off kernels of Triton 3.9 (64 sums: 246)."""
_WIDE_ROWS = 64
_WIDE_WARPS = 4
_MOST_TCGEN05_WARPS = 8
SPECIAL_WARPS = 4
"""Warps in addition to num_warps in specialised kernels: one starts products, two copy, one completes the group of four
that gets registers. All share the register file, in multiples of eight. Source: kernels of Triton 3.9, sm_100."""
_MFMA_FLOAT32 = 128.0
"""Multiply-adds of unrounded float32 per cycle and CU. Source: AMD data sheets of MI210, MI300X and MI355X."""


_SIZES_RULE = Rule("power_of_two", "a block size that is not a power of two", 0.0)
_COLUMNS_RULE = Rule("tensor_memory", "columns of tensor memory for the sums of a block", float(TENSOR_COLUMNS))
_SPECIAL_RULE = Rule(
    "warp_specialize", "specialised warps, except in persistent kernels that run several tcgen05 tiles per block", 0.0
)


@dataclass(frozen=True)
class Resources:
    """The resources of a block, and the blocks that an SM holds, (num_tiles,) each."""

    unit: Ints
    """Codes of `DotUnit`."""
    threads: Ints
    accumulators: Ints | Floats
    """Results of a thread, at least 1."""
    registers: Ints
    """Registers of a thread, at most those that the hardware allows."""
    spilled: Floats
    """Registers that a thread needs beyond these."""
    shared_bytes: Ints
    blocks: Ints | Floats
    resident: Ints
    """Blocks that an SM holds at once, at least 1."""
    limiter: Ints
    """Codes of `Limiter`: the resource that keeps an SM from holding more blocks."""
    rules: tuple[Rule, ...]
    """The rules for tiles on the device, in the order in which they are tested."""
    rule: Ints
    """0 for legal tiles, else 1 + index of the first broken rule."""
    needed: Floats
    """Value that breaks the first broken rule, 0 for legal tiles."""


@dataclass(frozen=True)
class ExtraNeeds:
    """Resources in addition to those of a product's operands and sums, (num_tiles,) each."""

    registers: Floats
    """Registers of a thread."""
    shared_bytes: Ints
    columns: Ints
    """Columns of tensor memory."""


def multiply_adds_per_cycle(spec: GpuSpec, dtype: str, unit: DotUnit) -> float:
    """Return the multiply-adds per cycle and SM of a unit for operands of a type.

    Raises
    ------
    SpaceError
        The device has no instruction for them (`instructions.instruction_of`).
    SpecError
        The spec does not have the rates of the device's matrix units.
    """
    compute = spec.compute
    if unit == DotUnit.FMA:
        return compute.fp32_lanes_per_sm * compute.reachable_fraction
    as_dtype = instruction_of(spec, dtype, unit).as_dtype
    if as_dtype == "float32":
        return _MFMA_FLOAT32
    peak = spec.tensor_flop_per_s("float32" if as_dtype == "tf32" else as_dtype)
    if peak is None or spec.tensor_cores is None:
        raise SpecError(
            f"{spec.name}: the spec has no rate of its matrix units for {as_dtype} operands; add a [tensor_cores] "
            "group, as `anatune hw show a100` has one, or choose dtype float32"
        )
    rate = peak / 2.0 / compute.num_sms / compute.clock_hz
    return rate * (spec.tensor_cores.mma_sync_fraction if unit == DotUnit.MMA else 1.0)


def resources(
    problem: MatmulProblem, tiles: Tiles, spec: GpuSpec, compiled: Floats | None = None, extra: ExtraNeeds | None = None
) -> Resources:
    """Return the resources of the blocks of `tiles` on a device, and the first rule that each tile breaks.

    Parameters
    ----------
    compiled : (3, num_tiles), optional
        A compiler's numbers: registers of a thread, shared bytes, spilled registers of a thread.
    extra : ExtraNeeds, optional
        Resources beyond those of a plain product.

    Raises
    ------
    SpaceError
        The device has matrix units, but no instruction for such operands.
    """
    instructions = _instructions(problem, spec)
    unit = _units(tiles, spec, *instructions)
    exact = tiles.block_m * tiles.block_n / (spec.compute.warp_size * tiles.num_warps)
    threads = spec.compute.warp_size * (tiles.num_warps + SPECIAL_WARPS * tiles.warp_specialize)
    accumulators = np.maximum(1, np.ceil(exact)).astype(np.int64)
    cap = register_cap(tiles.num_warps, spec)
    needed = _count_registers(problem, tiles, unit, exact)
    if instructions[0].unit == DotUnit.MFMA:
        needed = np.where(unit == DotUnit.MFMA, cdna.registers(problem, tiles, instructions[0], spec), needed)
    needed = needed if extra is None else needed + np.ceil(extra.registers)
    registers = np.minimum(needed, cap).astype(np.int64)
    shares = np.minimum(spec.registers.per_block // threads // 8 * 8, most_registers(spec))
    registers = np.where(tiles.warp_specialize == 1, shares, registers)
    by_unit = {int(instruction.unit): instruction for instruction in (*instructions, _LANES)}
    shared = shared_bytes(problem, tiles, unit, by_unit, spec) + (0 if extra is None else extra.shared_bytes)
    if compiled is not None:
        registers, shared = compiled[:2].astype(np.int64)
    blocks = -(-problem.m // tiles.block_m) * -(-problem.n // tiles.block_n) * tiles.split_k * problem.batch
    # results of tcgen05 pass through registers before they are stored, packed to half their size
    least = exact * np.where(unit == DotUnit.TCGEN05, 0.5, np.where(_two_sums(tiles, unit), 2.0, 1.0)) + LEAST_REGISTERS
    columns = np.where(unit == DotUnit.TCGEN05, tiles.block_n * -(-tiles.block_m // 128) * (1 + tiles.persistent), 0)
    columns = columns if extra is None else columns + extra.columns
    sizes = np.stack([tiles.block_m, tiles.block_n, tiles.block_k])
    odd, shallowest = sizes & (sizes - 1) != 0, instructions[0].least_depth
    threads_rule, shared_rule = block_rules(spec, "bytes of the stages")
    table = (
        Limit(_SIZES_RULE, np.where(odd, sizes, GRID).min(axis=0), odd.any(axis=0)),
        Limit(depth_rule("block_k", shallowest), tiles.block_k, tiles.block_k < shallowest),
        Limit(threads_rule, threads),
        Limit(shared_rule, shared),
        Limit(registers_rule("accumulators and addresses of a thread", spec), least, least > cap),
        Limit(GRID_RULE, blocks),
        Limit(_COLUMNS_RULE, columns),
        Limit(_SPECIAL_RULE, tiles.warp_specialize, _wastes_specialised_warps(tiles, unit, blocks, spec)),
    )
    resident, limiter = residency(spec, threads, registers, shared)
    if extra is not None:  # tensor memory is allocated in powers of two
        resident = np.minimum(
            resident, TENSOR_COLUMNS // 2 ** np.ceil(np.log2(np.maximum(columns, 1))).astype(np.int64)
        )
        resident = np.maximum(1, resident)
    spilled = np.maximum(0.0, np.where((unit == DotUnit.TCGEN05) & (tiles.promote == 0), 0.0, needed - cap))
    spilled = spilled if compiled is None else compiled[2]
    return Resources(
        unit, threads, accumulators, registers, spilled, shared, blocks, resident, limiter, *find_first_broken(table)
    )


def depth_rule(block: str, least: int) -> Rule:
    """Return the rule that a step of a product is at least as deep as its instructions."""
    return Rule("dot_depth", f"{block} of a product on matrix units, at least", float(least))


def registers_rule(held: str, spec: GpuSpec) -> Rule:
    """Return the rule that values of a thread fit in its registers. `held` names the values."""
    return Rule("registers_per_thread", held, float(most_registers(spec)))


def _wastes_specialised_warps(tiles: Tiles, unit: Ints, blocks: Ints, spec: GpuSpec) -> NDArray[np.bool_]:
    """Return which tiles ask for specialised warps that the compiler does not use or that do not help, (num_tiles,)."""
    walks = (tiles.persistent == 1) & (tiles.descriptors == 1) & (tiles.split_k == 1)
    is_useless = (unit != DotUnit.TCGEN05) | ~walks | (blocks <= spec.compute.num_sms)
    wastes: NDArray[np.bool_] = is_useless & (tiles.warp_specialize == 1)
    return wastes


def least_depth(spec: GpuSpec, dtype: str) -> int:
    """Return the smallest block_k of a product on a device's matrix units, 1 if it has none for such operands."""
    instructions = instructions_of(spec.arch, dtype)
    return 1 if instructions is None else instructions[0].least_depth


@lru_cache(maxsize=64)
def _sm(spec: GpuSpec, most: int) -> Gpu:
    """Return the numbers of a device whose threads have at most `most` registers, for `gpu.times.occupancy`."""
    return pack_gpu(spec, "float32")._replace(registers_thread=most)


def residency(spec: GpuSpec, threads: Ints, registers: Ints, shared_bytes: Ints) -> tuple[Ints, Ints]:
    """Return (blocks that an SM holds, at least 1; codes of `Limiter`)."""
    resident, limiter = resident_blocks(threads, registers, shared_bytes, _sm(spec, most_registers(spec)))
    return np.maximum(1, resident), limiter


_LANES = Instruction(DotUnit.FMA, "float32", 1, 1, emulated=False)


def _instructions(problem: MatmulProblem, spec: GpuSpec) -> tuple[Instruction, Instruction]:
    """Return the instructions of wide and of small tiles. They are FMA if Triton does not use the matrix units."""
    if not known_operands(spec.arch):
        return _LANES, _LANES
    instruction_of(spec, problem.dtype)
    instructions = instructions_of(spec.arch, problem.dtype)
    assert instructions is not None
    return instructions


def _units(tiles: Tiles, spec: GpuSpec, wide: Instruction, small: Instruction) -> Ints:
    if wide.unit == DotUnit.MFMA:
        square = np.minimum(tiles.block_m, tiles.block_n)
        fits = (square >= 16) & (tiles.block_k >= wide.least_depth * np.where(square < 32, 2, 1))
        return np.where(fits, DotUnit.MFMA, DotUnit.FMA).astype(np.int64)
    return wide_units(tiles.block_m, tiles.num_warps, wide, small)


def wide_units(block_m: Ints, num_warps: Ints, wide: Instruction, small: Instruction) -> Ints:
    """Return the codes of `DotUnit` that multiply tiles: wide units if the tiles are large enough for them."""
    if wide.unit not in (DotUnit.WGMMA, DotUnit.TCGEN05):
        return np.full(len(block_m), wide.unit, dtype=np.int64)
    fits = (block_m >= _WIDE_ROWS) & (num_warps % _WIDE_WARPS == 0)
    if wide.unit == DotUnit.TCGEN05:
        fits &= num_warps <= _MOST_TCGEN05_WARPS
    return np.where(fits, wide.unit, small.unit).astype(np.int64)


def is_wide(unit: Ints) -> NDArray[np.bool_]:
    """Return which units take operands from shared memory, so that a warp only starts them, (num_tiles,)."""
    wide: NDArray[np.bool_] = (unit == DotUnit.WGMMA) | (unit == DotUnit.TCGEN05)
    return wide


def most_registers(spec: GpuSpec) -> int:
    """Return the most registers of a thread. On AMD's matrix devices these include accumulation registers.

    Source: AMD CDNA 3 ISA (512 registers per lane; instructions name 256 of each kind).
    """
    file = spec.registers
    if spec.arch in cdna.ARCHS:
        return file.per_sm // file.num_sub_partitions // spec.compute.warp_size
    return file.per_thread


def register_cap(num_warps: Ints, spec: GpuSpec) -> Ints:
    """Return the most registers of a thread in a block of `num_warps` warps."""
    most = most_registers(spec)
    # Triton tells AMD's compiler the size of the groups, and it then uses all registers that they can have
    most = most if most > spec.registers.per_thread else min(most, spec.compiler.registers_per_thread)
    return register_limit(num_warps, _sm(spec, most))


def _count_registers(problem: MatmulProblem, tiles: Tiles, unit: Ints, exact: Floats) -> Floats:
    """Return the registers that the compiler would use. Fitted to 82 kernels of Triton 3.9; mean error 12.

    They hold the accumulators and operands of the next steps. Operands that are transposed or converted in registers
    (fp8 for mma.sync, tf32) need more.
    """
    tf32, fp8 = problem.dtype == "tf32", problem.element_bytes == 1
    mma = (90.0, 1.35) if tf32 else (70.0, 2.75) if fp8 else (60.0, 1.5)
    wgmma = (84.0, 1.25) if tf32 else (44.0, 1.25)
    table = np.array([(60.0, 1.5), mma, wgmma, (20.0, 1.0), (0.0, 0.0)])
    needed = table[unit, 0] + table[unit, 1] * exact
    # tensor descriptors need no addresses in registers
    needed = np.where((unit == DotUnit.WGMMA) & (tiles.descriptors == 1), _DESCRIBED_REGISTERS + exact, needed)
    # tcgen05 keeps its sums in tensor memory; promoted sums are added up in registers, beside those of a step
    needed = np.where((unit == DotUnit.TCGEN05) & (tiles.promote > 0), _MOVED_REGISTERS + 2.0 * exact, needed)
    total: Floats = np.ceil(needed + np.where(_two_sums(tiles, unit), exact, 0.0))
    return total


def _two_sums(tiles: Tiles, unit: Ints) -> NDArray[np.bool_]:
    """Return which tiles hold their sums twice: in the matrix units' accumulators and in those they are promoted to."""
    twice: NDArray[np.bool_] = (unit == DotUnit.WGMMA) & (tiles.promote > 0)
    return twice
