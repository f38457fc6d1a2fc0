"""Making the calibrated spec of a CPU from the measured numbers, with notes about decisions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from anatune.codegen.cpu.machine_probes import TILE_COUNTS
from anatune.core.hardware.cpu_groups import CacheLevel, CpuCompute, CpuDram, CpuLaunch, DotInstruction, TileUnit
from anatune.core.hardware.dot import dot_operands
from anatune.core.hardware.spec import CpuSpec
from anatune.measure.cpu.calibration.numbers import Numbers
from anatune.measure.cpu.calibration.peak import Core, solve_core, sure_units, with_core
from anatune.measure.cpu.calibration.samples import snap
from anatune.measure.cpu.calibration.tiles import RegisterTile

_POOL_SHARE = 0.9
"""Share of the sum of single-core rates that a parallel loop reaches on an undisturbed machine."""
_CLEAR = 1.25
"""Ratio of L3 to DRAM bandwidth below which the usable size of L3 cannot be determined."""
_BETWEEN = 1.4
"""Factor between the sizes of two walks that decides where L3 ends."""
_BEST_TILES = 5
"""Number of best tiles whose mean is the reachable share of the peak."""


def calibrated_spec(
    hardware: CpuSpec, numbers: Numbers, shares: Mapping[RegisterTile, float], today: str
) -> tuple[CpuSpec, tuple[str, ...]]:
    """Return `hardware` with the measured numbers, and notes about decisions.

    Measured keys leave `unverified`; those with too few undisturbed samples stay there.
    """
    compute = hardware.compute
    source = f"anatune hw calibrate, {today}"
    fma_per_s = numbers.fma_flop_per_s / (2 * hardware.fp32_lanes)
    rates = (fma_per_s, numbers.fma_latency_s, numbers.integer_clock_hz)
    core = solve_core(*rates, compute.fma_latency_cycles, sure_units(compute))
    clock = core.clock_hz
    measured = _compute(hardware, numbers, core, shares, source)
    caches = {
        level: _level(cache, level, numbers, clock, source)
        for level in ("l1", "l2", "l3")
        if (cache := getattr(hardware, level)) is not None
    }
    held = _held_bytes(numbers, hardware.l3)
    if held is not None:
        caches["l3"] = replace(caches["l3"], size_bytes=held, source=f"{source}; the rest as detected")
    spec = replace(
        hardware,
        compute=measured,
        **caches,
        dram=_dram(hardware.dram, numbers, source),
        launch=CpuLaunch(
            parallel_start_s=_round(numbers.parallel_start_s or 1e-6),
            function_call_s=_round(numbers.function_call_s),
            microkernel_call_cycles=round(max(0.0, numbers.call_s * clock), 1),
            source=source,
            unverified=() if numbers.parallel_start_s else ("parallel_start_s",),
        ),
        microkernels=None,  # `tiles.microkernel_table`, of the new peak
        **{name: _instruction(name, numbers, clock, source) for name in numbers.dots},
        **({"tiles": _tile_unit(numbers, clock, source)} if numbers.tiles else {}),
    )
    return spec, tuple(_notes(hardware, numbers, core, fma_per_s / clock, held))


def _notes(
    hardware: CpuSpec, numbers: Numbers, core: Core, fma_per_cycle: float, held_bytes: int | None
) -> Iterator[str]:
    """Yield lines about decisions."""
    clock, before = core.clock_hz, hardware.compute.fma_per_cycle
    yield f"clock {clock / 1e9:.3f} GHz in vector code, {numbers.integer_clock_hz / 1e9:.3f} GHz in integer code"
    decided = "as detected" if core.fma_per_cycle == before else f"instead of {before:g}"
    unsure = "" if core.is_sure else ", unverified: calibrate again when the machine is quieter"
    yield f"fma_per_cycle {core.fma_per_cycle:g}: measured {fma_per_cycle:.3f}, {decided}{unsure}"
    if numbers.half_share:
        yield f"vectors of half the width reach {100 * numbers.half_share:.0f} % of that rate"
    for name, (rate, _) in numbers.dots.items():
        yield f"{name} reaches {rate / numbers.fma_flop_per_s:.2f} times the float32 peak"
    if numbers.tiles:
        product, latency, load, store = (numbers.tiles[name] * clock for name in TILE_COUNTS)
        yield (
            f"AMX: a tile product every {product:.1f} cycles (latency {latency:.1f}), a load every {load:.1f}, "
            f"a store every {store:.1f}"
        )
    if held_bytes is not None and hardware.l3 is not None:
        rates = f"{_near(numbers) / 1e9:.1f} and {numbers.fill_bytes_s['dram'] / 1e9:.1f} GB/s"
        whole = hardware.l3.size_bytes / 2**20
        yield f"this machine can use {held_bytes / 2**20:.0f} of {whole:.0f} MB of L3 ({rates} within and beyond)"
    pool = numbers.all_fma_flop_per_s / numbers.fma_flop_per_s
    together = numbers.together
    if together is not None:
        yield together.line
    slow = together is not None and pool < _POOL_SHARE * together.speedup
    why = ": other programs run, or TVM_NUM_THREADS or TVM_BIND_THREADS limit them" if slow else ""
    yield f"TVM's threads on all cores reach {pool:.2f} times the peak of one core{why}"


def _compute(
    hardware: CpuSpec, numbers: Numbers, core: Core, shares: Mapping[RegisterTile, float], source: str
) -> CpuCompute:
    """Return the measured rates of a core, and the combined speed of all cores."""
    compute, clock, doubts, together = hardware.compute, core.clock_hz, numbers.doubtful, numbers.together
    vector_bytes = 4 * hardware.fp32_lanes
    loads = round(numbers.fill_bytes_s["l1"] / clock / vector_bytes, 2)
    best = sorted(shares.values())[-_BEST_TILES:]
    reachable, speedup = compute.reachable_fraction, None
    if best:
        filled = numbers.fma_flop_per_s / (2 * hardware.fp32_lanes) / (clock * core.fma_per_cycle)
        reachable = round(min(1.0, filled * sum(best) / len(best)), 3)
    if together is not None:  # scale from the measured cores to all
        speedup = round(min(1.0, together.speedup / together.cores) * compute.num_cores, 2)
    unsure = {
        "clock_hz": "clock" in doubts,
        "fma_per_cycle": not core.is_sure,
        "fma_latency_cycles": "fma_latency" in doubts,
        "loads_per_cycle": "l1_load" in doubts,
        "stores_per_cycle": "l1_store" in doubts,
        "broadcasts_per_cycle": "broadcast" in doubts,
        "fp32_peak_flop_per_s": "clock" in doubts,
        "reachable_fraction": not best,
        "parallel_speedup": together is not None and together.cause == "crowded",
    }
    return with_core(
        compute,
        core,
        loads_per_cycle=loads,
        stores_per_cycle=round(numbers.store_bytes_s / clock / vector_bytes, 2),
        broadcasts_per_cycle=max(loads, round(numbers.broadcasts_s / clock, 2)),
        reachable_fraction=reachable,
        parallel_speedup=speedup,
        source=f"{source}; the rest {compute.source}",
        unverified=_list_unverified(compute.unverified, unsure),
    )


def _dram(dram: CpuDram, numbers: Numbers, source: str) -> CpuDram:
    core_rate, doubts = numbers.fill_bytes_s["dram"], numbers.doubtful
    unsure = {
        "bandwidth_bytes_per_s": False,
        "core_bandwidth_bytes_per_s": "dram_load" in doubts,
        "latency_s": "dram_chase" in doubts,
    }
    return replace(
        dram,
        bandwidth_bytes_per_s=_round(max(numbers.all_dram_bytes_s, core_rate)),
        core_bandwidth_bytes_per_s=_round(core_rate),
        latency_s=_round(numbers.latency_s["dram"]),
        source=source,
        unverified=_list_unverified(dram.unverified, unsure),
    )


def _held_bytes(numbers: Numbers, cache: CacheLevel | None) -> int | None:
    """Return the bytes of the last cache that this machine can use; None if all of it, or if unknown.

    A virtual machine sees the whole L3 of the processor, but may use only a part of it. The cache does not hold data
    that are loaded no faster than the geometric mean of the rates of L3 and memory.
    """
    if cache is None or not numbers.footprint_bytes_s:
        return None
    near, far = _near(numbers), numbers.fill_bytes_s["dram"]
    if near < _CLEAR * far:
        return None
    slow = [size for size, rate in numbers.footprint_bytes_s.items() if rate < math.sqrt(near * far)]
    least = min(slow, default=cache.size_bytes)
    held = [size for size in numbers.footprint_bytes_s if size < least]
    if least > cache.size_bytes // 2:  # a walk as large as the cache has some misses anyway
        return None
    unit = cache.ways * cache.line_bytes
    return max(held, default=int(least / _BETWEEN)) // unit * unit


def _near(numbers: Numbers) -> float:
    """Return the highest rate of loads from the last cache, bytes/s."""
    return max(numbers.fill_bytes_s["l3"], *numbers.footprint_bytes_s.values())


def _instruction(name: str, numbers: Numbers, clock: float, source: str) -> DotInstruction:
    """Return the rate of an instruction, rounded to a usual number if close, and its latency."""
    flop_per_s, latency_s = numbers.dots[name]
    rate, latency = flop_per_s / numbers.fma_flop_per_s, latency_s * clock
    group = dot_operands(name).size
    unsure = {"rate": name in numbers.doubtful, "latency_cycles": f"{name}_latency" in numbers.doubtful}
    return DotInstruction(
        rate=snap(rate, [group * share for share in (0.25, 0.5, 1.0, 2.0)]) or round(rate, 2),
        latency_cycles=snap(latency, [*range(1, 20)]) or round(latency, 1),
        source=source,
        unverified=_list_unverified((), unsure),
    )


def _tile_unit(numbers: Numbers, clock: float, source: str) -> TileUnit:
    """Return the cycles of AMX instructions."""
    cycles = {name: round(seconds * clock, 1) for name, seconds in numbers.tiles.items()}
    doubts = tuple(name for name in cycles if name in numbers.doubtful)
    return TileUnit(**cycles, source=source, unverified=doubts)


def _level(cache: CacheLevel, level: str, numbers: Numbers, clock: float, source: str) -> CacheLevel:
    return replace(
        cache,
        bandwidth_bytes_per_cycle=round(numbers.fill_bytes_s[level] / clock, 1),
        latency_cycles=round(numbers.latency_s[level] * clock, 1),
        source=f"sizes as detected; {source}",
        unverified=_list_unverified(
            cache.unverified,
            {
                "bandwidth_bytes_per_cycle": f"{level}_load" in numbers.doubtful,
                "latency_cycles": f"{level}_chase" in numbers.doubtful,
            },
        ),
    )


def _list_unverified(before: Sequence[str], unsure: Mapping[str, bool]) -> tuple[str, ...]:
    """Return the unverified keys: those that were not measured, and measured ones that are unsure."""
    kept = [key for key in before if key not in unsure]
    return (*kept, *(key for key, is_unsure in unsure.items() if is_unsure))


def _round(value: float) -> float:
    """Return four significant digits."""
    return float(f"{value:.4g}")
