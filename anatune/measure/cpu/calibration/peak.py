"""Clock, multiply-add units and latency of the present machine's cores, solved for together; measured in a second.

Three rates are sampled beside each other, so that a drift of the clock cancels: dependent integer instructions (one a
cycle, whatever a neighbour on the same core does), dependent multiply-adds (one in as many cycles as their latency) and
independent ones (one in each unit and cycle, or fewer). Latencies are whole numbers, units whole ones, a half or a
quarter. The latency gives the clock in vector code, which is that of integer code or less (AVX-512); units are the
fewest that the rate fits into, and no fewer than a known microarchitecture has: what the rate falls short of them a
neighbour on the same core takes.
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
from anatune.measure.cpu.calibration.samples import Quantity, Reading, Samples, sample_quantities

_SECONDS = 1.0
_SAMPLE_S = 0.1e-3
_MOST_SAMPLES = 5000
_UNITS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Multiply-adds a cycle that there are."""
_ABOVE = 1.1
"""Times the number of units, or the clock, that a measured rate may be: samples are not of the same moment."""
_SLOWEST = 0.55
"""Clock of wide vectors over that of integer code, at least."""
_CLEAR = 0.75
"""Share of the units that the rate has to reach, or their number is doubtful."""


class Core(NamedTuple):
    """What was found of a core: units, sustained clock of vector code, latency, and whether the units are sure."""

    fma_per_cycle: float
    clock_hz: float
    fma_latency_cycles: float
    is_sure: bool


def solved(
    fma_per_s: float,
    fma_latency_s: float,
    integer_clock_hz: float,
    usual_latency_cycles: float,
    least_units: float = 0.0,
) -> Core:
    """Return units, clock and latency that explain what was measured.

    Parameters
    ----------
    fma_per_s : float
        Multiply-adds of whole vectors that one core starts in a second.
    fma_latency_s : float
    integer_clock_hz : float
        Clock by dependent integer instructions.
    usual_latency_cycles : float
        Of the microarchitecture.
    least_units : float
        Units that a core of it has, 0 if that is in doubt.
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

    def filled(clock_hz: float) -> float:
        return min(1.0, fma_per_s / (units(clock_hz) * clock_hz))

    cycles, clock_hz = max((usual or {measured: integer_clock_hz}).items(), key=lambda entry: filled(entry[1]))
    number = units(clock_hz)
    is_sure = filled(clock_hz) >= _CLEAR and fma_per_s <= _ABOVE * number * clock_hz
    return Core(number, max(clock_hz, fma_per_s / number), round(cycles, 1), is_sure)


def with_core(compute: CpuCompute, core: Core, **changes: object) -> CpuCompute:
    """Return `compute` with what was found of a core, the peak that follows, and other changes."""
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
    """Return the multiply-adds a cycle that nobody doubts, 0 where they are in doubt."""
    return 0.0 if "fma_per_cycle" in compute.unverified else compute.fma_per_cycle


def measured_peak(hardware: CpuSpec) -> CpuSpec:
    """Return `hardware`, which is the present machine, with its clock, units, latency and peak measured.

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

        def reading() -> Reading:
            seconds = calls["fma"](1)
            return Reading(seconds, seconds)

        quantities = [Quantity(name, lambda name=name: calls[name](1)) for name in ("clock", "fma_latency")]  # type: ignore[misc]
        sample_quantities(quantities, reading, samples, budget_s=_SECONDS, enough=_MOST_SAMPLES)
    work = {probe.name: probe.work for probe in probes}
    flop = 2 * hardware.fp32_lanes
    core = solved(
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
