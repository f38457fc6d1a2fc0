"""Block tiles of a matrix product as a tile compiler (Triton) makes kernels of them: resources and legality rules.

Notation
--------
tile : block_m x block_n results of a block, block_k steps of the reduction a stage, warps, stages, split_k blocks that
    share one tile of the result, group_m rows of blocks that are walked together.
unit : what multiplies. FMA (CUDA cores), MMA (``mma.sync``), WGMMA (``wgmma``, sm_90), TCGEN05 (``tcgen05``, sm_100).

Everything is NumPy on whole batches: a few hundred tiles are scored inside another program, where compiling the models
of `numerics` would be felt. Constants that both need are those of `numerics`.

Which unit a tile gets and what it needs were read off kernels that Triton 3.9 compiled for sm_80 to sm_120.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.arguments import shown
from anatune.core.hardware.spec import GpuSpec
from anatune.errors import SpaceError, SpecError
from anatune.templates.base.model import Rule

__all__ = [
    "DTYPES",
    "GRID",
    "TILE_FIELDS",
    "MatmulProblem",
    "Resources",
    "Tiles",
    "Unit",
    "least_depth",
    "multiply_adds_per_cycle",
    "resident_blocks",
    "resources",
    "rules",
]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

DTYPES: dict[str, int] = {"float32": 4, "tf32": 4, "float16": 2, "bfloat16": 2, "fp8": 1}
"""Operand type -> bytes. "tf32": float32 operands, rounded for tensor cores; "float32": not rounded, CUDA cores."""
TILE_FIELDS = ("block_m", "block_n", "block_k", "num_warps", "num_stages", "split_k", "group_m")
WARP = 32
LEAST_CAPABILITY = 8.0
"""Triton 3 makes tensor-core code and asynchronous copies from sm_80 on."""
LEAST_REGISTERS = 24
"""Addresses and loop counters when registers are short, as in `tensorcore.times.block`."""
GRID = 2**31 - 1
_FP8_CAPABILITY = 8.9
_TCGEN05_RATE = 4096.0
"""16-bit multiply-adds a cycle and SM of sm_100, where a spec says nothing. Source: NVIDIA B200 data sheet."""


class Unit(IntEnum):
    """What multiplies."""

    FMA = 0
    MMA = 1
    WGMMA = 2
    TCGEN05 = 3


class MatmulProblem(msgspec.Struct, frozen=True):
    """One matrix product: m x k times k x n.

    Attributes
    ----------
    dtype : str
        Of `DTYPES`.
    out_bytes : int
        Of one result; 0: 4 for 32-bit operands, else 2.
    a_along_k, b_along_n : bool
        Whether rows of the operand in memory run along that index (both: row-major, not transposed).

    Raises
    ------
    SpaceError
        An extent is below 1, or the dtype is unknown.
    """

    m: int
    n: int
    k: int
    dtype: str = "float16"
    out_bytes: int = 0
    a_along_k: bool = True
    b_along_n: bool = True

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            extent = getattr(self, name)
            if isinstance(extent, bool) or not isinstance(extent, int | np.integer) or extent < 1:
                raise SpaceError(f"matrix product: {name} is {shown(extent)}, expected an integer >= 1")
        if self.dtype not in DTYPES:
            raise SpaceError(f"matrix product: dtype is {shown(self.dtype)}, expected one of {', '.join(DTYPES)}")

    @property
    def element_bytes(self) -> int:
        """Bytes of an operand's element."""
        return DTYPES[self.dtype]

    @property
    def result_bytes(self) -> int:
        """Bytes of a result."""
        return self.out_bytes or (4 if self.element_bytes == 4 else 2)

    def describe(self) -> str:
        """Return the sizes and the operand type in words."""
        return f"{self.m} x {self.n} x {self.k} {self.dtype}"


@dataclass(frozen=True)
class Tiles:
    """A batch of tiles: (num_tiles,) int64 each, >= 1."""

    block_m: Ints
    block_n: Ints
    block_k: Ints
    num_warps: Ints
    num_stages: Ints
    split_k: Ints
    group_m: Ints

    @classmethod
    def of(cls, rows: object) -> Tiles:
        """Return the tiles of rows (num_tiles, 7) in the order of `TILE_FIELDS`."""
        table = np.asarray(rows, dtype=np.int64).reshape(-1, len(TILE_FIELDS))
        return cls(*np.ascontiguousarray(table.T))

    def __len__(self) -> int:
        return len(self.block_m)


