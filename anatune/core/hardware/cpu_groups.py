"""The groups of numbers in a CPU's spec."""

from __future__ import annotations

from typing import Literal

from anatune.core.hardware.groups import SpecGroup
from anatune.errors import SpecError


class CpuCompute(SpecGroup, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Cores, their SIMD units and their ports (one thread a core)."""

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
    """Elements that are loaded into all lanes of a multiply-add, per cycle and core; None: as `loads_per_cycle`.

    It is larger where a wide vector is loaded in two halves.
    """
    vector_ops_per_cycle: float | None = None
    """Vector instructions of any kind (sums, conversions, shuffles) per cycle and core; None: as many as are issued."""
    issue_width: int
    fp32_peak_flop_per_s: float
    """Peak of all cores: 2 x cores x clock x fma_per_cycle x lanes; checked against this product."""
    reachable_fraction: float = 0.95
    parallel_speedup: float | None = None
    """Work of all cores at once, in units of one core working alone; None: unknown, `num_cores` is assumed.

    It is smaller than `num_cores` where cores are threads that share the units of a physical core, or where the clock
    falls when all are busy. The peak above does not include it.
    """

    @property
    def usable_cores(self) -> float:
        """Work of all cores at once, in units of one core: `parallel_speedup`, or else `num_cores`."""
        return float(self.parallel_speedup or self.num_cores)


class CacheLevel(SpecGroup, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The data caches of one level."""

    size_bytes: int
    ways: int
    line_bytes: int = 64
    shared_by_cores: int = 1
    """Number of cores that share one such cache."""
    bandwidth_bytes_per_cycle: float
    """Fill bandwidth from this level towards the core, per core."""
    latency_cycles: float


class CpuDram(SpecGroup, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Main memory of a CPU."""

    bandwidth_bytes_per_s: float
    """Bandwidth of the whole socket."""
    core_bandwidth_bytes_per_s: float
    """Bandwidth that one core alone reaches."""
    latency_s: float


class CpuLaunch(SpecGroup, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Costs of starting work."""

    parallel_start_s: float
    """Time to fork and join a parallel loop over all cores whose threads are awake."""
    function_call_s: float
    """Time of a call from Python of a built function that does nothing."""
    microkernel_call_cycles: float
    """Cycles of a microkernel call beyond its steps, stores included; much of it overlaps with the next call."""


class DotInstruction(SpecGroup, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An instruction that adds the products of neighbouring operand elements to each lane of the result."""

    rate: float
    """Multiply-adds per cycle and core relative to float32: 2 if a VDPBF16PS starts as often as a multiply-add."""
    latency_cycles: float
    """Cycles until another instruction can add to the result."""


class TileUnit(SpecGroup, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The AMX unit of a core: cycles of operations on whole tiles of 16 rows of 64 bytes."""

    product_cycles: float
    """Cycles between products that do not depend on each other."""
    latency_cycles: float
    """Cycles until another product can add to the result."""
    load_cycles: float
    """Cycles between loads of tiles that are in L1."""
    store_cycles: float


class MicrokernelTable(SpecGroup, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Register tiles of float32 and the share of the peak that each reached alone, with operands in the L1 cache.

    Source: [TACO22] Sec. 4.1. The strategy `structured` draws tiles from this table if the spec has one.
    """

    depth: int
    """Most steps of the measured reduction; fewer where the operands would not fit L1."""
    least_share: float = 0.8
    """Lowest share of the peak that a listed tile has."""
    tiles: tuple[tuple[int, int, int, float], ...]
    """(rows, vectors, unrolled steps, share of one core's peak, 0 to about 1)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        wrong = [tile for tile in self.tiles if not (all(1 <= n <= 1024 for n in tile[:3]) and 0.0 < tile[3] <= 2.0)]
        if wrong or not self.tiles:
            raise SpecError(
                f"tiles: got {list(wrong[0]) if wrong else 'none'}, expected [rows, vectors, unrolled steps, share of "
                "the peak], counts of 1 to 1024 and a share like 0.95; correct it, or run anatune hw calibrate"
            )

    @property
    def classes(self) -> dict[tuple[int, int], dict[int, float]]:
        """(vectors, unrolled steps) -> rows -> share: tiles of a class differ only in their rows."""
        shares: dict[tuple[int, int], dict[int, float]] = {}
        for rows, vectors, steps, share in sorted(self.tiles):
            shares.setdefault((vectors, steps), {})[rows] = share
        return shares
