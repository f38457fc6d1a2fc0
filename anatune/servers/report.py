"""What was written or judged, as lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from anatune.report.text import Line, table, wrapped
from anatune.servers.defaults import Tile
from anatune.servers.files import MANIFEST, Request
from anatune.servers.judging import Judged
from anatune.servers.shapes import Experts, Product
from anatune.servers.written import LEAST_GAIN, Written

_EXPERTS = (
    "Times are predicted, with weights from DRAM, and without sorting, activation and sums. Beside other people's "
    "measurements on A100, H100 and B200 layers of experts are off by 7 to 16 % in the median"
)
_PRODUCT = (
    "Times are predicted, with weights from DRAM. Beside other people's measurements on H100, B200 and L40S large "
    "products are off by 8 to 24 % in the median, small ones by up to 62 %"
)
_SURE = (
    ", and files that servers ship agree in block_m in 4 of 5 entries (bench.replay.serving); differences below 5 % "
    "are no reason to prefer one tile, group_m and stages are the least sure. A measurement of the few best (--keep 8, "
    "--measure) settles it."
)
MEASURED = (
    "Measured are anatune's own kernels with the tiles that servers would take, both products of a layer added, with "
    "nothing in L2 before; sorting, activation and sums are left out here, too. Rows without a measured time have the "
    "model's first choice."
)


def written_lines(request: Request, folder: Path, written: Sequence[Written], width: int) -> list[Line]:
    """Return what was written, with times beside the bound and those of the server's default."""
    lines = []
    for file in written:
        lines += [Line(f"{folder / file.path}{': not written' if file.not_written else ''}", "bold")]
        lines += [Line(text) for text in wrapped(layer_text(file), width, indent="  ")]
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
        if told := gain_text(file):
            lines += [Line(text) for text in wrapped(told, width)]
        if why := next((f"{c.rows} rows: {c.why}" for c in rows if c.why), ""):
            lines += [Line(text) for text in wrapped(f"Not all of them ran: {why}", width)]
    measured = any(c.measured_s is not None for file in written for c in file.choices)
    for note in (*request.notes(), *([MEASURED] * measured), sure_text(request.shapes)):
        lines += [Line(text) for text in wrapped(note, width)]
    return lines


def sure_text(shapes: Sequence[Experts | Product]) -> str:
    """Return in sentences how far the model is from measurements of such layers."""
    return (_EXPERTS if any(isinstance(shape, Experts) for shape in shapes) else _PRODUCT) + _SURE


def layer_text(file: Written) -> str:
    """Return which layer a file is for, and what its name does not tell."""
    shape = file.shape
    if not isinstance(shape, Experts):
        return f"weights {shape.n} x {shape.k} in blocks of {shape.block[0]} x {shape.block[1]}"
    spread = f" of {shape.experts * shape.ranks}" if shape.ranks > 1 else ""
    group = f", groups of {shape.group}" if shape.group else ""
    return (
        f"{shape.experts}{spread} experts of {shape.intermediate} on a rank, hidden size {shape.hidden}, top-k "
        f"{shape.top_k}{group}; the name tells no hidden size, no top-k and no group, {MANIFEST} does"
    )


def gain_text(file: Written) -> str:
    """Return in sentences what a file gains over what the server takes without it, and what follows from that."""
    said, choices = [], file.choices
    beside = f"the file of {file.shipped}" if file.shipped else "the server's default"
    for what, taken in (
        ("Measured", [c for c in choices if c.measured_s is not None]),
        ("Predicted", [c for c in choices if c.measured_s is None]),
    ):
        gains = [c.gain for c in taken if c.gain is not None]
        if gains:
            few = "" if len(taken) == len(choices) else f" in {len(taken)} of {len(choices)} rows"
            told = f"{gain_percent(float(np.median(gains)))} in the median, {gain_percent(max(gains))} at most."
            said.append(f"{what} gain over {beside}{few}: {told}")
            if max(gains) < LEAST_GAIN and not file.not_written:
                said.append("Less than 5 % changes nothing that is sure: keep what the server has, or measure.")
    if file.not_written:
        said.append(f"Not written: {file.not_written}.")
    return " ".join(said)


def gain_percent(gain: float) -> str:
    """Return by how much less time a tile takes than another: the other's time over its own, less one, in percent."""
    return f"{round(100.0 * (gain - 1.0))} %"


def judged_lines(judged: Sequence[Judged], width: int, shape: Experts | Product) -> list[Line]:
    """Return how far entries are from the model's best."""
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
    return [*lines, *(Line(text) for text in wrapped(sure_text([shape]), width))]


def tile_text(tile: Tile | None, times: str = " x ") -> str:
    """Return the blocks of a tile as people read them; "" for None."""
    return times.join(map(str, (tile or ())[:3]))


def _us(seconds: float | None) -> str:
    return "does not run" if seconds is None else f"{1e6 * seconds:.1f}"
