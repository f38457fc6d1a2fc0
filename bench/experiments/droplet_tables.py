"""Tables and pictures of `bench.experiments.droplet`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from anatune.search.knobs import knobs_of
from bench.experiments.grids import GROUPS, Surface
from bench.experiments.page import COLOURS, figure_of, markdown_table, save, spread_text
from bench.experiments.shape import REACHED, Shape, way_down
from bench.experiments.surfaces import Search
from bench.replay.metrics import quantile

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_kernels", "draw_planes", "tables_of"]

SHARES = (REACHED, 1.01, 1.05, 1.1)
PLANES = ("LRW", "TLI", "one cache", "one cache, any size", "any tile", "divisors")
TIMES = GROUPS[3]
TOP = 2.0
"""Upper edge of the pictures of searches: best over the optimum."""


def tables_of(surfaces: Sequence[Surface], shapes: Sequence[Shape], searches: Sequence[Search]) -> dict[str, str]:
    """Return name -> a table of the page."""
    equations = [one for one in surfaces if one.group in GROUPS[:3]]
    kernels = [one for one in surfaces if one.group == TIMES]
    traffic = [one for one in surfaces if one.group == GROUPS[4]]
    found = {
        "shapes of equations": _shapes(equations, shapes),
        "searches of equations": _trials(equations, searches, 1.01),
    }
    found |= {
        "shapes of kernels": _shapes([*kernels, *traffic], shapes),
        "axes of kernels": _axes(kernels, shapes),
        "ends of kernels": _ends([*kernels, *traffic], searches),
        "searches of kernels": _trials(kernels, searches, 1.05),
        "summary of kernels": _summary(kernels, searches),
    }
    return found


def _contenders(searches: Sequence[Search]) -> list[str]:
    return list(dict.fromkeys(one.contender for one in searches))


def _of(searches: Sequence[Search], surface: Surface, contender: str) -> list[Search]:
    return [one for one in searches if (one.surface, one.contender) == (surface.name, contender)]


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _spread(values: Sequence[float], form: str) -> str:
    """Return one number where all are the same, else the median and the quartiles."""
    text = spread_text(values, form)
    middle, *others = text.removesuffix(")").replace(" to ", " (").split(" (")
    return middle if set(others) == {middle} else text


def _shapes(surfaces: Sequence[Surface], shapes: Sequence[Shape]) -> str:
    """Return one row a surface: its lines, and where ways down end."""
    known = {one.surface: one for one in shapes}
    columns = [
        "surface", "points", "knobs", "one valley", "convex", "minima", "steepest from origin", "any way from origin",
        "random starts: 0.1 %", "5 %",
    ]  # fmt: skip
    rows = []
    for surface in surfaces:
        shape = known[surface.name]
        way = _ratio(shape.chain) + ("" if shape.is_exact or shape.chain is None else " (sampled)")
        rows.append(
            [
                surface.name,
                f"{shape.size:.3g}",
                str(shape.num_knobs),
                f"{100 * shape.mean('single_valley'):.0f} %",
                f"{100 * shape.mean('convex'):.0f} %",
                "-" if shape.num_minima is None else str(shape.num_minima),
                f"{_ratio(shape.from_origin)} ({shape.steps_from_origin} steps)",
                way,
                f"{100 * shape.reached[f'{REACHED:g}']:.0f} %",
                f"{100 * shape.reached['1.05']:.0f} %",
            ]
        )
    return markdown_table(columns, rows)


def _kind(surface: Surface, knob: str) -> str:
    """Return what a knob is: a level of the tiling, whatever the axis, or a choice, whatever the tensor."""
    first, _, last = knob.partition(".")
    return last if first in surface.model.space.axes else first


def _axes(surfaces: Sequence[Surface], shapes: Sequence[Shape]) -> str:
    """Return one row a device and kind of knob: the shares of its lines, over all kernels and axes."""
    known = {one.surface: one for one in shapes}
    shares: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for surface in surfaces:
        shape = known[surface.name]
        for knob, valley in shape.single_valley.items():
            kind = (surface.model.hardware.name, _kind(surface, knob))
            shares.setdefault(kind, []).append((valley, shape.convex[knob]))
    rows = []
    for (device, kind), pairs in shares.items():
        valleys, convex = zip(*pairs, strict=True)
        rows.append([device, kind, *(f"{100 * value:.0f} %" for value in (np.mean(valleys), min(valleys)))])
        rows[-1] += [f"{100 * value:.0f} %" for value in (np.mean(convex), min(convex))]
    return markdown_table(["device", "knob", "one valley", "at least", "convex", "at least"], rows)


def _trials(surfaces: Sequence[Surface], searches: Sequence[Search], share: float) -> str:
    """Return one row a surface: trials until the best is within a share of the optimum."""
    names = _contenders(searches)
    rows = [
        [one.name, *(_spread([s.trials_to(share) for s in _of(searches, one, name)], "{:.0f}") for name in names)]
        for one in surfaces
    ]
    return markdown_table(["surface", *names], rows)


def _end(search: Search) -> float:
    return search.at(search.num_trials)


def _ends(surfaces: Sequence[Surface], searches: Sequence[Search]) -> str:
    """Return one row a surface: the best over the optimum at the end, and with droplet how many trials that took."""
    names = _contenders(searches)
    rows = []
    for one in surfaces:
        cells = []
        for name in names:
            own = _of(searches, one, name)
            text = _spread([_end(s) for s in own], "{:.3f}")
            cells.append(f"{text} after {own[0].num_trials}" if name.startswith("droplet") else text)
        rows.append([one.name, *cells])
    return markdown_table(["surface", *names], rows)


def _summary(surfaces: Sequence[Surface], searches: Sequence[Search]) -> str:
    """Return one row a contender: on how many surfaces its median search comes how near, and with how many trials."""
    rows = []
    for name in _contenders(searches):
        medians = [quantile([_end(s) for s in _of(searches, one, name)], 0.5) for one in surfaces]
        within = [f"{sum(value <= share for value in medians)} of {len(surfaces)}" for share in SHARES]
        counts = [quantile([s.num_trials for s in _of(searches, one, name)], 0.5) for one in surfaces]
        own = [s for one in surfaces for s in _of(searches, one, name)]
        early = [_spread([s.at(number) for s in own], "{:.3f}") for number in (64, 128, 256)]
        rows.append([name, *within, *early, _ratio(max(medians)), f"{quantile(counts, 0.5):.0f}"])
    shares = [f"within {100 * (share - 1):.3g} %" for share in SHARES]
    return markdown_table(["", *shares, "best at 64", "at 128", "at 256", "worst end", "trials"], rows)


def draw_planes(surfaces: Sequence[Surface], path: Path) -> None:
    """Draw surfaces of two parameters with the steepest way from the origin."""
    chosen = [one for one in surfaces if one.name in PLANES]
    columns = min(3, len(chosen))
    figure, axes = figure_of(columns, -(-len(chosen) // columns), height=3.0 * -(-len(chosen) // columns))
    for one, surface in zip(axes, chosen, strict=False):
        _draw_plane(one, surface)
    for one in axes[len(chosen) :]:
        one.set_axis_off()
    save(figure, path)


def _draw_plane(axes: Axes, surface: Surface) -> None:
    """Draw costs over the optimum by the numbers of the two knobs' values; what is not legal stays white."""
    model, knobs = surface.model, knobs_of(surface.model)
    first, second = (int(count) for count in knobs.radices)
    points, legal = knobs.at(np.array([(x, y) for y in range(second) for x in range(first)]))
    costs = np.where(legal, model.times(points)[0] / surface.best, np.nan).reshape(second, first)
    image = axes.imshow(np.log10(costs), origin="lower", aspect="auto", cmap="viridis", interpolation="nearest")
    way = knobs.indices(np.array(way_down(model, knobs, knobs.at(np.zeros((1, 2), dtype=np.int64))[0][0])[0]))
    axes.plot(way[:, 0], way[:, 1], color="#d55e00", linewidth=1.5)
    axes.plot(*way[-1], "o", color="#d55e00", markersize=6)
    bottom = np.unravel_index(int(np.nanargmin(costs)), costs.shape)
    axes.plot(bottom[1], bottom[0], "*", color="white", markeredgecolor="black", markersize=11)
    axes.set_title(f"{surface.group}: {surface.name}", fontsize=8)
    axes.set_xlabel(f"{knobs.names[0]} (number of the value)")
    axes.set_ylabel(knobs.names[1])
    axes.locator_params(integer=True, nbins=6)
    axes.grid(False)
    axes.figure.colorbar(image, ax=axes, label="log10 (cost / smallest)")


