"""Score the analytical models on recorded measurements: rank correlation, regret, pruning, legality, error.

    python -m bench.replay.ranking FOLDER [--json FILE] [--device D ...] [--table T ...] [--model plain --model ...]

What each number means: docs/bench/replay.ranking.md. Needs no device; anything in FOLDER that cannot be used is listed.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

import anatune
from anatune.errors import AnatuneError
from bench.replay.aims import Aim, aims
from bench.replay.corrections import MODELS, corrected_times
from bench.replay.metrics import quantile
from bench.replay.recorded import RecordedGroup, table_files
from bench.replay.recorded_cpu import load_cpu_groups
from bench.replay.recorded_gpu import load_groups
from bench.replay.scores import (
    KEEP_SHARES,
    TOPS,
    GroupScore,
    Space,
    Summary,
    by,
    score_group,
    summarise,
    table_and_device,
)
from bench.results import environment, matches, number_text, progress_bar, wide_console, write_json

__all__ = ["collect"]

SAMPLES = 20_000
SEED = 0
TABLE_WIDTH = 175
"""Columns the results are printed in, at least."""


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
                corrected = {one.identity: found for one, found in zip(everything, times, strict=True)}
            progress.update(task, total=len(groups), completed=0)
            scores: list[GroupScore] = []
            for group in groups:
                progress.update(task, description=f"{model} {group.device} {group.workload_id}")
                try:
                    scores.append(score_group(group, space, corrected.get(group.identity)))
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


def comparison_table(scores_of: dict[str, list[GroupScore]]) -> Table:
    """Return the models side by side: medians of Spearman's rho and of the top-8 regret."""
    table = Table(title="Side by side: Spearman, top-1 and top-8 regret, medians", box=SIMPLE_HEAD)
    for name in ("table", "device", "loads", *scores_of):
        table.add_column(name, justify="left" if name in ("table", "device") else "right", no_wrap=True)
    parts = {model: by(scores, table_and_device) for model, scores in scores_of.items()}
    first = next(iter(scores_of.values()))
    keys = [key for key, part in by(first, table_and_device).items() if part[0].kind != "tophub"]
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
