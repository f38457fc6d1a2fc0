"""Calibration of a GPU of this machine, which measures the numbers of its spec (``anatune hw calibrate host_gpu``).

The use of each number in the model (`gpu.pack`):

==================================== ===========================================================================
compute.clock_hz, peak               all cycles to seconds: the clock under multiply-adds, not the boost clock
compute.reachable_fraction           the multiply-add term: what the best of the chains reaches
compute.fma_latency_cycles           the latency term
compute.int8_rate                    int8 workloads
compute.fp16_rate                    nothing yet
shared_memory.bytes_per_cycle_per_sm the shared-memory term
l2.bandwidth_bytes_per_s             the L2 term
dram.reachable_fraction              the DRAM term: what reading reaches of the nominal bandwidth
latencies in cycles                  the first load of a step; those of L2 and DRAM are seconds times the clock
launch.overhead_s                    added to every kernel
tensor_cores.mma_sync_fraction       arithmetic of `triton`: the best ``mma.sync`` over the paper's rate
tensor_cores.latency_cycles          its latency term
==================================== ===========================================================================

Also reported are the sweep of multiply-add chains over warps, narrower shared loads, copies, matrix units
(``mma.sync``), and the clock during each.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import msgspec

from anatune.codegen.cuda import nvrtc
from anatune.codegen.cuda.probes import GpuProbe
from anatune.core.hardware.gpu_groups import TensorCores
from anatune.core.hardware.groups import value_problem
from anatune.core.hardware.spec import GpuSpec
from anatune.errors import DeviceError
from anatune.measure.cuda.calibration.machine import Compile, GpuMachine
from anatune.measure.cuda.calibration.numbers import SUSTAINED, GpuNumbers, Median, numbers_of
from anatune.measure.cuda.calibration.probe_set import CHAINS, WARPS, sweep_name
from anatune.measure.cuda.detect import gpu_detection
from anatune.measure.cuda.driver import GpuDevice, open_device

Progress = Callable[[str, float], None]

LARGE_SPREAD = 0.05
"""Relative spread above which a number stays unverified."""
_LANES = (64, 128, 192, 256)
_USUAL = {
    "compute.clock_hz": (0.5, 1.25),
    "compute.reachable_fraction": (0.6, 1.5),
    "compute.fma_latency_cycles": (0.5, 2.0),
    "compute.fp16_rate": (0.4, 2.5),
    "compute.int8_rate": (0.4, 2.5),
    "shared_memory.bytes_per_cycle_per_sm": (0.6, 1.1),
    "shared_memory.latency_cycles": (0.5, 2.0),
    "l1.latency_cycles": (0.4, 2.5),
    "l2.bandwidth_bytes_per_s": (0.3, 3.0),
    "l2.latency_cycles": (0.5, 2.5),
    "dram.reachable_fraction": (0.7, 1.25),
    "dram.latency_cycles": (0.5, 2.5),
    "launch.overhead_s": (0.2, 5.0),
    "tensor_cores.mma_sync_fraction": (0.6, 1.6),
    "tensor_cores.latency_cycles": (0.4, 2.5),
}
"""Usual range of measured over previous values; a number outside stays unverified."""


class GpuCalibration(msgspec.Struct, frozen=True):
    """The result of a calibration: the new spec, the measured numbers, and notes about decisions."""

    spec: GpuSpec
    numbers: GpuNumbers
    notes: tuple[str, ...]


def calibrate_gpu(
    index: int = 0,
    *,
    minutes: float = 0.5,
    hardware: GpuSpec | None = None,
    device: GpuDevice | None = None,
    compiler: Compile | None = None,
    progress: Progress | None = None,
) -> GpuCalibration:
    """Measure a GPU of this machine without writing a file.

    Parameters
    ----------
    index : int
        The CUDA device number.
    minutes : float
        Largest time for sampling, which ends earlier once there are enough samples. Compiling and checking the probes
        takes additional time.
    hardware : GpuSpec, optional
        The previous spec; detected by default.
    device : GpuDevice, optional
        An open device; `open_device(index)` by default, closed at the end.
    compiler : callable, optional
        Returns a probe's cubin; NVRTC by default.
    progress
        Called with the name of a phase and the share of it that is done.

    Raises
    ------
    DeviceError
        There is no GPU, or it failed.
    MissingDependencyError
        NVRTC is not installed.
    RunError
        The driver refused a basic operation.
    """
    report = progress or (lambda _stage, _share: None)
    is_own = device is None
    device = device or open_device(index)
    try:
        if hardware is None:
            specs, why = gpu_detection()
            if index >= len(specs):
                raise DeviceError(f"GPU {index} cannot be described: {why}")
            hardware = specs[index]
        machine = GpuMachine(device, compiler or _nvrtc, lambda share: report("building probes", share))
        try:
            numbers = _measure(machine, minutes, report)
        finally:
            machine.close()
    finally:
        if is_own:
            device.close()
    spec, notes = calibrated_gpu_spec(hardware, numbers, datetime.date.today().isoformat())
    return GpuCalibration(spec, numbers, notes)


def _measure(machine: GpuMachine, minutes: float, report: Progress) -> GpuNumbers:
    """Warm the device up and sample all probes."""
    widest, sustained = sweep_name(CHAINS[-1], WARPS[-1]), 0.0
    if widest in machine.names:
        report("warming up", 0.0)
        sustained = machine.warm_up(widest)
    samples = machine.sample_all(budget_s=60 * minutes, progress=lambda share: report("sampling", share))
    numbers = numbers_of(samples, machine.refused)
    clocks = {**numbers.clocks_hz, SUSTAINED: sustained} if sustained else numbers.clocks_hz
    return msgspec.structs.replace(numbers, clocks_hz=clocks)


def _nvrtc(probe: GpuProbe) -> nvrtc.Cubin:
    return nvrtc.compile_cuda(probe.kernel.source, probe.kernel.arch, name=probe.kernel.name)


# ---- numbers -> spec ---------------------------------------------------------------------------------------------


def calibrated_gpu_spec(hardware: GpuSpec, numbers: GpuNumbers, today: str) -> tuple[GpuSpec, tuple[str, ...]]:
    """Return `hardware` with the measured numbers, and notes about decisions.

    Measured numbers leave `unverified`. An implausible number (`groups.value_problem`) is not used. A number far from
    the previous one (`_USUAL`), or with a spread above `LARGE_SPREAD`, is used but stays unverified.
    """
    values, notes = _values(hardware, numbers)
    source = f"anatune hw calibrate, {today}"
    groups: dict[str, Any] = {}
    hardware = _with_tensor_cores(hardware, numbers)
    for name in ("compute", "shared_memory", "l1", "l2", "dram", "launch", "tensor_cores"):
        group = getattr(hardware, name)
        taken: dict[str, float] = {}
        unsure: set[str] = set()
        for key, measured in values.get(name, {}).items():
            before = getattr(group, key)
            value = type(before)(_round(measured.value))
            problem = value_problem(type(group).__name__, key, value)
            low, high = _USUAL.get(f"{name}.{key}", (0.0, float("inf")))
            if problem:
                notes.append(f"{name}.{key} stays {before:g}: {problem}")
                unsure.add(key)
                continue
            if not low <= value / before <= high:
                notes.append(f"{name}.{key} is {value:g}, far from the expected {before:g}; it stays unverified")
                unsure.add(key)
            elif measured.spread > LARGE_SPREAD:
                notes.append(f"{name}.{key} varies by {100 * measured.spread:.0f} %; it stays unverified")
                unsure.add(key)
            taken[key] = value
        if not taken and not unsure:
            continue
        verified = set(taken) - unsure
        kept = tuple(key for key in group.unverified if key not in verified)
        said = f"{', '.join(taken)}: {source}; the rest: {group.source}" if taken else group.source
        groups[name] = msgspec.structs.replace(
            group, **taken, source=said, unverified=(*kept, *sorted(unsure - set(kept)))
        )
    compute = groups.get("compute", hardware.compute)
    peak = 2.0 * compute.num_sms * compute.fp32_lanes_per_sm * compute.clock_hz
    groups["compute"] = msgspec.structs.replace(compute, fp32_peak_flop_per_s=peak)
    notes += [f"the probe {name} was not used: {why}" for name, why in numbers.refused.items()]
    return msgspec.structs.replace(hardware, **groups), tuple(notes)


def _values(hardware: GpuSpec, numbers: GpuNumbers) -> tuple[dict[str, dict[str, Median]], list[str]]:
    """Return the measured values by group and key, and notes about them."""
    compute, notes = hardware.compute, []
    clock = numbers.clock_hz or compute.clock_hz
    best = numbers.best_fma
    values: dict[str, dict[str, Median]] = {name: {} for name in ("compute", "shared_memory", "l1", "l2", "dram")}
    if numbers.clock_hz:
        share = numbers.clock_hz / compute.clock_hz
        notes.append(
            f"clock {numbers.clock_hz / 1e9:.3f} GHz during multiply-adds, {100 * share:.0f} % of the "
            f"{compute.clock_hz / 1e9:.3f} GHz in the spec"
        )
        if SUSTAINED in numbers.clocks_hz:
            notes[-1] += f"; {numbers.clocks_hz[SUSTAINED] / 1e9:.3f} GHz after a long time of multiply-adds"
        values["compute"]["clock_hz"] = Median(numbers.clock_hz, 0.0, best[1].samples if best else 0)
    if best is not None:
        per_cycle = best[1].value / (2 * compute.num_sms * clock)
        lanes = compute.fp32_lanes_per_sm
        if per_cycle > 1.03 * lanes:
            lanes = next((each for each in _LANES if each >= per_cycle / 1.03), lanes)
            notes.append(
                f"{per_cycle:.1f} multiply-adds per cycle and SM: {lanes} lanes instead of {compute.fp32_lanes_per_sm}"
            )
            values["compute"]["fp32_lanes_per_sm"] = Median(lanes, 0.0, best[1].samples)
        reached = best[1].value / (2 * compute.num_sms * lanes * clock)
        values["compute"]["reachable_fraction"] = Median(min(1.0, reached), best[1].spread, best[1].samples)
        for key, dtype in (("fp16_rate", "float16"), ("int8_rate", "int8")):
            rate = numbers.rates.get(f"fma_{dtype}")
            if rate is not None:
                values["compute"][key] = Median(rate.value / best[1].value, rate.spread, rate.samples)
    latency = numbers.latency_cycles
    if "fma" in latency:
        values["compute"]["fma_latency_cycles"] = latency["fma"]
    if numbers.shared_bytes_cycle:
        width, bandwidth = max(numbers.shared_bytes_cycle.items(), key=lambda item: item[1].value)
        values["shared_memory"]["bytes_per_cycle_per_sm"] = bandwidth
        shares = [f"{w} bytes {m.value:.1f}" for w, m in numbers.shared_bytes_cycle.items()]
        notes.append(f"shared memory, bytes per cycle by width of a load: {', '.join(shares)}; {width} bytes are used")
    for group, level in (("shared_memory", "shared"), ("l1", "l1")):
        if level in latency:
            values[group]["latency_cycles"] = latency[level]
    for level in ("l2", "dram"):
        seconds = numbers.latency_s.get(level)
        if seconds is not None and seconds.value > 0:  # L2 and DRAM have another clock
            values[level]["latency_cycles"] = Median(seconds.value * clock, seconds.spread, seconds.samples)
        elif level in latency:
            values[level]["latency_cycles"] = latency[level]
    if "l2_read" in numbers.rates:
        values["l2"]["bandwidth_bytes_per_s"] = numbers.rates["l2_read"]
    reading = numbers.rates.get("dram_read")
    if reading is not None:
        paper = hardware.dram.bandwidth_bytes_per_s
        if reading.value > paper:
            notes.append(f"DRAM is faster than the {paper / 1e9:.0f} GB/s in the spec")
            values["dram"]["bandwidth_bytes_per_s"] = reading
            paper = reading.value
        values["dram"]["reachable_fraction"] = Median(reading.value / paper, reading.spread, reading.samples)
    if hardware.tensor_cores is not None:
        values["tensor_cores"] = _tensor_core_values(hardware.tensor_cores, numbers)
    if numbers.launch_s is not None:
        values["launch"] = {"overhead_s": numbers.launch_s}
    return values, notes


def _with_tensor_cores(hardware: GpuSpec, numbers: GpuNumbers) -> GpuSpec:
    """Return the spec with the measured rates of its tensor cores if it has none."""
    rates = {dtype: numbers.best_matrix(dtype) for dtype in ("float16", "bfloat16", "tfloat32")}
    rate_by_dtype = {dtype: rate[1].value for dtype, rate in rates.items() if rate is not None}
    if hardware.tensor_cores is not None or len(rate_by_dtype) < len(rates) or "mma" not in numbers.latency_cycles:
        return hardware
    cores = TensorCores(
        float16_flop_per_s=_round(rate_by_dtype["float16"]),
        bfloat16_flop_per_s=_round(rate_by_dtype["bfloat16"]),
        tf32_flop_per_s=_round(rate_by_dtype["tfloat32"]),
        latency_cycles=_round(numbers.latency_cycles["mma"].value),
        source="rates: what mma.sync reaches, measured",
    )
    return msgspec.structs.replace(hardware, tensor_cores=cores)


def _tensor_core_values(cores: TensorCores, numbers: GpuNumbers) -> dict[str, Median]:
    """Return the measured share of the nominal rates, the best of the 16-bit types, and the latency."""
    values = {}
    shares = [
        Median(min(1.0, rate[1].value / paper), rate[1].spread, rate[1].samples)
        for dtype, paper in (("float16", cores.float16_flop_per_s), ("bfloat16", cores.bfloat16_flop_per_s))
        if (rate := numbers.best_matrix(dtype)) is not None
    ]
    if shares:
        values["mma_sync_fraction"] = max(shares, key=lambda share: share.value)
    if "mma" in numbers.latency_cycles:
        values["latency_cycles"] = numbers.latency_cycles["mma"]
    return values


def _round(value: float) -> float:
    """Return four significant digits."""
    return float(f"{value:.4g}")