@dataclass(frozen=True)
class Resources:
    """What blocks need and what an SM holds, (num_tiles,) each."""

    unit: Ints
    """Of `Unit`."""
    threads: Ints
    accumulators: Ints
    """Results of a thread, at least 1."""
    registers: Ints
    """Of a thread, as far as the hardware allows."""
    spilled: Floats
    """Registers that a thread would like beyond that."""
    shared_bytes: Ints
    blocks: Ints
    resident: Ints
    """Blocks that an SM holds at once, at least 1."""
    rule: Ints
    """0 where legal, else 1 + index of the first broken rule of `rules`."""
    needed: Floats
    """What the first broken rule asks for, 0 where legal."""


def multiply_adds_per_cycle(spec: GpuSpec, dtype: str, unit: Unit) -> float:
    """Return multiply-adds a cycle and SM.

    Raises
    ------
    SpecError
        The spec does not say what the device's tensor cores do.
    """
    compute = spec.compute
    if unit == Unit.FMA:
        return compute.fp32_lanes_per_sm * compute.reachable_fraction
    known = "float32" if dtype == "tf32" else "float16" if dtype == "fp8" else dtype
    peak = spec.tensor_flop_per_s(known)
    if peak is not None and spec.tensor_cores is not None:
        rate = peak / 2.0 / compute.num_sms / compute.clock_hz
        rate *= spec.tensor_cores.mma_sync_fraction if unit == Unit.MMA else 1.0
    elif spec.arch.startswith("sm_10"):
        rate = _TCGEN05_RATE * (0.5 if dtype == "tf32" else 1.0) * (0.6 if unit == Unit.MMA else 1.0)
    else:
        raise SpecError(
            f"{spec.name}: the spec does not say what its tensor cores do; add a [tensor_cores] group, as "
            "`anatune hw show a100` has one, or say dtype='float32'"
        )
    return rate * (2.0 if dtype == "fp8" and (spec.compute_capability or 0.0) >= _FP8_CAPABILITY else 1.0)


def rules(spec: GpuSpec, dtype: str) -> tuple[Rule, ...]:
    """Return what limits tiles on a device, in the order in which they are tested."""
    return (
        Rule("power_of_two", "a block size, which has to be a power of two", 0.0),
        Rule("dot_depth", "block_k of a tensor-core product, at least", float(least_depth(dtype))),
        Rule("threads_per_block", "threads of a block", float(spec.compute.max_threads_per_block)),
        Rule("shared_bytes_per_block", "bytes of the stages", float(spec.shared_memory.per_block_bytes)),
        Rule("registers_per_thread", "accumulators and addresses of a thread", float(spec.registers.per_thread)),
        Rule("grid_blocks", "blocks of the grid", float(GRID)),
    )


