"""Two microkernels against one: what our CPU space, its model and this machine say of the paper's convolutions.

    python -m bench.experiments.microkernels --out FILE.json [--quick]
                                             [--parts predicted rows layers] [--layers Y8,Y9] [--read FILE ...]

Parts: "predicted": legal points and predicted seconds with one microkernel, with a pair where one does not divide an
axis, and with padding. "rows": small products of 8 to 50 rows, measured on one core. "layers": layers, measured
likewise; both need `.[tvm]` and a C compiler. What came of it is in ``docs/experiments/microkernels.md``.
Source: [TACO22] Fig. 4, Fig. 8 and Fig. 12.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import anatune
from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import Schedule
from anatune.errors import AnatuneError
from anatune.report.units import duration
from bench.cpu.quiet import Sample, Thresholds, interleave, loop, paired_ratio, quiet_or_all, share_of_peak
from bench.experiments.microkernel_spaces import LAYERS_HERE, Space, blis_like, draws, ends, space_of
from bench.layers import Layer, Matmul, choose
from bench.results import environment, progress_bar, write_json

__all__ = ["KINDS", "Draws", "Measured", "Results", "main"]

PARTS = ("predicted", "rows", "layers")
KINDS = ("one", "either", "padded")
DEVICES = ("host", "xeon_gold_6130", "xeon_gold_5220", "thunderx2")
"""This machine, and the paper's three processors."""
PAPER_LAYERS = "resnet18,yolo9000"
MEASURED_LAYERS = "R8,R11,Y6,Y7,Y8,Y9,Y10,Y10P"
"""Images of 7x7, 14x14, 34x34 and 17x17."""
COLUMNS = DEPTH = 128
"""The sizes of the small products. Source: [TACO22] Fig. 4."""
FEWEST_ROWS, MOST_ROWS = 8, 50


@dataclass
class Draws:
    """Predicted shares of the peak of schedules drawn at random from the paper's structured space."""

    device: str
    layer: str
    kind: str
    shares: list[float]


@dataclass
class Measured:
    """The fastest of a kind's first schedules, measured.

    `speed` is that of the kind over that of "one": median of the rounds' ratios, `low` and `high` their middle half.
    """

    part: str
    layer: str
    kind: str
    schedule: str
    flop: int
    """Useful ones: what padding adds does not count."""
    predicted_s: float
    time_s: float
    share: float
    """The share of the peak that a probe beside each sample reached."""
    speed: float
    low: float
    high: float
    quiet: bool
    """Whether there were enough rounds in which nothing else disturbed the machine."""


class Results(msgspec.Struct):
    """What the file holds."""

    environment: dict[str, Any]
    spaces: list[Space] = []
    draws: list[Draws] = []
    measured: list[Measured] = []


def _small(rows: int) -> Matmul:
    return Matmul(f"{rows} rows", "rows", rows, COLUMNS, DEPTH)


def _predicted(options: argparse.Namespace, layers: Sequence[Layer], results: Results) -> None:
    """Fill in spaces and draws."""
    with progress_bar() as progress:
        task = progress.add_task("spaces", total=len(options.hw) * len(layers))
        for name in options.hw:
            hardware = anatune.hardware(name).with_threads(1)
            for layer in layers:
                progress.update(task, description=f"{name} {layer.name}")
                for kind in options.kinds:
                    space, model = space_of(layer, kind, hardware)
                    results.spaces.append(space)
                    if kind != "padded" and options.draws:
                        peak = hardware.peak_flop_per_s("float32")
                        shares = [layer.flop / seconds / peak for seconds in draws(model, options.draws, 0)]
                        results.draws.append(Draws(hardware.name, layer.name, kind, shares))
                progress.advance(task)


def _candidates(layer: Layer, hardware: CpuSpec, first: int) -> dict[str, list[tuple[Schedule, float]]]:
    """Return the first schedules of each kind with their predicted seconds; of kinds that agree, one kind only."""
    found: dict[str, list[tuple[Schedule, float]]] = {}
    for kind in KINDS:
        _, model = space_of(layer, kind, hardware)
        schedules = ends(model, first)
        points = [model.space.point_of(schedule) for schedule in schedules]
        found[kind] = [
            (one, float(model.times(point[None, :])[0][0])) for one, point in zip(schedules, points, strict=True)
        ]
    return found


