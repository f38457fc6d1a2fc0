"""Tables and pictures of `bench.experiments.bayesian`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.experiments.page import COLOURS, figure_of, markdown_table, save, spread_text
from bench.experiments.roughness import Roughness
from bench.experiments.surfaces import Search
from bench.replay.metrics import quantile

__all__ = ["BASE", "About", "draw_variants", "tables_of"]

BASE = "evolutionary search"
"""What the others are compared with."""
CURVES = (BASE, "random", "BO naive", "BO + heap", "BO + LRU", "BO + heap + LRU")
NEAR = 1.05
"""Best over the optimum that counts as near it."""
_RESAMPLES, _LEVEL = 2000, 0.95
"""Of the bootstrap that gives the intervals."""


@dataclass(frozen=True)
class About:
    """What is searched: its name, its group in the tables, the best time of it (s), how rough it is."""

    name: str
    group: str
    best: float
    roughness: Roughness


def tables_of(grounds: Sequence[About], searches: Sequence[Search], trials: int) -> dict[str, str]:
    """Return name -> a table of the page."""
    return {
        "grounds": _grounds(grounds),
        "variants": _variants(grounds, searches, trials),
        "trials": _trials(grounds, searches, trials),
        "surfaces": _surfaces(grounds, searches, trials),
    }


def _names(searches: Sequence[Search]) -> list[str]:
    return list(dict.fromkeys(one.contender for one in searches))


def _groups(grounds: Sequence[About]) -> list[str]:
    return list(dict.fromkeys(one.group for one in grounds))


def _of(searches: Sequence[Search], ground: About, name: str) -> list[Search]:
    """Return the searches of one variant on one surface, in the order of their seeds."""
    own = [one for one in searches if (one.surface, one.contender) == (ground.name, name)]
    return sorted(own, key=lambda one: one.seed)


def _grounds(grounds: Sequence[About]) -> str:
    """Return one row a surface: what a process over it has to model."""
    rows = []
    for one in grounds:
        rough = one.roughness
        cells = ["-" if value is None else f"{value:.2f}" for value in (rough.turns, rough.jump)]
        rows.append([one.name, f"{rough.size:.3g}", str(rough.num_genes), f"{100 * rough.legal:.0f} %", *cells])
    return markdown_table(["surface", "points", "genes", "legal", "turns", "jump"], rows)


def _gains(grounds: Sequence[About], searches: Sequence[Search], name: str, trials: int) -> list[NDArray[np.float64]]:
    """Return for each surface log(best of the base / best of the variant) of the searches with the same seed."""
    found = []
    for ground in grounds:
        pairs = zip(_of(searches, ground, BASE), _of(searches, ground, name), strict=True)
        found.append(np.array([math.log(base.at(trials) / own.at(trials)) for base, own in pairs]))
    return found


def _interval(gains: Sequence[NDArray[np.float64]]) -> tuple[float, float, float]:
    """Return (geometric mean, ends of its interval) of speeds; seeds are drawn anew within each surface."""
    rng = np.random.default_rng(0)
    drawn = [one[rng.integers(0, len(one), (_RESAMPLES, len(one)))].mean(axis=1) for one in gains]
    means = np.mean(drawn, axis=0)
    low, high = np.quantile(means, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    middle = float(np.mean([one.mean() for one in gains]))
    return math.exp(middle), math.exp(float(low)), math.exp(float(high))


def _variants(grounds: Sequence[About], searches: Sequence[Search], trials: int) -> str:
    """Return one row a variant: speed of what it finds over the base's, on each group of surfaces."""
    groups = _groups(grounds)
    rows = []
    for name in _names(searches):
        cells = []
        for group in groups:
            own = [one for one in grounds if one.group == group]
            middle, low, high = _interval(_gains(own, searches, name, trials))
            cells.append("1" if name == BASE else f"{middle:.3f} ({low:.3f} to {high:.3f})")
        rows.append([name, *cells])
    return markdown_table(["", *groups], rows)


def _trials(grounds: Sequence[About], searches: Sequence[Search], trials: int) -> str:
    """Return one row a variant: searches that come near the optimum and their trials; trials to where the base ends."""
    groups = _groups(grounds)
    rows = []
    for name in _names(searches):
        cells = []
        for group in groups:
            own = [one for one in grounds if one.group == group]
            runs = [run for one in own for run in _of(searches, one, name)]
            counts = [run.trials_to(NEAR) for run in runs]
            cells.append(f"{100 * float(np.mean(np.isfinite(counts))):.0f} %")
            cells.append(f"{quantile([_matched(searches, one, name, trials) for one in own], 0.5):.0f}")
        rows.append([name, *cells])
    heads = [head for group in groups for head in (f"{group}: near", "as good as the end of evolutionary search")]
    return markdown_table(["", *heads], rows)


def _matched(searches: Sequence[Search], ground: About, name: str, trials: int) -> float:
    """Return the first trial at which the median search is as good as the base's median search at its end."""
    goal = quantile([one.at(trials) for one in _of(searches, ground, BASE)], 0.5)
    own = _of(searches, ground, name)
    numbers = range(1, trials + 1)
    return next((n for n in numbers if quantile([one.at(n) for one in own], 0.5) <= goal + 1e-12), math.inf)


def _surfaces(grounds: Sequence[About], searches: Sequence[Search], trials: int) -> str:
    """Return one row a surface: the best over the optimum of the main variants."""
    rows = [
        [ground.name, *(spread_text([s.at(trials) for s in _of(searches, ground, name)]) for name in CURVES)]
        for ground in grounds
    ]
    return markdown_table(["surface", *CURVES], rows)


def draw_variants(grounds: Sequence[About], searches: Sequence[Search], trials: int, path: Path) -> None:
    """Draw, for each group of surfaces, the best so far of the main variants, and the speeds of all over the base."""
    groups, names = _groups(grounds), [name for name in _names(searches) if name != BASE]
    figure, axes = figure_of(len(groups), 2, width=3.4 * len(groups), height=7.0)
    at = np.unique(np.geomspace(1, trials, 50).astype(int))
    for column, group in enumerate(groups):
        own = [one for one in grounds if one.group == group]
        above, below = axes[column], axes[len(groups) + column]
        for name, colour in zip(CURVES, COLOURS, strict=False):
            above.plot(at, [_middle(own, searches, name, int(n)) for n in at], color=colour, linewidth=1.3, label=name)
        above.set_xscale("log")
        above.minorticks_off()
        above.set_title(group, fontsize=9)
        above.set_xlabel("trials")
        above.set_ylim(0.98, min(3.0, above.get_ylim()[1]))
        for row, name in enumerate(reversed(names)):
            middle, low, high = _interval(_gains(own, searches, name, trials))
            below.plot([low, high], [row, row], color=COLOURS[0], linewidth=1.5)
            below.plot([middle], [row], "o", color=COLOURS[0], markersize=4)
        below.axvline(1.0, color="#5b5b5b", linewidth=1.0)
        below.set_yticks(range(len(names)), list(reversed(names)) if column == 0 else [""] * len(names))
        below.set_xlabel(f"speed over {BASE}'s")
    axes[0].set_ylabel("best time / optimum")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    save(figure, path)


def _middle(grounds: Sequence[About], searches: Sequence[Search], name: str, trials: int) -> float:
    """Return the geometric mean over surfaces of the median search."""
    middles = [quantile([s.at(trials) for s in _of(searches, one, name)], 0.5) for one in grounds]
    return math.exp(float(np.mean(np.log(middles))))
