"""Clock, multiply-add units and latency of this machine's cores, which are measured together in a second.

Three rates are sampled next to each other, so that a drift of the clock cancels: dependent integer instructions (one
per cycle, independent of the other thread of the core), dependent multiply-adds (one per latency) and independent ones
(at most one per unit and cycle). Latencies are whole numbers; units are whole numbers, a half or a quarter. The
latency gives the clock in vector code, which is at most that of integer code (AVX-512). The units are the fewest that
explain the rate, and no fewer than a known microarchitecture has; the other thread of the core may use the rest.
"""

from __future__ import annotations

import datetime
from typing import NamedTuple

import msgspec

from anatune.codegen.cpu.machine_probes import clock_probe
from anatune.codegen.cpu.probes import build_probes, fma_probe
from anatune.core.hardware.cpu_groups import CpuCompute
from anatune.core.hardware.spec import CpuSpec
from anatune.measure.cpu.calibration.machine import one_core, own_call
from anatune.measure.cpu.calibration.samples import ProbeTimes, Quantity, Samples, sample_quantities

_SECONDS = 1.0
_SAMPLE_S = 0.1e-3
_MOST_SAMPLES = 5000
_UNITS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Possible numbers of multiply-adds per cycle."""
_ABOVE = 1.1
"""Factor by which a measured rate may exceed the units or the clock, because samples are taken at different moments."""
_SLOWEST = 0.55
"""Lowest clock of wide vectors over that of integer code."""
_CLEAR = 0.75
"""Share of the units that the rate has to reach; below, their number is unverified."""


class Core(NamedTuple):
    """The measured numbers of a core: units, sustained clock of vector code, latency, whether units are sure."""

    fma_per_cycle: float
    clock_hz: float
    fma_latency_cycles: float
    is_sure: bool


def solve_core(
    fma_per_s: float,
    fma_latency_s: float,
    integer_clock_hz: float,
    usual_latency_cycles: float,
    least_units: float = 0.0,
) -> Core:
    """Return the units, clock and latency that explain the measured rates.

    Parameters
    ----------
    fma_per_s : float
        Multiply-adds of whole vectors per second on one core.
    fma_latency_s : float
    integer_clock_hz : float
        Clock by dependent integer instructions.
    usual_latency_cycles : float
        Latency of the microarchitecture.
    least_units : float
        Units of the microarchitecture; 0 if unknown.
    """
    measured = fma_latency_s * integer_clock_hz
    nearest = max(1.0, float(round(measured)))
    clocks = {cycles: cycles / fma_latency_s for cycles in (usual_latency_cycles, nearest)}
    usual = {
        cycles: hz for cycles, hz in clocks.items() if _SLOWEST * integer_clock_hz <= hz <= _ABOVE * integer_clock_hz
    }

    def units(clock_hz: float) -> float:
        return next(
            (number for number in _UNITS if number >= least_units and fma_per_s <= _ABOVE * number * clock_hz),
            _UNITS[-1],
        )

    def fill_share(clock_hz: float) -> float:
        return min(1.0, fma_per_s / (units(clock_hz) * clock_hz))

    cycles, clock_hz = max((usual or {measured: integer_clock_hz}).items(), key=lambda entry: fill_share(entry[1]))
    number = units(clock_hz)
    is_sure = fill_share(clock_hz) >= _CLEAR and fma_per_s <= _ABOVE * number * clock_hz
    return Core(number, max(clock_hz, fma_per_s / number), round(cycles, 1), is_sure)


def with_core(compute: CpuCompute, core: Core, **changes: object) -> CpuCompute:
    """Return `compute` with the measured numbers of a core, the resulting peak, and other changes."""
    clock_hz = float(f"{core.clock_hz:.4g}")
    return msgspec.structs.replace(
        compute,
        clock_hz=clock_hz,
        fma_per_cycle=core.fma_per_cycle,
        fma_latency_cycles=core.fma_latency_cycles,
        fp32_peak_flop_per_s=2.0 * compute.num_cores * clock_hz * core.fma_per_cycle * (compute.simd_bits // 32),
        **changes,
    )


def sure_units(compute: CpuCompute) -> float:
    """Return the multiply-adds per cycle if they are verified, else 0."""
    return 0.0 if "fma_per_cycle" in compute.unverified else compute.fma_per_cycle


def measured_peak(hardware: CpuSpec) -> CpuSpec:
    """Return `hardware`, the spec of this machine, with measured clock, units, latency and peak.

    Raises
    ------
    MissingDependencyError
        TVM is not installed.
    BuildError
        The probes cannot be compiled.
    """
    probes = [
        fma_probe(hardware, "fma", seconds=_SAMPLE_S),
        clock_probe(hardware, "clock", seconds=_SAMPLE_S),
        fma_probe(hardware, "fma_latency", chains=1, seconds=_SAMPLE_S),
    ]
    samples = Samples()
    with one_core():
        module = build_probes(probes, hardware)
        calls = {probe.name: own_call(module.functions[probe.name], probe.sizes) for probe in probes}

        def reading() -> ProbeTimes:
            seconds = calls["fma"](1)
            return ProbeTimes(seconds, seconds)

        quantities = [Quantity(name, lambda name=name: calls[name](1)) for name in ("clock", "fma_latency")]  # type: ignore[misc]
        sample_quantities(quantities, reading, samples, budget_s=_SECONDS, enough=_MOST_SAMPLES)
    work = {probe.name: probe.work for probe in probes}
    flop = 2 * hardware.fp32_lanes
    core = solve_core(
        work["fma"] / flop / samples.fma_s,
        samples.steady_seconds("fma_latency") * flop / work["fma_latency"],
        work["clock"] / samples.steady_seconds("clock"),
        hardware.compute.fma_latency_cycles,
        sure_units(hardware.compute),
    )
    doubts = {*hardware.compute.unverified, "fma_per_cycle"} - {"clock_hz", "fma_latency_cycles"}
    if core.is_sure:
        doubts.discard("fma_per_cycle")
    compute = with_core(
        hardware.compute,
        core,
        source=f"clock and multiply-adds: anatune hw detect, {datetime.date.today().isoformat()}; "
        f"the rest {hardware.compute.source}",
        unverified=tuple(key for key in msgspec.structs.asdict(hardware.compute) if key in doubts),
    )
    return msgspec.structs.replace(hardware, compute=compute)
