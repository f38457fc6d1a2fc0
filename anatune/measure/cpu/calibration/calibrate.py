"""Measures the present CPU and puts the numbers into its spec (``anatune hw calibrate``).

What each number feeds in the model (`cpu.model.model`):

=============================== ================================================================================
clock_hz, fma_per_cycle, peak    all cycles to seconds; the multiply-add term
reachable_fraction               the multiply-add term: the share of the peak that the best register tiles reach
fma_latency_cycles               the latency term of a step, the drain of a call
loads_per_cycle                  the load term of a step, reloads of partial sums
vdpbf16ps, vpdpbusd, ..          the multiply-add and latency terms of bfloat16 and int8
broadcasts_per_cycle             nothing yet: the load term of a step (see `calibrate_tiles.predicted_share`)
stores_per_cycle                 stores of a call, spills
l3 size_bytes                    what a nest finds there: less than detected where others have the rest
l2, l3 bandwidth_bytes_per_cycle l2_s and l3_s: fills into L1 and into L2; that of l1 follows from the load ports
dram bandwidths                  dram_s, of one core and shared by all
parallel_speedup                 what the threads of a parallel loop do at once
launch                           start of a parallel loop, entry of a microkernel call
latency_cycles, latency_s        nothing yet: explanations
=============================== ================================================================================

Clock, multiply-adds a cycle and their latency are solved for together (`calibration.peak`); the peak is their product.
Where the measured rate is less, `reachable_fraction` contains that. All per-cycle numbers are relative to multiply-adds
timed just before and after.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from anatune.core.hardware.cpu_groups import CacheLevel, CpuLaunch, DotInstruction
from anatune.core.hardware.dot import dot_instructions, dot_operands
from anatune.core.hardware.spec import CpuSpec
from anatune.files import temporary_folder
from anatune.measure.cpu.calibration.machine import CALL_DEPTHS, CALL_TILE, FOOTPRINT, Machine
from anatune.measure.cpu.calibration.peak import solved, sure_units, with_core
from anatune.measure.cpu.calibration.samples import Samples, sample_quantities, snapped
from anatune.measure.cpu.calibration.tiles import (
    Agreement,
    MeasuredTile,
    RegisterTile,
    agreement,
    candidate_tiles,
    fits_registers,
    predicted_share,
)
from anatune.measure.cpu.calibration.together import Together
from anatune.measure.cpu.detect import detect_cpu

__all__ = ["Calibration", "Numbers", "calibrate", "calibrated_spec", "finished"]

Progress = Callable[[str, float], None]

_ENOUGH = 25
"""Quiet samples that are wanted of each quantity."""
_POOL_SHARE = 0.9
"""Share of what cores reach each by itself that a parallel loop reaches on a quiet machine."""
_CLEAR = 1.25
"""Times as fast as memory that L3 has to be, or its size cannot be told."""
_BETWEEN = 1.4
"""Where the first walk beyond L3's own is slow, L3 ends before it."""
_BEST_TILES = 5
"""The mean of as many best tiles is what code can reach."""


@dataclass(frozen=True)
class Numbers:
    """What was measured, in seconds at the sustained clock (see `calibrate_samples`).

    Attributes
    ----------
    integer_clock_hz : float
        From dependent integer instructions.
    fma_flop_per_s : float
        Multiply-adds between registers, one core.
    all_fma_flop_per_s : float
        The same by TVM's threads on all cores; reported, not stored: other work on the machine lowers it.
    together : Together or None
        What all cores do at once, by the time they get; None: they could not be pinned, or there is one.
    half_share : float
        FLOP/s with vectors of half the width over those with whole ones; reported. 0: not measured.
    fma_latency_s : float
    store_bytes_s : float
        Stores to the L1 cache.
    broadcasts_s : float
        Elements loaded into all lanes in a second.
    fill_bytes_s, latency_s : dict of str to float
        By level, l1 to dram: loads of one core; dependent loads.
    footprint_bytes_s : dict of int to float
        By bytes of memory that are loaded again and again, larger than what was loaded for "l3".
    all_dram_bytes_s : float
    call_s : float
        A microkernel call without its steps (a tile of `CALL_TILE`).
    parallel_start_s, function_call_s : float
    dots : dict of str to (float, float)
        Instruction that sums products of neighbours -> FLOP/s of one core, between registers; latency in seconds.
    doubtful : frozenset of str
        Names of these attributes, or levels as "l3_load" and "l3_chase", that had too few quiet samples.
    """

    integer_clock_hz: float
    fma_flop_per_s: float
    all_fma_flop_per_s: float
    half_share: float
    fma_latency_s: float
    store_bytes_s: float
    broadcasts_s: float
    fill_bytes_s: Mapping[str, float]
    latency_s: Mapping[str, float]
    all_dram_bytes_s: float
    call_s: float
    parallel_start_s: float
    function_call_s: float
    footprint_bytes_s: Mapping[int, float] = field(default_factory=dict)
    dots: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    doubtful: frozenset[str] = frozenset()
    together: Together | None = None