def resources(problem: MatmulProblem, tiles: Tiles, spec: GpuSpec) -> Resources:
    """Return what the blocks of `tiles` need on a device, and which rule they break first."""
    unit = _units(problem, tiles, spec)
    threads = spec.compute.warp_size * tiles.num_warps
    exact = tiles.block_m * tiles.block_n / threads
    accumulators = np.maximum(1, np.ceil(exact)).astype(np.int64)
    cap = _register_cap(tiles.num_warps, spec)
    wanted = _wanted_registers(problem, unit, exact)
    registers = np.minimum(wanted, cap).astype(np.int64)
    shared = _shared_bytes(problem, tiles, unit, spec)
    blocks = -(-problem.m // tiles.block_m) * -(-problem.n // tiles.block_n) * tiles.split_k
    least = np.where(unit == Unit.TCGEN05, LEAST_REGISTERS, exact + LEAST_REGISTERS)
    sizes = np.stack([tiles.block_m, tiles.block_n, tiles.block_k])
    depth = np.where(unit == Unit.FMA, 1, least_depth(problem.dtype))
    limits = [
        ((sizes & (sizes - 1) != 0).any(axis=0), np.where(sizes & (sizes - 1) != 0, sizes, GRID).min(axis=0)),
        (tiles.block_k < depth, tiles.block_k),
        (threads > spec.compute.max_threads_per_block, threads),
        (shared > spec.shared_memory.per_block_bytes, shared),
        (least > cap, least),
        (blocks > GRID, blocks),
    ]
    rule, needed = np.zeros(len(tiles), dtype=np.int64), np.zeros(len(tiles))
    for code, (broken, need) in reversed(list(enumerate(limits, 1))):
        rule[broken] = code
        needed[broken] = need[broken]
    resident = np.maximum(1, resident_blocks(spec, threads, registers, shared))
    spilled = np.maximum(0.0, np.where(unit == Unit.TCGEN05, 0.0, wanted - cap))
    return Resources(unit, threads, accumulators, registers, spilled, shared, blocks, resident, rule, needed)


def least_depth(dtype: str) -> int:
    """Return the smallest block_k of a product on tensor cores."""
    return 32 if dtype == "fp8" else 16


def resident_blocks(spec: GpuSpec, threads: Ints, registers: Ints, shared_bytes: Ints) -> Ints:
    """Return the blocks that an SM holds at once, 0 where a block cannot run: `gpu.times.occupancy` on arrays."""
    compute, file, shared = spec.compute, spec.registers, spec.shared_memory
    warps = -(-threads // compute.warp_size)
    of_warp = -(-registers * compute.warp_size // file.allocation_unit) * file.allocation_unit
    partitions = max(file.num_sub_partitions, 4)
    rounded = -(-warps // partitions) * partitions
    by_registers = file.per_sm // file.num_sub_partitions // np.maximum(of_warp, 1) * file.num_sub_partitions // warps
    need = -(-(shared_bytes + shared.reserved_per_block_bytes) // shared.granularity_bytes) * shared.granularity_bytes
    by_shared = shared.per_sm_bytes // np.maximum(need, 1)
    resident = np.minimum(np.minimum(compute.max_warps_per_sm // warps, by_registers), by_shared)
    runs = (
        (threads <= compute.max_threads_per_block)
        & (registers <= file.per_thread)
        & (of_warp * rounded <= file.per_block)
        & (shared_bytes <= shared.per_block_bytes)
    )
    return np.where(runs, np.minimum(resident, compute.max_blocks_per_sm), 0).astype(np.int64)


def _units(problem: MatmulProblem, tiles: Tiles, spec: GpuSpec) -> Ints:
    capability = spec.compute_capability or 0.0
    if problem.dtype == "float32" or capability < LEAST_CAPABILITY:
        return np.full(len(tiles), Unit.FMA, dtype=np.int64)
    whole = (tiles.block_m >= 64) & (tiles.num_warps % 4 == 0)
    if 9.0 <= capability < 10.0:
        return np.where(whole, Unit.WGMMA, Unit.MMA).astype(np.int64)
    if 10.0 <= capability < 12.0:
        return np.where(whole & (tiles.num_warps <= 8), Unit.TCGEN05, Unit.MMA).astype(np.int64)
    return np.full(len(tiles), Unit.MMA, dtype=np.int64)


def _register_cap(num_warps: Ints, spec: GpuSpec) -> Floats:
    """Return the most registers that a thread can have in a block of so many warps."""
    partitions = max(spec.registers.num_sub_partitions, 4)
    rounded = -(-num_warps // partitions) * partitions
    unit, warp = spec.registers.allocation_unit, spec.compute.warp_size
    by_file = spec.registers.per_block // rounded // unit * unit / warp
    return np.minimum(by_file, float(min(spec.registers.per_thread, spec.compiler.registers_per_thread)))


def _wanted_registers(problem: MatmulProblem, unit: Ints, exact: Floats) -> Floats:
    """Return the registers that the compiler would take: fitted to 82 kernels of Triton 3.9, 12 off on average.

    Beside accumulators there are operands of the next steps; operands that have to be transposed or converted in
    registers (fp8 of mma.sync, tf32) need more.
    """
    tf32, fp8 = problem.dtype == "tf32", problem.dtype == "fp8"
    mma = (90.0, 1.35) if tf32 else (70.0, 2.75) if fp8 else (60.0, 1.5)
    wgmma = (84.0, 1.25) if tf32 else (44.0, 1.25)
    table = np.array([(60.0, 1.5), mma, wgmma, (20.0, 1.0)])
    found: Floats = np.ceil(table[unit, 0] + table[unit, 1] * exact)
    return found


def _shared_bytes(problem: MatmulProblem, tiles: Tiles, unit: Ints, spec: GpuSpec) -> Ints:
    """Return the bytes of the ring of stages, as Triton 3.9 allocates them.

    ``mma.sync`` and FMA read operands into registers before the next copy is issued: one buffer fewer than stages.
    Before sm_80 there is one buffer. ``wgmma`` takes fp8 operands along k only: another one is transposed on the way,
    in one buffer.
    """
    element = problem.element_bytes
    left = tiles.block_m * tiles.block_k * element
    right = tiles.block_n * tiles.block_k * element
    if (spec.compute_capability or 0.0) < LEAST_CAPABILITY:
        return left + right
    asynchronous = unit >= Unit.WGMMA
    buffers = np.maximum(1, np.where(asynchronous, tiles.num_stages, tiles.num_stages - 1))
    total = buffers * (left + right) + np.where(unit == Unit.TCGEN05, 16, 0)
    if problem.dtype == "fp8":
        turned = (unit == Unit.WGMMA) & problem.b_along_n
        total = np.where(turned, buffers * left + right, total)
    found: Ints = total.astype(np.int64)
    return found
