"""Plots of best-so-far against trials, written as SVG by hand: no plotting package is needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.replay.metrics import quantile

__all__ = ["svg", "write_plots"]

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 900, 520, 70, 40, 220, 50
TOP_RATIO = 2.0
"""Best time over the optimum at the upper edge."""
COLOURS = ("#1b6ca8", "#d1495b", "#2e933c", "#8f3985", "#e08e1b", "#00798c", "#5b5b5b", "#a44a3f", "#3d5a80", "#7a9e00")


def svg(title: str, curves: dict[str, list[float]]) -> str:
    """Return an SVG picture of curves: ratio to the optimum after each trial, trials on a logarithmic axis."""
    longest = max((len(curve) for curve in curves.values()), default=1)
    across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(trial: int, ratio: float) -> tuple[float, float]:
        x = LEFT + across * math.log(trial) / math.log(max(2, longest))
        y = TOP + down * (TOP_RATIO - min(TOP_RATIO, ratio)) / (TOP_RATIO - 1.0)
        return round(x, 1), round(y, 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{title}</text>',
    ]
    for step in range(6):
        ratio = 1.0 + step * (TOP_RATIO - 1.0) / 5
        _, y = place(1, ratio)
        parts.append(f'<line x1="{LEFT}" x2="{LEFT + across}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{ratio:.1f}</text>')
    for trial in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024):
        if trial <= longest:
            x, _ = place(trial, 1.0)
            parts.append(f'<text x="{x}" y="{TOP + down + 18}" text-anchor="middle">{trial}</text>')
    parts.append(f'<text x="{LEFT + across / 2}" y="{HEIGHT - 10}" text-anchor="middle">trials</text>')
    for at, (name, curve) in enumerate(curves.items()):
        colour = COLOURS[at % len(COLOURS)]
        dash = ' stroke-dasharray="5 3"' if at >= len(COLOURS) else ""
        points = [place(trial, ratio) for trial, ratio in enumerate(curve, 1)]
        text = " ".join(f"{x},{y}" for x, y in points)
        parts.append(f'<polyline points="{text}" fill="none" stroke="{colour}" stroke-width="1.8"{dash}/>')
        y = TOP + 16 * at + 6
        x = LEFT + across + 14
        parts.append(f'<line x1="{x}" x2="{x + 22}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"{dash}/>')
        parts.append(f'<text x="{x + 28}" y="{y + 4}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def write_plots(runs: Sequence[Any], folder: Path) -> None:
    """Write one picture a table: the median over workloads and seeds of the best time over the recorded optimum."""
    folder.mkdir(parents=True, exist_ok=True)
    for table in dict.fromkeys(run.table for run in runs):
        own = [run for run in runs if run.table == table]
        curves = {}
        for strategy in dict.fromkeys(run.strategy for run in own):
            some = [run for run in own if run.strategy == strategy]
            longest = max(len(run.curve) for run in some)
            curves[strategy] = [quantile([run.at(trial) for run in some], 0.5) for trial in range(1, longest + 1)]
        title = f"{table}: best time so far over the recorded optimum, median"
        (folder / f"{table}.svg").write_text(svg(title, curves), encoding="utf-8")
