"""NoSE beside genetic searches and random search on recorded tables and models, and how well its surrogate predicts.

    python -m bench.experiments.nose FOLDER --out FILE.json [--table T ...] [--device D ...] [--quick]

FOLDER holds recorded tables as for `bench.replay.search`. Models predict the layers of the paper on its device: what
they say is the time, and the best of each is proven by the ranking. All search as published: none sees the model. The
genetic search that [NoSE] compares with is AutoTVM's, which has no surrogate: `GeneticAlgorithm`; the strategy
"genetic" is Ansor's. What came of it is in ``docs/experiments/nose.md``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from anatune.api import hardware
from anatune.core.workload.layers import layer
from anatune.report.text import columns
from anatune.search.knobs import roulette, single_point_crossover
from anatune.search.stepwise import StepwiseStrategy, Walk
from anatune.search.strategies.evolution import EvolutionStrategy
from anatune.templates.base.model import Model
from bench.experiments.processes import do_all
from bench.experiments.surfaces import Contender, RecordedSurface, Search, search
from bench.replay.metrics import quantile, share, spearman
from bench.replay.recorded import model_of
from bench.replay.recorded_points import load_tables
from bench.replay.search import chosen_tables
from bench.results import environment, matches, number_text, write_json

__all__ = ["Generation", "GeneticAlgorithm", "main"]

AT = (100, 130, 160, 190, 220, 250)
"""Trials after which speeds are compared: NoSE's first population, and its generations of 30."""
FREE = ("*__mit", "*__apache2")
"""Tables that a licence lets one publish results of without asking."""
DEVICE = "gtx1080ti"
LAYERS = tuple(f"resnet18:C{number}" for number in range(3, 11))
"""Source: [NoSE] Sec. V-B and V-D: the device, and the eight layers that its settings were not chosen on."""
_TRIES = 50
_TIED = 64
"""Points of the ranking whose best is the optimum: times within 0.1 % are equal to it."""


class GeneticAlgorithm(StepwiseStrategy):
    """The genetic algorithm of AutoTVM, which [NoSE] compares with: every child is measured.

    Source: apache/tvm v0.5, autotvm GATuner with its defaults. Deviates: illegal points are not born (its space
    has them, they count as speed 0); children that no new gene makes new are random points.
    """

    population, elite, mutation = 100, 3, 0.1

    def walk(self) -> Walk:
        """Yield generations."""
        points = self.filter_new(self.draw(self.population, 0))
        best, best_speeds = points[:0], np.empty(0)
        for generation in range(1, 1 << 30):
            if not len(points):
                return
            answers = yield points
            speeds = np.array([1.0 / one.cost if one.cost else 0.0 for one in answers])
            parents, fitness = np.concatenate([best, points]), np.concatenate([best_speeds, speeds])
            order = np.argsort(-fitness, kind="stable")[: self.elite]
            best, best_speeds = parents[order], fitness[order]
            points = self._children(self.knobs.genes(parents), fitness, generation)

    def _children(self, genes: NDArray[np.int64], fitness: NDArray[np.float64], generation: int) -> NDArray[np.int64]:
        rng = self.random(generation)
        size = self.population
        made = single_point_crossover(genes[roulette(fitness, size, rng)], genes[roulette(fitness, size, rng)], rng)
        drawn = (rng.random(made.shape) * self.knobs.gene_radices).astype(np.int64)
        made = np.where(rng.random(made.shape) < self.mutation, drawn, made)
        children, legal = self.knobs.from_genes(made)
        born = self.filter_new(children[legal])
        for attempt in range(_TRIES):
            if len(born) == size:
                break
            known = made[rng.integers(0, size, size)]  # visited already: one gene after the other is drawn anew
            place = rng.integers(0, made.shape[1], size)
            known[np.arange(size), place] = (rng.random(size) * self.knobs.gene_radices[place]).astype(np.int64)
            children, legal = self.knobs.from_genes(known)
            born = self.filter_new(np.concatenate([born, children[legal]]))[:size]
            if attempt == _TRIES - 1 and not len(born):
                born = self.draw_new(size, 1, generation)
        return born


@dataclass
class Generation:
    """How well the surrogate of a search predicts the children of one generation."""

    group: str
    surface: str
    seed: int
    number: int
    num_known: int
    """Measured points that it predicts from."""
    rank_correlation: float
    """The rank correlation of predicted and recorded speeds of all children; failed ones count as 0."""
    elite_correlation: float
    """The same correlation over the elite, which is measured."""
    median_error: float
    """|predicted / recorded - 1| of the children's speeds, of those that run."""
    failed: float
    """Share of the children that were recorded as failed."""
    elite_failed: float
    elite_gain: float
    """Mean recorded speed of the elite over that of the children."""


