"""A page that compares the predictions of a model on several devices, at several sizes if one varies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anatune.network.comparison_report import comparison_dict, curves_of
from anatune.network.graph.summary import ModelSummary
from anatune.network.pages.comparison_plots import plot_comparison
from anatune.pages.page import Column, Figure, Page, Section, Table
from anatune.report import units
from anatune.version import __version__

__all__ = ["comparison_page"]

_COLUMNS = (
    Column("device", True),
    Column("sizes", True, "sizes that vary, and their values"),
    Column("predicted (us)", help="of a run: the sum of all kernels, launches among them"),
    Column("a million runs cost", help="in the currency of the given prices"),
    Column("launches"),
    Column("weights (MB)"),
    Column("between kernels (MB)", help="memory for intermediate results"),
    Column("slowest kernel bound by", True),
)
_KERNELS = (
    Column("kernel", True, "products and attentions as workloads; the others by their operators"),
    Column("calls"),
    Column("predicted (us)", help="of all calls"),
    Column("share (%)"),
    Column("bound by", True),
)


def comparison_page(summaries: Sequence[ModelSummary], prices: Mapping[str, float], name: str) -> Page:
    """Return the result of `anatune.compare` as a page.

    Parameters
    ----------
    prices : mapping of str to float
        Price of an hour of a device.
    name : str
        Name of the model.

    Raises
    ------
    MissingDependencyError
        plotly is not installed.
    """
    size, curves = curves_of(summaries)
    rows = [
        (
            str(own["hardware"]), ", ".join(f"{key}={value}" for key, value in own["sizes"].items()),  # type: ignore[attr-defined]
            1e6 * one.whole_s, own["per_million_runs"], one.launches, one.weight_bytes / 1e6, one.arena_bytes / 1e6,
            str(own["bound_by"]),
        )
        for own, one in zip(comparison_dict(summaries, prices), summaries, strict=True)
    ]  # fmt: skip
    left_out = [None if column.name == "a million runs cost" and not prices else column for column in _COLUMNS]
    lead = [
        f"{name} in {summaries[0].precision}, predicted from the specs of the devices: nothing was compiled, and "
        "nothing has run. Inputs and outputs are not copied."
    ]
    how = f"Time by {size}" if len(curves) > 1 else "Time of a run"
    table = Table.of(left_out, rows, "Devices", 20)  # type: ignore[arg-type]
    sections = [Section("Devices", content=[Figure(plot_comparison(summaries), how), table])]
    sections += [_device_section(one) for one in list(curves.values())[-1]]
    return Page(
        f"{name} on {units.many(len(next(iter(curves.values()))), 'device')}", sections, lead, f"anatune {__version__}"
    )


def _device_section(summary: ModelSummary) -> Section:
    """Return the section of a device's kernels, at the largest size."""
    kernel_rows = [(kernel.workload, kernel.count, kernel.total_s, kernel.bound_by) for kernel in summary.kernels]
    kernel_rows += [(own.name.replace("_", " "), own.count, own.predicted_s or 0.0, "") for own in summary.rows]
    rows = [
        (name, calls, 1e6 * time_s, 100 * time_s / summary.whole_s, bound)
        for name, calls, time_s, bound in sorted(kernel_rows, key=lambda row: -row[2])
    ]
    sizes = ", ".join(f"{key} {size.planned}" for key, size in summary.ranges.items())
    words = f"{units.duration(summary.whole_s)} a run, {summary.launches} launches{f' ({sizes})' if sizes else ''}."
    return Section(summary.hardware, [words], [Table.of(_KERNELS, rows, "Kernels, the slowest first", 20)])
