"""Lower bound of the time of a workload on a device: arithmetic at the peak rate and the necessary transfers.

No schedule of the given templates is faster unless the device is faster than its spec says. The bound contains no
fitted number, and learned corrections do not change it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from anatune.core.hardware.spec import DOT_INSTRUCTIONS, CpuSpec, GpuSpec
from anatune.core.workload.nest import DTYPE_BYTES, Workload
from anatune.templates import get_template

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
"""Keys of a spec's groups that are rates."""


class TimeBound(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A time that no kernel is faster than. Immutable; JSON both ways.

    Attributes
    ----------
    time_s : float
        Time of one run, s; > 0.
    bound_by : str
        The resource that takes this time: "fma", or the level that bytes come from: "l2", "l3" or "dram".
    unverified : tuple of str
        Numbers of the spec that the bound uses and nobody has verified, for example "compute.clock_hz"; the device may
        be faster.
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
    """Return the lower bound of the time of `workload` when it runs again and again, as sessions measure it.

    A cache keeps its content from the previous run: of operands of B bytes, at least B - (bytes of this cache and the
    nearer ones) come from the next level, with any schedule. Results may stay where they are written.

    Parameters
    ----------
    hardware : CpuSpec or GpuSpec
        The device; for CPUs with the cores that the kernels use.
    flop : mapping of str to float, optional
        Template -> fewest operations of its kernels (`base.model.Model.least_flop`), counted at the peak of the unit
        that multiplies; by default the workload's operations without tensor cores. Operations on padding do not count,
        and neither do those that transforms save.
    l2 : {"flush", "warm"}, optional
        For GPUs: with "flush" the L2 cache is empty at the beginning of a run.
    cold : {"l3", "dram"}, optional
        For CPUs: the level that the operands `constants` come from in every run.
    constants : collection of str
        Names of those operands.
    """
    arithmetic_s = workload.flop / hardware.peak_flop_per_s(workload.dtype)
    if flop:
        arithmetic_s = min(
            num_operations / get_template(name).peak_flop_per_s(workload.dtype, hardware)
            for name, num_operations in flop.items()
        )
    times = {"fma": arithmetic_s, **dict(_transfers(workload, hardware, l2, cold, constants))}
    longest = max(times, key=times.__getitem__)
    doubts = tuple(_list_unverified(workload, hardware, longest))
    return TimeBound(max(times[longest], 1e-12), longest, doubts)  # never 0, even without operations or transfers


def _list_unverified(workload: Workload, hardware: CpuSpec | GpuSpec, level: str) -> Iterable[str]:
    """Yield the unverified numbers that the time of a level, or of "fma", depends on."""
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
    """Yield (level, seconds) for the bytes that have to come from each level in a run."""
    num_bytes = {
        access.tensor: access.touched_elements(workload.extents) * DTYPE_BYTES[access.dtype]
        for access in workload.operands
    }
    operands = float(sum(num_bytes.values()))
    weights = float(sum(num_bytes[name] for name in constants))
    for level, kept, bytes_per_s in hardware.refills(l2_is_flushed=l2 == "flush"):
        yield level, max(operands - kept, weights if level == cold else 0.0) / bytes_per_s