def _measure(
    part: str,
    layer: Layer,
    candidates: Mapping[str, Sequence[tuple[Schedule, float]]],
    probes: Any,
    known: list[Sample],
    options: argparse.Namespace,
) -> Iterator[Measured]:
    """Let all candidates of a layer take turns; yield the fastest of each kind.

    Raises
    ------
    SystemExit
        A result is wrong.
    """
    methods = {}
    for schedule, _ in (one for some in candidates.values() for one in some):
        if schedule.key not in methods:
            if options.verify and not (answer := anatune.verify(schedule)).ok:
                raise SystemExit(f"bench.experiments.microkernels: {layer.name} is wrong: {answer.message}")
            methods[schedule.key] = loop(anatune.build(schedule, threads=1).random_call(), options.sample_ms / 1000)
    taken = interleave(methods, probes, options.rounds, known=known, patience_s=options.patience, label=layer.name)
    known += [sample for samples in taken.values() for sample in samples]
    thresholds = Thresholds.of(known)

    def seconds(key: str) -> float:
        return statistics.median(sample.time_s for sample in quiet_or_all(taken[key], thresholds)[0])

    fastest = {kind: min(some, key=lambda one: seconds(one[0].key)) for kind, some in candidates.items()}
    for kind, (schedule, predicted_s) in fastest.items():
        samples, quiet = quiet_or_all(taken[schedule.key], thresholds)
        ratio = paired_ratio(taken[schedule.key], taken[fastest["one"][0].key], thresholds)
        assert ratio is not None
        yield Measured(
            part, layer.name, kind, schedule.describe(), layer.flop, predicted_s, seconds(schedule.key),
            share_of_peak(samples, layer.flop), ratio.value, ratio.low, ratio.high, quiet and ratio.quiet,
        )  # fmt: skip


def _measured(options: argparse.Namespace, results: Results) -> None:
    """Fill in what was measured, on this machine."""
    from bench.cpu.probes import Probes

    hardware = anatune.hardware("host").with_threads(1)
    probes, known = Probes(1), list[Sample]()
    if "rows" in options.parts:
        for rows in options.rows:
            layer = _small(rows)
            candidates = {kind: some[:1] for kind, some in _candidates(layer, hardware, 1).items()}
            blis = blis_like(COLUMNS, DEPTH, rows, hardware)
            predicted_s = float(anatune.predict(blis.workload, hardware, [blis], threads=1)["time_s"].iloc[0])
            candidates["blis"] = [(blis, predicted_s)]
            results.measured += _measure("rows", layer, candidates, probes, known, options)
    if "layers" in options.parts:
        for layer in choose(options.layers, LAYERS_HERE):
            candidates = _candidates(layer, hardware, options.first)
            results.measured += _measure("layers", layer, candidates, probes, known, options)


def _results(options: argparse.Namespace) -> Results:
    """Predict and measure, or join what earlier runs found."""
    if options.read:
        parts = [msgspec.json.decode(path.read_bytes(), type=Results) for path in options.read]
        joined = Results({"parts": [part.environment for part in parts]})
        for part in parts:
            joined.spaces += part.spaces
            joined.draws += part.draws
            joined.measured += part.measured
        return joined
    started = time.perf_counter()
    os.environ["TVM_NUM_THREADS"] = "1"
    settings = {key: value for key, value in vars(options).items() if key not in ("out", "read")}
    results = Results(settings)
    try:
        host = anatune.hardware("host") if "host" in options.hw or set(options.parts) != {"predicted"} else None
        settings["processor"] = host and f"{host.model}, {host.arch}"
        if "predicted" in options.parts:
            _predicted(options, choose(options.predicted_layers, LAYERS_HERE), results)
        if {"rows", "layers"} & set(options.parts):
            _measured(options, results)
    except AnatuneError as error:
        raise SystemExit(f"bench.experiments.microkernels: {error}") from None
    results.environment = environment(**settings, seconds=time.perf_counter() - started)
    return results


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="write everything as JSON")
    parser.add_argument("--quick", action="store_true", help="predictions of two layers, nothing measured: a test")
    parser.add_argument("--read", type=Path, nargs="+", metavar="FILE", help="do nothing: join what these hold")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--hw", nargs="+", default=list(DEVICES), metavar="D", help="processors to predict for")
    parser.add_argument("--predicted-layers", default=PAPER_LAYERS, metavar="L", help="names, groups or patterns")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS, help="of predictions")
    parser.add_argument("--draws", type=int, default=200, help="random schedules of a layer and kind")
    parser.add_argument("--rows", type=int, nargs="+", default=list(range(FEWEST_ROWS, MOST_ROWS + 1)), metavar="N")
    parser.add_argument("--layers", default=MEASURED_LAYERS, metavar="L", help="layers to measure")
    parser.add_argument("--first", type=int, default=3, metavar="N", help="schedules of each kind that are measured")
    parser.add_argument("--rounds", type=int, default=5, help="quiet samples wanted of each schedule")
    parser.add_argument("--sample-ms", type=float, default=8.0, help="length of a sample")
    parser.add_argument("--patience", type=float, default=2.0, help="seconds a layer to wait for a quiet machine")
    parser.add_argument("--verify", action="store_true", help="compare every kernel with float64 first")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    options = _parser().parse_args(arguments)
    if options.quick:
        options.parts, options.hw, options.predicted_layers, options.draws = (
            ["predicted"],
            ["xeon_gold_6130"],
            "R11,Y9",
            20,
        )
    results = _results(options)
    write_json(options.out, {field: getattr(results, field) for field in results.__struct_fields__})
    for space in results.spaces:
        print(
            f"{space.device} {space.layer}, {space.kind}: {space.num_legal} legal, predicted {duration(space.time_s)}"
        )
    for one in results.measured:
        print(f"{one.layer}, {one.kind}: {100 * one.share:.0f} % of the peak, {one.speed:.3f} times as fast as one")


if __name__ == "__main__":
    sys.exit(main())
