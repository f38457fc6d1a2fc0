"""Droplet search on analytical surfaces: their shape, and trials beside random, grid, genetic search and annealing.

    python -m bench.experiments.droplet --out FILE.json [--quick]

Source: [Droplet24] Sec. 4.4 (RQ4), its kernels Sec. 4.6. Every surface is exact and its optimum known: all points were
looked at, or a certified ranking proves it; of traffic there is a lower bound. No device is needed. What came of
it is in ``docs/experiments/droplet.md``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from bench.experiments.annealing import anneal
from bench.experiments.grids import GROUPS, Surface, equation_surfaces, kernel_surfaces
from bench.experiments.processes import do_all
from bench.experiments.shape import Shape, shape_of
from bench.experiments.surfaces import Contender, Search, search, summary
from bench.results import environment, write_json

__all__ = ["CONTENDERS", "main"]

ANNEALING = "annealing"
CONTENDERS = (
    Contender("droplet, 16 at a time", "droplet", "paper"),
    Contender("droplet, whole neighbourhood", "droplet", "paper", {"published_batch": 1 << 20}),
    Contender("random", "random", "paper"),
    Contender("grid", "grid", "paper"),
    Contender("genetic", "genetic", "paper", {"has_limits": False}),  # all search one space
    Contender(ANNEALING, ANNEALING, "paper"),
)
"""The code of the paper moves after 16 measurements, its text after the whole neighbourhood."""
ONE_SEED = ("droplet", "grid")
DEVICES = ("rtx3080", "ryzen_3700x")
"""A GPU and a CPU of the paper's six."""
SMALL, SMALL_TRIALS = GROUPS[:3], 128
"""Surfaces of two or three parameters, and the trials of a search of them, at most."""
MOST_TRIALS = 4096
"""The most trials of droplet, which ends before that."""
QUICK = ("LRW", "one cache", "any tile", "divisors", "relu, ryzen_3700x", "reduction, ryzen_3700x")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json", help="every shape and search")
    parser.add_argument("--quick", action="store_true", help="six surfaces, few trials: to see that it runs")
    parser.add_argument("--seeds", type=int, default=10, help="searches of what is random")
    parser.add_argument("--trials", type=int, default=256, help="trials of a search, at most")
    parser.add_argument("--samples", type=int, default=100, help="random points whose lines and ways down are seen")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the work")
    options = parser.parse_args(arguments)
    if options.quick:
        options.seeds, options.trials, options.samples = 2, 60, 10
    surfaces = _surfaces(options.quick)
    shapes, searches = _study(surfaces, options)
    about = environment(**{name: getattr(options, name) for name in ("seeds", "trials", "samples", "quick")})
    described = [
        {"name": one.name, "group": one.group, "words": one.words, "best": one.best, "truth": one.truth}
        for one in surfaces
    ]
    write_json(options.out, {"environment": about, "surfaces": described, "shapes": shapes, "searches": searches})
    print(summary(searches))


def _surfaces(quick: bool) -> list[Surface]:
    """Return what is searched: in a quick run a few, in the same manner."""
    if not quick:
        return [*equation_surfaces(), *kernel_surfaces(DEVICES)]
    some = chain(equation_surfaces(), kernel_surfaces(DEVICES[1:], ("relu", "reduction")))
    return [one for one in some if one.name in QUICK]


def _study(surfaces: Sequence[Surface], options: argparse.Namespace) -> tuple[list[Shape], list[Search]]:
    """Return the shapes of the surfaces, and all searches."""

    def work(piece: tuple[Surface, Contender | None]) -> Shape | list[Search]:
        surface, contender = piece
        if contender is None:
            return shape_of(surface, samples=options.samples, seed=0)
        trials = min(options.trials, SMALL_TRIALS) if surface.group in SMALL else options.trials
        if contender.strategy == "droplet" and not options.quick:
            trials = MOST_TRIALS
        seeds = 1 if contender.strategy in ONE_SEED else options.seeds
        return [_searched(surface, contender, seed, trials) for seed in range(seeds)]

    pieces = [(surface, contender) for surface in surfaces for contender in (None, *CONTENDERS)]
    found = do_all(work, pieces, options.workers, lambda one: f"{one[0].name}: {one[1].name if one[1] else 'shape'}")
    shapes = [one for one in found if isinstance(one, Shape)]
    return shapes, [search for one in found if not isinstance(one, Shape) for search in one]


def _searched(surface: Surface, contender: Contender, seed: int, trials: int) -> Search:
    device = surface.model.hardware.name
    found = Search(device, surface.group, surface.name, contender.name, seed, surface.best)
    if contender.strategy == ANNEALING:
        return anneal(surface.model, trials, found)
    return search(surface.model, surface.model, contender, trials, found)


if __name__ == "__main__":
    sys.exit(main())
