"""A plan for a range as text: its programs, the extents that each serves, and what that loses."""

from __future__ import annotations

import math

from anatune.model.ranges.plan import RangePlan
from anatune.report import units
from anatune.report.tables import schedule_items, template_items
from anatune.report.text import Line, columns, wrapped, wrapped_items

__all__ = ["range_lines"]

_MOST_SPELLED = 4
"""Intervals of a program that are written out."""


def range_lines(plan: RangePlan, *, width: int = 80, seconds: float | None = None) -> list[Line]:
    """Return a plan for a range as a report.

    Parameters
    ----------
    width : int
        Characters a line; no cell or tile is cut for it.
    seconds : float, optional
        How long the planning took.
    """
    hardware, axis = plan.hardware, plan.workload.axis
    lines = [Line(text, "bold") for text in wrapped(plan.workload.describe(), width, hanging="  ")]
    place = f"on {hardware.model} ({hardware.name}, {hardware.arch})"
    lines += [Line(text) for text in wrapped(place, width, hanging="  ")]
    lines += [Line(text) for text in wrapped(_loss_text(plan, seconds), width, hanging="  ")]
    lines += [Line(text) for text in wrapped(_choice_text(plan), width, hanging="  ")]
    lines.append(Line(""))
    rows = [["#", "extents", "time", "loss", axis]]
    for number, program in enumerate(plan.programs):
        own = [interval for interval in plan.intervals if interval.program == number]
        rows.append(
            [
                str(number),
                units.count(program.num_extents),
                f"{units.duration(own[0].first_s)} to {units.duration(own[-1].last_s)}",
                _most(max(interval.known_loss for interval in own)),
                _spelled([(interval.first, interval.last) for interval in own]),
            ]
        )
    heading, *cells = columns(rows, left=(4,), width=width)
    lines.append(Line(heading, "bold"))
    several = len({program.schedule.template for program in plan.programs}) > 1
    for cell, program in zip(cells, plan.programs, strict=True):
        lines.append(Line(cell))
        items = [*template_items(program.schedule, among_several=several), *schedule_items(program.schedule)]
        lines += [Line(text, "dim") for text in wrapped_items(items, width, indent="    ", hanging="      ")]
    lines.append(Line(""))
    legend = (
        f"tiles are those of the largest {axis} that a program serves; it takes {axis} when it is called. loss: "
        "predicted time over that of the best program of the single shape, less 1; in the table against the best ones "
        "that were found."
    )
    lines += [Line(text, "dim") for text in wrapped(legend, width)]
    return lines


def _loss_text(plan: RangePlan, seconds: float | None) -> str:
    """Return in one sentence what is proven."""
    took = "" if seconds is None else f"; {units.duration(seconds)}"
    count = len(plan.programs)
    many = f"{count} program{'s' if count != 1 else ''}"
    text = (
        f"{many}, {units.count(len(plan.intervals))} intervals: proven loss <= {_most(plan.loss)} at every one of "
        f"{units.count(len(plan.workload.extents))} extents (worst at {plan.workload.axis}={plan.worst_extent}), "
        f"{_average(plan)}{took}"
    )
    return text if plan.is_complete else f"{text}; the time limit ended the search, a longer one may prove less"


def _choice_text(plan: RangePlan) -> str:
    """Return in one sentence how good the choice is among what was looked at."""
    candidates = f"{units.count(plan.num_candidates)} candidates"
    if plan.goal == "count":
        return (
            f"choice: of {candidates}, at least {plan.least_programs} are needed for {units.percent(plan.least_loss)}"
        )
    what = "mean loss" if plan.goal == "mean" else "worst loss"
    return (
        f"choice: of {candidates}, no other {len(plan.programs)} have a {what} below {units.percent(plan.least_loss)}; "
        f"of these {units.percent(plan.known_loss if plan.goal == 'worst' else plan.known_mean_loss)}"
    )


def _average(plan: RangePlan) -> str:
    if plan.goal == "mean":
        return f"<= {_most(plan.mean_loss)} on average"
    return f"{units.percent(plan.known_mean_loss)} on average"


def _most(loss: float) -> str:
    """Return a proven loss in per cent, rounded up: what is proven is never less than what is said."""
    return f"{math.ceil(1000 * loss - 1e-9) / 10:.3g} %" if math.isfinite(loss) else "unknown"


def _spelled(pairs: list[tuple[int, int]]) -> str:
    """Return intervals in short: the first few, and how many more there are."""
    texts = [str(first) if first == last else f"{first}..{last}" for first, last in pairs]
    more = len(texts) - _MOST_SPELLED
    return ", ".join(texts[:_MOST_SPELLED]) + (f" and {more} more" if more > 0 else "")
