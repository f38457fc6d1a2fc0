"""The prediction of the analytical model for one schedule."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from anatune.core.frozen import freeze
from anatune.core.show import duration


class Prediction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The predicted time of a schedule and its parts. Immutable, also its mappings; JSON both ways.

    Attributes
    ----------
    time_s : float
        Predicted time in seconds.
    gflop_per_s : float
        Operations of the workload over `time_s`, in 10^9 per second.
    parts : mapping of str to float
        Resource -> seconds that it would need alone ("fma_s", "shared_s", "l2_s", "dram_s", ...). Resources that work
        at the same time are combined with smooth maxima (p-norms) and the others are added, so that `time_s` is not the
        sum of the parts.
    bound_by : str
        The binding resource: the part that takes longest ("fma", "shared", "l2", "dram", "issue", "latency", ...).
    occupancy : float
        GPU: resident warps over the most that an SM can hold, in [0, 1]. CPU: busy cores over all cores.
    occupancy_limiter : str
        The resource that limits the occupancy: "threads", "registers", "shared", "blocks" or "grid" on a GPU,
        "parallel_loop" on a CPU.
    waves : float
        GPU: number of blocks over the blocks that run at the same time. CPU: parallel iterations over cores.
    features : mapping of str to float
        GPU: the seven analytical features of [ICS24] Sec. 4.1. CPU: the features of the CPU model.
    traffic_over_bound : mapping of str to float
        Memory level -> modelled bytes over the I/O lower bound, >= 1.
    resources : mapping of str to float
        GPU: registers of a thread, shared bytes, threads and blocks. CPU: vector registers and bytes of tiles.
    legal : bool
        Whether the schedule keeps to all limits of the device.
    rule : str
        Id of the first broken rule; "" if the schedule is legal.
    """

    time_s: float
    gflop_per_s: float
    parts: Mapping[str, float]
    bound_by: str
    occupancy: float
    occupancy_limiter: str
    waves: float
    features: Mapping[str, float]
    traffic_over_bound: Mapping[str, float]
    resources: Mapping[str, float]
    legal: bool = True
    rule: str = ""

    def __post_init__(self) -> None:
        freeze(self, "parts", "features", "traffic_over_bound", "resources")

    def __repr__(self) -> str:
        broken = "" if self.legal else f", illegal: {self.rule}"
        return f"Prediction({duration(self.time_s)}, {self.gflop_per_s:.5g} GFLOP/s, bound by {self.bound_by}{broken})"
