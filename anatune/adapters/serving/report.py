"""What was written or judged, as lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from anatune.adapters.serving.defaults import Tile
from anatune.adapters.serving.files import MANIFEST, Judged, Request, Written
from anatune.adapters.serving.shapes import Experts
from anatune.report.text import Line, table, wrapped

__all__ = ["SURE", "judged_lines", "written_lines"]

SURE = (
    "Times are predicted, with weights from DRAM, and without sorting, activation and sums. Beside other people's "
    "measurements on A100, H100 and B200 layers of experts are off by 7 to 18 % in the median, and files that servers "
    "ship agree in block_m in 3 of 4 entries (bench.replay.serving); differences below 5 % are no reason to prefer one "
    "tile, group_m and stages are the least sure. A measurement of the few best (--keep 8) settles it."
)


def written_lines(request: Request, folder: Path, written: Sequence[Written], width: int) -> list[Line]:
    """Return what was written, with predicted times beside those of the server's default."""
    lines = []
    for file in written:
        shape = file.shape
        lines += [Line(str(folder / file.path), "bold")]
        if isinstance(shape, Experts):
            told = (
                f"{shape.experts} experts of {shape.intermediate} on a rank, hidden size {shape.hidden}, top-k "
                f"{shape.top_k}; the name tells no hidden size and no top-k, {MANIFEST} does"
            )
            lines += [Line(text) for text in wrapped(told, width, indent="  ")]
        rows = file.choices
        gains = [c.default_s / c.time_s for c in rows if c.default_s is not None]
        lines += table(
            [
                ("rows", [str(c.rows) for c in rows]),
                ("block m x n x k", [_tile(c.tile) for c in rows]),
                ("group", [str(c.tile[6]) for c in rows]),
                ("warps", [str(c.tile[3]) for c in rows]),
                ("stages", [str(c.tile[4]) for c in rows]),
                ("us", [_us(c.time_s) for c in rows]),
                ("default", [_tile(c.default) for c in rows]),
                ("us", [_us(c.default_s) for c in rows]),
                ("gain", ["" if c.default_s is None else f"{c.default_s / c.time_s:.2f}" for c in rows]),
            ]
        )
        if gains:
            told = f"{np.median(gains):.2f} (median), {max(gains):.2f} at most"
            lines += [Line(f"Predicted gain over the server's default: {told}.")]
    for note in (*request.notes(), SURE):
        lines += [Line(text) for text in wrapped(note, width)]
    return lines


def judged_lines(judged: Sequence[Judged], width: int) -> list[Line]:
    """Return how far entries are from the model's best."""
    lines = table(
        [
            ("rows", [str(j.rows) for j in judged]),
            ("block m x n x k", [_tile(j.tile) for j in judged]),
            ("us", [_us(j.time_s) for j in judged]),
            ("best", [_tile(j.best) for j in judged]),
            ("us", [_us(j.best_s) for j in judged]),
            ("slower by", ["" if j.time_s is None else f"{100.0 * (j.time_s / j.best_s - 1.0):.0f} %" for j in judged]),
        ]
    )
    return [*lines, *(Line(text) for text in wrapped(SURE, width))]


def _tile(tile: Tile) -> str:
    return f"{tile[0]} x {tile[1]} x {tile[2]}"


def _us(seconds: float | None) -> str:
    return "does not run" if seconds is None else f"{1e6 * seconds:.1f}"