@dataclass(frozen=True)
class Calibration:
    """The result: the new spec, what was measured, all tiles, and how well the model predicts the good ones.

    Attributes
    ----------
    tiles : tuple of MeasuredTile
        All that were tried.
    agreement, fitting : Agreement
        Of the predictions for all tiles, and for those that need no more registers than there are.
    quiet_share : float
        Share of the samples that were quiet.
    notes : tuple of str
        What was decided, a line each.
    """

    spec: CpuSpec
    numbers: Numbers
    tiles: tuple[MeasuredTile, ...]
    agreement: Agreement
    fitting: Agreement
    quiet_share: float
    notes: tuple[str, ...]


def calibrate(
    hardware: CpuSpec | None = None,
    *,
    minutes: float = 1.0,
    progress: Progress | None = None,
    machine: Callable[[CpuSpec, Path], Machine] = Machine,
) -> Calibration:
    """Measure the present machine.

    Parameters
    ----------
    hardware : CpuSpec, optional
        What is known about it; `detect_cpu()` by default.
    minutes : float
        Most time spent on sampling; it ends earlier once there are enough quiet samples. Building the probes comes
        on top: a quarter of a minute.
    progress
        Called with what is going on and the share of it that is done.
    machine
        Makes what runs the probes: elsewhere, where `hardware` says what that is.

    Returns
    -------
    Calibration
        Nothing is written.

    Raises
    ------
    DeviceError
        The CPU is not detected.
    MissingDependencyError
        TVM is not installed.
    """
    report = progress or (lambda _stage, _share: None)
    hardware = hardware or detect_cpu()
    samples, together = Samples(), Samples()
    tiles = candidate_tiles(hardware)
    with temporary_folder() as folder:
        here = machine(hardware, folder)
        with here.alone():
            report("building probes", 0.0)
            here.start()
            quantities = here.core_quantities()
            tile_quantities = here.tile_quantities(tiles, lambda share: report("building probes", share))
            for stage, chosen, share in (("one core", quantities, 0.3), ("register tiles", tile_quantities, 0.5)):
                sample_quantities(
                    chosen,
                    here.probes,
                    samples,
                    budget_s=60 * minutes * share,
                    enough=_ENOUGH,
                    progress=lambda done, stage=stage: report(stage, done),  # type: ignore[misc]
                )
        report("cores together", 0.0)
        at_once = here.together(60 * minutes * 0.05)
        quantities = here.all_core_quantities()
        with here.beside():
            sample_quantities(
                quantities,
                here.probes,
                together,
                budget_s=60 * minutes * 0.15,
                enough=_ENOUGH,
                progress=lambda done: report("all cores", done),
            )
    numbers = replace(_numbers(hardware, samples, together, here.work), together=at_once)
    fma_s, work = samples.fma_s, here.work
    names = dict(zip(tiles, (quantity.name for quantity in tile_quantities), strict=True))
    shares = {tile: work[name] / samples.steady_seconds(name) / (work["fma"] / fma_s) for tile, name in names.items()}
    return finished(hardware, numbers, shares, here.spill_ops, samples.quiet_share)