def draw_kernels(surfaces: Sequence[Surface], searches: Sequence[Search], path: Path) -> None:
    """Draw the best so far of each kernel: medians, and for what is random the quartiles."""
    chosen = [one for one in surfaces if one.group == TIMES]
    columns = min(3, len(chosen))
    rows = -(-len(chosen) // columns)
    figure, axes = figure_of(columns, rows, height=2.4 * rows)
    longest = max(one.num_trials for one in searches if one.benchmark == TIMES)
    at = np.unique(np.geomspace(1, longest, 20).astype(int))
    for one, surface in zip(axes, chosen, strict=False):
        for name, colour in zip(_contenders(searches), COLOURS, strict=False):
            own = _of(searches, surface, name)
            values = np.minimum([[s.at(int(number)) for number in at] for s in own], 1.5 * TOP)
            low, middle, high = (np.quantile(values, q, axis=0) for q in (0.25, 0.5, 0.75))
            one.plot(at, middle, color=colour, linewidth=1.3, label=name)
            if len(own) > 1:
                one.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
        one.set_xscale("log")
        one.minorticks_off()
        one.set_ylim(0.98, TOP)
        one.set_title(surface.name, fontsize=8)
    for one in axes[len(chosen) :]:
        one.set_axis_off()
    axes[0].set_ylabel("best time / optimum")
    axes[max(0, len(chosen) - columns)].set_xlabel("trials")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    save(figure, path)
