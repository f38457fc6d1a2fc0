"""The present machine: whether it is the one a spec describes, how many of its cores a kernel may use."""

from __future__ import annotations

import os

import msgspec

from anatune.core.hardware import CpuSpec, GpuSpec
from anatune.errors import DeviceError, SpaceError

__all__ = ["check_machine", "choose_threads", "usable_cores", "with_threads"]


def usable_cores() -> int:
    """Return the logical processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def with_threads(hardware: CpuSpec, threads: int) -> CpuSpec:
    """Return the CPU with `threads` of its cores: what a kernel of so many threads can use.

    Peak and core count scale; DRAM gives what so many cores can ask for, at most what the socket has; caches that cores
    share are shared by as many of them as are left.

    Parameters
    ----------
    threads : int
        1 to the CPU's number of cores.
    """
    cores = hardware.compute.num_cores
    if threads == cores:
        return hardware
    replace = msgspec.structs.replace
    peak = hardware.compute.fp32_peak_flop_per_s * threads / cores
    compute = replace(hardware.compute, num_cores=threads, fp32_peak_flop_per_s=peak)
    dram = replace(
        hardware.dram,
        bandwidth_bytes_per_s=min(
            hardware.dram.bandwidth_bytes_per_s, threads * hardware.dram.core_bandwidth_bytes_per_s
        ),
    )
    caches = {
        name: replace(cache, shared_by_cores=min(cache.shared_by_cores, threads))
        for name in ("l1", "l2", "l3")
        if (cache := getattr(hardware, name)) is not None
    }
    return replace(hardware, compute=compute, dram=dram, **caches)


def choose_threads(hardware: CpuSpec, threads: int | None, usable: int | None = None) -> int:
    """Return the number of threads to tune for: `threads`, by default all cores of the spec that can be used.

    Raises
    ------
    SpaceError
        `threads` is no integer >= 1, or more than the CPU or the process has.
    """
    most = min(hardware.compute.num_cores, usable_cores() if usable is None else usable)
    if threads is None:
        return most
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= most:
        raise SpaceError(
            f"threads is {threads!r}, expected an integer from 1 to {most}: {hardware.name} has "
            f"{hardware.compute.num_cores} cores, this process may use {most} of them"
        )
    return threads


def check_machine(hardware: CpuSpec | GpuSpec, host: CpuSpec | None = None) -> CpuSpec:
    """Return `hardware` if it describes the present machine.

    Parameters
    ----------
    host : CpuSpec, optional
        The present machine; detected by default.

    Raises
    ------
    DeviceError
        It is a GPU, or a CPU of another architecture or instruction set.
    """
    if not isinstance(hardware, CpuSpec):
        raise DeviceError(
            f"{hardware.name} is a GPU: tuning measures on the present machine's CPU only, so far; "
            f"`anatune plan --hw {hardware.name}` ranks schedules without measuring"
        )
    if host is None:
        from anatune.measure.detect import detect_cpu

        host = detect_cpu()
    if (hardware.arch, hardware.compute.isa) != (host.arch, host.compute.isa):
        raise DeviceError(
            f"{hardware.name} is a {hardware.arch} with {hardware.compute.isa}, this machine a {host.arch} with "
            f"{host.compute.isa}: tuning measures on the present machine only; use --hw host, or tune there"
        )
    return hardware
