"""What a kernel of a whole model takes whose weights nobody has read since the model's last run.

The models of single kernels count runs that follow each other: what fits a cache is found there again. In a model, the
weights of all other kernels are read between two runs of one, so that its own come from the first level that holds all
of them, once a run. Data are what the kernel before has just written.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import msgspec

from anatune.core.hardware.spec import CpuSpec
from anatune.core.prediction import Prediction
from anatune.templates.cpu.model.pack import EXPOSED_SHARE, pack_machine

__all__ = ["with_cold_weights"]

_PARTS = ("l2_s", "l3_s", "dram_s")
"""`Prediction.parts` that are transfers: into L1, L2, L3."""


def with_cold_weights(
    prediction: Prediction,
    weight_bytes: float,
    all_bytes: float,
    hardware: CpuSpec,
    *,
    levels_overlap: bool = False,
) -> Prediction:
    """Return a prediction for runs between which `all_bytes` of weights are read.

    Transfers that are counted already, because the kernel's tensors fit no nearer cache, are not counted again. Threads
    share the weights. Transfers and arithmetic overlap as in the kernels' own models.

    Parameters
    ----------
    weight_bytes : float
        Of this kernel, as they are packed.
    all_bytes : float
        Of all kernels of the model.
    levels_overlap : bool
        Whether transfers of different levels overlap as they do with arithmetic (the template's rule), or add up.
    """
    threads = max(1.0, round(prediction.occupancy * hardware.compute.num_cores))
    parts = dict(prediction.parts)
    added: dict[str, float] = {}
    for name, held, fill_s in zip(_PARTS, *_caches(hardware, threads), strict=False):
        if all_bytes > held:
            added[name] = max(0.0, weight_bytes / threads * fill_s - parts.get(name, 0.0))
    if not any(added.values()):
        return prediction
    before = _memory_s(parts, levels_overlap)
    for name, seconds in added.items():
        parts[name] = parts.get(name, 0.0) + seconds
    memory_s = _memory_s(parts, levels_overlap)
    overlapped = prediction.time_s - parts.get("packing_s", 0.0) - parts.get("start_s", 0.0)
    core_s = overlapped - EXPOSED_SHARE * before  # `_together`, solved for one of the two
    if core_s < before:
        core_s = max(0.0, (overlapped - before) / EXPOSED_SHARE)
    time_s = prediction.time_s - overlapped + _together(core_s, memory_s)
    longest = max(added, key=parts.__getitem__)
    return msgspec.structs.replace(
        prediction,
        time_s=time_s,
        gflop_per_s=prediction.gflop_per_s * prediction.time_s / time_s,
        parts=parts,
        bound_by=longest.removesuffix("_s") if memory_s > core_s else prediction.bound_by,
    )


def _together(one_s: float, other_s: float) -> float:
    """Return the time of two things that overlap, as `cpu.times.nest.combine`: that one is for compiled code."""
    return max(one_s, other_s) + EXPOSED_SHARE * min(one_s, other_s)


def _memory_s(parts: Mapping[str, float], levels_overlap: bool) -> float:
    """Return the time of all transfers."""
    transfers_s = [parts.get(name, 0.0) for name in _PARTS]
    return functools.reduce(_together, transfers_s) if levels_overlap else sum(transfers_s)


def _caches(hardware: CpuSpec, threads: float) -> tuple[list[float], list[float]]:
    """Return bytes that each cache holds, and seconds in which a thread brings a byte into it, nearest first."""
    machine = pack_machine(hardware)
    core = machine.core
    fills = [1.0 / (rate * core.clock_hz) for rate in machine.fill_bytes_per_cycle[:-1].tolist()]
    dram_s = 1.0 / min(core.dram_core_bytes_s, core.dram_socket_bytes_s / threads)
    return machine.size_bytes.tolist(), [*fills, dram_s]
