"""Score the analytical models on recorded measurements: rank correlation, regret, pruning, legality, error.

    python -m bench.replay.ranking FOLDER [--json FILE] [--device D ...] [--table T ...] [--model plain --model ...]

What each number means: bench/README.md. Needs no device; anything in FOLDER that cannot be used is listed.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.table import Table

import anatune
from anatune import api
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.workload.nest import Workload
from anatune.errors import AnatuneError
from bench.replay.corrections import MODELS, corrected_times
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
from bench.replay.recorded_cpu import load_cpu_groups
from bench.replay.recorded_gpu import load_groups, table_files
from bench.results import environment, matches, number_text, progress_bar, wide_console, write_json

__all__ = ["Aim", "GroupScore", "Summary", "aims", "score_group", "summarise"]

TOPS = (1, 8, 32)
KEEP_SHARES = (0.01, 0.05)
"""Shares of the legal space that pruning keeps."""
SAMPLES = 20_000
SEED = 0
MIN_LAYERS = 5
"""Fewest layers whose winners' predicted order is judged."""
TABLE_WIDTH = 175
"""Columns the results are printed in, at least."""
PLAN_RANGE_TFLOP_PER_S = (10.0, 20.0)
"""Where the planned winner of matmul 512x4096x1024 on rtx3090 must lie."""


class RecordedGroup(Protocol):
    """What the two loaders yield: the recorded points of one workload on one device in one table.

    GPU groups have ``points``, CPU groups ``predicted_time_fn``.
    """

    table: str
    kind: str
    device: str
    workload_id: str
    workload: Workload
    hardware: GpuSpec | CpuSpec
    time_s: NDArray[np.float64]
    unbiased: NDArray[np.bool_]


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
    drawn: dict[tuple[Workload, GpuSpec], NDArray[np.float64]] = field(default_factory=dict)

    def times(self, workload: Workload, hardware: GpuSpec) -> NDArray[np.float64]:
        """Return the predicted seconds of the sample, (num_samples,) float64."""
        key = (workload, hardware)
        if key not in self.drawn:
            model = api.model(workload, hardware)
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
    hardware, kind, sample = group.hardware, group.kind, np.empty(0)
    if isinstance(hardware, GpuSpec):
        evaluation = api.model(group.workload, hardware).evaluate(group.points)  # type: ignore[attr-defined]
        predicted, legal = evaluation.time_s, evaluation.rule == 0
        if space and corrected_s is None:
            sample = space.times(group.workload, hardware)
    else:
        predicted = group.predicted_time_fn()  # type: ignore[attr-defined]
        legal, kind = np.ones(len(predicted), dtype=bool), "cpu"
    if corrected_s is not None:
        predicted, sample = corrected_s, np.empty(0)
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
    return (
        median_absolute_percentage_error(predicted, measured),
        mean_absolute_percentage_error(predicted, measured),
    )


def summarise(scores: Sequence[GroupScore]) -> list[Summary]:
    """Return one summary a table and device, in the order of `scores`."""
    return [_summary(part[0].table, part[0].device, part) for part in _by(scores, _table_and_device).values()]


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


def _by(scores: Iterable[GroupScore], key: Callable[[GroupScore], str]) -> dict[str, list[GroupScore]]:
    parts: dict[str, list[GroupScore]] = {}
    for score in scores:
        parts.setdefault(key(score), []).append(score)
    return parts


def _table_and_device(score: GroupScore) -> str:
    return f"{score.table}, {score.device}"


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
        values = {where: quantile(map(of, some), 0.5) for where, some in _by(part, _table_and_device).items()}
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
        places = {"": tophub} | _by(tophub, lambda score: score.device)
        values = {where: 100 * survivors(winners_of(some), keep) for where, some in places.items()}
        over = f"TopHub, {len(winners_of(tophub))} winners"
        out.append(Aim(over, f"in the best {keep:.0%}", values.pop(""), low, unit=" %", parts=values))

    devices = _by(gpu, lambda score: score.device)
    over = f"all GPU tables, {len(winners_of(gpu))} winners"
    for index, name in enumerate(("median", "mean")):
        values = {device: winners_errors(winners_of(some))[index] for device, some in devices.items()}
        reached = winners_errors(winners_of(gpu))[index]
        out.append(Aim(over, f"error of winners, {name}", reached, high=30.0, unit=" %", parts=values))
    for over, some in (("median over GPUs", devices), ("median over GPU tables", _by(gpu, _table_and_device))):
        values = {where: layer_correlation(part) for where, part in some.items()}
        name = "rank correlation of winners"
        out.append(Aim(over, name, quantile(values.values(), 0.5), 0.95, parts=values))
    low, high = PLAN_RANGE_TFLOP_PER_S
    out.append(
        Aim(
            "plan(rtx3090, matmul 512x4096x1024)",
            "speed of the best",
            plan_tflop_per_s,
            low,
            high,
            " TFLOP/s",
        )
    )
    return out


