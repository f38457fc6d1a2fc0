"""Predictions of kernels in a network, whose weights are not in the nearest caches.

The models of single kernels assume that a kernel runs again and again, so that all that fits a cache is found there. In
a network the weights of all other kernels are read between two runs of one kernel. So its weights come, in each run,
from the nearest level that holds the weights of the whole network. Its data are in cache: the kernel before has just
written them.
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
"""The `Prediction.parts` that are transfers: into L1, L2, L3."""


def with_cold_weights(
    prediction: Prediction, weight_bytes: float, all_bytes: float, hardware: CpuSpec, *, levels_overlap: bool = False
) -> Prediction:
    """Return a prediction for runs between which `all_bytes` of weights are read.

    Transfers that the prediction has already, because the tensors of the kernel fit no nearer cache, are not added
    again. Threads share the weights. Transfers and arithmetic overlap as in the models of the kernels.

    Parameters
    ----------
    weight_bytes : float
        Bytes of the packed weights of this kernel.
    all_bytes : float
        Bytes of the packed weights of all kernels of the network.
    levels_overlap : bool
        True if transfers of different levels overlap as they do with arithmetic (a rule of the template); else they add
        up.
    """
    threads = max(1.0, round(prediction.occupancy * hardware.compute.num_cores))
    parts = dict(prediction.parts)
    added: dict[str, float] = {}
    for name, held, fill_s in zip(_PARTS, *_caches(hardware, threads), strict=False):
        if all_bytes > held:
            added[name] = max(0.0, weight_bytes / threads * fill_s - parts.get(name, 0.0))
    if not any(added.values()):
        return prediction
    memory_before_s = _memory_s(parts, levels_overlap)
    for name, seconds in added.items():
        parts[name] = parts.get(name, 0.0) + seconds
    memory_s = _memory_s(parts, levels_overlap)
    overlapped = prediction.time_s - parts.get("packing_s", 0.0) - parts.get("start_s", 0.0)
    core_s = overlapped - EXPOSED_SHARE * memory_before_s  # `_overlap`, solved for one of the two
    if core_s < memory_before_s:
        core_s = max(0.0, (overlapped - memory_before_s) / EXPOSED_SHARE)
    time_s = prediction.time_s - overlapped + _overlap(core_s, memory_s)
    longest = max(added, key=parts.__getitem__)
    return msgspec.structs.replace(
        prediction,
        time_s=time_s,
        gflop_per_s=prediction.gflop_per_s * prediction.time_s / time_s,
        parts=parts,
        bound_by=longest.removesuffix("_s") if memory_s > core_s else prediction.bound_by,
    )


def _overlap(one_s: float, other_s: float) -> float:
    """Return the time of two activities that overlap, like the compiled `cpu.times.nest.combine`."""
    return max(one_s, other_s) + EXPOSED_SHARE * min(one_s, other_s)


def _memory_s(parts: Mapping[str, float], levels_overlap: bool) -> float:
    """Return the time of all transfers."""
    transfers_s = [parts.get(name, 0.0) for name in _PARTS]
    return functools.reduce(_overlap, transfers_s) if levels_overlap else sum(transfers_s)


def _caches(hardware: CpuSpec, threads: float) -> tuple[list[float], list[float]]:
    """Return the bytes that each cache holds, and the seconds in which a thread fetches a byte into it."""
    machine = pack_machine(hardware)
    core = machine.core
    fills = [1.0 / (rate * core.clock_hz) for rate in machine.fill_bytes_per_cycle[:-1].tolist()]
    dram_s = 1.0 / min(core.dram_core_bytes_s, core.dram_socket_bytes_s / threads)
    return machine.size_bytes.tolist(), [*fills, dram_s]
