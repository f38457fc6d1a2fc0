"""The sections about a space: illegal points, the distribution of times, the distances between good points."""

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
    """Return the sections about a plan's spaces, after [NoSE] Sec. V-C.

    Parameters
    ----------
    plan : Plan
        A plan with at least one schedule.
    candidates : Candidates, optional
        The schedules to show; by default `candidates_of` the plan.
    measured : sequence of (Schedule, float)
        The measured schedules and their seconds, whose distribution is shown together with that of the predictions.
    cut_s : float, optional
        The predicted seconds of the last kept schedule, which is marked.

    Raises
    ------
    SpaceError
        No schedule is legal.
    MissingDependencyError
        plotly is not installed.
    """
    shown = candidates or candidates_of(plan)
    return [_legal_section(plan), _times_section(plan, shown, measured, cut_s), *_distance_section(plan, shown)]


def _legal_section(plan: Plan) -> Section:
    heading, figure = "Legal points", plot_rejections(plan)
    all_points = sum(one.size for one in plan.searched) or plan.space_size
    legal = sum(one.num_legal or 0 for one in plan.searched) if plan.joined else plan.num_legal
    missing = [one.left_out.describe(one.template) for one in plan.joined if one.left_out is not None]
    size, unsearched = units.count(all_points), [f"{told[0].upper()}{told[1:]}." for told in missing]
    if figure is None or legal is None:
        words = f"The space has {size} points. The time limit ended the search before illegal points were counted."
        return Section(heading, [words, *unsearched])
    words = (
        f"The space has {size} points, of which {units.count(legal)} are legal "
        f"({units.percent(legal / all_points)}). These counts are exact; nothing had to be compiled or run for them. "
        "A point counts for the first rule that it breaks."
    )
    points = [f"{line}." for line in rejected_lines(plan)] or ["No rule rejects any point."]
    return Section(heading, [words, *unsearched], [Figure(figure)], points)


def _times_section(plan: Plan, shown: Candidates, measured: Sequence[Measured], cut_s: float | None) -> Section:
    best_s = plan.predictions[0].time_s
    times = np.concatenate([space.time_s for space in shown.spaces])
    median_s = float(np.median(times)) if len(times) else best_s
    count = units.count(len(times))
    which = (
        f"all {count} legal schedules" if all(space.is_whole for space in shown.spaces) else f"{count} drawn at random"
    )
    chance = float((times <= 1.1 * best_s).mean()) if len(times) else 0.0
    search_text = (
        f"a random search finds one of them about once in {units.count(1.0 / chance)} trials"
        if chance
        else "a random search hardly ever finds such a schedule"
    )
    near = f"{units.percent(chance)} are" if chance else "none of them is"
    words = [
        f"Predicted times of {which}. Half of them take more than {units.duration(median_s)}, "
        f"{units.ratio(median_s / best_s)} times the best time; {near} within 10 % of the best: {search_text}."
    ]
    facts = [
        ("best predicted", units.duration(best_s), ""),
        ("median of the space", units.duration(median_s), f"{units.ratio(median_s / best_s)} times the best"),
        ("within 10 % of the best", units.percent(chance) if chance else "none", f"of {count}"),
    ]
    if measured:
        seconds = np.array([time_s for _, time_s in measured])
        facts.append(
            ("best measured", units.duration(float(seconds.min())), f"of {units.count(len(seconds))} schedules")
        )
        words.append(
            f"{units.count(len(seconds))} schedules were measured. A tuner chose them, so they are better than random "
            "ones."
        )
    return Section(
        "Distribution of times", words, [Facts(facts), Figure(plot_distribution(plan, shown, measured, cut_s))]
    )


def _distance_section(plan: Plan, shown: Candidates) -> list[Section]:
    figure = plot_distances(plan, shown)
    if figure is None:
        return []
    good, others = (float(np.median(values)) for values in distances(plan, shown))
    share = good / others if others else 1.0
    sense = (
        "Good points are closer together than others, so the neighbours of a good point are worth a trial."
        if share < 0.9
        else "Good points are about as far apart as others, so a local search finds few of them."
    )
    words = (
        f"The median distance of two of the {len(plan.schedules)} best schedules is {good:.2f}, of two legal random "
        f"ones {others:.2f} (mean Canberra distance of tiles and choices: 0 for equal schedules, 1 if nothing is in "
        f"common). {sense}"
    )
    return [Section("Distance between good points", [words], [Figure(figure)])]
