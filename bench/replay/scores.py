"""How well predictions rank the recorded points of a workload, and of all workloads of a table on a device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.workload.nest import Workload
from bench.replay.metrics import (
    fraction_faster,
    legality_shares,
    mean_absolute_percentage_error,
    median_absolute_percentage_error,
    quantile,
    share,
    spearman,
    spearman_measured,
    top_k_regret,
)
from bench.replay.recorded import RecordedGroup, model_of

__all__ = ["GroupScore", "Space", "Summary", "by", "score_group", "summarise", "table_and_device"]

TOPS = (1, 8, 32)
KEEP_SHARES = (0.01, 0.05)
"""Shares of the legal space that pruning keeps."""
MIN_LAYERS = 5
"""Fewest layers whose winners' predicted order is judged."""


@dataclass(frozen=True)
class Winner:
    """A recorded winner: the fastest point of a workload, or one TopHub row."""

    measured_s: float
    predicted_s: float
    legal: bool
    fraction_faster: float
    """Share of the legal space predicted faster; 1 where the model calls the winner illegal."""


@dataclass(frozen=True)
class GroupScore:
    """The measures of one workload on one device in one table."""

    table: str
    kind: str
    """"ansor", "autotvm", "clblast" or "tophub" on GPUs, "cpu" for all CPU tables."""
    device: str
    workload_id: str
    num_rows: int
    num_failed: int
    num_unbiased: int
    num_legal_successful: int
    num_illegal_failed: int
    legal_successful: float
    illegal_failed: float
    spearman: float
    regret: dict[int, float]
    winners: list[Winner]


@dataclass
class Space:
    """Predicted times of legal points, drawn once a workload and device."""

    samples: int
    seed: int
    drawn: dict[tuple[Workload, GpuSpec | CpuSpec], NDArray[np.float64]] = field(default_factory=dict)

    def times(self, workload: Workload, hardware: GpuSpec | CpuSpec) -> NDArray[np.float64]:
        """Return the predicted seconds of the sample, (num_samples,) float64."""
        key = (workload, hardware)
        if key not in self.drawn:
            model = model_of(workload, hardware)
            points = model.space.sample_points(self.samples, self.seed)
            self.drawn[key] = model.evaluate(points).time_s if len(points) else np.empty(0)
        return self.drawn[key]


def score_group(
    group: RecordedGroup, space: Space | None, corrected_s: NDArray[np.float64] | None = None
) -> GroupScore:
    """Score one group; without `space` the winners' place in the space is not computed (NaN).

    With `corrected_s` the points are ranked by these times, and the winners' place in the space is not computed
    either. CPU tables come with predicted times only: their kernels are not all points of the template, so that their
    legality and their place in the space are not judged.
    """
    kind, sample = group.kind, np.empty(0)
    predicted, judged = group.predictions()
    if judged is None:
        legal, kind = np.ones(len(predicted), dtype=bool), "cpu"
    else:
        legal = judged
        if space and corrected_s is None:
            sample = space.times(group.workload, group.hardware)
    if corrected_s is not None:
        predicted = corrected_s
    good = np.isfinite(group.time_s)
    rows: Iterable[int] = ()
    if good.any():
        rows = np.flatnonzero(good) if kind == "tophub" else [int(np.nanargmin(group.time_s))]
    winners = []
    for row in rows:
        faster = fraction_faster(sample, float(predicted[row])) if legal[row] or not len(sample) else 1.0
        winners.append(Winner(float(group.time_s[row]), float(predicted[row]), bool(legal[row]), faster))
    shares = (math.nan, math.nan) if kind == "cpu" else legality_shares(group.time_s, legal)
    one_each = kind == "tophub"  # several bests of one layer: nothing to rank
    return GroupScore(
        group.table,
        kind,
        group.device,
        group.workload_id,
        len(good),
        int((~good).sum()),
        int((group.unbiased & good).sum()),
        int((legal & good).sum()),
        int((~legal & ~good).sum()),
        *shares,
        math.nan if one_each else spearman_measured(predicted, group.time_s, group.unbiased),
        dict.fromkeys(TOPS, math.nan) if one_each else top_k_regret(predicted, group.time_s, legal, TOPS),
        winners,
    )


@dataclass(frozen=True)
class Summary:
    """The measures of one table on one device, over its workloads (NaN: not defined there)."""

    table: str
    device: str
    num_workloads: int
    num_rows: int
    spearman_median: float
    regret_median: dict[int, float]
    regret_p90: dict[int, float]
    survivors: dict[float, float]
    """Share kept -> share of the winners that survive."""
    num_winners: int
    legal_successful: float
    illegal_failed: float
    winners_error_percent: float
    """Median absolute percentage error of the winners' predicted time."""
    winners_mean_error_percent: float
    winners_rank_correlation: float


def winners_of(scores: Iterable[GroupScore]) -> list[Winner]:
    """Return all winners of `scores`."""
    return [winner for score in scores for winner in score.winners]


def survivors(winners: Sequence[Winner], keep: float) -> float:
    """Return the share of `winners` among the best `keep` of their spaces."""
    placed = [winner.fraction_faster for winner in winners if not math.isnan(winner.fraction_faster)]
    return share([fraction <= keep for fraction in placed])


def layer_correlation(scores: Iterable[GroupScore]) -> float:
    """Return the rank correlation over layers of the winners' predicted and measured time."""
    best = [min(score.winners, key=lambda w: w.measured_s) for score in scores if score.winners]
    if len(best) < MIN_LAYERS:
        return math.nan
    return spearman([w.predicted_s for w in best], [w.measured_s for w in best])


def winners_errors(winners: Sequence[Winner]) -> tuple[float, float]:
    """Return the median and the mean absolute percentage error of the winners' predicted time."""
    predicted, measured = [w.predicted_s for w in winners], [w.measured_s for w in winners]
    return (median_absolute_percentage_error(predicted, measured), mean_absolute_percentage_error(predicted, measured))


def summarise(scores: Sequence[GroupScore]) -> list[Summary]:
    """Return one summary a table and device, in the order of `scores`."""
    return [_summary(part[0].table, part[0].device, part) for part in by(scores, table_and_device).values()]


def _summary(table: str, device: str, part: Sequence[GroupScore]) -> Summary:
    winners = winners_of(part)
    rows, failed = sum(s.num_rows for s in part), sum(s.num_failed for s in part)
    judged = any(score.kind != "cpu" for score in part)
    error, mean_error = winners_errors(winners)
    return Summary(
        table,
        device,
        len(part),
        rows,
        quantile((s.spearman for s in part), 0.5),
        {k: quantile((s.regret[k] for s in part), 0.5) for k in TOPS},
        {k: quantile((s.regret[k] for s in part), 0.9) for k in TOPS},
        {keep: survivors(winners, keep) for keep in KEEP_SHARES},
        len(winners),
        sum(s.num_legal_successful for s in part) / (rows - failed) if rows > failed and judged else math.nan,
        sum(s.num_illegal_failed for s in part) / failed if failed and judged else math.nan,
        error,
        mean_error,
        layer_correlation(part),
    )


def by(scores: Iterable[GroupScore], key: Callable[[GroupScore], str]) -> dict[str, list[GroupScore]]:
    """Return the scores of each key, in the order in which the keys appear."""
    parts: dict[str, list[GroupScore]] = {}
    for score in scores:
        parts.setdefault(key(score), []).append(score)
    return parts


def table_and_device(score: GroupScore) -> str:
    """Return where a score was reached, as text."""
    return f"{score.table}, {score.device}"
