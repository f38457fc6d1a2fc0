"""Figures of plans and sessions: ``plot_*`` functions that return plotly figures (extra ``report``)."""

from anatune.named import entries, load
from anatune.plots.candidates import Candidates, candidates_of
from anatune.plots.plans import plot_footprints, plot_occupancy, plot_roofline, plot_times
from anatune.plots.session import (
    plot_comparison,
    plot_convergence,
    plot_drift,
    plot_failures,
    plot_predictions,
    plot_workers,
)
from anatune.plots.spaces import plot_distances, plot_distribution, plot_rejections
from anatune.plots.what_if import plot_what_if, what_if

__all__ = [
    "Candidates",
    "candidates_of",
    "plot_comparison",
    "plot_convergence",
    "plot_distances",
    "plot_distribution",
    "plot_drift",
    "plot_failures",
    "plot_footprints",
    "plot_occupancy",
    "plot_predictions",
    "plot_rejections",
    "plot_roofline",
    "plot_times",
    "plot_what_if",
    "plot_workers",
    "what_if",
]


def __getattr__(name: str) -> object:
    if name in entries("figures"):  # of other packages
        return load("figures", name)
    raise AttributeError(f"module 'anatune.plots' has no attribute {name!r}; public names: {', '.join(__all__)}")
