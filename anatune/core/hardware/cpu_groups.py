"""The groups of numbers of a CPU's spec."""

from __future__ import annotations

from typing import Literal

from anatune.core.hardware.groups import Group
from anatune.errors import SpecError


class CpuCompute(Group, frozen=True, forbid_unknown_fields=True, kw_only=True):
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
    vector_ops_per_cycle: float | None = None
    """Vector instructions of any kind (sums, conversions, shuffles) per cycle and core; None: as many as are issued."""
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


class CacheLevel(Group, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One data cache level."""

    size_bytes: int
    ways: int
    line_bytes: int = 64
    shared_by_cores: int = 1
    """Cores that share one such cache."""
    bandwidth_bytes_per_cycle: float
    """Fill bandwidth from this level towards the core, per core."""
    latency_cycles: float


class CpuDram(Group, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Main memory of a CPU."""

    bandwidth_bytes_per_s: float
    """Of the whole socket."""
    core_bandwidth_bytes_per_s: float
    """What one core alone can reach."""
    latency_s: float


class CpuLaunch(Group, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What it costs to start work."""

    parallel_start_s: float
    """Fork and join of a parallel loop over all cores, the threads being awake."""
    function_call_s: float
    """Call of a built function that does nothing, from Python."""
    microkernel_call_cycles: float
    """What a microkernel call costs beside its steps, stores included: much of it overlaps with the next call."""


class DotInstruction(Group, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An instruction that adds the products of several neighbours in the operands to each lane of the result."""

    rate: float
    """Multiply-adds per cycle and core relative to float32's: 2 if a VDPBF16PS starts as often as a multiply-add."""
    latency_cycles: float
    """From one to another that adds to its result."""


class TileUnit(Group, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """AMX's unit of a core: cycles of whole tiles, 16 rows of 64 bytes."""

    product_cycles: float
    """Between products that do not wait for each other."""
    latency_cycles: float
    """From a product to another that adds to its result."""
    load_cycles: float
    """Between loads of tiles that lie in L1."""
    store_cycles: float


class MicrokernelTable(Group, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Register tiles of float32 that reached a share of the peak when each was run alone, operands in the L1 cache.

    Source: [TACO22] Sec. 4.1. The strategy `structured` draws them where a spec has them.
    """

    depth: int
    """Most steps of the measured reduction; less where the operands would not fit L1."""
    least_share: float = 0.8
    """Tiles below this share of the peak are left out."""
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
        """(vectors, unrolled steps) -> rows -> share: tiles of a class differ in their rows alone."""
        shares: dict[tuple[int, int], dict[int, float]] = {}
        for rows, vectors, steps, share in sorted(self.tiles):
            shares.setdefault((vectors, steps), {})[rows] = share
        return shares
