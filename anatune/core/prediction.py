"""What the analytical model says about one schedule."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from anatune.core.frozen import freeze
from anatune.core.show import duration


class Prediction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Predicted time of a schedule and where it comes from; immutable, its mappings too; JSON both ways.

    Attributes
    ----------
    time_s : float
        Seconds; lower is better.
    gflop_per_s : float
        Operations of the workload over `time_s`, in 10^9 a second.
    parts : mapping of str to float
        Seconds each resource would need on its own ("fma_s", "shared_s", "l2_s", "dram_s", ...). The time combines
        those that overlap by smooth maxima (p-norms) and adds exposed ones: parts do not sum to it.
    bound_by : str
        The part that binds ("fma", "shared", "l2", "dram", "issue", "latency", ...).
    occupancy : float
        GPU: resident warps over the maximum, theoretical, in [0, 1]. CPU: busy cores over cores.
    occupancy_limiter : str
        "threads", "registers", "shared", "blocks" or "grid" (GPU); "parallel_loop" (CPU).
    waves : float
        GPU: blocks over the blocks that run at once. CPU: parallel iterations over cores.
    features : mapping of str to float
        GPU: the seven analytical features of [ICS24] Sec. 4.1. CPU: the CPU model's own.
    traffic_over_bound : mapping of str to float
        Memory level -> modelled bytes over the I/O lower bound, >= 1.
    resources : mapping of str to float
        Registers a thread, shared bytes, threads and blocks (GPU); vector registers, tile bytes (CPU).
    legal : bool
        Whether the device's limits hold.
    rule : str
        Id of the first broken rule, "" when legal.
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
