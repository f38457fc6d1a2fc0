"""The least time of a workload on a device as kernels are timed there: arithmetic at the peak, transfers, no more.

No schedule of the given templates is faster unless the device is faster than its spec says. Unlike the models' own
times nothing in it was fitted; learned corrections do not change it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from anatune.core.hardware.spec import DOT_INSTRUCTIONS, CpuSpec, GpuSpec
from anatune.core.workload.nest import DTYPE_BYTES, Workload
from anatune.templates import template_named

_RATES = {
    "bandwidth_bytes_per_cycle",
    "bandwidth_bytes_per_s",
    "clock_hz",
    "core_bandwidth_bytes_per_s",
    "fma_per_cycle",
    "fp32_lanes_per_sm",
    "fp32_peak_flop_per_s",
    "num_sms",
}
"""Keys of a spec's groups that say how fast something is."""


class TimeBound(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A time that no kernel undercuts. Immutable; JSON both ways.

    Attributes
    ----------
    time_s : float
        Of one run; > 0.
    bound_by : str
        What takes it: "fma", or the level that bytes come from: "l2", "l3", "dram".
    unverified : tuple of str
        Numbers of the spec that it rests on and that nobody has verified, as "compute.clock_hz": the device may do
        more.
    """

    time_s: float
    bound_by: str
    unverified: tuple[str, ...] = ()


def time_bound(
    workload: Workload,
    hardware: CpuSpec | GpuSpec,
    flop: Mapping[str, float] | None = None,
    *,
    l2: str | None = None,
    cold: str | None = None,
    constants: Collection[str] = (),
) -> TimeBound:
    """Return the least time of a run of `workload`, run after run, as a session times it.

    What a cache held after the run before need not come from the next level: of operands of B bytes at least
    B - (bytes of this cache and of nearer ones) do, whatever the schedule. Results may stay where they are written.

    Parameters
    ----------
    hardware : CpuSpec or GpuSpec
        CPUs: with the cores that kernels use.
    flop : mapping of str to float, optional
        Template -> fewest operations of its kernels (`base.model.Model.least_flop`), at the peak of the unit that they
        multiply on; by default the workload's without tensor cores. Operations that only padding asks for do not count,
        nor do those that transforms save.
    l2 : {"flush", "warm"}, optional
        GPUs: with "flush" nothing is in the L2 cache when a run begins.
    cold : {"l3", "dram"}, optional
        CPUs: where the operands `constants` come from in every run.
    """
    arithmetic_s = workload.flop / hardware.peak_flop_per_s(workload.dtype)
    if flop:
        arithmetic_s = min(
            fewest / template_named(name).peak_flop_per_s(workload.dtype, hardware) for name, fewest in flop.items()
        )
    times = {"fma": arithmetic_s, **dict(_transfers(workload, hardware, l2, cold, constants))}
    longest = max(times, key=times.__getitem__)
    doubts = tuple(_unverified(workload, hardware, longest))
    return TimeBound(max(times[longest], 1e-12), longest, doubts)  # a workload without operations that fits a cache


def _unverified(workload: Workload, hardware: CpuSpec | GpuSpec, level: str) -> Iterable[str]:
    """Yield the unverified numbers behind the time of a level, or of "fma"."""
    groups = ("dram",) if level == "dram" else ("compute",) if level == "fma" else ("compute", level)
    for group in groups:
        for key in getattr(hardware, group).unverified:
            if key in _RATES:
                yield f"{group}.{key}"
    if level == "fma":
        for name in DOT_INSTRUCTIONS.get(workload.dtype, ()):
            instruction = hardware.dot_instruction(name)
            if instruction is not None and "rate" in instruction.unverified:
                yield f"{name}.rate"


def _transfers(
    workload: Workload, hardware: CpuSpec | GpuSpec, l2: str | None, cold: str | None, constants: Collection[str]
) -> Iterable[tuple[str, float]]:
    """Yield level -> seconds of what has to come from there in each run."""
    num_bytes = {
        access.tensor: access.touched_elements(workload.extents) * DTYPE_BYTES[access.dtype]
        for access in workload.operands
    }
    operands = float(sum(num_bytes.values()))
    weights = float(sum(num_bytes[name] for name in constants))
    for level, kept, bytes_per_s in hardware.refills(l2_is_flushed=l2 == "flush"):
        yield level, max(operands - kept, weights if level == cold else 0.0) / bytes_per_s