def finished(
    hardware: CpuSpec,
    numbers: Numbers,
    shares: Mapping[RegisterTile, float],
    spill_ops: Mapping[RegisterTile, int],
    quiet_share: float,
    today: str | None = None,
) -> Calibration:
    """Put the numbers together: the spec, then the prediction of every tile by a model of that spec.

    Parameters
    ----------
    shares : mapping of RegisterTile to float
        Rate of each tile over that of multiply-adds between registers.
    """
    spec, notes = calibrated_spec(hardware, numbers, shares, today or datetime.date.today().isoformat())
    filled = numbers.fma_flop_per_s / (spec.compute.fp32_peak_flop_per_s / spec.compute.num_cores)
    measured = tuple(
        MeasuredTile(tile, filled * share, predicted_share(tile, spec), spill_ops.get(tile, 0))
        for tile, share in shares.items()
    )
    fitting = [tile for tile in measured if fits_registers(tile.tile, spec)]
    return Calibration(spec, numbers, measured, agreement(measured), agreement(fitting), quiet_share, notes)


def _numbers(hardware: CpuSpec, samples: Samples, together: Samples, work: Mapping[str, int]) -> Numbers:
    levels = ["l1", "l2", *(["l3"] if hardware.l3 else [])]
    doubtful = {name for name in samples.names if samples.is_doubtful(name)}
    short, long = (samples.steady_seconds(f"call_{depth}") / _calls(work, depth, hardware) for depth in CALL_DEPTHS)
    step_s = (long - short) / (CALL_DEPTHS[1] - CALL_DEPTHS[0])
    fill = {level: work[f"{level}_load"] / samples.steady_seconds(f"{level}_load") for level in levels}
    latency = {level: samples.steady_seconds(f"{level}_chase") / work[f"{level}_chase"] for level in levels}
    # memory has a clock of its own
    fill["dram"] = work["dram_load"] / samples.seconds("dram_load")
    latency["dram"] = samples.seconds("dram_chase") / work["dram_chase"]
    fma_rate = work["fma"] / samples.fma_s
    one_fma_s = 2.0 * hardware.fp32_lanes / work["fma_latency"]
    half = work["fma_half"] / samples.steady_seconds("fma_half") / fma_rate if "fma_half" in work else 0.0
    several = bool(together.names)
    return Numbers(
        integer_clock_hz=work["clock"] / samples.steady_seconds("clock"),
        fma_flop_per_s=fma_rate,
        all_fma_flop_per_s=work["all_fma"] / together.best_seconds("all_fma") if several else fma_rate,
        half_share=half,
        fma_latency_s=samples.steady_seconds("fma_latency") * one_fma_s,
        store_bytes_s=work["l1_store"] / samples.steady_seconds("l1_store"),
        broadcasts_s=work["broadcast"] / samples.steady_seconds("broadcast"),
        fill_bytes_s=fill,
        latency_s=latency,
        all_dram_bytes_s=work["all_load"] / together.best_seconds("all_load") if several else fill["dram"],
        call_s=short - CALL_DEPTHS[0] * step_s,
        parallel_start_s=together.best_seconds("start") / work["start"] if several else 0.0,
        function_call_s=samples.best_seconds("nothing") / work["nothing"],
        footprint_bytes_s={
            work[name]: work[name] / samples.seconds(name) for name in samples.names if name.startswith(FOOTPRINT)
        },
        dots={name: _dot(name, samples, work, hardware) for name in dot_instructions(hardware)},
        doubtful=frozenset(doubtful),
    )


def _dot(name: str, samples: Samples, work: Mapping[str, int], hardware: CpuSpec) -> tuple[float, float]:
    """Return FLOP/s and latency of an instruction that sums products of neighbours."""
    one = 2.0 * hardware.fp32_lanes * dot_operands(name).size / work[f"{name}_latency"]
    return work[name] / samples.steady_seconds(name), samples.steady_seconds(f"{name}_latency") * one


def _calls(work: Mapping[str, int], depth: int, hardware: CpuSpec) -> float:
    rows, vectors = CALL_TILE
    return work[f"call_{depth}"] / (2 * rows * vectors * hardware.fp32_lanes * depth)


# ---- the spec --------------------------------------------------------------------------------------------------


