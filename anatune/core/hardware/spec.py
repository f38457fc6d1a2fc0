"""Hardware spec files: what a device is, in SI units, with a source for each group of numbers.

A spec is a TOML file of ``hwspecs/`` (or any path). Unknown keys are refused, units are in the keys, each
group says where its numbers come from and lists the keys nobody has verified. An unknown device is an error,
never a guess. Every number has a plausible range, so that a wrong unit is noticed and explained.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import ClassVar, Literal, NamedTuple

import msgspec

from anatune.core.workload.access import ACCUMULATOR_DTYPE, DTYPE_BYTES
from anatune.errors import SpecError

__all__ = [
    "DOT_INSTRUCTIONS",
    "CacheLevel",
    "Compiler",
    "CpuCompute",
    "CpuDram",
    "CpuLaunch",
    "CpuSpec",
    "DotInstruction",
    "Dram",
    "GpuCompute",
    "GpuSpec",
    "HardwareSpec",
    "L1Cache",
    "L2Cache",
    "Launch",
    "MicrokernelTable",
    "Registers",
    "SharedMemory",
    "TensorCores",
    "value_problem",
]


class _Range(NamedTuple):
    """Plausible values of a key; `scales` are the wrong units people write, as (factor, name)."""

    low: float
    high: float
    unit: str
    scales: tuple[tuple[float, str], ...] = ()


DOT_INSTRUCTIONS = {"bfloat16": ("vdpbf16ps",), "int8": ("vpdpbusd", "vpdpbssd"), "uint8": ("vpdpbusd",)}
"""Dtype of operands -> instructions that sum products of neighbours, by their keys in a spec (see `CpuSpec`)."""

_LEAST_CAPABILITY = {"bfloat16": 8.0}
"""Dtype -> first compute capability that has instructions for it. Source: [PTX-ISA] cvt, fma.bf16."""

_BANDWIDTH = _Range(1e9, 1e14, "bytes/s", ((1e9, "GB/s"), (1e12, "TB/s"), (1e6, "MB/s")))
_KIB = ((1024.0, "KiB"), (1024.0**2, "MiB"))
_CYCLES = _Range(0.5, 5e3, "cycles")
_FRACTION = _Range(0.01, 1.0, "as a share of the paper value", ((0.01, "per cent"),))
_REGISTERS = _Range(4096, 2**24, "registers of 32 bits", ((1024.0, "units of 1024"),))
_TENSOR_PEAK = _Range(1e11, 1e17, "FLOP/s", ((1e12, "TFLOP/s"), (1e15, "PFLOP/s"), (1e9, "GFLOP/s")))
_RATE = _Range(1 / 128, 64.0, "relative to float32")

# Key -> plausible range: wide enough for every device since 2010, narrow enough to catch a wrong unit.
# "Group.key" goes before "key".
_RANGES: dict[str, _Range] = {
    "clock_hz": _Range(1e8, 1e10, "Hz", ((1e6, "MHz"), (1e9, "GHz"), (1e3, "kHz"))),
    "fp32_peak_flop_per_s": _Range(1e9, 1e16, "FLOP/s", ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"))),
    "float16_flop_per_s": _TENSOR_PEAK,
    "bfloat16_flop_per_s": _TENSOR_PEAK,
    "tf32_flop_per_s": _TENSOR_PEAK,
    "bandwidth_bytes_per_s": _BANDWIDTH,
    "core_bandwidth_bytes_per_s": _BANDWIDTH._replace(low=1e8),
    "bandwidth_bytes_per_cycle": _Range(0.25, 4096, "bytes per cycle and core"),
    "bytes_per_cycle_per_sm": _Range(4, 4096, "bytes per cycle"),
    "latency_cycles": _CYCLES,
    "fma_latency_cycles": _CYCLES,
    "latency_s": _Range(1e-9, 1e-5, "s", ((1e-9, "ns"), (1e-6, "us"))),
    "overhead_s": _Range(1e-7, 1e-2, "s", ((1e-6, "us"), (1e-3, "ms"), (1e-9, "ns"))),
    "parallel_start_s": _Range(1e-8, 1e-2, "s", ((1e-6, "us"), (1e-9, "ns"))),
    "function_call_s": _Range(1e-9, 1e-3, "s", ((1e-6, "us"), (1e-9, "ns"))),
    "microkernel_call_cycles": _Range(0, 1e3, "cycles"),
    "depth": _Range(1, 1e6, "steps"),
    "least_share": _Range(0.01, 1.0, "as a share of the peak", ((0.01, "per cent"),)),
    "size_bytes": _Range(1024, 1e11, "bytes", _KIB),
    "L2Cache.size_bytes": _Range(65536, 1e11, "bytes", _KIB),
    "per_sm_bytes": _Range(8192, 2**24, "bytes", _KIB),
    "per_block_bytes": _Range(8192, 2**24, "bytes", _KIB),
    "reserved_per_block_bytes": _Range(0, 16384, "bytes"),
    "granularity_bytes": _Range(1, 8192, "bytes"),
    "per_sm": _REGISTERS,
    "per_block": _REGISTERS,
    "registers_per_thread": _Range(16, 1024, "registers of 32 bits"),
    "unroll_statements": _Range(1, 1e6, "statements"),
    "per_thread": _Range(16, 1024, "registers of 32 bits"),
    "allocation_unit": _Range(1, 8192, "registers of 32 bits"),
    "num_sub_partitions": _Range(1, 16, "parts"),
    "num_sms": _Range(1, 2048, "SMs"),
    "fp32_lanes_per_sm": _Range(8, 2048, "lanes"),
    "warp_size": _Range(4, 128, "threads"),
    "num_schedulers_per_sm": _Range(1, 16, "schedulers"),
    "issue_per_cycle_per_sm": _Range(0.25, 32, "warp instructions per cycle"),
    "max_threads_per_block": _Range(32, 4096, "threads"),
    "max_warps_per_sm": _Range(1, 256, "warps"),
    "max_blocks_per_sm": _Range(1, 256, "blocks"),
    "fp16_rate": _RATE,
    "int8_rate": _RATE,
    "rate": _RATE,
    "reachable_fraction": _FRACTION,
    "mma_sync_fraction": _FRACTION,
    "num_banks": _Range(1, 256, "banks"),
    "bank_bytes": _Range(1, 64, "bytes"),
    "transaction_bytes": _Range(4, 1024, "bytes"),
    "num_cores": _Range(1, 4096, "cores"),
    "parallel_speedup": _Range(0.5, 4096, "cores"),
    "simd_bits": _Range(32, 4096, "bits", ((8.0, "bytes"),)),
    "fma_per_cycle": _Range(0.0625, 32, "multiply-adds of a whole vector per cycle"),
    "num_vector_registers": _Range(4, 512, "registers"),
    "loads_per_cycle": _Range(0.0625, 16, "whole-vector loads per cycle"),
    "stores_per_cycle": _Range(0.0625, 16, "whole-vector stores per cycle"),
    "broadcasts_per_cycle": _Range(0.0625, 16, "elements per cycle"),
    "issue_width": _Range(1, 32, "instructions per cycle"),
    "ways": _Range(1, 4096, "ways"),
    "line_bytes": _Range(8, 1024, "bytes"),
    "shared_by_cores": _Range(1, 4096, "cores"),
}


def value_problem(group: str, key: str, value: object) -> str | None:
    """Say what is implausible about a number of a spec, None if nothing is.

    Parameters
    ----------
    group
        Class name of the group ("Dram").
    key
        Key of the group ("bandwidth_bytes_per_s").
    value
        What the spec says; only int and float are judged.

    Returns
    -------
    str or None
        What was got, what is expected, and the unit it was probably meant in.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    limits = _RANGES.get(f"{group}.{key}") or _RANGES.get(key)
    if limits is None:
        return None if math.isfinite(value) else f"got {value!r}, expected a finite number"
    if limits.low <= value <= limits.high:
        return None
    text = f"got {value!r}, expected {limits.low:g} to {limits.high:g} {limits.unit}"
    hints = [
        f"{name} (then write {value * factor:.10g})"
        for factor, name in limits.scales
        if limits.low <= value * factor <= limits.high
    ]
    return f"{text}; it looks like {' or '.join(hints)}" if hints else text


