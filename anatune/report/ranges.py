"""A plan for a range as text: its programs, the extents that each serves, and what that loses."""

from __future__ import annotations

import math

from anatune.core.generation import generation_limit
from anatune.model.ranges.plan import RangePlan
from anatune.report import units
from anatune.report.plans import place_text
from anatune.report.schedules import schedule_items, template_items
from anatune.report.text import Line, item_lines, paragraph, table

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
    axis = plan.workload.axis
    lines = paragraph(plan.workload.describe(), width, "bold")
    for text in (f"on {place_text(plan.hardware)}", _loss_text(plan, seconds), _choice_text(plan)):
        lines += paragraph(text, width)
    served = [
        [interval for interval in plan.intervals if interval.program == number] for number in range(len(plan.programs))
    ]
    cells = [
        ("#", [str(number) for number in range(len(plan.programs))]),
        ("extents", [units.count(program.num_extents) for program in plan.programs]),
        ("time", [f"{units.duration(own[0].first_s)} to {units.duration(own[-1].last_s)}" for own in served]),
        ("loss", [_most(max(interval.known_loss for interval in own)) for own in served]),
        (axis, [_spelled([(interval.first, interval.last) for interval in own]) for own in served]),
    ]
    heading, *rows = table(cells, (axis,), width=width)
    lines += [Line(""), heading]
    for row, program in zip(rows, plan.programs, strict=True):
        schedule = program.schedule
        told = [*template_items(schedule, among_several=True), *schedule_items(schedule)]
        lines += [row, *item_lines(told, width)]
    legend = (
        f"tiles are those of the largest {axis} that a program serves; it takes {axis} when it is called. loss: "
        f"predicted time over that of the best schedule of the single shape{_of_templates(plan)}, less 1; in the table "
        "against the best ones that were found."
    )
    following = "next: the same with --json > range.json, then `anatune export range.json` writes the kernels"
    schedules = [program.schedule for program in plan.programs]
    limits = (generation_limit(one.workload, plan.hardware, [one.template]) for one in schedules)
    if limit := next(filter(None, limits), ""):
        following = f"next: no kernel can be written: {limit}"
    return [*lines, Line(""), *paragraph(legend, width, "dim", hanging=""), Line(""), *paragraph(following, width)]


def _loss_text(plan: RangePlan, seconds: float | None) -> str:
    """Return in one sentence what is proven."""
    took = "" if seconds is None else f"; {units.duration(seconds)}"
    programs = units.many(len(plan.programs), "program")
    text = (
        f"{programs}, {units.many(len(plan.intervals), 'interval')}: {'' if plan.left_out else 'proven '}loss <= "
        f"{_most(plan.loss)}{_of_templates(plan)} at every one of {units.count(len(plan.workload.extents))} extents "
        f"(worst at {plan.workload.axis}={plan.worst_extent}), "
        f"{_average(plan)}{took}"
    )
    if not plan.is_complete:
        text += "; the time limit ended the search, a longer one may prove less"
    if plan.left_out:
        names = " and ".join(plan.left_out)
        text += f"; left out: {names}, whose schedules a single shape may get and which may be faster there"
    return text


def _of_templates(plan: RangePlan) -> str:
    """Return against which templates losses are, where that is not against all that a single shape may get."""
    return f" among schedules of {' and '.join(plan.templates)}" if plan.left_out else ""


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
