"""The results of the CPU probes: medians of samples as rates and latencies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from anatune.codegen.cpu.machine_probes import TILE_COUNTS
from anatune.core.hardware.dot import dot_instructions, dot_operands
from anatune.core.hardware.spec import CpuSpec
from anatune.measure.cpu.calibration.machine import CALL_DEPTHS, CALL_TILE, FOOTPRINT
from anatune.measure.cpu.calibration.samples import Samples
from anatune.measure.cpu.calibration.together import Together


@dataclass(frozen=True)
class Numbers:
    """The measured numbers of a CPU, in seconds at the sustained clock (see `Samples.steady_seconds`).

    Attributes
    ----------
    integer_clock_hz : float
        Clock by dependent integer instructions.
    fma_flop_per_s : float
        Rate of multiply-adds between registers on one core.
    all_fma_flop_per_s : float
        The same with TVM's threads on all cores; reported but not stored, because other programs lower it.
    together : Together or None
        Combined speed of all cores; None if they could not be pinned, or there is one.
    half_share : float
        FLOP/s with vectors of half the width over those with whole ones; reported only. 0 if not measured.
    fma_latency_s : float
    store_bytes_s : float
        Bytes per second of stores to the L1 cache.
    broadcasts_s : float
        Elements per second that are loaded into all lanes.
    fill_bytes_s, latency_s : dict of str to float
        Level (l1 to dram) -> bytes per second loaded by one core; seconds of a dependent load.
    footprint_bytes_s : dict of int to float
        Bytes of memory that are loaded repeatedly, more than for "l3" -> bytes per second.
    all_dram_bytes_s : float
    call_s : float
        Seconds of a microkernel call without its iterations (a tile of `CALL_TILE`).
    parallel_start_s, function_call_s : float
    dots : dict of str to (float, float)
        Instruction that sums products of neighbours -> FLOP/s of one core, between registers; latency in seconds.
    tiles : dict of str to float
        Seconds of an instruction on AMX's tiles, by the number of a spec's `TileUnit`; empty: not measured.
    doubtful : frozenset of str
        Names of these attributes, or levels such as "l3_load" and "l3_chase", with too few undisturbed samples.
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
    tiles: Mapping[str, float] = field(default_factory=dict)
    doubtful: frozenset[str] = frozenset()
    together: Together | None = None


def numbers_of(
    hardware: CpuSpec, samples: Samples, shared: Samples, together: Together | None, work: Mapping[str, int]
) -> Numbers:
    """Return the measured numbers.

    Parameters
    ----------
    samples, shared : Samples
        Samples of one core; of all cores, empty if there is one.
    together : Together or None
        See `Numbers`.
    work : mapping of str to int
        Quantity -> work of one sample: FLOP, bytes, iterations.
    """
    levels = ["l1", "l2", *(["l3"] if hardware.l3 else [])]
    doubtful = {name for name in samples.names if samples.is_doubtful(name)}
    short, long = (samples.steady_seconds(f"call_{depth}") / _calls(work, depth, hardware) for depth in CALL_DEPTHS)
    step_s = (long - short) / (CALL_DEPTHS[1] - CALL_DEPTHS[0])
    fill = {level: work[f"{level}_load"] / samples.steady_seconds(f"{level}_load") for level in levels}
    latency = {level: samples.steady_seconds(f"{level}_chase") / work[f"{level}_chase"] for level in levels}
    # memory has its own clock
    fill["dram"] = work["dram_load"] / samples.seconds("dram_load")
    latency["dram"] = samples.seconds("dram_chase") / work["dram_chase"]
    fma_rate = work["fma"] / samples.fma_s
    one_fma_s = 2.0 * hardware.fp32_lanes / work["fma_latency"]
    half = work["fma_half"] / samples.steady_seconds("fma_half") / fma_rate if "fma_half" in work else 0.0
    several = bool(shared.names)
    return Numbers(
        integer_clock_hz=work["clock"] / samples.steady_seconds("clock"),
        fma_flop_per_s=fma_rate,
        all_fma_flop_per_s=work["all_fma"] / shared.best_seconds("all_fma") if several else fma_rate,
        half_share=half,
        fma_latency_s=samples.steady_seconds("fma_latency") * one_fma_s,
        store_bytes_s=work["l1_store"] / samples.steady_seconds("l1_store"),
        broadcasts_s=work["broadcast"] / samples.steady_seconds("broadcast"),
        fill_bytes_s=fill,
        latency_s=latency,
        all_dram_bytes_s=work["all_load"] / shared.best_seconds("all_load") if several else fill["dram"],
        call_s=short - CALL_DEPTHS[0] * step_s,
        parallel_start_s=shared.best_seconds("start") / work["start"] if several else 0.0,
        function_call_s=samples.best_seconds("nothing") / work["nothing"],
        footprint_bytes_s={
            work[name]: work[name] / samples.seconds(name) for name in samples.names if name.startswith(FOOTPRINT)
        },
        dots={name: _dot(name, samples, work, hardware) for name in dot_instructions(hardware)},
        tiles={name: samples.steady_seconds(name) / work[name] for name in TILE_COUNTS if name in work},
        doubtful=frozenset(doubtful),
        together=together,
    )


def _dot(name: str, samples: Samples, work: Mapping[str, int], hardware: CpuSpec) -> tuple[float, float]:
    """Return FLOP/s and latency of an instruction that sums products of neighbours."""
    flop = 2.0 * hardware.fp32_lanes * dot_operands(name).size / work[f"{name}_latency"]
    return work[name] / samples.steady_seconds(name), samples.steady_seconds(f"{name}_latency") * flop


def _calls(work: Mapping[str, int], depth: int, hardware: CpuSpec) -> float:
    rows, vectors = CALL_TILE
    return work[f"call_{depth}"] / (2 * rows * vectors * hardware.fp32_lanes * depth)