def calibrated_spec(
    hardware: CpuSpec, numbers: Numbers, shares: Mapping[RegisterTile, float], today: str
) -> tuple[CpuSpec, tuple[str, ...]]:
    """Return `hardware` with the measured numbers in place of the detected ones, and what was decided.

    Keys that were measured leave `unverified`; those with too few quiet samples stay there.
    """
    compute, lanes = hardware.compute, hardware.fp32_lanes
    source = f"anatune hw calibrate, {today}"
    fma_per_s = numbers.fma_flop_per_s / (2 * lanes)
    rates = (fma_per_s, numbers.fma_latency_s, numbers.integer_clock_hz)
    core = solved(*rates, compute.fma_latency_cycles, sure_units(compute))
    clock, fma = core.clock_hz, core.fma_per_cycle
    decided = "as detected" if fma == compute.fma_per_cycle else f"instead of {compute.fma_per_cycle:g}"
    vector_bytes = 4 * lanes
    loads = round(numbers.fill_bytes_s["l1"] / clock / vector_bytes, 2)
    stores = round(numbers.store_bytes_s / clock / vector_bytes, 2)
    broadcasts = max(loads, round(numbers.broadcasts_s / clock, 2))
    best = sorted(shares.values())[-_BEST_TILES:]
    filled = fma_per_s / (clock * fma)
    reachable = round(min(1.0, filled * sum(best) / len(best)), 3) if best else compute.reachable_fraction
    doubts = set(numbers.doubtful)
    unsure = {
        "clock_hz": "clock" in doubts,
        "fma_per_cycle": not core.is_sure,
        "fma_latency_cycles": "fma_latency" in doubts,
        "loads_per_cycle": "l1_load" in doubts,
        "stores_per_cycle": "l1_store" in doubts,
        "broadcasts_per_cycle": "broadcast" in doubts,
        "fp32_peak_flop_per_s": "clock" in doubts,
        "reachable_fraction": not best,
        "parallel_speedup": numbers.together is not None and numbers.together.cause == "crowded",
    }
    speedup = None if numbers.together is None else _speedup(numbers.together, compute.num_cores)
    measured = with_core(
        compute,
        core,
        loads_per_cycle=loads,
        stores_per_cycle=stores,
        broadcasts_per_cycle=broadcasts,
        reachable_fraction=reachable,
        parallel_speedup=speedup,
        source=f"{source}; the rest {compute.source}",
        unverified=_unverified(compute.unverified, unsure),
    )
    caches = {
        level: _level(getattr(hardware, level), level, numbers, clock, source)
        for level in ("l1", "l2", "l3")
        if getattr(hardware, level) is not None
    }
    shared = _shared(numbers, hardware.l3)
    if shared is not None and hardware.l3 is not None:
        caches["l3"] = msgspec.structs.replace(
            caches["l3"], size_bytes=shared, source=f"{source}; the rest as detected"
        )
    spec = msgspec.structs.replace(
        hardware,
        compute=measured,
        **caches,
        dram=msgspec.structs.replace(
            hardware.dram,
            bandwidth_bytes_per_s=_round(max(numbers.all_dram_bytes_s, numbers.fill_bytes_s["dram"])),
            core_bandwidth_bytes_per_s=_round(numbers.fill_bytes_s["dram"]),
            latency_s=_round(numbers.latency_s["dram"]),
            source=source,
            unverified=_unverified(
                hardware.dram.unverified,
                {
                    "bandwidth_bytes_per_s": False,
                    "core_bandwidth_bytes_per_s": "dram_load" in doubts,
                    "latency_s": "dram_chase" in doubts,
                },
            ),
        ),
        launch=CpuLaunch(
            parallel_start_s=_round(numbers.parallel_start_s or 1e-6),
            function_call_s=_round(numbers.function_call_s),
            microkernel_call_cycles=round(max(0.0, numbers.call_s * clock), 1),
            source=source,
            unverified=() if numbers.parallel_start_s else ("parallel_start_s",),
        ),
        microkernels=None,
        **{name: _instruction(name, numbers, clock, source) for name in numbers.dots},
    )
    notes = (
        f"clock {clock / 1e9:.3f} GHz in vector code, {numbers.integer_clock_hz / 1e9:.3f} GHz in integer code",
        f"fma_per_cycle {fma:g}: measured {fma_per_s / clock:.3f}, {decided}"
        + ("" if core.is_sure else ", unverified: calibrate again when the machine is quieter"),
        *([f"vectors of half the width reach {100 * numbers.half_share:.0f} %"] if numbers.half_share else []),
        *(
            f"{name} reaches {rate / numbers.fma_flop_per_s:.2f} times float32's peak"
            for name, (rate, _) in numbers.dots.items()
        ),
        *([] if shared is None else [_shared_note(shared, hardware.l3, numbers)]),
        *_together_notes(numbers),
    )
    return spec, notes


