"""Predictions of a network on several devices, as text and as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anatune.network.graph.summary import ModelSummary
from anatune.report import units
from anatune.report.text import Line, paragraph, table

__all__ = ["comparison_dict", "comparison_lines", "curves_of"]


def curves_of(summaries: Sequence[ModelSummary]) -> tuple[str, dict[int, list[ModelSummary]]]:
    """Return the name of the size that varies ("" without one), and the summaries of all devices at each value."""
    values: dict[str, dict[int, list[ModelSummary]]] = {}
    for summary in summaries:
        for name, size in summary.ranges.items():
            values.setdefault(name, {}).setdefault(size.usual, []).append(summary)
    name = next((name for name, found in values.items() if len(found) > 1), "")
    return name, values.get(name) or {0: list(summaries)}


def comparison_dict(summaries: Sequence[ModelSummary], prices: Mapping[str, float]) -> list[dict[str, object]]:
    """Return the predictions of a model on several devices as plain values.

    Parameters
    ----------
    prices : mapping of str to float
        Price of an hour of a device, in any currency.
    """
    return [
        {
            "hardware": one.hardware,
            "sizes": {name: size.usual for name, size in one.ranges.items()},
            "precision": one.precision,
            "threads": one.threads if one.device == "cpu" else None,
            "predicted_s": one.whole_s,
            "launches": one.launches,
            "weight_bytes": one.weight_bytes,
            "arena_bytes": one.arena_bytes,
            "bound_by": max(one.kernels, key=lambda kernel: kernel.total_s).bound_by if one.kernels else "",
            "per_million_runs": _million_runs_cost(one, prices),
        }
        for one in summaries
    ]


def _million_runs_cost(summary: ModelSummary, prices: Mapping[str, float]) -> float | None:
    """Return the price of a million runs; None without a price of the device."""
    price = prices.get(summary.hardware)
    return None if price is None else 1e6 * summary.whole_s * price / 3600.0


def comparison_lines(summaries: Sequence[ModelSummary], prices: Mapping[str, float], *, width: int) -> list[Line]:
    """Return a table of the devices, the fastest first; if a size varies, a table of times by size.

    Times are sums of predictions.
    """
    name, curves = curves_of(summaries)
    precisions = " or ".join(dict.fromkeys(one.precision for one in summaries))
    words = (
        f"predicted time of one run in {precisions}: all kernels and launches, without transfers of inputs and "
        "outputs; none of these times was measured"
    )
    if len(curves) == 1:
        return [*paragraph(words, width=width), *_comparison_table(summaries, prices, width=width)]
    best = [min(found, key=lambda one: one.whole_s).hardware for found in curves.values()]
    cells: list[tuple[str, list[str]]] = [(name, [str(value) for value in curves])]
    for index, first in enumerate(next(iter(curves.values()))):
        cells.append((first.hardware, [units.duration(found[index].whole_s) for found in curves.values()]))
    cells.append(("fastest", best))
    rows = [*paragraph(words, width=width), *table(cells, ("fastest",), width=width)]
    if not prices:
        return rows
    costs: list[tuple[str, list[str]]] = [(name, [str(value) for value in curves])]
    for index, first in enumerate(next(iter(curves.values()))):
        costs_of_device = [_million_runs_cost(found[index], prices) for found in curves.values()]
        costs.append((first.hardware, ["" if cost is None else f"{cost:.4g}" for cost in costs_of_device]))
    return [*rows, *paragraph("what a million runs cost", width=width), *table(costs, (), width=width)]


def _comparison_table(summaries: Sequence[ModelSummary], prices: Mapping[str, float], *, width: int) -> list[Line]:
    """Return a table of devices for one set of sizes, the fastest first."""
    entries = zip(comparison_dict(summaries, prices), summaries, strict=True)
    rows = sorted(entries, key=lambda row: row[1].whole_s)
    best = rows[0][1].whole_s
    cells: list[tuple[str, list[str]]] = [
        ("device", [one.hardware for _, one in rows]),
        ("predicted", [units.duration(one.whole_s) for _, one in rows]),
        ("ratio", [f"{one.whole_s / best:.2f}" for _, one in rows]),
        ("runs a second", [f"{1.0 / one.whole_s:.4g}" for _, one in rows]),
        ("launches", [str(one.launches or "") for _, one in rows]),
        ("between them", [units.size(one.arena_bytes) if one.launches else "" for _, one in rows]),
        ("weights", [units.size(one.weight_bytes) for _, one in rows]),
        ("slowest kernel bound by", [str(own["bound_by"]) for own, _ in rows]),
    ]
    if any(one.device == "cpu" for one in summaries):
        cells.insert(1, ("threads", [str(own["threads"] or "") for own, _ in rows]))
        cells.insert(1, ("precision", [one.precision for _, one in rows]))
    if len({one.device for one in summaries}) == 1 and summaries[0].device == "cpu":  # CPUs have no launches
        cells = [cell for cell in cells if cell[0] not in ("launches", "between them")]
    if prices:
        costs = [own["per_million_runs"] for own, _ in rows]
        cells.append(("a million runs cost", ["" if cost is None else f"{cost:.4g}" for cost in costs]))
    return table(cells, ("device", "precision", "slowest kernel bound by"), width=width)
