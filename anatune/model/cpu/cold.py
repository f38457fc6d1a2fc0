"""What a kernel of a whole model takes whose weights nobody has read since the model's last run.

The models of single kernels count runs that follow each other: what fits a cache is found there again. In a model, the
weights of all other kernels are read between two runs of one, so that its own come from the first level that holds all
of them, once a run. Data are what the kernel before has just written.
"""

from __future__ import annotations

import msgspec

from anatune.core.hardware.spec import CpuSpec
from anatune.core.prediction import Prediction
from anatune.model.cpu.pack import EXPOSED_SHARE, pack_machine

__all__ = ["with_cold_weights"]

_PARTS = ("l2_s", "l3_s", "dram_s")
"""`Prediction.parts` that are transfers: into L1, L2, L3."""


def with_cold_weights(prediction: Prediction, weight_bytes: float, all_bytes: float, hardware: CpuSpec) -> Prediction:
    """Return a prediction for runs between which `all_bytes` of weights are read.

    Transfers that are counted already, because the kernel's tensors fit no nearer cache, are not counted again. Threads
    share the weights. Transfers and arithmetic overlap as in the kernels' own models.

    Parameters
    ----------
    weight_bytes : float
        Of this kernel, as they are packed.
    all_bytes : float
        Of all kernels of the model.
    """
    threads = max(1.0, round(prediction.occupancy * hardware.compute.num_cores))
    parts = dict(prediction.parts)
    before = sum(parts.get(name, 0.0) for name in _PARTS)
    added: dict[str, float] = {}
    for name, held, fill_s in zip(_PARTS, *_caches(hardware, threads), strict=False):
        if all_bytes > held:
            added[name] = max(0.0, weight_bytes / threads * fill_s - parts.get(name, 0.0))
    more = sum(added.values())
    if more <= 0.0 or prediction.time_s <= 0.0:
        return prediction
    overlapped = prediction.time_s - parts.get("packing_s", 0.0) - parts.get("start_s", 0.0)
    core_s = overlapped - EXPOSED_SHARE * before  # the kernels' rule, longer + share of the shorter, solved for one
    if core_s < before:
        core_s = (overlapped - before) / EXPOSED_SHARE
    longer, shorter = max(core_s, before + more), min(core_s, before + more)
    time_s = prediction.time_s - overlapped + longer + EXPOSED_SHARE * shorter
    for name, seconds in added.items():
        parts[name] = parts.get(name, 0.0) + seconds
    longest = max(added, key=parts.__getitem__)
    return msgspec.structs.replace(
        prediction,
        time_s=time_s,
        gflop_per_s=prediction.gflop_per_s * prediction.time_s / time_s,
        parts=parts,
        bound_by=longest.removesuffix("_s") if before + more > core_s else prediction.bound_by,
    )


def _caches(hardware: CpuSpec, threads: float) -> tuple[list[float], list[float]]:
    """Return bytes that each cache holds, and seconds in which a thread brings a byte into it, nearest first."""
    machine = pack_machine(hardware)
    core = machine.core
    fills = [1.0 / (rate * core.clock_hz) for rate in machine.fill_bytes_per_cycle[:-1].tolist()]
    dram_s = 1.0 / min(core.dram_core_bytes_s, core.dram_socket_bytes_s / threads)
    return machine.size_bytes.tolist(), [*fills, dram_s]
