"""What the models were asked to reach on recorded measurements, beside what they reach."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.replay.metrics import quantile
from bench.replay.scores import (
    GroupScore,
    by,
    layer_correlation,
    survivors,
    table_and_device,
    winners_errors,
    winners_of,
)

__all__ = ["Aim", "aims"]

PLAN_RANGE_TFLOP_PER_S = (10.0, 20.0)
"""Where the planned winner of matmul 512x4096x1024 on rtx3090 must lie."""


@dataclass(frozen=True)
class Aim:
    """One aim of the issue beside what was reached."""

    over: str
    """What it was computed over."""
    name: str
    reached: float
    low: float = -math.inf
    high: float = math.inf
    unit: str = ""
    parts: dict[str, float] = field(default_factory=dict)
    """The same measure for each table and device apart."""

    @property
    def wanted(self) -> str:
        """Return the aim as text."""
        if math.isfinite(self.low) and math.isfinite(self.high):
            return f"{self.low:g} to {self.high:g}{self.unit}"
        sign, value = (">=", self.low) if math.isfinite(self.low) else ("<=", self.high)
        return f"{sign} {value:g}{self.unit}"

    def margin(self, value: float) -> float:
        """Return by how much `value` meets the aim; negative where it misses."""
        return min(value - self.low, self.high - value)

    @property
    def verdict(self) -> str:
        """Return "met by ...", "missed by ..." or "no data"."""
        if math.isnan(self.reached):
            return "no data"
        margin = self.margin(self.reached)
        return f"{'met' if margin >= 0 else 'missed'} by {abs(margin):.3g}{self.unit}"

    @property
    def spread(self) -> str:
        """Return how many of the parts meet the aim, and the worst of them."""
        known = {name: value for name, value in self.parts.items() if not math.isnan(value)}
        if len(known) < 2:
            return ""
        worst = min(known, key=lambda name: self.margin(known[name]))
        num_met = sum(self.margin(value) >= 0 for value in known.values())
        return f"met in {num_met} of {len(known)}, worst {known[worst]:.3f} ({worst})"


def aims(scores: Sequence[GroupScore], plan_tflop_per_s: float) -> list[Aim]:
    """Compare GPU scores with the aims of the issue.

    Spearman and regret are medians over the workloads of all TVM tables (all CLBlast tables) together;
    their parts are each table and device apart. The winners' error is over the winners of all tables, its
    parts over those of each device. The rank correlation over layers is one for each device (or table and
    device); their median is judged.
    """
    gpu = [score for score in scores if score.kind != "cpu"]
    out: list[Aim] = []

    def median(name: str, over: str, part: list[GroupScore], of: Callable[[GroupScore], float], **limit: Any) -> None:
        values = {where: quantile(map(of, some), 0.5) for where, some in by(part, table_and_device).items()}
        num = sum(not math.isnan(of(score)) for score in part)
        over = f"{over}, {num} workloads"
        out.append(Aim(over, name, quantile(map(of, part), 0.5), parts=values, **limit))

    for family, kinds, low, top8, top32 in (
        ("TVM tables", ("ansor", "autotvm"), 0.85, 1.10, 1.04),
        ("CLBlast tables", ("clblast",), 0.70, 1.20, 1.08),
    ):
        chosen = [score for score in gpu if score.kind in kinds]
        median("Spearman, median", family, chosen, lambda score: score.spearman, low=low)
        median("top-8 regret, median", family, chosen, lambda score: score.regret[8], high=top8)
        median("top-32 regret, median", family, chosen, lambda score: score.regret[32], high=top32)

    tophub = [score for score in gpu if score.kind == "tophub"]
    for keep, low in ((0.05, 90.0), (0.01, 70.0)):
        places = {"": tophub} | by(tophub, lambda score: score.device)
        values = {where: 100 * survivors(winners_of(some), keep) for where, some in places.items()}
        over = f"TopHub, {len(winners_of(tophub))} winners"
        out.append(Aim(over, f"in the best {keep:.0%}", values.pop(""), low, unit=" %", parts=values))

    devices = by(gpu, lambda score: score.device)
    over = f"all GPU tables, {len(winners_of(gpu))} winners"
    for index, name in enumerate(("median", "mean")):
        values = {device: winners_errors(winners_of(some))[index] for device, some in devices.items()}
        reached = winners_errors(winners_of(gpu))[index]
        out.append(Aim(over, f"error of winners, {name}", reached, high=30.0, unit=" %", parts=values))
    for over, some in (("median over GPUs", devices), ("median over GPU tables", by(gpu, table_and_device))):
        values = {where: layer_correlation(part) for where, part in some.items()}
        name = "rank correlation of winners"
        out.append(Aim(over, name, quantile(values.values(), 0.5), 0.95, parts=values))
    low, high = PLAN_RANGE_TFLOP_PER_S
    out.append(Aim("plan(rtx3090, matmul 512x4096x1024)", "speed of the best", plan_tflop_per_s, low, high, " TFLOP/s"))
    return out
