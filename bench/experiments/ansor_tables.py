"""Tables and pictures of `ansor_af_ds`, beside the numbers of the paper."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.cpu.quiet import geometric_mean
from bench.experiments.page import COLOURS, figure_of, markdown_table, save, spread_text
from bench.experiments.surfaces import Search
from bench.replay.metrics import quantile

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bench.experiments.ansor_af_ds import Truth

__all__ = ["draw_informed", "draw_uninformed", "tables_of"]

OWN = "own model"
DGD, GENETIC = "dgd (Ansor-AF-DS)", "genetic (Ansor)"
SHARES = (1.10, 1.05, 1.01)
GROUPS = {"bert": "Matmul", "resnet50": "Resnet", "yolo9000": "Yolo"}
"""Network -> its group in the paper's tables."""
MINUTES = {"1 min": 64, "2 min": 128}
"""Trials that stand for the paper's minutes: 1000 take it 10 to 20. Source: [ICS24] Sec. 1."""
PAPER_SPEEDUPS = {
    "rtx3090": {"Matmul": (1.01, 1.04, 1.09), "Resnet": (0.96, 1.03, 1.13), "Yolo": (0.97, 1.00, 1.09)},
    "rtx4090": {"Matmul": (0.99, 1.04, 1.13), "Resnet": (0.94, 1.02, 1.16), "Yolo": (1.01, 1.11, 1.22)},
}
"""Speed of Ansor-AF-DS after 1 min, 2 min and 1000 trials over Ansor's after 1000. Source: [ICS24] Table 2."""
PAPER_VARIABILITY = {
    "rtx3090": {"Matmul": (0.09, 0.01, 0.11), "Resnet": (0.10, 0.02, 0.10), "Yolo": (0.14, 0.06, 0.12)},
    "rtx4090": {"Matmul": (0.06, 0.03, 0.17), "Resnet": (0.14, 0.05, 0.18), "Yolo": (0.08, 0.05, 0.15)},
}
"""Between runs: Ansor-AF-DS after 2 min and 1000 trials, Ansor after 1000. Source: [ICS24] Table 3."""


def tables_of(truths: Sequence[Truth], searches: Sequence[Search]) -> dict[str, str]:
    """Return Markdown tables by the names of their places in the page."""
    own = [one for one in searches if one.surface == OWN]
    other = [one for one in searches if one.surface != OWN]
    found = {"truth": _truth_table(truths)}
    if own:
        found["uninformed"] = _search_table(own, (*MINUTES.values(), _last(own)), by="device")
        found["speedups"] = _speedup_table(own)
        if variability := _variability_table(own):
            found["variability"] = variability
        found["benchmarks"] = _benchmark_table(truths, own)
    if other:
        found["informed"] = _search_table(other, (1, 4, _last(other)), by="surface")
    return found


def _last(searches: Sequence[Search]) -> int:
    return max(one.num_trials for one in searches)


def _unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _truth_table(truths: Sequence[Truth]) -> str:
    columns = ["model of", "points of a space", "proof", "CPU seconds: median (largest)", "widest / tuners' space"]
    rows = []
    for device in _unique(one.device for one in truths):
        mine = [one for one in truths if one.device == device]
        sizes = [float(one.space_size) for one in mine]
        seconds = [one.rank_s for one in mine]
        gains = {one.benchmark: one.widest_s / one.best_s for one in mine}
        best = min(gains, key=gains.__getitem__)
        proofs = ", ".join(_unique(one.guarantee for one in mine))
        gain = f"{geometric_mean(gains.values()):.3f} ({gains[best]:.3f}: {best})"
        rows.append([
            device, f"{min(sizes):.1e} to {max(sizes):.1e}", proofs,
            f"{quantile(seconds, 0.5):.2f} ({max(seconds):.2f})", gain,
        ])  # fmt: skip
    return markdown_table(columns, rows)


def _search_table(searches: Sequence[Search], places: Sequence[int], by: str) -> str:
    """Return a row for each value of `by` and contender: medians (quartiles) over benchmarks and seeds."""
    columns = [by, "search", *(f"best at {at}" for at in places)]
    columns += [f"trials to {100 * (share - 1):.0f} %" for share in SHARES]
    columns += ["within 1 % in the end", "ms a trial"]
    rows = []
    for value in _unique(getattr(one, by) for one in searches):
        for name in _unique(one.contender for one in searches):
            mine = [one for one in searches if (getattr(one, by), one.contender) == (value, name)]
            cells = [spread_text([one.at(at) for one in mine], "{:.2f}") for at in places]
            cells += [spread_text([one.trials_to(share) for one in mine], "{:.0f}") for share in SHARES]
            found = sum(math.isfinite(one.trials_to(SHARES[-1])) for one in mine)
            cost = quantile([1e3 * one.strategy_s / max(1, one.num_trials) for one in mine], 0.5)
            rows.append([value, name, *cells, f"{100 * found / len(mine):.0f} %", f"{cost:.1f}"])
    return markdown_table(columns, rows)


def _groups(searches: Sequence[Search]) -> list[tuple[str, str, list[list[Search]], list[list[Search]]]]:
    """Return (device, group, searches of dgd by benchmark, of Ansor's by benchmark)."""
    found = []
    for device in _unique(one.device for one in searches):
        for network, group in GROUPS.items():
            mine = [one for one in searches if one.device == device and one.benchmark.startswith(f"{network}:")]
            names = _unique(one.benchmark for one in mine)
            both = [
                [[one for one in mine if (one.benchmark, one.contender) == (name, kind)] for name in names]
                for kind in (DGD, GENETIC)
            ]
            if names:
                found.append((device, group, both[0], both[1]))
    return found


