"""What the GPU benchmark's samples say: a line for each layer, ratios, the issue's aims, as text and as a picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.gpu.choices import choices_of, print_choices
from bench.gpu.rivals import is_same_arithmetic
from bench.gpu.state import OURS, LayerState, State, is_right
from bench.gpu.timing import MODES, geometric_mean, paired_ratio

__all__ = ["Aim", "Row", "aims", "best_rival", "draw", "peak_of", "print_tables", "rows_of"]

_WIDTH = 150


class Row(msgspec.Struct):
    """One layer in one mode: seconds by method, and ratios of speeds.

    Attributes
    ----------
    times_s : dict of str to float
        Medians, by "plan", "8", "16", "64", "library" (the faster of PyTorch's) and "triton".
    library : str
        Which of PyTorch's methods.
    same_arithmetic : bool
        Whether that sums products as anatune does.
    plan_of_best : float or None
        Speed of the plan's first choice over that of the best of anatune's.
    over_library, over_triton : float or None
        Speed of anatune's best over theirs.
    flop_per_s, share : float
        Of anatune's best; over the measured peak (else the spec's).
    """

    name: str
    dtype: str
    mode: str
    times_s: dict[str, float]
    library: str = ""
    same_arithmetic: bool = True
    plan_of_best: float | None = None
    over_library: float | None = None
    over_triton: float | None = None
    flop_per_s: float = 0.0
    share: float = 0.0


class Aim(msgspec.Struct):
    """An aim of the issue, and what was reached over how many layers."""

    text: str
    wanted: float
    reached: float | None
    layers: int


def peak_of(state: State, dtype: str) -> float:
    """Return FLOP/s: what the spec says, of multiply-adds what calibration measured, else 0.

    Calibration measures ``mma.sync``, which is not what Hopper's and Blackwell's matrix units do most with.
    """
    numbers, spec = state.numbers, state.spec
    if dtype == "float32" and numbers is not None and numbers.best_fma is not None:
        return numbers.best_fma[1].value
    if spec is None:
        return 0.0
    if dtype == "float32":
        return spec.compute.fp32_peak_flop_per_s * spec.compute.reachable_fraction
    return spec.tensor_flop_per_s("float32" if dtype == "tfloat32" else dtype) or 0.0


def best_rival(entry: LayerState, mode: str, kind: str) -> str | None:
    """Return the fastest method of a kind ("torch", "triton") whose result is right, None if there is none."""
    medians = {
        name: statistics.median(samples)
        for name, samples in entry.samples.get(mode, {}).items()
        if name.split(":")[0] == kind and samples and is_right(entry, name)
    }
    return min(medians, key=lambda name: medians[name]) if medians else None


def rows_of(state: State) -> list[Row]:
    """Return the lines of all layers that were timed."""
    found = []
    for entry in state.layers.values():
        for mode in MODES:
            if entry.samples.get(mode):
                found.append(_row(state, entry, mode))
    return found


def _row(state: State, entry: LayerState, mode: str) -> Row:
    samples = entry.samples[mode]
    ours = {
        name: samples[f"anatune:{name}"]
        for name in OURS
        if samples.get(f"anatune:{name}") and is_right(entry, f"anatune:{name}")
    }
    row = Row(entry.layer, entry.dtype, mode, {name: statistics.median(taken) for name, taken in ours.items()})
    library, triton = best_rival(entry, mode, "torch"), best_rival(entry, mode, "triton")
    if library is not None:
        row.times_s["library"], row.library = statistics.median(samples[library]), library
        row.same_arithmetic = is_same_arithmetic(entry.kernels.get(library, []))
    if triton is not None:
        row.times_s["triton"] = statistics.median(samples[triton])
    if not ours:
        return row
    best = min(ours.values(), key=statistics.median)
    if "plan" in ours and len(ours) > 1:
        row.plan_of_best = paired_ratio(ours["plan"], best)
    row.over_library = paired_ratio(best, samples[library]) if library is not None else None
    row.over_triton = paired_ratio(best, samples[triton]) if triton is not None else None
    row.flop_per_s = entry.flop / statistics.median(best)
    peak = peak_of(state, entry.dtype)
    row.share = row.flop_per_s / peak if peak else 0.0
    return row


def aims(rows: Sequence[Row]) -> list[Aim]:
    """Return the issue's aims, in each mode."""
    found = []
    for mode in MODES:
        here = [row for row in rows if row.mode == mode]
        fp32 = [row for row in here if row.dtype == "float32"]
        bf16 = [row for row in here if row.dtype == "bfloat16"]
        plans = [row.plan_of_best for row in fp32 if row.plan_of_best is not None]
        equal = [row.over_library for row in fp32 if row.over_library is not None and row.same_arithmetic]
        cores = [row.over_library for row in bf16 if row.over_library is not None]
        triton = [row.over_triton for row in fp32 if row.over_triton is not None]
        found += [
            Aim(f"{mode}: fp32, plan's first choice over the best found", 0.85, geometric_mean(plans), len(plans)),
            Aim(f"{mode}: fp32, layers where that is 0.85 or more", 1.0, _share(plans, 0.85), len(plans)),
            Aim(f"{mode}: fp32, tuned over cuBLAS/cuDNN, same arithmetic", 1.0, geometric_mean(equal), len(equal)),
            Aim(f"{mode}: fp32, tuned over Triton's autotuned matmul", 1.0, geometric_mean(triton), len(triton)),
            Aim(f"{mode}: bf16, best of 8 over cuBLAS/cuDNN", 0.85, geometric_mean(cores), len(cores)),
        ]
    return found