class _Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of a spec file: its numbers, where they come from, and which of them are unverified."""

    source: str
    unverified: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.source.strip():
            raise SpecError("source is empty; say where the numbers of this group come from")
        wrong = [key for key in self.unverified if key not in self.__struct_fields__]
        if wrong:
            raise SpecError(f"unverified names {wrong}, which are no keys of this group")
        for key in self.__struct_fields__:
            problem = value_problem(type(self).__name__, key, getattr(self, key))
            if problem:
                raise SpecError(f"{key}: {problem}")


class GpuCompute(_Group, frozen=True, forbid_unknown_fields=True, kw_only=True):
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


class Registers(_Group, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The register file (32-bit registers)."""

    per_sm: int
    per_block: int
    per_thread: int = 255
    allocation_unit: int = 256
    """Registers are allocated to a warp in multiples of this."""
    num_sub_partitions: int = 4


class SharedMemory(_Group, frozen=True, forbid_unknown_fields=True, kw_only=True):
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


class L1Cache(_Group, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """First-level data cache of an SM (its whole array where it is unified with shared memory)."""

    size_bytes: int
    latency_cycles: float


class L2Cache(_Group, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The cache all SMs share."""

    size_bytes: int
    bandwidth_bytes_per_s: float
    latency_cycles: float


class Dram(_Group, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Device memory of a GPU."""

    bandwidth_bytes_per_s: float
    latency_cycles: float
    """Load-to-use latency of a miss in all caches, core cycles."""
    transaction_bytes: int = 32
    reachable_fraction: float = 0.85
    """Share of the paper bandwidth that streaming kernels reach."""


class Launch(_Group, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Cost of starting a kernel."""

    overhead_s: float
    """Time of an empty kernel inside a stream of launches."""


class Compiler(_Group, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the device's compiler does to generated code; it limits schedules as much as the hardware does."""

    registers_per_thread: int
    """Most registers the compiler gives a thread of generated code (255 on NVIDIA)."""
    unroll_statements: int
    """Largest loop body, in statements, that the compiler unrolls fully without being told."""


class TensorCores(_Group, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Matrix units: dense products of 16-bit (or tf32) operands, summed in float32, of the whole device."""

    float16_flop_per_s: float
    bfloat16_flop_per_s: float
    tf32_flop_per_s: float
    mma_sync_fraction: float = 1.0
    """Share of these rates that ``mma.sync`` reaches: less than 1 where they need instructions of a newer kind."""
    latency_cycles: float
    """From one mma.sync to another that adds to its result."""


class GpuSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="gpu", tag_field="kind"):
    """A GPU. Immutable and hashable; cross-field rules are checked on construction.

    Raises
    ------
    SpecError
        A number is implausible, two numbers contradict each other, or the stated peak differs from
        SMs x lanes x clock x 2 by more than 2 %.
    """

    kind: ClassVar[Literal["gpu"]] = "gpu"
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
    compiler: Compiler
    tensor_cores: TensorCores | None = None
    """None: the device has none, or nobody has written down what they do."""

    def __post_init__(self) -> None:
        compute = self.compute
        if compute.warp_size not in (32, 64):
            raise SpecError(f"{self.name}: compute.warp_size is {compute.warp_size}, expected 32 (NVIDIA) or 64 (AMD)")
        peak = 2.0 * compute.num_sms * compute.fp32_lanes_per_sm * compute.clock_hz
        _check_peak(self.name, compute.fp32_peak_flop_per_s, peak, "2 x num_sms x fp32_lanes_per_sm x clock_hz")
        _check_name(self.name, self.aliases)
        if not re.fullmatch(r"sm_\d{2,3}" if self.vendor == "nvidia" else r"gfx[0-9a-f]{3,4}", self.arch):
            expected = "sm_<digits>, as sm_86" if self.vendor == "nvidia" else "gfx<digits>, as gfx906"
            raise SpecError(f"{self.name}: arch is {self.arch!r}, expected {expected} (vendor is {self.vendor})")
        shared, file = self.shared_memory, self.registers
        if shared.per_block_bytes > shared.per_sm_bytes:
            raise SpecError(
                f"{self.name}: shared_memory.per_block_bytes is {shared.per_block_bytes}, "
                f"expected at most per_sm_bytes ({shared.per_sm_bytes})"
            )
        if file.per_block > file.per_sm:
            raise SpecError(
                f"{self.name}: registers.per_block is {file.per_block}, expected at most per_sm ({file.per_sm})"
            )

    def __repr__(self) -> str:
        return f"GpuSpec({self.name}: {self.model}, {self.arch})"

    def arithmetic_rate(self, dtype: str) -> float:
        """Return multiply-adds of `dtype` operands relative to float32, tensor cores left out.

        Sums of 16-bit products are kept in float32, so packed 16-bit arithmetic does not apply: their rate is 1.
        """
        return self.compute.int8_rate if dtype == "int8" else 1.0

    def needed_capability(self, dtypes: Collection[str]) -> float | None:
        """Return the compute capability that arithmetic on some dtypes needs; None: any, or no GPU of NVIDIA's."""
        if self.compute_capability is None:
            return None
        return max((_LEAST_CAPABILITY[dtype] for dtype in dtypes if dtype in _LEAST_CAPABILITY), default=None)

    def tensor_flop_per_s(self, dtype: str) -> float | None:
        """Return the tensor cores' dense paper peak for operands of `dtype` (float32: as tf32), None if unknown."""
        if self.tensor_cores is None:
            return None
        rates = {
            "float16": self.tensor_cores.float16_flop_per_s,
            "bfloat16": self.tensor_cores.bfloat16_flop_per_s,
            "float32": self.tensor_cores.tf32_flop_per_s,
        }
        return rates.get(dtype)

    def peak_flop_per_s(self, dtype: str, *, tensor_cores: bool = False) -> float:
        """Return the paper peak for operands of `dtype`: the float32 peak times a rate, or the tensor cores' own."""
        peak = self.tensor_flop_per_s(dtype) if tensor_cores else None
        return self.compute.fp32_peak_flop_per_s * self.arithmetic_rate(dtype) if peak is None else peak

    def reachable_share(self, *, tensor_cores: bool = False) -> float:
        """Return the share of the paper peak that compiled code reaches."""
        if tensor_cores and self.tensor_cores is not None:
            return self.tensor_cores.mma_sync_fraction
        return self.compute.reachable_fraction

    @property
    def most_threads(self) -> None:
        """None: a GPU's kernels have no threads on the host."""
        return None

    def with_threads(self, threads: int) -> GpuSpec:
        """Return the GPU as it is."""
        return self

    @property
    def compute_capability(self) -> float | None:
        """NVIDIA compute capability (8.6), None for other vendors."""
        return int(self.arch[3:]) / 10 if self.arch.startswith("sm_") else None


class CpuCompute(_Group, frozen=True, forbid_unknown_fields=True, kw_only=True):
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
    broadcasts_per_cycle: float | None = None
    """Elements loaded into all lanes of a multiply-add per cycle and core; None: as `loads_per_cycle`.

    More where a wide vector is loaded in two halves.
    """
    issue_width: int
    fp32_peak_flop_per_s: float
    """2 x cores x clock x fma_per_cycle x lanes; checked against the product."""
    reachable_fraction: float = 0.95
    parallel_speedup: float | None = None
    """How many cores working alone do as much as all at once; None: unknown, taken for `num_cores`.

    Less where cores are threads that share a physical core's units, or where the clock falls when all are busy. The
    peak above does not contain it.
    """

    @property
    def usable_cores(self) -> float:
        """Cores' worth of work that all cores do at once: `parallel_speedup`, else `num_cores`."""
        return float(self.parallel_speedup or self.num_cores)


class CacheLevel(_Group, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One data cache level."""

    size_bytes: int
    ways: int
    line_bytes: int = 64
    shared_by_cores: int = 1
    """Cores that share one such cache."""
    bandwidth_bytes_per_cycle: float
    """Fill bandwidth from this level towards the core, per core."""
    latency_cycles: float


class CpuDram(_Group, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Main memory of a CPU."""

    bandwidth_bytes_per_s: float
    """Of the whole socket."""
    core_bandwidth_bytes_per_s: float
    """What one core alone can reach."""
    latency_s: float


class CpuLaunch(_Group, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What it costs to start work."""

    parallel_start_s: float
    """Fork and join of a parallel loop over all cores, the threads being awake."""
    function_call_s: float
    """Call of a built function that does nothing, from Python."""
    microkernel_call_cycles: float
    """What a microkernel call costs beside its steps, stores included: much of it overlaps with the next call."""


class DotInstruction(_Group, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An instruction that adds the products of several neighbours in the operands to each lane of the result."""

    rate: float
    """Multiply-adds per cycle and core relative to float32's: 2 if a VDPBF16PS starts as often as a multiply-add."""
    latency_cycles: float
    """From one to another that adds to its result."""


class MicrokernelTable(_Group, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Register tiles near the peak, as former calibrations wrote them. It is read, and nothing uses it."""

    depth: int
    """Most steps of the measured reduction; less where the operands would not fit L1."""
    least_share: float = 0.8
    """Tiles below this share of the peak are left out."""
    tiles: tuple[tuple[int, int, int, float], ...]
    """(rows, vectors, unrolled steps, share of the peak)."""


class CpuSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="cpu", tag_field="kind"):
    """A CPU (one socket). Immutable and hashable; cross-field rules are checked on construction.

    Raises
    ------
    SpecError
        A number is implausible, two numbers contradict each other, or the stated peak differs from
        the product of its parts by more than 2 %.
    """

    kind: ClassVar[Literal["cpu"]] = "cpu"
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
    launch: CpuLaunch | None = None
    """Measured by ``anatune hw calibrate``; None: the model's own constants."""
    microkernels: MicrokernelTable | None = None
    """Measured by former versions of ``anatune hw calibrate``."""
    vdpbf16ps: DotInstruction | msgspec.UnsetType = msgspec.UNSET
    """AVX512_BF16: pairs of bfloat16, summed in float32. Left out, here and in JSON: the CPU has it not."""
    vpdpbusd: DotInstruction | msgspec.UnsetType = msgspec.UNSET
    """AVX512_VNNI, AVX_VNNI: fours of an unsigned and a signed 8-bit operand, summed in int32."""
    vpdpbssd: DotInstruction | msgspec.UnsetType = msgspec.UNSET
    """AVX_VNNI_INT8: fours of two signed 8-bit operands."""

    def __post_init__(self) -> None:
        compute = self.compute
        lanes = compute.simd_bits // 32
        peak = 2.0 * compute.num_cores * compute.clock_hz * compute.fma_per_cycle * lanes
        _check_peak(
            self.name,
            compute.fp32_peak_flop_per_s,
            peak,
            "2 x num_cores x clock_hz x fma_per_cycle x simd_bits / 32",
        )
        _check_name(self.name, self.aliases)
        if compute.simd_bits % 32:
            raise SpecError(f"{self.name}: compute.simd_bits is {compute.simd_bits}, expected a multiple of 32")
        if compute.usable_cores > compute.num_cores:
            raise SpecError(
                f"{self.name}: compute.parallel_speedup is {compute.parallel_speedup:g}, expected at most num_cores "
                f"({compute.num_cores})"
            )
        if self.dram.core_bandwidth_bytes_per_s > self.dram.bandwidth_bytes_per_s:
            core, socket = self.dram.core_bandwidth_bytes_per_s, self.dram.bandwidth_bytes_per_s
            raise SpecError(
                f"{self.name}: dram.core_bandwidth_bytes_per_s is {core:.4g}, "
                f"expected at most bandwidth_bytes_per_s ({socket:.4g}): one core is part of the socket"
            )

    def __repr__(self) -> str:
        return f"CpuSpec({self.name}: {self.model}, {self.arch})"

    def peak_flop_per_s(self, dtype: str, *, tensor_cores: bool = False) -> float:
        """Return the paper peak for operands of `dtype`.

        Vectors hold elements of the dtype that sums are kept in, four bytes each, so that the float32 peak holds for
        all; instructions that sum products of neighbours are faster by their rate.
        """
        rates = [found.rate for name in DOT_INSTRUCTIONS.get(dtype, ()) if (found := self.dot_instruction(name))]
        peak = self.compute.fp32_peak_flop_per_s * max(rates, default=1.0)
        return peak * 4 / DTYPE_BYTES[ACCUMULATOR_DTYPE.get(dtype, dtype)]

    def dot_instruction(self, name: str) -> DotInstruction | None:
        """Return an instruction of `DOT_INSTRUCTIONS`, None where the CPU has not got it."""
        found = getattr(self, name)
        return found if isinstance(found, DotInstruction) else None

    def reachable_share(self, *, tensor_cores: bool = False) -> float:
        """Return the share of the paper peak that compiled code reaches."""
        return self.compute.reachable_fraction

    @property
    def most_threads(self) -> int:
        """Threads that a kernel can use: one a core."""
        return self.compute.num_cores

    def with_threads(self, threads: int) -> CpuSpec:
        """Return the CPU with `threads` of its cores, 1 to all: what a kernel of so many threads can use.

        Peak and core count scale; cores do at once what each does alone, up to what all do; DRAM gives what so many
        cores can ask for, at most what the socket has; caches that cores share are shared by as many as are left.
        """
        if threads == self.compute.num_cores:
            return self
        replace = msgspec.structs.replace
        peak = self.compute.fp32_peak_flop_per_s * threads / self.compute.num_cores
        speedup = None if self.compute.parallel_speedup is None else min(float(threads), self.compute.usable_cores)
        bandwidth = min(self.dram.bandwidth_bytes_per_s, threads * self.dram.core_bandwidth_bytes_per_s)
        caches = {
            name: replace(cache, shared_by_cores=min(cache.shared_by_cores, threads))
            for name in ("l1", "l2", "l3")
            if (cache := getattr(self, name)) is not None
        }
        return replace(
            self,
            compute=replace(self.compute, num_cores=threads, fp32_peak_flop_per_s=peak, parallel_speedup=speedup),
            dram=replace(self.dram, bandwidth_bytes_per_s=bandwidth),
            **caches,
        )

    @property
    def fp32_lanes(self) -> int:
        """float32 elements of a vector register."""
        return self.compute.simd_bits // 32


HardwareSpec = GpuSpec | CpuSpec


def _check_name(name: str, aliases: tuple[str, ...]) -> None:
    for word in (name, *aliases):
        if not re.fullmatch(r"[a-z0-9][a-z0-9_]*", word):
            raise SpecError(f"name or alias is {word!r}, expected lower-case letters, digits and '_'")


def _check_peak(name: str, stated: float, product: float, formula: str) -> None:
    if abs(stated / product - 1.0) > 0.02:
        raise SpecError(
            f"{name}: compute.fp32_peak_flop_per_s is {stated:.4g}, but {formula} is {product:.4g}; "
            "correct the clock, the unit counts or the peak (they must agree within 2 %)"
        )
