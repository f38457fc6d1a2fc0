"""anatune beside ONNX Runtime, OpenVINO and PyTorch on whole models: who is how much faster on this CPU.

    python -m bench.models_cpu [--threads 1] [--models resnet18,bert_base] [--rounds 7] [--folder FOLDER]
                               [--tuned FOLDER] [--json FILE] [--prepare] [--precision bfloat16]

All engines take turns in this one process, between an FMA probe and a GEMM tile fed from L2; only samples that both
probes call quiet count, and ratios are taken within a round (docs/bench/models_cpu.md). Each engine's output is
compared with PyTorch's in float64 first; one that differs, is not installed or fails is left out and named. With --json
FILE a run may be cut into pieces: models of earlier calls are read from it, and the tables cover all of them.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench.cpu.comparison import Target, ratio_text
from bench.cpu.engines import ENGINES, RIVALS, Place, Unavailable, compile_seconds, outputs_of
from bench.cpu.networks import NETWORKS, Network, network
from bench.cpu.probes import Probes
from bench.cpu.quiet import (
    Method,
    Ratio,
    Sample,
    Thresholds,
    geometric_mean,
    interleave,
    loop,
    paired_ratio,
    quiet_or_all,
    spread,
)
from bench.results import environment, wide_console, write_json

__all__ = ["ModelResult", "aims", "result_of"]

_CLOSE = {"float32": 1e-3, "bfloat16": 1e-1, "int8": 1.0}
"""Largest difference from PyTorch's output, over its largest magnitude: all engines sum in other orders."""

_COMPILE_S = {"resnet50": 20.0, "bert_base": 15.0}
"""The issue's limits of compiling without measuring."""


@dataclasses.dataclass(frozen=True)
class ModelResult:
    """One model's line: medians of quiet samples, ratios within rounds.

    Attributes
    ----------
    times_s, spreads : dict of str to float
        Of each engine.
    over : dict of str to dict of str to Ratio
        Speed of "anatune" and "tuned" over each rival.
    notes : list of str
        Who was left out, and why.
    errors : dict of str to float
        Of each engine: largest difference from float64, over the largest magnitude.
    samples : int
        Fewest of an engine that count.
    quiet : bool
        Whether enough samples were quiet; else all count.
    compile_s : float, optional
        CPU time of compiling without measurements.
    commit : str, optional
    """

    times_s: dict[str, float]
    spreads: dict[str, float]
    over: dict[str, dict[str, Ratio]]
    notes: list[str]
    samples: int
    quiet: bool
    compile_s: float | None = None
    commit: str | None = None
    errors: dict[str, float] = dataclasses.field(default_factory=dict)

    def best(self, ours: str) -> Ratio | None:
        """Return the ratio over the fastest rival, None without both."""
        known = {name: self.times_s[name] for name in RIVALS if name in self.over.get(ours, {})}
        return self.over[ours][min(known, key=known.__getitem__)] if known else None


def result_of(taken: Mapping[str, Sequence[Sample]], notes: list[str], **told: Any) -> ModelResult:
    """Return what samples of the engines say."""
    thresholds = Thresholds.of(sample for samples in taken.values() for sample in samples)
    used = {name: quiet_or_all(samples, thresholds) for name, samples in taken.items()}
    over: dict[str, dict[str, Ratio]] = {}
    for ours in ("anatune", "tuned"):
        for rival in (*RIVALS, "anatune"):
            if ours in taken and rival in taken and ours != rival:
                ratio = paired_ratio(taken[ours], taken[rival], thresholds)
                if ratio is not None:
                    over.setdefault(ours, {})[rival] = ratio
    return ModelResult(
        times_s={name: statistics.median(one.time_s for one in samples) for name, (samples, _) in used.items()},
        spreads={name: spread(samples) for name, (samples, _) in used.items()},
        over=over,
        notes=notes,
        samples=min((len(samples) for samples, _ in used.values()), default=0),
        quiet=all(quiet for _, quiet in used.values()),
        **told,
    )


def aims(results: Mapping[str, ModelResult], threads: int) -> list[Target]:
    """Return what became of the issue's aims; those without any data are left out."""
    tuned = (1.25, 1.05) if threads == 1 else (1.15, 1.00)
    found = []
    for ours, (mean_aim, least_aim) in {"anatune": (1.10, 1.00), "tuned": tuned}.items():
        named = "0 trials" if ours == "anatune" else "tuned"
        ratios = {name: ratio.value for name, result in results.items() if (ratio := result.best(ours)) is not None}
        if not ratios:
            continue
        mean, least = geometric_mean(ratios.values()), min(ratios, key=ratios.__getitem__)
        below = [name for name, value in ratios.items() if value < least_aim]
        found += [
            Target(f"{named} / fastest rival, geometric mean", mean, f">= {mean_aim}", mean >= mean_aim, _all(ratios)),
            Target(
                f"{named} / fastest rival, smallest",
                ratios[least],
                f">= {least_aim}",
                not below,
                f"{least}; below: {', '.join(below) or 'none'}",
            ),
        ]
    for name, limit_s in _COMPILE_S.items():
        seconds = results[name].compile_s if name in results else None
        if seconds is not None:
            found.append(Target(f"compiling {name}, CPU s", seconds, f"<= {limit_s:g}", seconds <= limit_s))
    return found


def _all(ratios: Mapping[str, float]) -> str:
    missing = [name for name in NETWORKS if name not in ratios]
    return f"{len(ratios)} models" + (f"; without {', '.join(missing)}" if missing else "")


