"""Figures of a model on several devices: predicted times, by size if one varies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anatune.core.show import duration_unit
from anatune.network.comparison_report import curves_of
from anatune.network.graph.summary import ModelSummary
from anatune.plots.theme import COLOURS, LOGARITHMIC, label, new_figure
from anatune.report import units

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = ["plot_comparison"]


def plot_comparison(summaries: Sequence[ModelSummary]) -> go.Figure:
    """Return a figure of predicted times: bars by kind of kernel, or a line for each device if a size varies.

    Raises
    ------
    MissingDependencyError
        plotly is not installed.
    """
    name, curves = curves_of(summaries)
    scale_s, unit = duration_unit(max(one.whole_s for one in summaries))
    if len(curves) == 1:
        figure = new_figure("Predicted time of a run", f"time ({unit})", "", height=120 + 50 * len(summaries))
        parts = {"products and attentions": [sum(kernel.total_s for kernel in one.kernels) for one in summaries]}
        parts["between them"] = [one.whole_s - planned for one, planned in zip(summaries, *parts.values(), strict=True)]
        for index, (part, times) in enumerate(parts.items()):
            figure.add_bar(
                y=[label(one.hardware) for one in summaries], x=[time_s / scale_s for time_s in times], name=part,
                orientation="h", marker={"color": COLOURS[index]},
                text=[units.duration(time_s) for time_s in times], hovertemplate="%{y}: %{text}<extra></extra>",
            )  # fmt: skip
        figure.update_layout(barmode="stack")
        figure.update_yaxes(autorange="reversed")
        return figure
    figure = new_figure(f"Predicted time of a run by {label(name)}", label(name), f"time ({unit})")
    for index, first in enumerate(next(iter(curves.values()))):
        device_summaries = [found[index] for found in curves.values()]
        figure.add_scatter(
            x=list(curves), y=[one.whole_s / scale_s for one in device_summaries], name=label(first.hardware),
            mode="lines+markers",
            line={"color": COLOURS[index % len(COLOURS)], "width": 2.5}, marker={"size": 7},
            text=[units.duration(one.whole_s) for one in device_summaries],
            hovertemplate=f"{label(first.hardware)}, %{{x}}: %{{text}}<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(type="log", tickvals=list(curves))
    figure.update_yaxes(**LOGARITHMIC | {"dtick": "D2"})
    return figure