def planned_speed() -> float:
    """Return the predicted TFLOP/s of the best schedule of matmul 512x4096x1024 on rtx3090."""
    best = anatune.plan(anatune.matmul(512, 4096, 1024), anatune.hardware("rtx3090"), 1).predictions[0]
    return best.gflop_per_s / 1e3


def collect(folder: Path, notes: list[str]) -> list[RecordedGroup]:
    """Return all groups in `folder`.

    Raises
    ------
    SystemExit
        There is no such folder, or it holds no table.
    """
    if not folder.is_dir():
        raise SystemExit(f"bench.replay.ranking: {folder} is no folder; give the folder of the recorded tables")
    if not table_files(folder):
        raise SystemExit(
            f"bench.replay.ranking: {folder} holds no *.csv.gz or *.csv; give the folder of the recorded tables"
        )
    return [*load_groups(folder, notes), *load_cpu_groups(folder, notes)]


def results_table(summaries: Sequence[Summary]) -> Table:
    """Return the table that is printed: one line a table and device."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
    table.title = "Analytical models on recorded measurements"
    table.caption = (
        "rho: median Spearman on the unbiased rows. top-k: measured best of the model's first k over the "
        "recorded best, median / 90th percentile.\nin 1 %, 5 %: winners that survive pruning. ok legal, "
        "fail illegal: successful rows called legal, failed ones called illegal.\nerr: median absolute error "
        "of the winners' predicted time. layers: rank correlation of those over the layers."
    )
    for name in ("table", "device"):
        table.add_column(name, no_wrap=True)
    for name in (
        "work\nloads", "rows", "rho", "top-1", "top-8", "top-32", "in 1 %\n%", "in 5 %\n%",
        "ok\nlegal\n%", "fail\nillegal\n%", "err\n%", "layers\nrho",
    ):  # fmt: skip
        table.add_column(name, justify="right", no_wrap=True)
    for row in summaries:
        regrets = [
            f"{number_text(row.regret_median[k], '{:.2f}')} / {number_text(row.regret_p90[k], '{:.2f}')}" for k in TOPS
        ]
        shares = [row.survivors[k] for k in KEEP_SHARES] + [row.legal_successful, row.illegal_failed]
        table.add_row(
            row.table, row.device, str(row.num_workloads), str(row.num_rows), number_text(row.spearman_median),
            *regrets, *(number_text(100 * value, "{:.1f}") for value in shares),
            number_text(row.winners_error_percent, "{:.1f}"), number_text(row.winners_rank_correlation),
        )  # fmt: skip
    return table


def aims_table(listed: Sequence[Aim]) -> Table:
    """Return the table of the issue's aims."""
    table = Table(title="Aims of the issue", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("over", "measure", "aim", "reached", "verdict", "apart"):
        table.add_column(name, no_wrap=name != "apart", justify="right" if name in ("aim", "reached") else "left")
    for aim in listed:
        colour = {"met": "green", "missed": "red"}.get(aim.verdict.split()[0], "dim")
        verdict = f"[{colour}]{aim.verdict}[/{colour}]"
        table.add_row(aim.over, aim.name, aim.wanted, number_text(aim.reached), verdict, aim.spread)
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of recorded tables")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything, per workload too")
    parser.add_argument("--device", nargs="+", metavar="D", help="only these devices (patterns)")
    parser.add_argument("--table", nargs="+", metavar="T", help="only these tables (patterns or beginnings)")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="legal points drawn a space; 0: none")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument(
        "--model",
        action="append",
        choices=MODELS,
        help="what is scored, may be repeated (default: plain): corrections.py",
    )
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    notes: list[str] = []
    groups = [
        group
        for group in collect(options.folder, notes)
        if matches(group.device, options.device) and matches(group.table, options.table)
    ]
    if not groups:
        told = "".join(f"\n  {note}" for note in notes)
        raise SystemExit(f"bench.replay.ranking: nothing to score in {options.folder}{told}")
    space = Space(options.samples, options.seed) if options.samples > 0 else None
    models = list(dict.fromkeys(options.model or ["plain"]))
    everything = groups if models == ["plain"] else list(collect(options.folder, []))
    scores_of: dict[str, list[GroupScore]] = {}
    with progress_bar() as progress:
        for model in models:
            task = progress.add_task(model, total=None)
            corrected = {}
            if model != "plain":
                times = corrected_times(everything, model, lambda at=task: progress.advance(at))
                corrected = {_identity(one): found for one, found in zip(everything, times, strict=True)}
            progress.update(task, total=len(groups), completed=0)
            scores: list[GroupScore] = []
            for group in groups:
                progress.update(task, description=f"{model} {group.device} {group.workload_id}")
                try:
                    scores.append(score_group(group, space, corrected.get(_identity(group))))
                except AnatuneError as error:
                    notes.append(f"{group.table}: {group.device} {group.workload_id}: skipped: {error}")
                progress.advance(task)
            scores_of[model] = scores
    console = wide_console(TABLE_WIDTH)
    results = {}
    for model, scores in scores_of.items():
        summaries, listed = summarise(scores), aims(scores, planned_speed())
        results[model] = {
            "summaries": summaries,
            "aims": [{**dataclasses.asdict(aim), "verdict": aim.verdict} for aim in listed],
            "workloads": scores,
        }
        if len(scores_of) > 1:
            console.print(f"model: {model}", highlight=False)
        console.print(results_table(summaries))
        if model == "plain":
            console.print(aims_table(listed))
    if len(scores_of) > 1:
        console.print(comparison_table(scores_of))
    for note in notes:
        console.print(f"left out: {note}", markup=False, highlight=False, soft_wrap=True)
    seconds = time.perf_counter() - started
    first = scores_of[models[0]]
    console.print(f"{len(first)} workloads, {sum(s.num_rows for s in first)} rows, {seconds:.0f} s")
    if options.json:
        write_json(
            options.json,
            {
                "environment": environment(seed=options.seed, samples=options.samples, seconds=seconds),
                **results[models[0]],
                "models": results,
                "left_out": notes,
            },
        )


