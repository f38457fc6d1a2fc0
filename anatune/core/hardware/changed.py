"""Devices with one number changed, for "what if" questions: twice the bandwidth, half the registers, more cores.

All other numbers of the spec stay, including other limits and rates; only a peak follows the number of cores. No
real device has such a spec.

`difference` tells whether two specs describe the same kind of device, so that kernels of one run on the other and times
can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from anatune.core.hardware.spec import CpuSpec, GpuSpec, HardwareSpec
from anatune.errors import SpecError


class Change(NamedTuple):
    """A number of a device that can be changed.

    Attributes
    ----------
    name : str
        Name of the number in messages.
    value : float
        The number in the spec.
    unit : str
        "bytes/s", "bytes" or "" (a count).
    held : str
        Related quantities that do not change, for the message.
    scaled : callable
        ``factor -> spec`` of the device with the number multiplied, rounded to an allowed value; None if such a spec is
        impossible.
    """

    name: str
    value: float
    unit: str
    held: str
    scaled: Callable[[float], HardwareSpec | None]


def changes_of(hardware: HardwareSpec) -> list[Change]:
    """Return the numbers of a device that "what if" questions change, one at a time."""
    return _gpu_changes(hardware) if hardware.kind == "gpu" else _cpu_changes(hardware)


def _guard(make: Callable[[float], HardwareSpec]) -> Callable[[float], HardwareSpec | None]:
    """Return a function that returns None if the changed numbers contradict each other or are implausible."""

    def scale(factor: float) -> HardwareSpec | None:
        try:
            return make(factor)
        except SpecError:
            return None

    return scale


def _scale(hardware: HardwareSpec, group: str, *keys: str) -> Callable[[float], HardwareSpec | None]:
    """Return a function that multiplies some numbers of a group; bytes are rounded down."""
    before = getattr(hardware, group)

    def scale(factor: float) -> HardwareSpec:
        numbers = {key: getattr(before, key) * factor for key in keys}
        numbers = {key: int(number) if key.endswith("_bytes") else number for key, number in numbers.items()}
        return replace(hardware, **{group: replace(before, **numbers)})

    return _guard(scale)


def _gpu_changes(gpu: GpuSpec) -> list[Change]:
    compute, registers, shared = gpu.compute, gpu.registers, gpu.shared_memory

    def register_file(factor: float) -> GpuSpec:
        size = max(registers.allocation_unit, int(registers.per_sm * factor))
        return replace(gpu, registers=replace(registers, per_sm=size, per_block=min(registers.per_block, size)))

    def cores(factor: float) -> GpuSpec:
        count = max(1, round(compute.num_sms * factor))
        peak = compute.fp32_peak_flop_per_s * count / compute.num_sms
        units = gpu.tensor_cores
        if units is not None:
            rates = {name: getattr(units, name) for name in units.__struct_fields__ if name.endswith("_flop_per_s")}
            more = {name: rate * count / compute.num_sms for name, rate in rates.items() if rate is not msgspec.UNSET}
            units = replace(units, **more)
        return replace(gpu, compute=replace(compute, num_sms=count, fp32_peak_flop_per_s=peak), tensor_cores=units)

    rate, sizes = "bandwidth_bytes_per_s", ("per_sm_bytes", "per_block_bytes")
    dram_held, shared_held = "its latency, and the bandwidth of L2", "its bandwidth, and L1"
    return [
        Change("DRAM bandwidth", gpu.dram.bandwidth_bytes_per_s, "bytes/s", dram_held, _scale(gpu, "dram", rate)),
        Change("registers of an SM", registers.per_sm, "", "those a thread can have", _guard(register_file)),
        Change(
            "shared memory of an SM", shared.per_sm_bytes, "bytes", shared_held, _scale(gpu, "shared_memory", *sizes)
        ),
        Change("SMs", compute.num_sms, "", "the clock, L2 and DRAM", _guard(cores)),
    ]


def _cpu_changes(cpu: CpuSpec) -> list[Change]:
    compute, dram, l2 = cpu.compute, cpu.dram, cpu.l2

    def vector_registers(factor: float) -> CpuSpec:
        return replace(cpu, compute=replace(compute, num_vector_registers=round(compute.num_vector_registers * factor)))

    def cores(factor: float) -> CpuSpec:
        count = max(1, round(compute.num_cores * factor))
        share = count / compute.num_cores
        speedup = None if compute.parallel_speedup is None else compute.parallel_speedup * share
        peak = compute.fp32_peak_flop_per_s * share
        numbers = {"num_cores": count, "fp32_peak_flop_per_s": peak, "parallel_speedup": speedup}
        return replace(cpu, compute=replace(compute, **numbers))

    rates = _scale(cpu, "dram", "bandwidth_bytes_per_s", "core_bandwidth_bytes_per_s")
    count, unchanged = compute.num_vector_registers, "its bandwidth and latency, and L3"
    return [
        Change("DRAM bandwidth", dram.bandwidth_bytes_per_s, "bytes/s", "its latency", rates),
        Change("vector registers of a core", count, "", "their width", _guard(vector_registers)),
        Change("L2 of a core", l2.size_bytes, "bytes", unchanged, _scale(cpu, "l2", "size_bytes")),
        Change("cores", compute.num_cores, "", "the clock, the caches of a core, L3 and DRAM", _guard(cores)),
    ]


_OTHER_MEMORY = 1.2
"""Largest ratio of two memory bandwidths of the same kind of device."""


def difference(wanted: HardwareSpec, present: HardwareSpec) -> tuple[str, str] | None:
    """Describe the wanted device and the present one if they differ; return None if they are of the same kind.

    CPUs are compared by architecture and instruction set; GPUs by architecture, number of multiprocessors and memory
    bandwidth (an H100 and an H200 differ only in the last).
    """
    if wanted.kind == "cpu" and present.kind == "cpu":
        if (wanted.arch, wanted.compute.isa) == (present.arch, present.compute.isa):
            return None
        return f"a {wanted.arch} with {wanted.compute.isa}", f"a {present.arch} with {present.compute.isa}"
    if wanted.kind == "gpu" and present.kind == "gpu":
        if _words(wanted) != _words(present):
            return _words(wanted), _words(present)
        bandwidths = wanted.dram.bandwidth_bytes_per_s, present.dram.bandwidth_bytes_per_s
        if max(bandwidths) <= _OTHER_MEMORY * min(bandwidths):
            return None
        first, second = (f"{value / 1e9:.0f} GB/s" for value in bandwidths)
        return f"a GPU with {first}", f"one with {second}"
    return f"a {wanted.kind.upper()}", f"a {present.kind.upper()} ({present.model})"


def _words(gpu: GpuSpec) -> str:
    return f"an {gpu.arch} with {gpu.compute.num_sms} multiprocessors"