class _Watched(EvolutionStrategy):
    """NoSE that compares its predictions with what was recorded."""

    surface: ClassVar[Model | RecordedSurface]
    census: ClassVar[list[Generation]]
    about: ClassVar[tuple[str, str]]

    def _predict(
        self, children: NDArray[np.int64], known: NDArray[np.int64], speeds: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        predicted = super()._predict(children, known, speeds)
        seconds, failed = self.surface.times(children)
        recorded = np.where(failed > 0, 0.0, 1.0 / np.nan_to_num(seconds, nan=np.inf))
        elite = np.argsort(-predicted, kind="stable")[: round(self.elite * self.population)]
        ran = failed == 0
        self.census.append(
            Generation(
                *self.about,
                self.seed,
                1 + sum(one.seed == self.seed for one in self.census),
                len(known),
                spearman(predicted, recorded),
                spearman(predicted[elite], recorded[elite]),
                quantile(np.abs(predicted[ran] / recorded[ran] - 1.0), 0.5) if ran.any() else float("nan"),
                share(~ran),
                share(~ran[elite]),
                float(recorded[elite].mean() / recorded.mean()) if ran.any() else float("nan"),
            )
        )
        return predicted


CONTENDERS = (
    Contender("NoSE", "nose", "paper"),
    Contender("genetic (AutoTVM)", "nose", "paper", variant=GeneticAlgorithm),
    Contender("genetic (Ansor)", "genetic", "paper", {"has_limits": False}),  # all search one space
    Contender("random", "random", "paper"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of recorded tables")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json", help="every search and generation")
    parser.add_argument("--quick", action="store_true", help="one seed, few trials: to see that it runs")
    parser.add_argument("--seeds", type=int, default=4, help="searches of each contender; the paper's: 4")
    parser.add_argument("--trials", type=int, default=AT[-1], help="trials of a search")
    parser.add_argument("--table", nargs="+", metavar="T", default=list(FREE), help="only these tables (patterns)")
    parser.add_argument("--device", nargs="+", metavar="D", help="only tables of these devices (patterns)")
    parser.add_argument("--workloads", type=int, default=2, metavar="N", help="at most N of each table and device")
    parser.add_argument(
        "--layers", nargs="*", metavar="L", default=list(LAYERS), help="layers whose models are searched"
    )
    parser.add_argument("--workers", type=int, default=1, help="processes that share the work")
    options = parser.parse_args(arguments)
    if options.quick:
        options.seeds, options.trials, options.layers = 1, 135, options.layers[:1]
    grounds = list(_grounds(options))
    if not grounds:
        raise SystemExit(f"bench.experiments.nose: no recorded GPU table of a search in {options.folder}, and no layer")
    pieces = [(ground, contender) for ground in grounds for contender in CONTENDERS]
    parts = do_all(
        lambda piece: _work(*piece, options.seeds, options.trials), pieces, options.workers,
        lambda piece: f"{piece[1].name}: {piece[0].name}",
    )  # fmt: skip
    searches = [one for part, _ in parts for one in part]
    census = [one for _, part in parts for one in part]
    about = environment(
        **{name: getattr(options, name) for name in ("seeds", "trials", "table", "device", "workloads")}
    )
    write_json(options.out, {"environment": about, "searches": searches, "census": census})
    for words in (_speeds(searches, options.trials), _ends(searches), _surrogate(census)):
        print(words, end="\n\n")


@dataclass(frozen=True)
class Ground:
    """What is searched: `truth` answers, `guide` is the space."""

    kind: str
    name: str
    best_s: float
    truth: Model | RecordedSurface
    guide: Model


def _grounds(options: argparse.Namespace) -> Iterator[Ground]:
    """Yield recorded tables, then models of the layers."""
    tables = [
        one
        for one in load_tables(options.folder, [])
        if matches(one.group.table, options.table) and matches(one.group.device, options.device)
    ]
    for one in chosen_tables(tables, options.workloads):
        group, table = one.group, one.table()
        kind = f"{group.table.split('__')[0]} {group.device}"
        yield Ground(kind, group.workload_id, float(np.nanmin(one.time_s)), RecordedSurface(one, table), table)
    for name in options.layers:
        model = model_of(layer(name), hardware(DEVICE))
        best_s = float(model.times(model.rank(_TIED).points)[0].min())
        yield Ground(f"model of {DEVICE}", name, best_s, model, model)


def _work(ground: Ground, contender: Contender, seeds: int, trials: int) -> tuple[list[Search], list[Generation]]:
    """Return the searches of a contender, and the generations of NoSE's."""
    device, best_s = ground.guide.hardware.name, ground.best_s
    census: list[Generation] = []
    searches = []
    for seed in range(seeds):
        found = Search(device, ground.kind, ground.name, contender.name, seed, best_s)
        searches.append(search(ground.truth, ground.guide, contender, trials, found))
        if contender.name == "NoSE":  # once more: what is looked at costs time, too
            settings = {"surface": ground.truth, "census": census, "about": (ground.kind, ground.name)}
            watched = Contender("NoSE", "nose", "paper", settings, _Watched)
            search(ground.truth, ground.guide, watched, trials, Search(device, ground.kind, "", "", seed, best_s))
    return searches, census


def _speeds(searches: Sequence[Search], trials: int) -> str:
    """Return speed over that of AutoTVM's genetic search after equal trials: mean of the means of tables, as [NoSE]."""
    rival = CONTENDERS[1].name
    shown = [at for at in AT if at <= trials]
    rows = [["tables", "speed over genetic (AutoTVM)", *(f"at {at}" for at in shown)]]
    groups = list(dict.fromkeys(one.benchmark for one in searches))
    for kind in [*groups, "all"] if len(groups) > 1 else groups:
        own = [one for one in searches if kind in (one.benchmark, "all")]
        for contender in CONTENDERS:
            cells = []
            for at in shown:
                ratios = [
                    _mean_speed(own, one, contender.name, at) / _mean_speed(own, one, rival, at)
                    for one in dict.fromkeys((one.benchmark, one.surface) for one in own)
                ]
                cells.append(f"{np.mean(ratios):.3f} ({min(ratios):.2f} to {max(ratios):.2f})")
            rows.append([kind, contender.name, *cells])
    return "\n".join(columns(rows, left=(0, 1), width=160))


def _mean_speed(searches: Sequence[Search], table: tuple[str, str], contender: str, trials: int) -> float:
    """Return the mean over seeds of the best speed, over the table's best."""
    own = [one for one in searches if (one.benchmark, one.surface) == table and one.contender == contender]
    return float(np.mean([1.0 / one.at(trials) for one in own]))


def _ends(searches: Sequence[Search]) -> str:
    """Return medians over tables and seeds: trials, failed ones, milliseconds."""
    rows = [["tables", "contender", "trials to 5 %", "1 %", "as good as genetic (AutoTVM)", "failed", "ms a trial"]]
    for kind in dict.fromkeys(one.benchmark for one in searches):
        ends = {
            (one.surface, one.seed): one.at(one.num_trials)
            for one in searches
            if one.benchmark == kind and one.contender == CONTENDERS[1].name
        }
        for contender in CONTENDERS:
            own = [one for one in searches if (one.benchmark, one.contender) == (kind, contender.name)]
            cells = [quantile([one.trials_to(limit) for one in own], 0.5) for limit in (1.05, 1.01)]
            cells.append(quantile([one.trials_to(ends[one.surface, one.seed]) for one in own], 0.5))
            failed = sum(one.num_illegal for one in own) / max(1, sum(one.num_trials for one in own))
            cpu = quantile([1e3 * one.strategy_s / max(1, one.num_trials) for one in own], 0.5)
            rows.append([kind, contender.name, *(f"{cell:.0f}" for cell in cells), f"{failed:.1%}", f"{cpu:.2f}"])
    return "\n".join(columns(rows, left=(0, 1), width=160))


def _surrogate(census: Sequence[Generation]) -> str:
    """Return medians of the surrogate's quality by generation; shares of failed points are means."""
    words = ("rank correlation", "of the elite", "median error", "failed children", "failed elite", "elite's gain")
    rows = [["tables", "generation", "known", *words]]
    for kind in dict.fromkeys(one.group for one in census):
        for number in sorted({one.number for one in census if one.group == kind}):
            own = [one for one in census if (one.group, one.number) == (kind, number)]
            middle = [
                _median([getattr(one, name) for one in own])
                for name in ("num_known", "rank_correlation", "elite_correlation", "median_error")
            ]
            shares = [float(np.mean([getattr(one, name) for one in own])) for name in ("failed", "elite_failed")]
            cells = [f"{middle[0]:.0f}", *(number_text(one, "{:.2f}") for one in middle[1:])]
            gain = number_text(_median([one.elite_gain for one in own]), "{:.2f}")
            rows.append([kind, str(number), *cells, *(f"{one:.1%}" for one in shares), gain])
    return "\n".join(columns(rows, left=(0, 1), width=160))


def _median(values: Sequence[float]) -> float:
    finite = [one for one in values if np.isfinite(one)]
    return float(np.median(finite)) if finite else float("nan")


if __name__ == "__main__":
    sys.exit(main())