def _identity(group: RecordedGroup) -> tuple[str, str, str]:
    return group.table, group.device, group.workload_id


def comparison_table(scores_of: dict[str, list[GroupScore]]) -> Table:
    """Return the models side by side: medians of Spearman's rho and of the top-8 regret."""
    table = Table(title="Side by side: Spearman, top-1 and top-8 regret, medians", box=SIMPLE_HEAD)
    for name in ("table", "device", "loads", *scores_of):
        table.add_column(name, justify="left" if name in ("table", "device") else "right", no_wrap=True)
    parts = {model: _by(scores, _table_and_device) for model, scores in scores_of.items()}
    first = next(iter(scores_of.values()))
    keys = [key for key, part in _by(first, _table_and_device).items() if part[0].kind != "tophub"]
    for key in (*keys, "all"):
        cells = []
        for model, scores in scores_of.items():
            part = [s for s in scores if s.kind != "tophub"] if key == "all" else parts[model].get(key, [])
            rho = quantile((s.spearman for s in part), 0.5)
            regrets = (quantile((s.regret[k] for s in part), 0.5) for k in (1, 8))
            cells.append(f"{rho:.3f}  " + "  ".join(f"{regret:.3f}" for regret in regrets))
        where, _, device = key.rpartition(", ")
        count = sum(s.kind != "tophub" for s in first) if key == "all" else len(parts[next(iter(scores_of))][key])
        table.add_row(where or "all tables", device if where else "", str(count), *cells)
    return table


if __name__ == "__main__":
    sys.exit(main())
