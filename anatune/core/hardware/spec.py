"""Hardware specs: descriptions of devices in SI units, with a source for each group of numbers.

A spec is a TOML file of ``hwspecs/`` or of any path. Unknown keys are refused, and keys contain their unit. Each group
states where its numbers come from and lists the keys that nobody has verified. An unknown device is an error; anatune
never guesses its numbers.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import ClassVar, Literal, NamedTuple

import msgspec

from anatune.core.hardware.cpu_groups import (
    CacheLevel,
    CpuCompute,
    CpuDram,
    CpuLaunch,
    DotInstruction,
    MicrokernelTable,
    TileUnit,
)
from anatune.core.hardware.gpu_groups import (
    Compiler,
    Dram,
    GpuCompute,
    GpuLaunch,
    L1Cache,
    L2Cache,
    Link,
    Registers,
    SharedMemory,
    TensorCores,
)
from anatune.core.workload.access import ACCUMULATOR_DTYPE, DTYPE_BYTES
from anatune.errors import SpecError

DOT_INSTRUCTIONS = {
    "bfloat16": ("vdpbf16ps",),
    "float16": ("vfmaddph",),
    "int8": ("vpdpbusd", "vpdpbssd", "vpmaddwd"),
    "uint8": ("vpdpbusd", "vpmaddwd"),
}
"""Dtype of operands -> instructions that sum products of neighbouring elements, by their keys in `CpuSpec`."""

_LEAST_CAPABILITY = {"bfloat16": 8.0}
"""Dtype -> first compute capability with instructions for it. Source: [PTX-ISA] cvt, fma.bf16."""


class Boundary(NamedTuple):
    """A boundary between two levels of memory, and its bandwidth."""

    name: str
    """Level that the bytes come from: "DRAM"."""
    bytes_per_s: float
    """Bandwidth of the whole device: of all SMs, or of all cores at once."""


class Refill(NamedTuple):
    """The level that operands come from when a kernel runs again and again."""

    level: str
    """Name of the level: "l2", "l3" or "dram"."""
    kept_bytes: float
    """Bytes that the caches above it still hold from the previous run."""
    bytes_per_s: float


class GpuSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="gpu", tag_field="kind"):
    """A GPU. Immutable and hashable; construction checks the numbers against each other.

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
    launch: GpuLaunch
    compiler: Compiler
    tensor_cores: TensorCores | None = None
    """Matrix units; None: the device has none, or their rates are unknown."""
    link: Link | msgspec.UnsetType = msgspec.UNSET
    """Link between the GPUs of a node; left out, here and in JSON: it is unknown, or there is none."""

    def __post_init__(self) -> None:
        compute = self.compute
        if compute.warp_size not in (32, 64):
            expected = "expected 32 (NVIDIA, AMD's RDNA) or 64 (AMD's GCN and CDNA)"
            raise SpecError(f"{self.name}: compute.warp_size is {compute.warp_size}, {expected}")
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

        Sums of 16-bit products are kept in float32, so that packed 16-bit arithmetic does not apply: their rate is 1.
        """
        return self.compute.int8_rate if dtype == "int8" else 1.0

    def needed_capability(self, dtypes: Collection[str]) -> float | None:
        """Return the compute capability that arithmetic on some dtypes needs; None: any, or not an NVIDIA GPU."""
        if self.compute_capability is None:
            return None
        return max((_LEAST_CAPABILITY[dtype] for dtype in dtypes if dtype in _LEAST_CAPABILITY), default=None)

    def tensor_flop_per_s(self, dtype: str) -> float | None:
        """Return the dense peak of the matrix units for `dtype` operands (float32: as tf32); None if there is none."""
        if self.tensor_cores is None or (dtype == "uint8" and self.vendor == "amd"):  # AMD's 8-bit integers are signed
            return None
        return self.tensor_cores.flop_per_s(dtype)

    def peak_flop_per_s(self, dtype: str, *, tensor_cores: bool = False) -> float:
        """Return the theoretical peak for `dtype` operands: that of float32 times a rate, or of the tensor cores."""
        peak = self.tensor_flop_per_s(dtype) if tensor_cores else None
        return self.compute.fp32_peak_flop_per_s * self.arithmetic_rate(dtype) if peak is None else peak

    def reachable_share(self, *, tensor_cores: bool = False) -> float:
        """Return the share of the theoretical peak that compiled code reaches."""
        if tensor_cores and self.tensor_cores is not None:
            return self.tensor_cores.mma_sync_fraction
        return self.compute.reachable_fraction

    def dot_instruction(self, name: str) -> DotInstruction | None:
        """Return None: `DOT_INSTRUCTIONS` are instructions of CPUs."""
        return None

    @property
    def boundaries(self) -> dict[str, Boundary]:
        """Level of a `Prediction.traffic_over_bound` -> boundary that its bytes cross: into L2, the SMs, registers."""
        shared = self.shared_memory.bytes_per_cycle_per_sm * self.compute.num_sms * self.compute.clock_hz
        return {
            "dram": Boundary("DRAM", self.dram.bandwidth_bytes_per_s),
            "l2": Boundary("L2", self.l2.bandwidth_bytes_per_s),
            "shared": Boundary("shared memory", shared),
        }

    def refills(self, *, l2_is_flushed: bool = False) -> list[Refill]:
        """Return where operands come from in each run; the L2 cache keeps its content unless it is flushed."""
        kept = 0.0 if l2_is_flushed else self.l2.size_bytes
        return [Refill("dram", kept, self.dram.bandwidth_bytes_per_s)]

    @property
    def multiply_add_flop_per_s(self) -> float:
        """Rate of float32 multiply-adds between registers on the whole device, flop/s."""
        return self.compute.fp32_peak_flop_per_s * self.compute.reachable_fraction

    @property
    def most_threads(self) -> None:
        """Always None: kernels of a GPU have no threads on the host."""
        return None

    def with_threads(self, threads: int) -> GpuSpec:
        """Return the GPU unchanged: the number of threads matters to CPUs only."""
        return self

    @property
    def compute_capability(self) -> float | None:
        """NVIDIA compute capability (8.6); None for other vendors."""
        return int(self.arch[3:]) / 10 if self.arch.startswith("sm_") else None


class CpuSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="cpu", tag_field="kind"):
    """A CPU (one socket). Immutable and hashable; construction checks the numbers against each other.

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
    hidden_features: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """LLVM's features of `arch` ("avx512bf16") that this machine lacks, for example because a hypervisor hides them;
    generated code does not use them. Left out, here and in JSON: it has all."""
    aliases: tuple[str, ...] = ()
    compute: CpuCompute
    l1: CacheLevel
    l2: CacheLevel
    l3: CacheLevel | None = None
    dram: CpuDram
    launch: CpuLaunch | None = None
    """Costs that ``anatune hw calibrate`` measures; None: constants of the model are used."""
    microkernels: MicrokernelTable | None = None
    """Table that ``anatune hw calibrate`` measures; None: the strategy `structured` uses the model instead."""
    amx: tuple[Literal["tdpbf16ps", "tdpfp16ps", "tdpbusd", "tdpbssd"], ...] | msgspec.UnsetType = msgspec.UNSET
    """AMX instructions on tiles; only schedules that name the extension use them."""
    tiles: TileUnit | msgspec.UnsetType = msgspec.UNSET
    """Cycles that ``anatune hw calibrate`` measures; left out, here and in JSON: constants of the model are used."""
    vdpbf16ps: DotInstruction | msgspec.UnsetType = msgspec.UNSET
    """AVX512_BF16: pairs of bfloat16, summed in float32. Left out, here and in JSON: the CPU does not have it."""
    vfmaddph: DotInstruction | msgspec.UnsetType = msgspec.UNSET
    """AVX512_FP16: multiply-adds of float16, summed in float16; needs the accuracy "relaxed"."""
    vpdpbusd: DotInstruction | msgspec.UnsetType = msgspec.UNSET
    """AVX512_VNNI, AVX_VNNI: groups of four products of an unsigned and a signed 8-bit operand, summed in int32."""
    vpdpbssd: DotInstruction | msgspec.UnsetType = msgspec.UNSET
    """AVX_VNNI_INT8: groups of four products of two signed 8-bit operands."""
    vpmaddwd: DotInstruction | msgspec.UnsetType = msgspec.UNSET
    """AVX2, AVX512BW: pairs of 8-bit operands widened to 16 bits; rate and latency include the addition to int32 sums
    that follows."""

    def __post_init__(self) -> None:
        compute = self.compute
        lanes = compute.simd_bits // 32
        peak = 2.0 * compute.num_cores * compute.clock_hz * compute.fma_per_cycle * lanes
        _check_peak(
            self.name, compute.fp32_peak_flop_per_s, peak, "2 x num_cores x clock_hz x fma_per_cycle x simd_bits / 32"
        )
        _check_name(self.name, self.aliases)
        for feature in self.hidden_features or ():
            if not re.fullmatch(r"[a-z][a-z0-9.-]*", feature):
                raise SpecError(
                    f"{self.name}: hidden_features has {feature!r}, expected LLVM's name of a feature, as 'avx512bf16'"
                )
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
        """Return the theoretical peak for operands of `dtype`.

        Vectors hold elements of the accumulator's dtype, four bytes each, so that the float32 peak holds for all
        dtypes; instructions that sum products of neighbouring elements are faster by their rate.
        """
        rates = [dot.rate for name in DOT_INSTRUCTIONS.get(dtype, ()) if (dot := self.dot_instruction(name))]
        peak = self.compute.fp32_peak_flop_per_s * max(rates, default=1.0)
        return peak * 4 / DTYPE_BYTES[ACCUMULATOR_DTYPE.get(dtype, dtype)]

    def dot_instruction(self, name: str) -> DotInstruction | None:
        """Return an instruction of `DOT_INSTRUCTIONS`; None if the CPU does not have it, and for other names."""
        instruction = getattr(self, name, None)
        return instruction if isinstance(instruction, DotInstruction) else None

    @property
    def caches(self) -> dict[str, CacheLevel]:
        """The caches of the CPU by name: "l1", "l2" and perhaps "l3"."""
        levels = {"l1": self.l1, "l2": self.l2, "l3": self.l3}
        return {name: cache for name, cache in levels.items() if cache is not None}

    @property
    def boundaries(self) -> dict[str, Boundary]:
        """Level of a `Prediction.traffic_over_bound` -> boundary that its bytes cross: the next cache, or DRAM."""
        cycles = self.compute.usable_cores * self.compute.clock_hz
        levels = self.caches
        sources = [Boundary(name.upper(), cache.bandwidth_bytes_per_cycle * cycles) for name, cache in levels.items()]
        sources.append(Boundary("DRAM", self.dram.bandwidth_bytes_per_s))
        return dict(zip(levels, sources[1:], strict=True))

    def refills(self, *, l2_is_flushed: bool = False) -> list[Refill]:
        """Return where operands come from in each run; what a cache holds from the previous run is not read again."""
        cores, kept_bytes, levels = self.compute.num_cores, 0.0, self.caches
        rates = {
            name: cores * cache.bandwidth_bytes_per_cycle * self.compute.clock_hz for name, cache in levels.items()
        }
        rates["dram"] = min(cores * self.dram.core_bandwidth_bytes_per_s, self.dram.bandwidth_bytes_per_s)
        refills = []
        for cache, level in zip(levels.values(), [*levels, "dram"][1:], strict=True):
            kept_bytes += cache.size_bytes * -(-cores // cache.shared_by_cores)
            refills.append(Refill(level, kept_bytes, rates[level]))
        return refills

    def reachable_share(self, *, tensor_cores: bool = False) -> float:
        """Return the share of the theoretical peak that compiled code reaches."""
        return self.compute.reachable_fraction

    @property
    def multiply_add_flop_per_s(self) -> float:
        """Rate of float32 multiply-adds between registers on one core, flop/s."""
        return self.compute.fp32_peak_flop_per_s / self.compute.num_cores

    @property
    def most_threads(self) -> int:
        """Number of threads that a kernel can use: one a core."""
        return self.compute.num_cores

    def with_threads(self, threads: int) -> CpuSpec:
        """Return the CPU limited to `threads` of its cores, from 1 to all.

        Peak and core count scale. The cores do as much at once as each does alone, at most what all cores do. DRAM
        gives what these cores can request, at most the socket's bandwidth. Shared caches are shared by the remaining
        cores.
        """
        if threads == self.compute.num_cores:
            return self
        replace = msgspec.structs.replace
        peak = self.compute.fp32_peak_flop_per_s * threads / self.compute.num_cores
        speedup = None if self.compute.parallel_speedup is None else min(float(threads), self.compute.usable_cores)
        bandwidth = min(self.dram.bandwidth_bytes_per_s, threads * self.dram.core_bandwidth_bytes_per_s)
        caches = {
            name: replace(cache, shared_by_cores=min(cache.shared_by_cores, threads))
            for name, cache in self.caches.items()
        }
        return replace(
            self,
            compute=replace(self.compute, num_cores=threads, fp32_peak_flop_per_s=peak, parallel_speedup=speedup),
            dram=replace(self.dram, bandwidth_bytes_per_s=bandwidth),
            **caches,
        )

    @property
    def fp32_lanes(self) -> int:
        """Number of float32 elements in a vector register."""
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
            "correct the clock, the unit counts or the peak, which must agree within 2 %"
        )
