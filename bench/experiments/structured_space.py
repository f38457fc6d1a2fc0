"""The structured space of "Autotuning Convolutions": pairs of any two microkernels, random draws, tiles that divide.

    python -m bench.experiments.structured_space --out FILE.json [--quick] [--layers Y6,Y8] [--draws 64]
                                                 [--parts pairs candidates divisible convergence] [--read FILE ...]

Parts: "pairs": what the combinations of two microkernels that our space leaves out (sizes that differ by more than one)
could gain, by the model and by the spec's measured microkernels, and what some of them take on this machine.
"candidates": some of the paper's microkernels, each as a convolution of its size, against the measured share of its
rows, vectors and steps. "divisible": tiles of the filters that do not divide them, as two nests: predicted, and the
best of them measured. "convergence": the best of the first N random draws, measured, in 20 random orders.
Measuring needs `.[tvm]` and a C compiler. What came of it is in ``docs/experiments/structured_space.md``.
Source: [TACO22] Sec. 4.2, Fig. 10 and Fig. 13.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import anatune
from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import Schedule
from anatune.errors import AnatuneError
from anatune.measure.cpu.calibration.tiles import MOST_VECTORS, RegisterTile, candidate_tiles, predicted_share
from anatune.search.base import make_strategy
from anatune.templates.cpu.model.model import CpuModel
from bench.cpu.quiet import Sample, Thresholds, interleave, loop, paired_ratio, share_of_peak
from bench.experiments.microkernel_spaces import LAYERS_HERE, draws
from bench.layers import Convolution, choose
from bench.results import environment, write_json

__all__ = [
    "Candidate",
    "Draw",
    "Pair",
    "PairGain",
    "Results",
    "Split",
    "best_around",
    "main",
    "pair_gain",
    "pairs_of",
    "paper_candidates",
    "split",
]

PARTS = ("pairs", "candidates", "divisible", "convergence")
DEVICES = ("host", "xeon_gold_6130", "xeon_gold_5220", "thunderx2", "ryzen_3700x")
SEGMENTS = range(8, 137)
"""Rows that two microkernels cover; images of the paper's layers have up to 136 but for the first."""
OTHER_PAIRS = {
    34: ((2, 11, 1, 12), (1, 8, 2, 13), (2, 10, 1, 14), (2, 8, 2, 9), (1, 7, 3, 9), (1, 4, 2, 15)),
    17: ((1, 8, 1, 9), (1, 7, 1, 10), (1, 5, 1, 12), (1, 3, 1, 14)),
}
"""Segment -> balanced pairs and others, (calls, rows, calls, rows). 8 + 2 x 13 is the paper's own (Fig. 2)."""
POOLS = ("measured classes", "the model's classes", "whole space")
Four = tuple[int, int, int, int]
Six = tuple[int, int, int, int, int, int]


@dataclass
class PairGain:
    """The most that a pair of any two microkernels is faster than what our space has, over all segments."""

    device: str
    by: str
    """"model" or "measured": whose shares of the peak."""
    gain: float
    """Below 1 where none is faster."""
    segment: int
    other: Four


@dataclass
class Candidate:
    """One of the paper's microkernels: vectors, columns, rows, channels, taps of both axes of the window."""

    sizes: Six
    share: float
    """The share of the peak, measured as a convolution of about 512 channels."""
    tile: float | None
    """Share that the spec has for as many rows, vectors and about as many steps; None: not among the good ones."""


@dataclass
class Pair:
    """A pair of microkernels on a layer, measured; `speed` is that of the first pair over its own, and below."""

    layer: str
    pair: Four
    share: float
    speed: float
    low: float
    high: float
    quiet: bool


@dataclass
class Split:
    """Filters as one nest against two: `tile` times some, and the rest, which no tile of the space has."""

    layer: str
    filters: int
    tile: int
    whole_s: float
    """The predicted best of the layer."""
    split_s: float
    """That of both parts."""
    whole_draws: list[float]
    split_draws: list[float]
    """Predicted seconds of random draws."""
    measured: float | None = None
    """How many times as fast as the whole both parts are."""


