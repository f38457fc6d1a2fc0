"""Figures of a compiled model: the times of its kernels and of its parts, predicted and measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anatune.core.show import duration_unit
from anatune.network.graph.summary import KernelSummary, ModelSummary
from anatune.network.report import Measured, kernel_bound, model_parts
from anatune.plots.theme import BAR_WIDTH, BEST, COLOURS, GREY, colours_of, label, row_figure
from anatune.report import units

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from anatune.network.compiling.compiled import CompiledModel

__all__ = ["plot_model", "plot_model_parts"]

_MOST_KERNELS = 24
"""Most kernels with their own row; the others share one."""


def plot_model(
    compiled: CompiledModel | ModelSummary, measured_s: Measured = None, *, most: int = _MOST_KERNELS
) -> go.Figure:
    """Return a figure of a model's kernels, the longest first: predicted, measured and least time of all calls.

    Parameters
    ----------
    compiled : CompiledModel or ModelSummary
        A model for a CPU or a GPU; the GPU need not be present.
    measured_s : mapping of str to float, optional
        The result of `CompiledModel.profile`: function -> seconds of all its calls in a run.
    most : int
        Kernels with their own row.

    Raises
    ------
    MissingDependencyError
        plotly is not installed.
    """
    summary = _summary(compiled)
    ranked = sorted(summary.kernels, key=lambda one: -one.total_s)
    kernels = ranked[:most]
    names = [_kernel_label(kernel) for kernel in kernels]
    rest = ranked[most:]
    if rest:
        names.append(f"{len(rest)} more kernels in {sum(one.count for one in rest)} calls")
    scale_s, unit = duration_unit(max((kernel.total_s for kernel in kernels), default=1e-3))
    figure = row_figure("Kernels of the model", f"time of all calls in a run ({unit})", names)
    layouts = dict.fromkeys(kernel.layout for kernel in kernels)
    colours = colours_of(layouts)
    for layout in layouts:
        rows = [(row, one) for row, one in enumerate(kernels) if one.layout == layout]
        figure.add_bar(
            x=[one.total_s / scale_s for _, one in rows], y=[row for row, _ in rows], width=BAR_WIDTH, orientation="h",
            name=f"predicted, {label(layout)}" if layout else "predicted", marker={"color": colours[layout]},
            text=[_hover_text(one, measured_s) for _, one in rows], textposition="none",
            hovertemplate="%{text}<extra></extra>",
        )  # fmt: skip
    if rest:
        figure.add_bar(
            x=[sum(one.total_s for one in rest) / scale_s], y=[len(kernels)], width=BAR_WIDTH, orientation="h",
            showlegend=False, marker={"color": GREY}, hovertemplate=f"{names[-1]}: %{{x:.4g}} {unit}<extra></extra>",
        )  # fmt: skip
    _add_marks(figure, "lower bound", GREY, "line-ns", [_bound_s(kernel) for kernel in kernels], scale_s)
    if measured_s is not None:
        times: list[float | None] = [measured_s.get(kernel.name) for kernel in kernels]
        if rest:
            times.append(sum(measured_s.get(one.name, 0.0) for one in rest))
        _add_marks(figure, "measured", BEST, "diamond", times, scale_s)
    figure.update_layout(barmode="overlay", showlegend=True)
    figure.update_xaxes(rangemode="tozero")
    return figure


def _summary(compiled: CompiledModel | ModelSummary) -> ModelSummary:
    return compiled if isinstance(compiled, ModelSummary) else compiled.summary


def _kernel_label(kernel: KernelSummary) -> str:
    """Return a kernel's workload without its epilogue, and its number of calls."""
    words = kernel.workload.partition(" --epilogue")[0]
    return words if kernel.count == 1 else f"{words}, {kernel.count} calls"


def _bound_s(kernel: KernelSummary) -> float | None:
    """Return the bound of all calls of a kernel."""
    bound = kernel_bound(kernel)
    return None if bound is None else kernel.count * bound.time_s


def _hover_text(kernel: KernelSummary, measured_s: Measured) -> str:
    """Return the text that appears when the pointer is over a kernel."""
    time_s, bound_s = (measured_s or {}).get(kernel.name), _bound_s(kernel)
    parts = [f"{label(kernel.workload)}", f"predicted {units.duration(kernel.total_s)} in {kernel.count} calls"]
    if time_s is not None:
        parts.append(f"measured {units.duration(time_s)}")
    if bound_s is not None:
        parts.append(f"lower bound {units.duration(bound_s)}, {units.percent(bound_s / kernel.total_s)}")
    parts.append(f"bound by {kernel.bound_by}, template {label(kernel.template)}")
    return "<br>".join(parts)


def _add_marks(
    figure: go.Figure, name: str, colour: str, symbol: str, times_s: Sequence[float | None], scale_s: float
) -> None:
    """Add a mark to each row that has a time."""
    points = [(row, time_s) for row, time_s in enumerate(times_s) if time_s is not None]
    if points:
        figure.add_scatter(
            x=[time_s / scale_s for _, time_s in points], y=[row for row, _ in points], mode="markers", name=name,
            marker={"symbol": symbol, "size": 16 if "line" in symbol else 11, "color": colour,
                    "line": {"width": 3, "color": colour}},
            text=[units.duration(time_s) for _, time_s in points], hovertemplate=f"{name}: %{{text}}<extra></extra>",
        )  # fmt: skip


def plot_model_parts(compiled: CompiledModel | ModelSummary, measured_s: Measured = None) -> go.Figure:
    """Return a figure of the times of a model's parts: products, kernels without a plan, operators left to TVM.

    Parameters
    ----------
    compiled, measured_s
        As `plot_model`.
    """
    parts = model_parts(_summary(compiled), measured_s)
    times = [time_s for part in parts for time_s in (part.predicted_s, part.measured_s) if time_s is not None]
    scale_s, unit = duration_unit(max(times, default=1e-3))
    names = [f"{part.name} ({units.many(part.calls, 'call')})" for part in parts]
    figure = row_figure("Where the time goes", f"time in a run ({unit})", names)
    predicted_rows = [(row, part.predicted_s) for row, part in enumerate(parts) if part.predicted_s is not None]
    figure.add_bar(
        x=[time_s / scale_s for _, time_s in predicted_rows], y=[row for row, _ in predicted_rows], width=BAR_WIDTH,
        orientation="h",
        name="predicted", marker={"color": COLOURS[0]},
        text=[units.duration(time_s) for _, time_s in predicted_rows], textposition="none",
        hovertemplate="predicted: %{text}<extra></extra>",
    )  # fmt: skip
    _add_marks(figure, "measured", BEST, "diamond", [part.measured_s for part in parts], scale_s)
    figure.update_layout(showlegend=True)
    figure.update_xaxes(rangemode="tozero")
    return figure
