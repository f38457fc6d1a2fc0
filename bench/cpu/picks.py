"""Whether the plan picks the right template: 3x3 convolutions of many sizes, the first of each template measured.

    python -m bench.cpu.picks --json picks.json [--accuracy relaxed] [--layers "64*"] [--first 2] [--hw host]

Of each layer the first schedules of each template's own ranking take turns (`bench.cpu.quiet`), among them the plan's
pick. The pick is wrong where the fastest of another template beats it by more than 3 %. Rows are written as they are
found; layers that the JSON file has already are left out, so that a long run may be made in pieces (`--seconds`).
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bench.cpu.quiet import Method, Sample, Thresholds, geometric_mean, interleave, loop, paired_ratio, quiet_or_all
from bench.layers import Convolution

if TYPE_CHECKING:
    from bench.cpu.probes import Reading

__all__ = ["WRONG_BY", "Candidate", "Row", "layers", "lines", "row_of"]

WRONG_BY = 0.03
"""A pick is wrong if another template is faster by more than this share."""

_MOST_FLOP = 8e9
"""Larger layers are left out: a sample of one takes longer than the machine stays quiet."""
_CHANNELS = [
    (3, 32), (3, 64), (8, 8), (16, 16), (16, 32), (32, 32), (32, 64), (64, 64), (64, 128), (128, 64), (128, 128),
    (128, 256), (256, 256), (256, 512), (512, 512), (512, 1024), (1024, 1024),
]  # fmt: skip
_IMAGES = (7, 14, 17, 28, 34, 56, 68, 136)


class Candidate(msgspec.Struct, frozen=True):
    """A schedule that was measured: its template, what it is, and its predicted and measured seconds."""

    template: str
    schedule: str
    predicted_s: float
    time_s: float


class Row(msgspec.Struct, frozen=True):
    """A layer.

    Attributes
    ----------
    name, text, flop
        Of the layer.
    candidates : tuple of Candidate
        The plan's pick first, the others in the order of their templates' rankings.
    rival : int or None
        Which candidate is the fastest of another template; None where only one applies.
    speed : float or None
        Speed of the pick over the rival's: median of the ratios within rounds; None without a rival.
    """

    name: str
    text: str
    flop: int
    candidates: tuple[Candidate, ...]
    rival: int | None
    speed: float | None

    @property
    def is_wrong(self) -> bool:
        """Whether a schedule of another template is clearly faster than the pick."""
        return self.speed is not None and self.speed < 1.0 / (1.0 + WRONG_BY)

    @property
    def predicted(self) -> float:
        """Predicted speed of the pick over the rival's; NaN without a rival."""
        return (
            math.nan if self.rival is None else self.candidates[self.rival].predicted_s / self.candidates[0].predicted_s
        )


class _File(msgspec.Struct):
    """What is kept between pieces of a run."""

    settings: dict[str, str]
    environment: dict[str, Any]
    rows: dict[str, Row] = {}


def layers(most_flop: float = _MOST_FLOP) -> list[Convolution]:
    """Return the layers: 3x3, stride 1, zeros around the image."""
    found = [
        Convolution(f"{channels}-{filters}x{size}", "picks", channels, size, filters, 3, 1, 1)
        for channels, filters in _CHANNELS
        for size in _IMAGES
    ]
    return [layer for layer in found if layer.flop <= most_flop]


def row_of(
    layer: Convolution,
    templates: Sequence[str],
    schedules: Sequence[str],
    predicted_s: Sequence[float],
    samples: Sequence[Sequence[Sample]],
    thresholds: Thresholds,
) -> Row:
    """Return the row of a layer, given what is known of each candidate, the plan's pick first."""
    times = [statistics.median(one.time_s for one in quiet_or_all(taken, thresholds)[0]) for taken in samples]
    candidates = tuple(Candidate(*one) for one in zip(templates, schedules, predicted_s, times, strict=True))
    others = [at for at, template in enumerate(templates) if template != templates[0]]
    rival = min(others, key=lambda at: times[at], default=None)
    ratio = None if rival is None else paired_ratio(samples[0], samples[rival], thresholds)
    return Row(layer.name, layer.text, layer.flop, candidates, rival, None if ratio is None else ratio.value)


