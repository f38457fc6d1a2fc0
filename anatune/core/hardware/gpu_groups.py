"""The groups of numbers in a GPU's spec."""

from __future__ import annotations

from typing import Literal

import msgspec

from anatune.core.hardware.groups import SpecGroup


class GpuCompute(SpecGroup, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Streaming multiprocessors (NVIDIA: SM, AMD: CU), their arithmetic and their thread limits."""

    num_sms: int
    fp32_lanes_per_sm: int
    """FP32 fused multiply-adds per cycle and SM."""
    clock_hz: float
    """Boost clock."""
    fp32_peak_flop_per_s: float
    """Peak of the device as published: 2 x SMs x lanes x clock; checked against this product."""
    warp_size: int = 32
    num_schedulers_per_sm: int = 4
    issue_per_cycle_per_sm: float = 4.0
    """Warp instructions that all schedulers of an SM can issue per cycle."""
    max_threads_per_block: int = 1024
    max_warps_per_sm: int
    max_blocks_per_sm: int
    fma_latency_cycles: float = 4.0
    fp16_rate: float = 1.0
    """Rate of float16 operations relative to float32, without tensor cores."""
    int8_rate: float = 4.0
    """Rate of int8 multiply-adds relative to float32: dp4a if the device has it, otherwise 1."""
    reachable_fraction: float
    """Share of the theoretical peak that compiled FMA code reaches (calibrated per architecture)."""


class Registers(SpecGroup, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The register file (32-bit registers)."""

    per_sm: int
    per_block: int
    per_thread: int = 255
    allocation_unit: int = 256
    """Registers are allocated to a warp in multiples of this number."""
    num_sub_partitions: int = 4


class SharedMemory(SpecGroup, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Software-managed memory of an SM (NVIDIA: shared memory, AMD: LDS)."""

    per_sm_bytes: int
    per_block_bytes: int
    """Most shared memory of a block, with opt-in."""
    reserved_per_block_bytes: int = 0
    granularity_bytes: int = 256
    num_banks: int = 32
    bank_bytes: int = 4
    bytes_per_cycle_per_sm: float = 128.0
    latency_cycles: float = 29.0


class L1Cache(SpecGroup, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """First-level data cache of an SM (its whole array where it is unified with shared memory)."""

    size_bytes: int
    latency_cycles: float


class L2Cache(SpecGroup, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The cache all SMs share."""

    size_bytes: int
    bandwidth_bytes_per_s: float
    latency_cycles: float
    tiles_bytes_per_s: float | None = None
    """Bandwidth of all SMs together while many waves of several blocks an SM read tiles; None: as above."""


class Dram(SpecGroup, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Device memory of a GPU."""

    bandwidth_bytes_per_s: float
    latency_cycles: float
    """Load-to-use latency of a miss in all caches, core cycles."""
    transaction_bytes: int = 32
    reachable_fraction: float = 0.85
    """Share of the nominal bandwidth that streaming kernels reach."""
    capacity_bytes: int | msgspec.UnsetType = msgspec.UNSET
    """Size of the device's memory; left out: unknown."""


class GpuLaunch(SpecGroup, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Cost of starting a kernel."""

    overhead_s: float
    """Time of an empty kernel inside a stream of launches."""


class Compiler(SpecGroup, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits of the device's compiler, which restrict schedules as much as the hardware does."""

    registers_per_thread: int
    """Most registers that the compiler gives a thread of generated code (255 on NVIDIA)."""
    unroll_statements: int
    """Largest loop body, in statements, that the compiler unrolls completely on its own."""


class TensorCores(SpecGroup, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Matrix units (NVIDIA: tensor cores, AMD: matrix cores): rates of the whole device for dense operands.

    Sums are kept in float32 or int32. If a rate is left out, here and in JSON, the device has no instruction for it.
    """

    float16_flop_per_s: float
    bfloat16_flop_per_s: float
    tf32_flop_per_s: float | msgspec.UnsetType = msgspec.UNSET
    fp8_flop_per_s: float | msgspec.UnsetType = msgspec.UNSET
    """Rate of the 8-bit float types that the device has instructions for."""
    int8_flop_per_s: float | msgspec.UnsetType = msgspec.UNSET
    """Rate of multiplications and additions of 8-bit integers."""
    mma_sync_fraction: float = 1.0
    """Share of these rates that ``mma.sync`` reaches: below 1 where full rates need newer instructions. AMD's matrix
    units have one kind of instruction."""
    sustained_fraction: float = 1.0
    """Share of these rates that the device sustains within its power limit in long runs of good kernels."""
    fp8_sustained_fraction: float = 1.0
    """The same share for 8-bit products, relative to twice the 16-bit rate."""
    latency_cycles: float
    """Cycles until another instruction (mma.sync, mfma) can add to the result."""

    def flop_per_s(self, dtype: str) -> float | None:
        """Return the rate for operands of `dtype` (float32: as tf32); None if there is no instruction for it."""
        rates = {
            "float16": self.float16_flop_per_s,
            "bfloat16": self.bfloat16_flop_per_s,
            "float32": self.tf32_flop_per_s,
            "int8": self.int8_flop_per_s,
            "uint8": self.int8_flop_per_s,
        }
        rate = self.fp8_flop_per_s if dtype.startswith("float8_") else rates.get(dtype)
        return None if rate is msgspec.UNSET else rate


class Link(SpecGroup, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The link between the GPUs of a node."""

    kind: Literal["nvlink", "pcie", "xgmi"]
    bandwidth_bytes_per_s: float
    """All links of a GPU together, in one direction."""
    latency_s: float
    """Time of a step: a GPU sends a few bytes, and the next one sees them."""
    gpus: int
    """Number of GPUs that the link connects; one more needs a network."""
    switched: bool
    """Any number of these GPUs exchange data at the full rate (NVSwitch)."""
    reduces: bool = False
    """The switch adds what it transports (NVLink SHARP)."""
