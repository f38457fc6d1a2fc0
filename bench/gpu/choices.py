"""Predicted beside measured: the first choices of the stage `triton`, kernel by kernel, and what they say by dtype."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec
import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from scipy import stats

from bench.gpu.state import CHOICES, LayerState, State, is_right
from bench.gpu.timing import geometric_mean

__all__ = ["Choice", "Summary", "choices_of", "print_choices", "summaries"]

_FEWEST_RANKED = 5
"""Layers of a rank correlation."""


class Choice(msgspec.Struct):
    """One kernel: its place in the plan, from 1, what the model says, medians of what was measured.

    Attributes
    ----------
    spec : str
        Name of the device that it was planned for.
    predicted_s, flush_s, warm_s, library_s : float or None
        Seconds; measured ones with the L2 flushed and warm; of the faster library's, flushed. None: not measured.
    error : float or None
        Norm of the difference from float64 over the norm, None: not finite, or nothing was computed.
    right : bool
        Whether the type explains it.
    """

    layer: str
    dtype: str
    workload: str
    flop: int
    spec: str
    place: int
    schedule: str
    predicted_s: float
    flush_s: float | None
    warm_s: float | None
    library_s: float | None
    error: float | None
    right: bool


class Summary(msgspec.Struct):
    """What the layers of one dtype say, times with the L2 flushed; None: nothing to say it of.

    Attributes
    ----------
    layers, kernels, right : int
        Counts; of kernels those whose result is right.
    predicted_over_measured : float or None
        Of the plans' first choices, median.
    time_error, time_error_90 : float or None
        Of the plans' first choices: what the prediction is off, over the measured time, median and 90th percentile.
    rho : float or None
        Spearman's rank correlation over layers of the first choices' predicted and measured times.
    first_over_best, first_over_best_90 : float or None
        Time of the first choice over that of the fastest of the first eight: median, 90th percentile.
    library_over_first, library_over_best : float or None
        Geometric mean of the library's time over the first choice's, over the fastest of the eight's.
    """

    dtype: str
    layers: int
    kernels: int
    right: int
    predicted_over_measured: float | None
    time_error: float | None
    time_error_90: float | None
    rho: float | None
    first_over_best: float | None
    first_over_best_90: float | None
    library_over_first: float | None
    library_over_best: float | None


def choices_of(state: State) -> list[Choice]:
    """Return all kernels of layers of which several choices were planned and timing was tried."""
    found = []
    for entry in state.layers.values():
        if CHOICES[1] not in entry.schedules or not entry.errors:
            continue
        library_s = _library(entry)
        for place, name in enumerate(CHOICES, 1):
            if name not in entry.schedules:
                continue
            method = f"anatune:{name}"
            found.append(
                Choice(
                    entry.layer, entry.dtype, entry.workload, entry.flop,
                    entry.schedules[name].hardware.name, place, entry.schedules[name].describe(),
                    entry.predicted_s[name], _median(entry, "flush", method), _median(entry, "warm", method),
                    library_s, entry.errors.get(method), method in entry.errors and is_right(entry, method),
                )
            )  # fmt: skip
    return found


def _median(entry: LayerState, mode: str, method: str) -> float | None:
    samples = entry.samples.get(mode, {}).get(method)
    return statistics.median(samples) if samples else None


def _library(entry: LayerState) -> float | None:
    """Return the time of the fastest of PyTorch's methods whose result is right."""
    names = [name for name in entry.errors if name.startswith("torch:") and is_right(entry, name)]
    return min((s for name in names if (s := _median(entry, "flush", name)) is not None), default=None)


def summaries(choices: Sequence[Choice]) -> list[Summary]:
    """Return a line for each dtype."""
    found = []
    for dtype in dict.fromkeys(one.dtype for one in choices):
        here = [one for one in choices if one.dtype == dtype]
        layers = [[one for one in here if one.layer == layer] for layer in dict.fromkeys(one.layer for one in here)]
        found.append(_summary(dtype, here, layers))
    return found


def _summary(dtype: str, here: Sequence[Choice], layers: Sequence[Sequence[Choice]]) -> Summary:
    firsts, first_s, best_s, library_s = [], [], [], []
    for kernels in layers:
        timed = [one.flush_s for one in kernels if one.right and one.flush_s is not None]
        first = kernels[0]
        if first.right and first.flush_s is not None:
            firsts.append(first.predicted_s)
            first_s.append(first.flush_s)
            best_s.append(min(timed))
            library_s.append(first.library_s)
    rates = [told / real for told, real in zip(firsts, first_s, strict=True)]
    off = [abs(rate - 1.0) for rate in rates]
    lost = [first / best for first, best in zip(first_s, best_s, strict=True)]
    beside = [[s / one for s, one in zip(library_s, ours, strict=True) if s is not None] for ours in (first_s, best_s)]
    rho = float(stats.spearmanr(firsts, first_s).statistic) if len(rates) >= _FEWEST_RANKED else None
    return Summary(
        dtype, len(layers), len(here), sum(one.right for one in here),
        _quantile(rates, 0.5), _quantile(off, 0.5), _quantile(off, 0.9), rho,
        _quantile(lost, 0.5), _quantile(lost, 0.9), *map(geometric_mean, beside),
    )  # fmt: skip


def _quantile(values: Sequence[float], share: float) -> float | None:
    return float(np.quantile(values, share)) if values else None


def print_choices(choices: Sequence[Choice], console: Console) -> None:
    """Print both tables; nothing where there is nothing."""
    if not choices:
        return
    table = Table(title="first choices, predicted beside measured (L2 flushed); us", box=SIMPLE_HEAD)
    for heading in ("layer", "dtype", "predicted", "measured", "warm", "best of 8", "its place", "library", "TFLOP/s"):
        table.add_column(heading, justify="left" if heading in ("layer", "dtype") else "right")
    table.add_column("right")
    for pair in dict.fromkeys((one.layer, one.dtype) for one in choices):
        here = [one for one in choices if (one.layer, one.dtype) == pair]
        timed = [one for one in here if one.right and one.flush_s is not None]
        best = min(timed, key=lambda one: one.flush_s or 0.0, default=None)
        first, best_s = here[0], None if best is None else best.flush_s
        times = [_us(s) for s in (first.predicted_s, first.flush_s, first.warm_s, best_s)]
        place = "-" if best is None else str(best.place)
        rate = f"{first.flop / best_s / 1e12:.1f}" if best_s else "-"
        table.add_row(*pair, *times, place, _us(first.library_s), rate, f"{len(timed)} of {len(here)}")
    console.print(table)
    table = Table(title="by dtype, L2 flushed", box=SIMPLE_HEAD)
    headings = ("dtype", "layers", "right", "predicted/measured", "error", "90 %", "rho", "first/best of 8", "90 %")
    for heading in (*headings, "library/first", "library/best"):
        table.add_column(heading, justify="left" if heading == "dtype" else "right")
    for one in summaries(choices):
        ratios = msgspec.structs.astuple(one)[4:]
        table.add_row(
            one.dtype, str(one.layers), f"{one.right} of {one.kernels}",
            *("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
        )  # fmt: skip
    console.print(table)


def _us(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e6 * seconds:.1f}"
