"""A tile space on a page: what is illegal, how times are distributed, how far good points lie from each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anatune.model.plan import Plan
from anatune.pages.page import Facts, Figure, Section
from anatune.plots.candidates import Candidates, candidates_of
from anatune.plots.spaces import Measured, distances, plot_distances, plot_distribution, plot_rejections
from anatune.report import units
from anatune.report.plans import rejected_lines


def space_sections(
    plan: Plan, candidates: Candidates | None = None, measured: Sequence[Measured] = (), cut_s: float | None = None
) -> list[Section]:
    """Return the anatomy of a plan's spaces, after [NoSE] Sec. V-C.

    Parameters
    ----------
    plan : Plan
        With at least one schedule.
    candidates : Candidates, optional
        What to show; left out, `candidates_of` the plan.
    measured : sequence of (Schedule, float)
        Schedules and their measured seconds: their distribution is shown beside that of the predictions.
    cut_s : float, optional
        Predicted seconds of the last schedule that is kept of them all, which is marked.

    Raises
    ------
    SpaceError
        Nothing is legal.
    MissingDependencyError
        plotly is not installed.
    """
    shown = candidates or candidates_of(plan)
    return [_illegal(plan), _times(plan, shown, measured, cut_s), *_distances(plan, shown)]


def _illegal(plan: Plan) -> Section:
    heading, figure = "What is legal", plot_rejections(plan)
    all_points = sum(one.size for one in plan.searched) or plan.space_size
    legal = sum(one.num_legal or 0 for one in plan.searched) if plan.joined else plan.num_legal
    missing = [one.left_out.describe(one.template) for one in plan.joined if one.left_out is not None]
    size, unsearched = units.count(all_points), [f"{told[0].upper()}{told[1:]}." for told in missing]
    if figure is None or legal is None:
        words = f"The space has {size} points. The time limit ended the search before the illegal ones were counted."
        return Section(heading, [words, *unsearched])
    words = (
        f"The space has {size} points, of which {units.count(legal)} are legal "
        f"({units.percent(legal / all_points)}). These counts are exact: nobody had to compile or run "
        "anything to know them. A point counts for the first rule that it breaks."
    )
    points = [f"{line}." for line in rejected_lines(plan)] or ["No rule rejects anything."]
    return Section(heading, [words, *unsearched], [Figure(figure)], points)


def _times(plan: Plan, shown: Candidates, measured: Sequence[Measured], cut_s: float | None) -> Section:
    best_s = plan.predictions[0].time_s
    times = np.concatenate([space.time_s for space in shown.spaces])
    median_s = float(np.median(times)) if len(times) else best_s
    count = units.count(len(times))
    which = (
        f"all {count} legal schedules" if all(space.is_whole for space in shown.spaces) else f"{count} drawn at random"
    )
    chance = float((times <= 1.1 * best_s).mean()) if len(times) else 0.0
    luck = (
        f"who draws schedules at random meets one of them about once in {units.count(1.0 / chance)} trials"
        if chance
        else "who draws schedules at random seldom meets one of them"
    )
    near = f"{units.percent(chance)} come" if chance else "none of them comes"
    words = [
        f"Predicted times of {which}. Half of them take more than {units.duration(median_s)}, "
        f"{units.ratio(median_s / best_s)} times the best; {near} within 10 % of it: {luck}."
    ]
    facts = [
        ("best predicted", units.duration(best_s), ""),
        ("median of the space", units.duration(median_s), f"{units.ratio(median_s / best_s)} times the best"),
        ("within 10 % of the best", units.percent(chance) if chance else "none", f"of {count}"),
    ]
    if measured:
        known = np.array([time_s for _, time_s in measured])
        facts.append(("best measured", units.duration(float(known.min())), f"of {units.count(len(known))} schedules"))
        words.append(
            f"Measured are {units.count(len(known))} schedules: a tuner chose them, so that they are better than "
            "drawn ones."
        )
    return Section(
        "Distribution of times", words, [Facts(facts), Figure(plot_distribution(plan, shown, measured, cut_s))]
    )


def _distances(plan: Plan, shown: Candidates) -> list[Section]:
    figure = plot_distances(plan, shown)
    if figure is None:
        return []
    good, others = (float(np.median(values)) for values in distances(plan, shown))
    share = good / others if others else 1.0
    sense = (
        "Good points lie closer together than others: the neighbours of a good one are worth a try."
        if share < 0.9
        else "Good points are about as scattered as others: a local search sees few of them."
    )
    words = (
        f"Two of the {len(plan.schedules)} best schedules differ by {good:.2f} in the median, two legal ones drawn "
        "at random "
        f"by {others:.2f} (mean Canberra distance of their tiles and choices: 0 is the same, 1 has nothing in "
        f"common). {sense}"
    )
    return [Section("Distance between good points", [words], [Figure(figure)])]