def lines(rows: Sequence[Row]) -> list[str]:
    """Return a table, the wrong picks after it, and how often and how much the picks gain or lose."""
    found = [f"{'layer':14} {'pick':10} {'GFLOP/s':>8} {'rival':10} {'GFLOP/s':>8} {'pick/rival':>10} {'predicted':>9}"]
    for row in rows:
        pick = row.candidates[0]
        rival = None if row.rival is None else row.candidates[row.rival]
        against = "-" if rival is None else rival.template
        rate = "-" if rival is None else f"{row.flop / rival.time_s / 1e9:.1f}"
        mark = "  wrong" if row.is_wrong else ""
        found.append(
            f"{row.name:14} {pick.template:10} {row.flop / pick.time_s / 1e9:8.1f} {against:10} {rate:>8} "
            f"{math.nan if row.speed is None else row.speed:10.3f} {row.predicted:9.3f}{mark}"
        )
    judged = [(row, row.speed) for row in rows if row.speed is not None]
    for template in dict.fromkeys(row.candidates[0].template for row, _ in judged):
        own = [(row, speed) for row, speed in judged if row.candidates[0].template == template]
        wrong = [row for row, _ in own if row.is_wrong]
        worst = min(speed for _, speed in own)
        found.append(
            f"{template} picked {len(own)} times, {len(wrong)} of them wrong; against the best of another template "
            f"{geometric_mean(speed for _, speed in own):.3f} (geometric mean), at least {worst:.3f}"
        )
    if judged:
        lost = geometric_mean(min(1.0, speed) for _, speed in judged)
        found.append(f"all picks over the best that was measured of any template: {lost:.3f} (geometric mean)")
    return found


def _measured(
    layer: Convolution, hardware: Any, probes: Callable[[], Reading], known: list[Sample], options: argparse.Namespace
) -> Row:
    """Plan a layer, let the first schedules of each template take turns."""
    import anatune

    workload = layer.workload(options.layout)
    pick = anatune.plan(workload, hardware, 1, accuracy=options.accuracy)
    chosen = {pick.best.key: (pick.best, pick.predictions[0].time_s)}
    for template in pick.templates:
        plan = anatune.plan(
            workload, hardware, options.first, template=template, accuracy=options.accuracy, distinct=True
        )
        for schedule, prediction in zip(plan.schedules, plan.predictions, strict=True):
            chosen.setdefault(schedule.key, (schedule, prediction.time_s))
    methods: dict[str, Method] = {}
    for key, (schedule, _) in chosen.items():
        methods[key] = loop(anatune.build(schedule, threads=1).random_call(), options.sample_ms / 1000)
    samples = interleave(methods, probes, options.rounds, known=known, patience_s=options.patience, label=layer.name)
    known += [sample for taken in samples.values() for sample in taken]
    schedules = [schedule for schedule, _ in chosen.values()]
    return row_of(
        layer,
        [schedule.template for schedule in schedules],
        [schedule.describe() for schedule in schedules],
        [predicted_s for _, predicted_s in chosen.values()],
        [samples[key] for key in chosen],
        Thresholds.of(known),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="rows, read first and extended")
    parser.add_argument("--hw", default="host", help="hardware spec that is planned for (calibrated: its file)")
    parser.add_argument("--accuracy", default="standard", choices=("standard", "relaxed"))
    parser.add_argument(
        "--layers", help="comma-separated patterns of names, as 64*,*x56 (input-output channels x image)"
    )
    parser.add_argument("--layout", default="NHWC", choices=("NHWC", "NCHW"))
    parser.add_argument(
        "--first", type=int, default=2, metavar="N", help="schedules of each template that are measured"
    )
    parser.add_argument("--rounds", type=int, default=5, help="quiet samples wanted of each schedule")
    parser.add_argument("--sample-ms", type=float, default=8.0, help="length of a sample")
    parser.add_argument("--patience", type=float, default=5.0, help="seconds a layer to wait for a quiet machine")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no further layer after that")
    parser.add_argument("--show", action="store_true", help="print what the file has, measure nothing")
    return parser


def _read(options: argparse.Namespace) -> _File:
    """Return what earlier pieces found."""
    from bench.results import environment

    settings = {"hw": options.hw, "accuracy": options.accuracy, "layout": options.layout}
    if not options.json.exists():
        return _File(settings, environment())
    found = msgspec.json.decode(options.json.read_bytes(), type=_File)
    if found.settings != settings:
        raise SystemExit(f"{options.json}: is of {found.settings}, expected {settings}; name another file")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    options = _parser().parse_args(arguments)
    os.environ["TVM_NUM_THREADS"] = "1"
    file = _read(options)
    patterns = options.layers.split(",") if options.layers else ["*"]
    wanted = [one for one in layers() if any(fnmatch.fnmatch(one.name, pattern) for pattern in patterns)]
    if not options.show:
        import anatune
        from bench.cpu.probes import Probes

        hardware = anatune.hardware(options.hw).with_threads(1)
        known: list[Sample] = []
        probes, started = Probes(1), time.perf_counter()
        for layer in wanted:
            if layer.name in file.rows or time.perf_counter() - started > options.seconds:
                continue
            file.rows[layer.name] = _measured(layer, hardware, probes, known, options)
            options.json.write_bytes(msgspec.json.encode(file))
            print(lines([file.rows[layer.name]])[1], file=sys.stderr, flush=True)
    print("\n".join(lines([file.rows[one.name] for one in wanted if one.name in file.rows])))


if __name__ == "__main__":
    main()
