"""Tables and pictures of `microkernels`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.cpu.quiet import geometric_mean
from bench.experiments.microkernel_spaces import LAYERS_HERE
from bench.experiments.page import COLOURS, figure_of, markdown_table, save
from bench.replay.metrics import quantile

if TYPE_CHECKING:
    from bench.experiments.microkernel_spaces import Space
    from bench.experiments.microkernels import Draws, Measured

__all__ = ["draw_layers", "draw_rows", "tables_of"]

NAMES = {
    "one": "one microkernel",
    "either": "one or two",
    "padded": "one, padded",
    "blis": "12 x 32 alone, padded",
}


def tables_of(spaces: Sequence[Space], draws: Sequence[Draws], measured: Sequence[Measured]) -> dict[str, str]:
    """Return Markdown tables by the names of their places in the page."""
    found = {}
    if spaces:
        found["spaces"] = _space_table(spaces)
        found["gains"] = _gain_table(spaces)
    if draws:
        found["draws"] = _draw_table(draws)
    rows = [one for one in measured if one.part == "rows"]
    if rows:
        found["rows"] = _row_table(rows)
    layers = [one for one in measured if one.part == "layers"]
    if layers:
        found["measured"] = _measured_table(layers)
    return found


def _unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _space_table(spaces: Sequence[Space]) -> str:
    """Return legal points and best predictions on the first device."""
    device = spaces[0].device
    columns = ["layer", "channels, image -> filters, window", "legal points: one", "one or two", "more"]
    columns += [f"{device}, us: one", "one, padded", "one or two", "the best has"]
    rows = []
    for layer in _unique(one.layer for one in spaces):
        own = {one.kind: one for one in spaces if (one.device, one.layer) == (device, layer)}
        single, both = own["one"], own["either"]
        points = ["-", "-", "-"]
        if single.num_legal and both.num_legal:
            points = [
                f"{single.num_legal:.1e}", f"{both.num_legal:.1e}", f"{both.num_legal / single.num_legal:.1f} x",
            ]  # fmt: skip
        times = [f"{1e6 * own[kind].time_s:.0f}" for kind in ("one", "padded", "either")]
        rows.append([layer, LAYERS_HERE[layer].text, *points, *times, "two" if both.has_pair else "one"])
    return markdown_table(columns, rows)


def _gains(spaces: Sequence[Space], kind: str) -> dict[tuple[str, str], float]:
    """Return (device, layer) -> predicted speed with a kind of microkernels over that with one."""
    times = {(one.device, one.layer, one.kind): one.time_s for one in spaces}
    return {
        (device, layer): single / times[device, layer, kind]
        for (device, layer, of), single in times.items()
        if of == "one" and (device, layer, kind) in times
    }


def _images(layer: str) -> str:
    """Return the size of a layer's results."""
    return f"{LAYERS_HERE[layer].output_size}x{LAYERS_HERE[layer].output_size}"


def _gain_table(spaces: Sequence[Space]) -> str:
    """Return predicted gains by the size of the images and the device: geometric means, the largest."""
    devices = _unique(one.device for one in spaces)
    padding = _unique(one.device for one in spaces if one.kind == "padded")
    columns = ["images of results", "layers", *(f"{device}: one or two / one (most)" for device in devices)]
    columns += [f"{device}: padded / one" for device in padding]
    rows = []
    either, padded = _gains(spaces, "either"), _gains(spaces, "padded")
    layers = _unique(one.layer for one in spaces)
    for images in sorted(_unique(map(_images, layers)), key=lambda text: -int(text.split("x")[0])):
        own = [layer for layer in layers if _images(layer) == images]
        cells = []
        for device in devices:
            gains = [either[device, layer] for layer in own]
            cells.append(f"{geometric_mean(gains):.3f} ({max(gains):.3f})")
        cells += [f"{geometric_mean(padded[device, layer] for layer in own):.3f}" for device in padding]
        rows.append([images, ", ".join(own), *cells])
    return markdown_table(columns, rows)


def _draw_table(draws: Sequence[Draws]) -> str:
    """Return quartiles and best of random draws on the first device."""
    device = draws[0].device
    columns = [f"{device}, layer", *(f"{NAMES[kind]}: median (quartiles), best" for kind in ("one", "either"))]
    rows = []
    for layer in _unique(one.layer for one in draws):
        cells = []
        for kind in ("one", "either"):
            shares = next(one.shares for one in draws if (one.device, one.layer, one.kind) == (device, layer, kind))
            low, middle, high = (100 * quantile(shares, q) for q in (0.25, 0.5, 0.75))
            cells.append(f"{middle:.0f} % ({low:.0f} to {high:.0f}), {100 * max(shares):.0f} %")
        rows.append([layer, *cells])
    return markdown_table(columns, rows)


def _kinds(number: int) -> str:
    """Return what kind of number of rows it is."""
    if all(number % divisor for divisor in range(2, number)):
        return "prime"
    return "a multiple of 6 or 8" if number % 6 == 0 or number % 8 == 0 else "others"


