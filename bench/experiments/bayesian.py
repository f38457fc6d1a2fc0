"""The variants of Bayesian optimisation in [BO24] side by side, on models and on recorded measurements.

    python -m bench.experiments.bayesian [FOLDER] --out FILE.json [--quick]

FOLDER holds recorded tables as for `bench.replay.search`; without it there are models only. Every variant is the
strategy "bayes" as published with other settings, beside genetic search, which [BO24] compares with, and random search.
What came of it is in ``docs/experiments/bayesian.md``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from anatune import api
from anatune.core.workload.text import parse_workload
from anatune.templates.base.model import Model
from bench.experiments.processes import do_all
from bench.experiments.roughness import Roughness, roughness_of
from bench.experiments.surfaces import Contender, RecordedSurface, Search, search, summary
from bench.replay.recorded import model_of
from bench.replay.recorded_points import load_tables
from bench.replay.search import chosen_tables
from bench.results import environment, matches, write_json

__all__ = ["VARIANTS", "main"]

VARIANTS = (
    Contender("evolutionary search", "genetic", "paper", {"has_limits": False}),  # all search one space
    Contender("random", "random", "paper"),
    Contender("BO naive", "bayes", "paper", {"selection": "naive"}),
    Contender("BO + heap", "bayes", "paper"),
    Contender("BO + LRU", "bayes", "paper", {"selection": "naive", "eviction": "lru"}),
    Contender("BO + heap + LRU", "bayes", "paper", {"eviction": "lru"}),
    Contender("heap, kappa 0.01", "bayes", "paper", {"kappa": 0.01}),
    Contender("heap, EI", "bayes", "paper", {"acquisition": "ei"}),
    Contender("heap, POI", "bayes", "paper", {"acquisition": "poi"}),
    Contender("heap, memory 500", "bayes", "paper", {"memory": 500}),
    Contender("heap, domain reduction", "bayes", "paper", {"domain": "reduced"}),
    Contender("heap, none random", "bayes", "paper", {"random_share": 0.0}),
)
"""The first four of BO are [BO24] Table 3.1, with its settings: UCB, kappa 0.1, memory 250 (Sec. 4.1.3)."""
MODELS = {
    "apple_m3": {
        "MobileNet": "conv2d 1x512x14x14 512x512x1x1",
        "BERT": "matmul 128x3072x768",
        "ResNet-50": "conv2d 1x128x28x28 128x128x3x3 --padding 1",
    },
    "a100_sxm": {
        "MobileNet": "conv2d 1x512x14x14 512x512x1x1",
        "BERT": "matmul 128x3072x768",
        "GPT-2": "matmul 128x2304x768",
    },
}
"""Devices and networks of [BO24] Sec. 4.1.1 and 4.2, a layer of each, one image or 128 tokens."""
FREE = ("*__mit", "*__apache2")
"""Tables that a licence lets one publish results of without asking."""
_TIED = 64
"""As in `bench.experiments.grids`: times within 0.1 % are equal to a ranking."""


@dataclass(frozen=True)
class About:
    """What is searched: its name, what others it belongs to, the best time of it (s), how rough it is."""

    name: str
    group: str
    best: float
    roughness: Roughness


@dataclass(frozen=True)
class Ground:
    """What is searched: `truth` answers, `guide` is the space (strategies as published do not look at its times)."""

    about: About
    truth: Model | RecordedSurface
    guide: Model


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="folder of recorded tables")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json", help="every search")
    parser.add_argument("--quick", action="store_true", help="one model, few trials: to see that it runs")
    parser.add_argument("--seeds", type=int, default=10, help="searches of each variant")
    parser.add_argument("--trials", type=int, default=128, help="trials of a search")
    parser.add_argument("--table", nargs="+", metavar="T", default=list(FREE), help="only these tables (patterns)")
    parser.add_argument("--device", nargs="+", metavar="D", help="only tables of these devices (patterns)")
    parser.add_argument("--workloads", type=int, default=1, metavar="N", help="at most N of each table and device")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the work")
    options = parser.parse_args(arguments)
    if options.quick:
        options.seeds, options.trials = 1, 72
    grounds = [*_models(options.quick), *_tables(options)]
    searches = _study(grounds, options)
    names = ("seeds", "trials", "table", "device", "workloads", "quick")
    about = environment(**{name: getattr(options, name) for name in names})
    write_json(
        options.out, {"environment": about, "grounds": [ground.about for ground in grounds], "searches": searches}
    )
    print(summary(searches))


def _models(quick: bool) -> Iterator[Ground]:
    """Yield the predicted times of layers on a CPU and a GPU; the best of each is proven by the ranking."""
    for device, layers in list(MODELS.items())[-1 if quick else 0 :]:
        hardware = api.hardware(device)
        for network, words in list(layers.items())[: 1 if quick else None]:
            model = model_of(parse_workload(words), hardware)
            best = float(model.times(model.rank(_TIED).points)[0].min())
            name = f"{network} on {device}"
            yield Ground(About(name, f"model of {device}", best, roughness_of(model)), model, model)


def _tables(options: argparse.Namespace) -> Iterator[Ground]:
    """Yield recorded tables, evenly spread workloads of each table and device."""
    if not options.folder:
        return
    notes: list[str] = []
    known = [
        one
        for one in load_tables(options.folder, notes)
        if matches(one.group.table, options.table) and matches(one.group.device, options.device)
    ]
    for one in chosen_tables(known, options.workloads):
        table = one.table()
        name = f"{one.group.table} {one.group.device}: {one.group.workload.describe()}"
        best = float(np.nanmin(one.time_s))
        about = About(name, "recorded on GPUs", best, roughness_of(table, one.time_s))
        yield Ground(about, RecordedSurface(one, table), table)


def _study(grounds: Sequence[Ground], options: argparse.Namespace) -> list[Search]:
    """Return all searches."""

    def work(piece: tuple[Ground, Contender]) -> list[Search]:
        ground, variant = piece
        about, device = ground.about, ground.guide.hardware.name
        empty = [
            Search(device, about.group, about.name, variant.name, seed, about.best) for seed in range(options.seeds)
        ]
        return [search(ground.truth, ground.guide, variant, options.trials, found) for found in empty]

    variants = [_shorten(variant) for variant in VARIANTS] if options.quick else VARIANTS
    pieces = [(ground, variant) for ground in grounds for variant in variants]
    found = do_all(work, pieces, options.workers, lambda one: f"{one[1].name}: {one[0].about.name}")
    return [search for searches in found for search in searches]


def _shorten(variant: Contender) -> Contender:
    """Return a variant that scores one point for each input."""
    few = {"suggestions": 1} if variant.strategy == "bayes" else {}
    return replace(variant, options={**variant.options, **few})


if __name__ == "__main__":
    sys.exit(main())