def _share(values: Sequence[float], least: float) -> float | None:
    return sum(value >= least for value in values) / len(values) if values else None


def print_tables(state: State, path: Path | None = None) -> None:
    """Print the tables; also to a file."""
    rows = rows_of(state)
    console = Console(width=_WIDTH, record=path is not None, highlight=False)
    for dtype in dict.fromkeys(row.dtype for row in rows):
        for mode in MODES:
            chosen = [row for row in rows if (row.dtype, row.mode) == (dtype, mode)]
            if chosen:
                console.print(_table(state, chosen, f"{state.device}, {dtype}, {mode}"))
    results = Table(title="aims", box=SIMPLE_HEAD)
    for heading in ("aim", "wanted", "reached", "layers", ""):
        results.add_column(heading, justify="left" if heading in ("aim", "") else "right")
    for aim in aims(rows):
        if aim.reached is not None:
            met = "met" if aim.reached >= aim.wanted else "missed"
            results.add_row(aim.text, f"{aim.wanted:.2f}", f"{aim.reached:.3f}", str(aim.layers), met)
    console.print(results)
    print_choices(choices_of(state), console)
    for entry in state.layers.values():
        for note in entry.notes:
            console.print(note, markup=False)
    if path is not None:
        path.write_text(console.export_text())


def _table(state: State, rows: Sequence[Row], title: str) -> Table:
    peak = peak_of(state, rows[0].dtype)
    table = Table(title=f"{title}; us; peak {peak / 1e12:.1f} TFLOP/s", box=SIMPLE_HEAD)
    headings = ("layer", *OURS, "library", "", "Triton", "plan/best", "/library", "/Triton", "TFLOP/s", "% peak")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("layer", "") else "right")
    for row in rows:
        times = [f"{1e6 * row.times_s[name]:.1f}" if name in row.times_s else "-" for name in (*OURS, "library")]
        which = row.library.removeprefix("torch:") + ("" if row.same_arithmetic else " *")
        triton = f"{1e6 * row.times_s['triton']:.1f}" if "triton" in row.times_s else "-"
        ratios = [_ratio(value) for value in (row.plan_of_best, row.over_library, row.over_triton)]
        table.add_row(
            row.name, *times, which, triton, *ratios, f"{row.flop_per_s / 1e12:.2f}", f"{100 * row.share:.0f}"
        )
    if any(not row.same_arithmetic for row in rows):
        table.caption = "*: Winograd or FFT"
    return table


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def draw(state: State, path: Path) -> str | None:
    """Write a picture of anatune's speed over the library's; return why not, where there is no matplotlib."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return "no picture: matplotlib is not installed"
    rows = [row for row in rows_of(state) if row.mode == "flush" and row.over_library is not None]
    if not rows:
        return "no picture: nothing was compared with a library"
    figure, axes = pyplot.subplots(figsize=(max(6.0, 0.35 * len(rows)), 4.0))
    places = range(len(rows))
    axes.bar(places, [row.over_library or 0.0 for row in rows], color=[_colour(row) for row in rows])
    axes.axhline(1.0, color="black", linewidth=0.8)
    names = [row.name if row.dtype == "float32" else f"{row.name} {row.dtype}" for row in rows]
    axes.set_xticks(list(places), names, rotation=90)
    axes.set_ylabel("speed over cuBLAS / cuDNN")
    axes.set_title(f"{state.device}, L2 flushed (grey: the library uses Winograd or FFT)")
    figure.tight_layout()
    figure.savefig(str(path), dpi=120)
    pyplot.close(figure)
    return None


def _colour(row: Row) -> str:
    return "tab:blue" if row.same_arithmetic else "tab:gray"


def as_json(state: State) -> dict[str, Any]:
    """Return rows and aims."""
    rows = rows_of(state)
    return {"device": state.device, "environment": state.environment, "rows": rows, "aims": aims(rows)}