def measure(name: str, place: Place, probes: Probes, options: argparse.Namespace) -> ModelResult:
    """Let the engines take turns on one model."""
    torch, notes = place.torch, []
    made = network(torch, name)
    methods: dict[str, Method] = {}
    with torch.no_grad():
        expected = _in_float64(made)
        errors: dict[str, float] = {}
        for engine, prepare in ENGINES.items():
            if engine == "tuned" and place.tuned is None:
                continue
            try:
                call = prepare(made, place)
                error = float(np.abs(outputs_of(call()) - expected).max() / np.abs(expected).max())
                if not error <= _CLOSE[place.precision]:
                    raise Unavailable(f"differs from PyTorch by {error:.3g} of the largest magnitude")
                errors[engine] = error
                if not options.prepare:
                    methods[engine] = loop(call, options.sample_ms / 1000)
            except Unavailable as reason:
                notes.append(f"{name}: {engine} is left out: {reason}")
        samples = interleave(
            methods, probes, options.rounds, most_rounds=options.most_rounds, patience_s=options.patience, label=name
        )
    told = environment()
    return result_of(samples, notes, compile_s=compile_seconds(name, place), commit=told["commit"], errors=errors)


def _in_float64(made: Network) -> Any:
    """Return what a model computes, weights and inputs in float64."""
    example = made.example.double() if made.example.is_floating_point() else made.example
    return np.asarray(copy.deepcopy(made.module).double()(example))


def print_tables(results: Mapping[str, ModelResult], found: Sequence[Target]) -> None:
    """Print times, ratios with what they are worth, and the aims."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    console = wide_console(150)

    def table(title: str, columns: Sequence[str], lines: Sequence[Sequence[str]], left: int = 1) -> None:
        made = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, title_justify="left")
        for number, column in enumerate(columns):
            made.add_column(column, justify="left" if number < left else "right", no_wrap=True)
        for line in lines:
            made.add_row(*line)
        console.print(made)

    engines = [name for name in ENGINES if any(name in result.times_s for result in results.values())]
    lines = [
        [
            name,
            *(f"{1e3 * result.times_s[one]:.2f}" if one in result.times_s else "-" for one in engines),
            f"{result.samples}{'' if result.quiet else '?'}",
            f"{100 * max(result.spreads.values(), default=0.0):.1f} %",
            "-" if result.compile_s is None else f"{result.compile_s:.1f}",
        ]
        for name, result in results.items()
    ]
    table("ms a run", ["model", *engines, "n", "spread", "compile CPU s"], lines)
    lines = [
        [name, *(f"{result.errors[one]:.2g}" if one in result.errors else "-" for one in engines)]
        for name, result in results.items()
    ]
    table("Largest error beside float64, of the largest output", ["model", *engines], lines)
    ours = [name for name in ("anatune", "tuned") if name in engines]
    pairs = [(mine, rival) for mine in ours for rival in (*RIVALS, "anatune") if rival in engines and rival != mine]
    lines = [
        [
            name,
            *(ratio_text(result.best(mine)) or "-" for mine in ours),
            *(ratio_text(result.over.get(mine, {}).get(rival)) or "-" for mine, rival in pairs),
        ]
        for name, result in results.items()
    ]
    heads = [f"{mine} / fastest rival" for mine in ours] + [f"{mine} / {rival}" for mine, rival in pairs]
    table("Speed of ours over theirs, > 1 is faster", ["model", *heads], lines)
    for note in (note for result in results.values() for note in result.notes):
        console.print(note, highlight=False, soft_wrap=True)
    lines = [[one.text, one.aim, f"{one.value:.3f}", "met" if one.met else "MISSED", one.note] for one in found]
    table("Aims", ["aim", "wanted", "reached", "", "note"], lines, left=2)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=1, choices=range(1, 129), metavar="N")
    parser.add_argument("--models", default=",".join(NETWORKS), help="comma-separated")
    parser.add_argument("--precision", default="float32", choices=_CLOSE, help="of products")
    parser.add_argument("--rounds", type=int, default=7, help="quiet samples wanted of each engine")
    parser.add_argument("--most-rounds", type=int, help="rounds at most  [default: three times --rounds]")
    parser.add_argument("--sample-ms", type=float, default=12.0, help="length of a sample, one run at least")
    parser.add_argument("--patience", type=float, default=20.0, help="seconds to wait for a quiet machine, a model")
    parser.add_argument("--folder", type=Path, default=Path("models_cpu"), help="exports and compiled models are kept")
    parser.add_argument("--tuned", type=Path, metavar="FOLDER", help="of models that anatune compile wrote, by name")
    parser.add_argument("--json", type=Path, metavar="FILE", help="results: read if it is there, extended")
    parser.add_argument("--prepare", action="store_true", help="export and compile, time nothing")
    return parser


def _known(path: Path | None) -> dict[str, ModelResult]:
    if path is None or not path.exists():
        return {}
    return msgspec.convert(msgspec.json.decode(path.read_bytes())["results"], dict[str, ModelResult], strict=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    options = _parser().parse_args(arguments)
    names = options.models.split(",")
    if unknown := [name for name in names if name not in NETWORKS]:
        raise SystemExit(f"bench.models_cpu: --models {unknown[0]}, expected some of {', '.join(NETWORKS)}")
    from bench.cpu.rivals import find_torch

    torch = find_torch(options.threads)
    options.folder.mkdir(parents=True, exist_ok=True)
    place = Place(torch, options.threads, options.folder, options.tuned, options.precision)
    probes = Probes(options.threads)
    results = _known(options.json)
    for name in names:
        found = measure(name, place, probes, options)
        if options.prepare:
            print(*found.notes, f"{name} is prepared", sep="\n", file=sys.stderr)
            continue
        results[name] = found
        if options.json:
            told = environment(threads=options.threads, torch=str(torch.__version__))
            write_json(options.json, {"environment": told, "results": results})
    if not options.prepare:
        print_tables(results, aims(results, options.threads))


if __name__ == "__main__":
    main()
