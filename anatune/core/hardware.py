"""Hardware spec files: what a device is, in SI units, with a source for each group of numbers.

A spec is a TOML file of ``hwspecs/`` (or any path). Unknown keys are refused, units are in the keys, each group
says where its numbers come from and lists the keys nobody has verified. An unknown device is an error, never a guess.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from anatune.errors import SpecError

__all__ = [
    "CacheLevel",
    "CpuCompute",
    "CpuDram",
    "CpuSpec",
    "Dram",
    "GpuCompute",
    "GpuSpec",
    "HardwareSpec",
    "L1Cache",
    "L2Cache",
    "Launch",
    "Registers",
    "SharedMemory",
]


class _Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of a spec file: its numbers, where they come from, and which of them are unverified."""

    source: str
    unverified: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        wrong = [key for key in self.unverified if key not in self.__struct_fields__]
        if wrong:
            raise SpecError(f"unverified names {wrong}, which are no keys of this group")
        for key in self.__struct_fields__:
            value = getattr(self, key)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if number and value <= 0 and key not in self._may_be_zero():
                raise SpecError(f"{key} is {value!r}, expected a number > 0")

    def _may_be_zero(self) -> tuple[str, ...]:
        return ()


class GpuCompute(_Group, kw_only=True):
    """Streaming multiprocessors (NVIDIA: SM, AMD: CU), their arithmetic and their thread limits."""

    num_sms: int
    fp32_lanes_per_sm: int
    """FP32 fused multiply-adds per cycle and SM."""
    clock_hz: float
    """Boost clock."""
    fp32_peak_flop_per_s: float
    """2 x SMs x lanes x clock, as published; checked against the product."""
    warp_size: int = 32
    num_schedulers_per_sm: int = 4
    issue_per_cycle_per_sm: float = 4.0
    """Warp instructions all schedulers of an SM can issue per cycle."""
    max_threads_per_block: int = 1024
    max_warps_per_sm: int
    max_blocks_per_sm: int
    fma_latency_cycles: float = 4.0
    fp16_rate: float = 1.0
    """Non-tensor-core float16 operations relative to float32."""
    int8_rate: float = 4.0
    """int8 multiply-adds (dp4a where the device has it, else 1) relative to float32."""
    reachable_fraction: float
    """Share of the paper peak that compiled FMA code reaches (calibrated per architecture)."""


class Registers(_Group, kw_only=True):
    """The register file (32-bit registers)."""

    per_sm: int
    per_block: int
    per_thread: int = 255
    allocation_unit: int = 256
    """Registers are allocated to a warp in multiples of this."""
    num_sub_partitions: int = 4


class SharedMemory(_Group, kw_only=True):
    """Software-managed memory of an SM (NVIDIA: shared memory, AMD: LDS)."""

    per_sm_bytes: int
    per_block_bytes: int
    """Opt-in maximum of a block."""
    reserved_per_block_bytes: int = 0
    granularity_bytes: int = 256
    num_banks: int = 32
    bank_bytes: int = 4
    bytes_per_cycle_per_sm: float = 128.0
    latency_cycles: float = 29.0

    def _may_be_zero(self) -> tuple[str, ...]:
        return ("reserved_per_block_bytes",)


class L1Cache(_Group, kw_only=True):
    """First-level data cache of an SM (its whole array where it is unified with shared memory)."""

    size_bytes: int
    latency_cycles: float


class L2Cache(_Group, kw_only=True):
    """The cache all SMs share."""

    size_bytes: int
    bandwidth_bytes_per_s: float
    latency_cycles: float


class Dram(_Group, kw_only=True):
    """Device memory of a GPU."""

    bandwidth_bytes_per_s: float
    latency_cycles: float
    """Load-to-use latency of a miss in all caches, core cycles."""
    transaction_bytes: int = 32
    reachable_fraction: float = 0.85
    """Share of the paper bandwidth that streaming kernels reach."""


class Launch(_Group, kw_only=True):
    """Cost of starting a kernel."""

    overhead_s: float
    """Time of an empty kernel inside a stream of launches."""


class GpuSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="gpu", tag_field="kind"):
    """A GPU. Immutable and hashable; cross-field rules are checked on construction.

    Raises
    ------
    SpecError
        A number is not positive, or the stated peak differs from SMs x lanes x clock x 2 by more than 2 %.
    """

    schema_version: Literal[1]
    name: str
    vendor: Literal["nvidia", "amd"]
    model: str
    arch: str
    """"sm_86" (NVIDIA compute capability without the dot) or "gfx906" (AMD)."""
    aliases: tuple[str, ...] = ()
    compute: GpuCompute
    registers: Registers
    shared_memory: SharedMemory
    l1: L1Cache
    l2: L2Cache
    dram: Dram
    launch: Launch

    def __post_init__(self) -> None:
        compute = self.compute
        peak = 2.0 * compute.num_sms * compute.fp32_lanes_per_sm * compute.clock_hz
        _check_peak(self.name, compute.fp32_peak_flop_per_s, peak, "2 x num_sms x fp32_lanes_per_sm x clock_hz")
        if self.shared_memory.per_block_bytes > self.shared_memory.per_sm_bytes:
            raise SpecError(
                f"{self.name}: shared_memory.per_block_bytes is {self.shared_memory.per_block_bytes}, "
                f"expected at most per_sm_bytes ({self.shared_memory.per_sm_bytes})"
            )
        if compute.reachable_fraction > 1 or self.dram.reachable_fraction > 1:
            raise SpecError(f"{self.name}: a reachable_fraction is above 1; it is a share of the paper peak")

    @property
    def compute_capability(self) -> float | None:
        """NVIDIA compute capability (8.6), None for other vendors."""
        return int(self.arch[3:]) / 10 if self.arch.startswith("sm_") else None


class CpuCompute(_Group, kw_only=True):
    """Cores, their SIMD units and ports (one thread a core)."""

    num_cores: int
    clock_hz: float
    """Sustained clock of SIMD code."""
    isa: Literal["avx512", "avx2", "avx", "sse", "neon", "sve"]
    simd_bits: int
    fma_per_cycle: float
    """SIMD multiply-adds per cycle and core at `simd_bits` (1 multiply + 1 add pipe counts as 1)."""
    fma_latency_cycles: float
    num_vector_registers: int
    loads_per_cycle: float
    """SIMD loads of `simd_bits` per cycle and core."""
    stores_per_cycle: float
    issue_width: int
    fp32_peak_flop_per_s: float
    """2 x cores x clock x fma_per_cycle x lanes; checked against the product."""
    reachable_fraction: float = 0.95


class CacheLevel(_Group, kw_only=True):
    """One data cache level."""

    size_bytes: int
    ways: int
    line_bytes: int = 64
    shared_by_cores: int = 1
    """Cores that share one such cache."""
    bandwidth_bytes_per_cycle: float
    """Fill bandwidth from this level towards the core, per core."""
    latency_cycles: float


class CpuDram(_Group, kw_only=True):
    """Main memory of a CPU."""

    bandwidth_bytes_per_s: float
    """Of the whole socket."""
    core_bandwidth_bytes_per_s: float
    """What one core alone can reach."""
    latency_s: float


class CpuSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="cpu", tag_field="kind"):
    """A CPU (one socket). Immutable and hashable; cross-field rules are checked on construction.

    Raises
    ------
    SpecError
        A number is not positive, or the stated peak differs from the product of its parts by more than 2 %.
    """

    schema_version: Literal[1]
    name: str
    vendor: str
    model: str
    arch: str
    """LLVM's -mcpu name ("cascadelake", "znver4", "neoverse-v1")."""
    aliases: tuple[str, ...] = ()
    compute: CpuCompute
    l1: CacheLevel
    l2: CacheLevel
    l3: CacheLevel | None = None
    dram: CpuDram

    def __post_init__(self) -> None:
        compute = self.compute
        lanes = compute.simd_bits // 32
        peak = 2.0 * compute.num_cores * compute.clock_hz * compute.fma_per_cycle * lanes
        _check_peak(
            self.name, compute.fp32_peak_flop_per_s, peak, "2 x num_cores x clock_hz x fma_per_cycle x simd_bits / 32"
        )

    @property
    def fp32_lanes(self) -> int:
        """float32 elements of a vector register."""
        return self.compute.simd_bits // 32


HardwareSpec = GpuSpec | CpuSpec


def _check_peak(name: str, stated: float, product: float, formula: str) -> None:
    if abs(stated / product - 1.0) > 0.02:
        raise SpecError(
            f"{name}: compute.fp32_peak_flop_per_s is {stated:.4g}, but {formula} is {product:.4g}; "
            "correct the clock, the unit counts or the peak (they must agree within 2 %)"
        )