def _mean_speed(runs: Sequence[Search], trials: float) -> float:
    """Return the mean speed of some runs, relative to the optimum's, as the paper averages them."""
    return float(np.mean([1.0 / one.at(int(trials)) for one in runs]))


def _speedup_table(searches: Sequence[Search]) -> str:
    last = _last(searches)
    places = (*MINUTES.values(), last)
    labels = [*(f"{minute}, {at} trials" for minute, at in MINUTES.items()), f"{last} trials"]
    columns = ["model of", "group", *(f"{label}: paper, ours" for label in labels)]
    columns += [f"Ansor's at {last} over the optimum", f"Ansor-AF-DS's at {last}"]
    rows = []
    for device, group, ours, ansors in _groups(searches):
        paper = PAPER_SPEEDUPS.get(device, {}).get(group, (None,) * 3)
        cells = []
        for at, published in zip(places, paper, strict=True):
            pairs = zip(ours, ansors, strict=True)
            ratio = geometric_mean(_mean_speed(a, at) / _mean_speed(b, last) for a, b in pairs)
            cells.append(f"{'-' if published is None else f'{published:.2f}'}, {ratio:.2f}")
        cells += [f"{geometric_mean(1.0 / _mean_speed(runs, last) for runs in some):.3f}" for some in (ansors, ours)]
        rows.append([device, group, *cells])
    return markdown_table(columns, rows)


def _variability_table(searches: Sequence[Search]) -> str:
    last = _last(searches)

    def between(runs: Sequence[Search], trials: int) -> float:
        speeds = [1.0 / one.at(trials) for one in runs]
        return (max(speeds) - min(speeds)) / max(speeds)

    two_minutes = MINUTES["2 min"]
    columns = ["model of", "group", f"Ansor-AF-DS at 2 min, {two_minutes} trials: paper, ours"]
    columns += [f"Ansor-AF-DS at {last}: paper, ours", f"Ansor at {last}: paper, ours"]
    rows = []
    for device, group, ours, ansors in _groups(searches):
        if min(len({one.seed for one in runs}) for some in (ours, ansors) for runs in some) < 2:
            continue  # of one run nothing can be said
        paper = PAPER_VARIABILITY.get(device, {}).get(group, (None,) * 3)
        means = [
            float(np.mean([between(runs, at) for runs in some]))
            for some, at in ((ours, two_minutes), (ours, last), (ansors, last))
        ]
        pairs = zip(paper, means, strict=True)
        rows.append([device, group, *(f"{'-' if a is None else f'{a:.2f}'}, {b:.2f}" for a, b in pairs)])
    return markdown_table(columns, rows) if rows else ""


def _benchmark_table(truths: Sequence[Truth], searches: Sequence[Search]) -> str:
    """Return a row for each benchmark: the optimum on each device, and what searches find in the end."""
    devices = _unique(one.device for one in truths)
    kinds = [DGD, GENETIC, "droplet", "random"]
    columns = ["benchmark", *(f"{device}, us: optimum; {', '.join(k.split()[0] for k in kinds)}" for device in devices)]
    rows = []
    for name in _unique(one.benchmark for one in truths):
        cells = []
        for device in devices:
            best_s = next(one.best_s for one in truths if (one.device, one.benchmark) == (device, name))
            found = []
            for kind in kinds:
                mine = [one for one in searches if (one.device, one.benchmark, one.contender) == (device, name, kind)]
                found.append(f"{quantile([one.at(one.num_trials) for one in mine], 0.5):.2f}")
            cells.append(f"{1e6 * best_s:.1f}; {', '.join(found)}")
        rows.append([name, *cells])
    return markdown_table(columns, rows)


def draw_uninformed(searches: Sequence[Search], path: Path) -> None:
    """Draw the best so far against trials, a panel a device."""
    own = [one for one in searches if one.surface == OWN]
    _draw(own, path, by=lambda one: one.device, title="model of {}", top=4.0)


def draw_informed(searches: Sequence[Search], path: Path) -> None:
    """Draw the best so far against trials of strategies that look at a wrong model, a panel a kind of error."""
    other = [one for one in searches if one.surface != OWN]
    _draw(other, path, by=lambda one: one.surface, title="guided by: {}", top=1.5)


def _draw(searches: Sequence[Search], path: Path, *, by: Callable[[Search], str], title: str, top: float) -> None:
    panels = _unique(by(one) for one in searches)
    figure, axes = figure_of(len(panels), width=3.2 * max(2, len(panels)))
    for one, panel in zip(axes, panels, strict=True):
        _curves(one, [search for search in searches if by(search) == panel])
        one.set_ylim(0.97, top)
        one.set_title(title.format(panel))
    axes[0].set_ylabel("best so far over the optimum")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(3, len(labels)), frameon=False)
    save(figure, path)


def _curves(axes: Axes, searches: Sequence[Search]) -> None:
    """Draw medians over benchmarks and seeds, and the middle half around them."""
    last = _last(searches)
    trials = np.unique(np.geomspace(1, last, 40).round().astype(int))
    for colour, name in zip(COLOURS, _unique(one.contender for one in searches), strict=False):
        mine = [one for one in searches if one.contender == name]
        low, middle, high = (
            [min(1e6, quantile([one.at(at) for one in mine], q)) for at in trials.tolist()] for q in (0.25, 0.5, 0.75)
        )
        axes.plot(trials, middle, color=colour, linewidth=1.4, label=name)
        axes.fill_between(trials, low, high, color=colour, alpha=0.12, linewidth=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_yticks([1, 1.1, 1.25, 1.5, 2, 3, 4], ["1", "1.1", "1.25", "1.5", "2", "3", "4"], minor=False)
    axes.set_yticks([], minor=True)
    axes.set_xlabel("trials")