@dataclass
class Draw:
    """A random draw of a pool, measured."""

    layer: str
    pool: str
    predicted_s: float
    time_s: float
    share: float


class Results(msgspec.Struct):
    """What the file holds."""

    environment: dict[str, Any]
    gains: list[PairGain] = []
    candidates: list[Candidate] = []
    pairs: list[Pair] = []
    splits: list[Split] = []
    draws: list[Draw] = []


def pairs_of(segment: int, most: int) -> Iterator[Four]:
    """Yield all (calls, rows, calls, rows) of one microkernel or two that cover a segment, of up to `most` rows."""
    for small in range(1, most + 1):
        if segment % small == 0:
            yield (segment // small, small, 0, small)
        for large in range(small + 1, most + 1):
            for calls in range(1, segment // large + 1):
                rest = segment - calls * large
                if rest > 0 and rest % small == 0:
                    yield (rest // small, small, calls, large)


def pair_gain(segment: int, shares: dict[tuple[int, int], float]) -> tuple[float, Four]:
    """Return how many times as fast as the best of our space the best other pair is, and that pair.

    Parameters
    ----------
    shares : dict of (rows, vectors) to float
        Share of the peak of each microkernel: a pair takes its rows over their shares.
    """
    best: dict[bool, tuple[float, Four]] = {}
    most = max(rows for rows, _ in shares)
    for pair in pairs_of(segment, most):
        first, small, second, large = pair
        for vectors in range(1, MOST_VECTORS + 1):
            if (small, vectors) in shares and (large, vectors) in shares:
                cost = first * small / shares[small, vectors] + second * large / shares[large, vectors]
                kind = large - small <= 1
                best[kind] = min(best.get(kind, (cost, pair)), (cost, pair))
    if len(best) < 2:
        return 1.0, (0, 0, 0, 0)
    return best[True][0] / best[False][0], best[False][1]


def paper_candidates() -> list[Six]:
    """Return all microkernels that satisfy the paper's constraints for 32 registers ([TACO22] Sec. 4.1)."""
    few, windows = (
        range(1, 17),
        [(1, 1), *((r, s) for r in (1, 3, 5, 7) for s in (1, 3, 5, 7) if r != s and 1 in (r, s))],
    )
    windows += [(size, size) for size in (3, 5, 7)]
    return [
        (k, w, h, c, r, s)
        for k in few for w in few for h in few if 14 <= w * h * k <= 28
        for c in few for r, s in windows if 16 <= w * h * k + r * s * c * k <= 36
    ]  # fmt: skip


def _candidates(hardware: CpuSpec, probes: Any, options: argparse.Namespace) -> Iterator[Candidate]:
    """Yield random candidates of the paper's, measured; the kernel is all of the convolution but its channels."""
    known, order = paper_candidates(), np.random.default_rng(0)
    for number in order.permutation(len(known))[: options.candidates].tolist():
        k, w, h, c, r, s = known[number]
        channels = c * (512 // c | 1)  # an odd number of calls: pixels a power of two apart share few sets of L1
        layer = anatune.conv2d(
            1, channels, h + r - 1, w + s - 1, k * hardware.fp32_lanes, r, s, layout="NHWC"
        )  # fmt: skip
        model = CpuModel(layer, hardware)
        schedule = model.space.schedule(
            {
                "f": (1, 1, 1, 1, k * hardware.fp32_lanes), "y": (1, 1, 1, 1, h), "x": (1, 1, 1, 1, w),
                "rc": (1, 1, channels // c, c), "ry": (1, 1, r), "rx": (1, 1, s),
            },
            packed=("weight",),
        )  # fmt: skip
        taken = _taken({"it": _method(schedule, options)}, probes, options)["it"]
        tile = model.space.microkernel_shares(model.space.point_of(schedule)[None, :])
        share = share_of_peak(taken, layer.flop)
        yield Candidate(known[number], share, None if tile is None or not tile[0] else float(tile[0]))


def _gains(hardware: CpuSpec) -> Iterator[PairGain]:
    tiles = [tile for tile in candidate_tiles(hardware) if tile.unroll == 1]
    by = {"model": {tile[:2]: predicted_share(RegisterTile(*tile[:2], 4), hardware) for tile in tiles}}
    if hardware.microkernels is not None:
        by["measured"] = {(rows, vectors): share for rows, vectors, _, share in hardware.microkernels.tiles}
    for name, shares in by.items():
        found = [(*pair_gain(segment, shares), segment) for segment in SEGMENTS]
        gain, pair, segment = max(found)
        yield PairGain(hardware.name, name, gain, segment, pair)


def best_around(model: CpuModel, fixed: dict[str, int], count: int = 30_000, seed: int = 0) -> np.ndarray:
    """Return the best predicted point of random ones whose columns `fixed` have these values."""
    space, rng = model.space, np.random.default_rng(seed)
    genes = np.column_stack([rng.integers(0, radix, count) for radix in space.radices])
    for number, part in enumerate(space.parts):
        rows = np.ones(len(part.table), dtype=bool)
        for column, value in fixed.items():
            if column in part.columns:
                rows &= part.table[:, part.columns.index(column)] == value
        genes[:, number] = rng.choice(np.flatnonzero(rows), count)
    points = space.decode(genes)
    times, rules = model.times(points)
    return points[np.argmin(np.where(rules == 0, times, np.inf))]


def _taken(
    methods: dict[str, Callable[[], float]], probes: Any, options: argparse.Namespace
) -> dict[str, list[Sample]]:
    return interleave(methods, probes, options.rounds, patience_s=2.0)


def _method(schedule: Schedule, options: argparse.Namespace) -> Callable[[], float]:
    if options.verify and not (answer := anatune.verify(schedule)).ok:
        raise SystemExit(f"bench.experiments.structured_space: {schedule} is wrong: {answer.message}")
    return loop(anatune.build(schedule, threads=1).random_call(), options.sample_ms / 1000)


def _measured_pairs(layer: Convolution, hardware: CpuSpec, probes: Any, options: argparse.Namespace) -> Iterator[Pair]:
    model = CpuModel(layer.workload(), hardware)
    pairs = OTHER_PAIRS[layer.size]
    fixed = {"y.register": layer.size, "pair.y": pairs[0][0] + pairs[0][2], "x.register": 1}
    fixed["f.register"] = 2 * model.space.lanes
    schedule = model.space.schedule_of(best_around(model, fixed))
    methods = {
        str(pair): _method(msgspec.structs.replace(schedule, options={**schedule.options, "pair.y": pair}), options)
        for pair in pairs
    }
    taken = _taken(methods, probes, options)
    thresholds = Thresholds.of([sample for samples in taken.values() for sample in samples])
    for pair in pairs:
        ratio = paired_ratio(taken[str(pair)], taken[str(pairs[0])], thresholds)
        assert ratio is not None
        share = share_of_peak(taken[str(pair)], layer.flop)
        yield Pair(layer.name, pair, share, ratio.value, ratio.low, ratio.high, ratio.quiet)


def split(layer: Convolution, tile: int) -> tuple[Convolution, Convolution]:
    """Return a layer as two, along its filters: as many as whole tiles hold, and the rest."""
    rest = layer.filters % tile
    return replace(layer, filters=layer.filters - rest), replace(layer, filters=rest)


def _splits(layer: Convolution, hardware: CpuSpec, probes: Any, options: argparse.Namespace) -> Iterator[Split]:
    """Yield what some tiles that do not divide the filters are worth; of the best predicted also what it takes."""
    lanes, rng = hardware.fp32_lanes, np.random.default_rng(0)
    tiles = [tile for tile in range(2 * lanes, layer.filters, lanes) if layer.filters % tile]
    whole = CpuModel(layer.workload(), hardware)
    ranked = whole.rank(1).points
    whole_s, drawn, found = float(whole.times(ranked)[0][0]), draws(whole, options.draws, 0), []
    for tile in sorted(rng.permutation(tiles)[: options.tiles].tolist()):
        models = [CpuModel(part.workload(), hardware) for part in split(layer, tile)]
        points = [model.rank(1).points for model in models]
        seconds = sum(float(model.times(point)[0][0]) for model, point in zip(models, points, strict=True))
        both = [sum(some) for some in zip(*(draws(model, options.draws // 8, tile) for model in models), strict=False)]
        schedules = [model.space.schedule_of(point[0]) for model, point in zip(models, points, strict=True)]
        found.append((Split(layer.name, layer.filters, tile, whole_s, seconds, drawn, both), schedules))
    if found and probes is not None:
        best, schedules = min(found, key=lambda entry: entry[0].split_s)
        named = {"whole": whole.space.schedule_of(ranked[0]), "first": schedules[0], "rest": schedules[1]}
        taken = _taken({name: _method(schedule, options) for name, schedule in named.items()}, probes, options)
        times = {name: statistics.median(sample.time_s for sample in samples) for name, samples in taken.items()}
        best.measured = times["whole"] / (times["first"] + times["rest"])
    yield from (entry for entry, _ in found)


def _draws(layer: Convolution, hardware: CpuSpec, probes: Any, options: argparse.Namespace) -> Iterator[Draw]:
    """Yield random draws of each pool, measured: the median of a few runs, one of those that are slow."""
    plain = msgspec.structs.replace(hardware, microkernels=None)
    for pool, spec in zip(POOLS, (hardware, plain, plain), strict=True):
        if pool == POOLS[0] and hardware.microkernels is None:
            continue
        model = CpuModel(layer.workload(), spec)
        strategy = make_strategy("random" if pool == POOLS[2] else "structured", model, seed=1, start="paper")
        fastest = float("inf")
        for number, schedule in enumerate(strategy.ask(options.draws)):
            predicted_s = float(model.times(model.space.point_of(schedule)[None, :])[0][0])
            call = anatune.build(schedule, threads=1).random_call()
            call()
            samples = []
            for _ in range(5):
                before, started = probes(), time.perf_counter()
                call()
                samples.append(Sample(0, time.perf_counter() - started, before, probes()))
                if samples[0].time_s > 2.0 * fastest:
                    break
            share = share_of_peak(samples, layer.flop)
            fastest = min(fastest, samples[0].time_s)
            seconds = statistics.median(sample.time_s for sample in samples)
            print(f"{layer.name}, {pool}, {number}: {100 * share:.0f} % of the peak", file=sys.stderr)
            yield Draw(layer.name, pool, predicted_s, seconds, share)


def _results(options: argparse.Namespace) -> Results:
    if options.read:
        parts = [msgspec.json.decode(path.read_bytes(), type=Results) for path in options.read]
        joined = Results({"parts": [part.environment for part in parts]})
        for field in ("gains", "candidates", "pairs", "splits", "draws"):
            setattr(joined, field, [one for part in parts for one in getattr(part, field)])
        return joined
    os.environ["TVM_NUM_THREADS"] = "1"
    started, settings = time.perf_counter(), {name: value for name, value in vars(options).items() if name != "out"}
    results, probes = Results({}), None
    try:
        layers = [layer for layer in choose(options.layers, LAYERS_HERE) if isinstance(layer, Convolution)]
        hardware = anatune.hardware(options.hw[0]).with_threads(1)
        if not options.quick:
            from bench.cpu.probes import Probes

            probes = Probes(1)
        if "pairs" in options.parts:
            for name in options.hw:
                results.gains += _gains(anatune.hardware(name).with_threads(1))
            for layer in layers if probes is not None else ():
                results.pairs += _measured_pairs(layer, hardware, probes, options) if layer.size in OTHER_PAIRS else ()
        if "candidates" in options.parts and probes is not None:
            results.candidates += _candidates(hardware, probes, options)
        if "divisible" in options.parts:
            for layer in layers:
                results.splits += _splits(layer, hardware, probes, options)
        if "convergence" in options.parts and probes is not None:
            for layer in layers:
                results.draws += _draws(layer, hardware, probes, options)
    except AnatuneError as error:
        raise SystemExit(f"bench.experiments.structured_space: {error}") from None
    results.environment = environment(**settings, seconds=time.perf_counter() - started)
    return results


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="write everything as JSON")
    parser.add_argument("--quick", action="store_true", help="predictions of one layer, nothing measured: a test")
    parser.add_argument("--read", type=Path, nargs="+", metavar="FILE", help="do nothing: join what these hold")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--hw", nargs="+", default=list(DEVICES), metavar="D", help="the first one measures")
    parser.add_argument("--layers", default="Y6,Y8", metavar="L", help="names, groups or patterns")
    parser.add_argument("--draws", type=int, default=64, help="random schedules of a layer and pool")
    parser.add_argument("--tiles", type=int, default=6, help="tiles that do not divide")
    parser.add_argument("--candidates", type=int, default=40, help="of the paper's microkernels")
    parser.add_argument("--rounds", type=int, default=5, help="quiet samples wanted of each schedule")
    parser.add_argument("--sample-ms", type=float, default=8.0, help="length of a sample")
    parser.add_argument("--verify", action="store_true", help="compare kernels with float64 first")
    return parser


def _best_after(results: Results, layer: str, pool: str, count: int, orders: int = 20) -> float:
    """Return the median share of the peak of the best of the first `count` draws, over random orders."""
    shares = np.array([draw.share for draw in results.draws if (draw.layer, draw.pool) == (layer, pool)])
    rng = np.random.default_rng(0)
    return float(np.median([rng.permutation(shares)[:count].max(initial=0.0) for _ in range(orders)]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    options = _parser().parse_args(arguments)
    if options.quick:
        options.parts, options.hw, options.layers, options.draws, options.tiles = (
            ["pairs", "divisible"], ["xeon_gold_6130"], "R11", 16, 1,
        )  # fmt: skip
    results = _results(options)
    write_json(options.out, {field: getattr(results, field) for field in results.__struct_fields__})
    for gain in results.gains:
        print(
            f"{gain.device}, by {gain.by}: at most {gain.gain:.4f} times as fast, {gain.segment} rows by {gain.other}"
        )
    for one in results.candidates:
        tile = "not among the good" if one.tile is None else f"{100 * one.tile:.0f} % of its tile"
        print(f"microkernel {one.sizes}: {100 * one.share:.0f} % of the peak, {tile}")
    for pair in results.pairs:
        mark = "" if pair.quiet else "?"
        print(
            f"{pair.layer}, {pair.pair}: {100 * pair.share:.0f} % of the peak, {pair.speed:.3f}{mark} times as fast "
            f"({pair.low:.3f} to {pair.high:.3f})"
        )
    for part in results.splits:
        measured = "" if part.measured is None else f", measured {part.measured:.3f}"
        speed, middle = part.whole_s / part.split_s, np.median(part.whole_draws) / np.median(part.split_draws)
        print(
            f"{part.layer}, {part.filters} filters in tiles of {part.tile}: {speed:.3f} times as fast{measured}, "
            f"draws {middle:.2f}"
        )
    for layer, pool in dict.fromkeys((draw.layer, draw.pool) for draw in results.draws):
        best = [f"{100 * _best_after(results, layer, pool, count):.0f}" for count in (1, 4, 8, 16, 32, 64)]
        print(f"{layer}, {pool}: best of 1, 4, 8, 16, 32, 64 draws: {', '.join(best)} % of the peak")


if __name__ == "__main__":
    sys.exit(main())
