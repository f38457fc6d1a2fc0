"""Times of collective operations between the GPUs of a node: latency, and bytes over the bandwidth of the link.

Servers reduce small messages with kernels of their own inside a CUDA graph, and leave the rest to NCCL. Each algorithm
takes a start, steps of latency, and bytes at a share of the link's bandwidth; the fastest one that applies is taken.
Constants without another source are fitted to the H100's times in AIConfigurator's tables; `bench.replay.collectives`
judges them on other devices.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import msgspec

from anatune.core.hardware.gpu_groups import Link
from anatune.core.hardware.spec import GpuSpec
from anatune.errors import SpaceError

Operation = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]

_KERNEL_S = 3e-6
"""A kernel of a server in a CUDA graph, without what the link costs."""
_NCCL_START_STEPS = {"nvlink": 6, "xgmi": 6, "pcie": 3}
"""Start of an NCCL kernel, as so many steps of the link's latency. PCIe's is fitted to the L40S."""
_REDUCED_SHARE = 0.72
"""Share of the link's bandwidth that all-reduce achieves."""
_MOVED_SHARE = 0.8
"""The same of the other operations between many GPUs: n / (n + 1) of it between n."""
_SWITCH_SHARE = 0.64
"""The same of a reduction in the switch."""
_FLAGGED_SHARE = 0.5
"""NCCL's protocol LL has a flag beside each four bytes; the protocol Simple has none, and synchronises twice. Source:
arXiv 2507.04786."""


def collective_s(operation: Operation, spec: GpuSpec, gpus: int, size_bytes: float) -> float:
    """Return the time of a collective operation between GPUs of a node, in seconds.

    Parameters
    ----------
    operation
        "all_reduce", "all_gather", "reduce_scatter" or "all_to_all".
    spec
        The GPU, with its link.
    gpus
        Number of GPUs that take part; one alone takes no time.
    size_bytes
        Bytes of the whole buffer of a GPU: the sum for all_reduce, the gathered result for all_gather, the input for
        reduce_scatter and all_to_all.

    Raises
    ------
    SpaceError
        The operation is unknown, the spec has no link, or the link does not connect so many GPUs.
    """
    time_s = nccl_s(operation, spec, gpus, size_bytes)
    if operation != "all_reduce" or gpus == 1:
        return time_s
    link = _link(spec)
    barriers = 2 if link.kind != "pcie" else 2 * (gpus - 1)
    start_s = _KERNEL_S + barriers * link.latency_s
    byte_s = size_bytes / (_REDUCED_SHARE * _bandwidth(link, gpus))
    one_shot_s = start_s + (gpus - 1) * byte_s
    two_shots_s = 2 * start_s + 2 * (gpus - 1) / gpus * byte_s
    return min(time_s, one_shot_s, two_shots_s)


def nccl_s(operation: Operation, spec: GpuSpec, gpus: int, size_bytes: float) -> float:
    """Return the time of an operation by NCCL alone, in seconds; see `collective_s`."""
    if operation not in get_args(Operation):
        names = ", ".join(get_args(Operation))
        raise SpaceError(f"operation is {operation!r}, expected one of {names}")
    if gpus < 1:
        raise SpaceError(f"gpus is {gpus}, expected at least 1")
    if not (math.isfinite(size_bytes) and size_bytes >= 0):
        raise SpaceError(f"size_bytes is {size_bytes}, expected a finite number of at least 0")
    if gpus == 1:
        return 0.0
    link = _link(spec)
    if gpus > link.gpus:
        raise SpaceError(
            f"{spec.name}: {operation} is between {gpus} GPUs, expected at most {link.gpus}, which the link of a node "
            "connects; networks between nodes are not modelled, so divide over fewer GPUs"
        )
    reduces = operation == "all_reduce"
    steps = (gpus - 1) * (2 if reduces else 1)
    start_s = (_NCCL_START_STEPS[link.kind] + steps) * link.latency_s
    share = _REDUCED_SHARE if reduces else _MOVED_SHARE * gpus / (gpus + 1)
    bytes_s = steps / gpus * size_bytes / (share * _bandwidth(link, gpus))
    times = [start_s + bytes_s / _FLAGGED_SHARE, 2 * start_s + bytes_s]
    if reduces and link.reduces:
        moved = (gpus + 1) / gpus * size_bytes
        times.append(2 * start_s + moved / (_SWITCH_SHARE * link.bandwidth_bytes_per_s))
    return min(times)


def _link(spec: GpuSpec) -> Link:
    if spec.link is msgspec.UNSET:
        raise SpaceError(f"{spec.name}: the spec has no [link], expected one for more than one GPU; add it, or use one")
    return spec.link


def _bandwidth(link: Link, gpus: int) -> float:
    """Return the bandwidth of a GPU to the others: links to absent ones are idle, and a host's PCIe is shared."""
    if link.switched:
        return link.bandwidth_bytes_per_s
    return link.bandwidth_bytes_per_s * ((gpus - 1) / (link.gpus - 1) if link.kind == "xgmi" else 2 / gpus)