def _row_table(measured: Sequence[Measured]) -> str:
    """Return measured and predicted shares of the peak by kinds of numbers of rows."""
    columns = ["rows", "how many", *(f"{NAMES[kind]}: mean (least), predicted" for kind in NAMES)]
    columns += ["one or two / one: measured, predicted"]
    numbers = _unique(one.layer for one in measured)
    rows = []
    groups = {"all": numbers}
    for name in ("prime", "a multiple of 6 or 8", "others"):
        groups[name] = [one for one in numbers if _kinds(int(one.split()[0])) == name]
    for name, own in groups.items():
        cells = []
        for kind in NAMES:
            mine = [one for one in measured if one.layer in own and one.kind == kind]
            shares = [100 * one.share for one in mine]
            predicted = [one.share * one.time_s / one.predicted_s * 100 for one in mine]
            cells.append(f"{np.mean(shares):.0f} % ({min(shares):.0f}), {np.mean(predicted):.0f} %" if mine else "-")
        pairs = [
            (both, next(one for one in measured if (one.layer, one.kind) == (both.layer, "one")))
            for both in measured
            if both.layer in own and both.kind == "either"
        ]
        gain = geometric_mean(both.speed for both, _ in pairs)
        predicted = geometric_mean(single.predicted_s / both.predicted_s for both, single in pairs)
        rows.append([name, str(len(own)), *cells, f"{gain:.3f}, {predicted:.3f}"])
    return markdown_table(columns, rows)


def _measured_table(measured: Sequence[Measured]) -> str:
    """Return what was measured of layers."""
    columns = ["layer", *(f"{NAMES[kind]}: us, share of the peak" for kind in ("one", "padded", "either"))]
    columns += ["one or two / one, measured (middle half)", "predicted", "padded / one, measured", "predicted"]
    rows = []
    for layer in _unique(one.layer for one in measured):
        own = {one.kind: one for one in measured if one.layer == layer}
        times = [f"{1e6 * own[kind].time_s:.0f}, {100 * own[kind].share:.0f} %" for kind in ("one", "padded", "either")]
        cells = []
        for kind in ("either", "padded"):
            mine = own[kind]
            doubt = "" if mine.quiet else "?"
            cells += [
                f"{mine.speed:.3f}{doubt} ({mine.low:.3f} to {mine.high:.3f})",
                f"{own['one'].predicted_s / mine.predicted_s:.3f}",
            ]
        rows.append([f"{layer}: {LAYERS_HERE[layer].text}", *times, *cells])
    return markdown_table(columns, rows)


def draw_layers(spaces: Sequence[Space], measured: Sequence[Measured], path: Path) -> None:
    """Draw the gain of one or two microkernels over one for every layer: predicted by device, and measured."""
    gains = _gains(spaces, "either")
    layers = sorted(_unique(one.layer for one in spaces), key=lambda layer: (-LAYERS_HERE[layer].output_size, layer))
    figure, (axes,) = figure_of(width=9.5, height=3.4)
    devices = _unique(one.device for one in spaces)
    width = 0.8 / len(devices)
    for at, (device, colour) in enumerate(zip(devices, COLOURS, strict=False)):
        places = np.arange(len(layers)) + (at - (len(devices) - 1) / 2) * width
        heights = [gains[device, layer] - 1.0 for layer in layers]
        axes.bar(places, heights, width, bottom=1.0, color=colour, label=f"predicted, {device}")
    found = [one for one in measured if one.part == "layers" and one.kind == "either"]
    if found:
        places = [layers.index(one.layer) for one in found]
        spread = [[one.speed - one.low for one in found], [one.high - one.speed for one in found]]
        speeds = [one.speed for one in found]
        axes.errorbar(places, speeds, spread, fmt="D", color="black", markersize=4, label=f"measured, {devices[0]}")
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(layers)), [f"{layer}\n{_images(layer).split('x')[0]}" for layer in layers], fontsize=7)
    axes.set_xlabel("layer, height and width of its results")
    axes.set_ylabel("speed of one or two over one")
    axes.legend(frameon=False, fontsize=8)
    save(figure, path)


def draw_rows(measured: Sequence[Measured], path: Path) -> None:
    """Draw the measured share of the peak against the number of rows of small products."""
    rows = [one for one in measured if one.part == "rows"]
    figure, (axes,) = figure_of(width=9.5, height=3.4)
    for kind, colour in zip(NAMES, COLOURS, strict=False):
        own = sorted((int(one.layer.split()[0]), one) for one in rows if one.kind == kind)
        numbers = [number for number, _ in own]
        axes.plot(numbers, [100 * one.share for _, one in own], "o-", color=colour, markersize=3, label=NAMES[kind])
        predicted = [100 * one.share * one.time_s / one.predicted_s for _, one in own]
        axes.plot(numbers, predicted, ":", color=colour, linewidth=1)
    axes.set_xlabel("rows of a product with 128 columns, depth 128 (dotted: predicted)")
    axes.set_ylabel("% of the peak")
    axes.set_ylim(0, 105)
    axes.legend(frameon=False, fontsize=8)
    save(figure, path)
