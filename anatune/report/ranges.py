"""Report of a plan for a range of extents: its kernels, the extents that each serves, and the loss."""

from __future__ import annotations

import math

from anatune.core.generation import generation_limit
from anatune.model.ranges.plan import RangePlan
from anatune.report import units
from anatune.report.plans import place_text
from anatune.report.schedules import schedule_items, template_items
from anatune.report.text import Line, item_lines, paragraph, table

_MOST_SPELLED = 4
"""Number of intervals of a kernel that are written out."""


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
        ("loss", [_percent_rounded_up(max(interval.known_loss for interval in own)) for own in served]),
        (axis, [_intervals_text([(interval.first, interval.last) for interval in own]) for own in served]),
    ]
    heading, *rows = table(cells, (axis,), width=width)
    lines += [Line(""), heading]
    for row, program in zip(rows, plan.programs, strict=True):
        schedule = program.schedule
        items = [*template_items(schedule, among_several=True), *schedule_items(schedule)]
        lines += [row, *item_lines(items, width)]
    legend = (
        f"tiles are for the largest {axis} that a kernel serves; {axis} is an argument of the kernel. loss: predicted "
        f"time over that of the best schedule for that single shape{_of_templates(plan)}, minus 1; the table compares "
        "with the best schedules that were found."
    )
    following = "next: add --json > range.json to this command, then `anatune export range.json` writes the kernels"
    schedules = [program.schedule for program in plan.programs]
    limits = (generation_limit(one.workload, plan.hardware, [one.template]) for one in schedules)
    if limit := next(filter(None, limits), ""):
        following = f"next: no kernel of this plan can be generated: {limit}"
    return [*lines, Line(""), *paragraph(legend, width, "dim", hanging=""), Line(""), *paragraph(following, width)]


def _loss_text(plan: RangePlan, seconds: float | None) -> str:
    """Return a sentence about the loss that is proven."""
    took = "" if seconds is None else f"; found in {units.duration(seconds)}"
    kernels = units.many(len(plan.programs), "kernel")
    text = (
        f"{kernels}, {units.many(len(plan.intervals), 'interval')}: {'' if plan.left_out else 'proven '}loss "
        f"<= {_percent_rounded_up(plan.loss)}{_of_templates(plan)} at each of "
        f"{units.count(len(plan.workload.extents))} extents (worst at "
        f"{plan.workload.axis}={plan.worst_extent}), {_average(plan)}{took}"
    )
    if not plan.is_complete:
        text += "; the time limit ended the search, with more time the proven loss may be smaller"
    if plan.left_out:
        names = " and ".join(plan.left_out)
        text += f"; not compared with the template {names}, which may be faster for a single shape"
    return text


def _of_templates(plan: RangePlan) -> str:
    """Return the templates that losses are relative to, if these are not all templates of a single shape."""
    return f" among schedules of {' and '.join(plan.templates)}" if plan.left_out else ""


def _choice_text(plan: RangePlan) -> str:
    """Return a sentence that compares the chosen kernels with all candidates."""
    candidates = f"{units.count(plan.num_candidates)} candidates"
    if plan.goal == "count":
        return (
            f"choice: of {candidates}, at least {plan.least_programs} kernels are needed for a loss of "
            f"{units.percent(plan.least_loss)}"
        )
    loss_name = "mean loss" if plan.goal == "mean" else "worst loss"
    loss = units.percent(plan.known_loss if plan.goal == "worst" else plan.known_mean_loss)
    return (
        f"choice: the {loss_name} of these kernels is {loss}; no other {len(plan.programs)} of {candidates} have a "
        f"{loss_name} below {units.percent(plan.least_loss)}"
    )


def _average(plan: RangePlan) -> str:
    if plan.goal == "mean":
        return f"<= {_percent_rounded_up(plan.mean_loss)} on average"
    return f"{units.percent(plan.known_mean_loss)} on average"


def _percent_rounded_up(loss: float) -> str:
    """Return a proven loss in per cent, rounded up so that the text never claims more than is proven."""
    return f"{math.ceil(1000 * loss - 1e-9) / 10:.3g} %" if math.isfinite(loss) else "unknown"


def _intervals_text(pairs: list[tuple[int, int]]) -> str:
    """Return the first few intervals as text, and the number of the others."""
    texts = [str(first) if first == last else f"{first}..{last}" for first, last in pairs]
    more = len(texts) - _MOST_SPELLED
    return ", ".join(texts[:_MOST_SPELLED]) + (f" and {more} more" if more > 0 else "")
