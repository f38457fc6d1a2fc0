"""The written and checked files as lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from anatune.report.text import Line, table, wrap_text
from anatune.servers.defaults import Tile
from anatune.servers.files import MANIFEST, ConfigRequest
from anatune.servers.judging import JudgedEntry
from anatune.servers.shapes import Experts, Product
from anatune.servers.written import LEAST_GAIN, WrittenFile

_EXPERTS = (
    "Times are predicted with weights in DRAM, and without sorting, activation and sums. Compared with published "
    "measurements of layers of experts on A100, H100 and B200, the median error is 7 to 16 %"
)
_PRODUCT = (
    "Times are predicted with weights in DRAM. Compared with published measurements on H100, B200 and L40S, the median "
    "error is 8 to 24 % for large products, and up to 62 % for small ones"
)
_SURE = (
    ". Files that servers ship have the same block_m in 4 of 5 entries (bench.replay.serving). Differences below 5 % "
    "are not significant, and group_m and stages are the least reliable. Measure the best tiles to decide (--keep 8, "
    "--measure)."
)
MEASURED = (
    "Measured times are those of anatune's own kernels with the same tiles: the sum of both products of a layer, with "
    "an empty L2, and without sorting, activation and sums. Rows without a measured time have the best predicted tile."
)


def written_lines(request: ConfigRequest, folder: Path, written: Sequence[WrittenFile], width: int) -> list[Line]:
    """Return tables of the written files with times, bounds, and the server's defaults."""
    lines = []
    for file in written:
        lines += [Line(f"{folder / file.path}{': not written' if file.not_written else ''}", "bold")]
        lines += [Line(text) for text in wrap_text(layer_text(file), width, indent="  ")]
        rows = file.choices
        is_measured = any(c.measured_s is not None for c in rows)
        has_default = any(c.default is not None for c in rows)
        lines += table(
            [
                ("rows", [str(c.rows) for c in rows]),
                ("block m x n x k", [tile_text(c.tile) for c in rows]),
                ("group", [str(c.tile[6]) for c in rows]),
                ("warps", [str(c.tile[3]) for c in rows]),
                ("stages", [str(c.tile[4]) for c in rows]),
                ("us", [_us(c.time_s) for c in rows]),
                *([("measured", ["" if c.measured_s is None else _us(c.measured_s) for c in rows])] * is_measured),
                ("bound", [_us(c.bound_s) for c in rows]),
                *([
                    ("shipped" if file.shipped else "default", [tile_text(c.default) for c in rows]),
                    ("us", [_us(c.default_s if c.measured_s is None else c.default_measured_s) for c in rows]),
                    ("gain", ["" if c.gain is None else gain_percent(c.gain) for c in rows]),
                ] if has_default else []),
            ]
        )  # fmt: skip
        if gain := gain_text(file):
            lines += [Line(text) for text in wrap_text(gain, width)]
        if why := next((f"{c.rows} rows: {c.why}" for c in rows if c.why), ""):
            lines += [Line(text) for text in wrap_text(f"Not all tiles could be measured: {why}", width)]
    measured = any(c.measured_s is not None for file in written for c in file.choices)
    for note in (*request.notes(), *([MEASURED] * measured), sure_text(request.shapes)):
        lines += [Line(text) for text in wrap_text(note, width)]
    return lines


def sure_text(shapes: Sequence[Experts | Product]) -> str:
    """Return sentences about the model's errors for such layers."""
    return (_EXPERTS if any(isinstance(shape, Experts) for shape in shapes) else _PRODUCT) + _SURE


def layer_text(file: WrittenFile) -> str:
    """Return the description of a file's layer, and the facts that the file's name does not contain."""
    shape = file.shape
    if not isinstance(shape, Experts):
        return f"weights {shape.n} x {shape.k} in blocks of {shape.block[0]} x {shape.block[1]}"
    spread = f" of {shape.experts * shape.ranks}" if shape.ranks > 1 else ""
    group = f", groups of {shape.group}" if shape.group else ""
    return (
        f"{shape.experts}{spread} experts of {shape.intermediate} on a rank, hidden size {shape.hidden}, top-k "
        f"{shape.top_k}{group}; hidden size, top-k and group are not in the file's name, but in {MANIFEST}"
    )


def gain_text(file: WrittenFile) -> str:
    """Return sentences about a file's gain over the server's default, and advice."""
    sentences, choices = [], file.choices
    default_name = f"the file of {file.shipped}" if file.shipped else "the server's default"
    for kind, subset in (
        ("Measured", [c for c in choices if c.measured_s is not None]),
        ("Predicted", [c for c in choices if c.measured_s is None]),
    ):
        gains = [c.gain for c in subset if c.gain is not None]
        if gains:
            rows_text = "" if len(subset) == len(choices) else f" in {len(subset)} of {len(choices)} rows"
            values = f"{gain_percent(float(np.median(gains)))} in the median, {gain_percent(max(gains))} at most."
            sentences.append(f"{kind} gain over {default_name}{rows_text}: {values}")
            if max(gains) < LEAST_GAIN and not file.not_written:
                sentences.append("A gain below 5 % is not significant: keep the server's default, or measure.")
    if file.not_written:
        sentences.append(f"Not written: {file.not_written}.")
    return " ".join(sentences)


def gain_percent(gain: float) -> str:
    """Return a gain as text: the other tile's time over this one's, minus one, in percent."""
    return f"{round(100.0 * (gain - 1.0))} %"


def judged_lines(judged: Sequence[JudgedEntry], width: int, shape: Experts | Product) -> list[Line]:
    """Return a table that compares the entries of a file with the best predicted tiles."""
    lines = table(
        [
            ("rows", [str(j.rows) for j in judged]),
            ("block m x n x k", [tile_text(j.tile) for j in judged]),
            ("us", [_us(j.time_s) for j in judged]),
            ("best", [tile_text(j.best) for j in judged]),
            ("us", [_us(j.best_s) for j in judged]),
            ("slower by", ["" if j.time_s is None else f"{100.0 * (j.time_s / j.best_s - 1.0):.0f} %" for j in judged]),
        ]
    )
    return [*lines, *(Line(text) for text in wrap_text(sure_text([shape]), width))]


def tile_text(tile: Tile | None, times: str = " x ") -> str:
    """Return the blocks of a tile as text, such as 64 x 128 x 64; an empty text for None."""
    return times.join(map(str, (tile or ())[:3]))


def _us(seconds: float | None) -> str:
    return "does not run" if seconds is None else f"{1e6 * seconds:.1f}"