def _shared(numbers: Numbers, cache: CacheLevel | None) -> int | None:
    """Return the bytes of the last cache that there are for this machine; None: all, or nobody can tell.

    Virtual machines are told of a processor's whole L3, and have a part of it. Where memory of some size comes no
    faster than halfway between L3 and memory (a geometric mean), the cache does not hold it.
    """
    if cache is None or not numbers.footprint_bytes_s:
        return None
    near, far = _near(numbers), numbers.fill_bytes_s["dram"]
    if near < _CLEAR * far:
        return None
    slow = [size for size, rate in numbers.footprint_bytes_s.items() if rate < math.sqrt(near * far)]
    least = min(slow, default=cache.size_bytes)
    held = [size for size in numbers.footprint_bytes_s if size < least]
    if least > cache.size_bytes // 2:  # a walk as large as the cache misses some of it anyway
        return None
    unit = cache.ways * cache.line_bytes
    return max(held, default=int(least / _BETWEEN)) // unit * unit


def _near(numbers: Numbers) -> float:
    """Return the most bytes a second that came from the last cache: a victim cache keeps what was used again."""
    return max(numbers.fill_bytes_s["l3"], *numbers.footprint_bytes_s.values())


def _shared_note(held: int, cache: CacheLevel | None, numbers: Numbers) -> str:
    assert cache is not None
    rates = f"{_near(numbers) / 1e9:.1f} and {numbers.fill_bytes_s['dram'] / 1e9:.1f} GB/s"
    whole = cache.size_bytes / 2**20
    return f"L3 holds {held / 2**20:.0f} of its {whole:.0f} MB for this machine ({rates} within and beyond)"


def _instruction(name: str, numbers: Numbers, clock: float, source: str) -> DotInstruction:
    """Return an instruction's rate, a usual number where that agrees, and its latency."""
    flop_per_s, latency_s = numbers.dots[name]
    rate, latency = flop_per_s / numbers.fma_flop_per_s, latency_s * clock
    group = dot_operands(name).size
    unsure = {"rate": name in numbers.doubtful, "latency_cycles": f"{name}_latency" in numbers.doubtful}
    return DotInstruction(
        rate=snapped(rate, [group * share for share in (0.25, 0.5, 1.0, 2.0)]) or round(rate, 2),
        latency_cycles=snapped(latency, [*range(1, 20)]) or round(latency, 1),
        source=source,
        unverified=_unverified((), unsure),
    )


def _speedup(together: Together, num_cores: int) -> float:
    """Return what all cores do at once from what was found with those that were tried."""
    return round(min(1.0, together.speedup / together.cores) * num_cores, 2)


def _together_notes(numbers: Numbers) -> list[str]:
    """Say what all cores do at once, and whether TVM's threads reach that."""
    pool = numbers.all_fma_flop_per_s / numbers.fma_flop_per_s
    found = numbers.together
    notes = [] if found is None else [found.line]
    notes.append(f"TVM's threads on all cores reach {pool:.2f} times one core's peak")
    if found is not None and pool < _POOL_SHARE * found.speedup:
        notes[-1] += ": other programs run, or TVM_NUM_THREADS or TVM_BIND_THREADS keep them away"
    return notes


def _level(cache: CacheLevel, level: str, numbers: Numbers, clock: float, source: str) -> CacheLevel:
    return msgspec.structs.replace(
        cache,
        bandwidth_bytes_per_cycle=round(numbers.fill_bytes_s[level] / clock, 1),
        latency_cycles=round(numbers.latency_s[level] * clock, 1),
        source=f"sizes as detected; {source}",
        unverified=_unverified(
            cache.unverified,
            {
                "bandwidth_bytes_per_cycle": f"{level}_load" in numbers.doubtful,
                "latency_cycles": f"{level}_chase" in numbers.doubtful,
            },
        ),
    )


def _unverified(before: Sequence[str], unsure: Mapping[str, bool]) -> tuple[str, ...]:
    """Return the doubtful keys: those that were not measured, and measured ones that are unsure."""
    kept = [key for key in before if not unsure.get(key) and key not in unsure]
    return (*kept, *(key for key, is_unsure in unsure.items() if is_unsure))


def _round(value: float) -> float:
    """Return four significant digits."""
    return float(f"{value:.4g}")
