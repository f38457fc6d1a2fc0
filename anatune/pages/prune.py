"""The page of a subset: what ``anatune prune`` keeps of a space, and what it leaves out."""

from __future__ import annotations

import itertools

from anatune.model.plan import Plan
from anatune.model.pruning.subset import Subset
from anatune.pages.page import Facts, Page, Section
from anatune.pages.plan import candidate_table, made_by, name_of
from anatune.pages.space import space_sections
from anatune.plots.candidates import Candidates, as_candidates, candidates_of
from anatune.report import units

__all__ = ["prune_page"]


def prune_page(subset: Subset, plan: Plan, most: int = 1000) -> Page:
    """Return the page of a subset: ``prune_page(anatune.prune(...), anatune.plan(..., template=...))``.

    How much is kept, where the cut lies in the distribution of times, what is illegal, how far good points lie from
    each other, and a table of what is kept.

    Parameters
    ----------
    subset : Subset
        Of a space, or of candidates.
    plan : Plan
        Of the same workload, hardware and template, with at least one schedule: what the space is.
    most : int
        Schedules that the table shows, at most.

    Raises
    ------
    SpaceError
        Nothing is legal.
    MissingDependencyError
        A package of the extra ``report`` is not installed.
    """
    entries = list(itertools.islice(subset.entries(), most))
    cut_s = max(prediction.time_s for _, prediction in entries)
    best_s = min(prediction.time_s for _, prediction in entries)
    every = len(entries) >= subset.num_kept
    last = "the last one kept" if every else f"number {units.count(len(entries))}"
    words = [
        f"{units.count(subset.num_kept)} of {units.count(subset.num_legal)} legal schedules are kept "
        f"({units.percent(subset.num_kept / max(1, subset.num_legal))}): those that deserve a run, by the analytical "
        "model "
        "alone. A tuner that measures them leaves out what the model proves or predicts to be slower.",
        f"In the table below, {last} is predicted to take {units.ratio(cut_s / best_s)} times as long as the best.",
    ]
    facts = Facts(
        [
            ("kept", units.count(subset.num_kept), f"of {units.count(subset.num_legal)} legal ones"),
            ("best predicted", units.duration(best_s), ""),
            (f"{last}, predicted", units.duration(cut_s), f"{units.ratio(cut_s / best_s)} times the best"),
        ]
    )
    shown = candidates_of(plan)
    kept = Candidates(plan, as_candidates(plan, entries), [], shown.spaces, every)
    which = "" if every else f" The first {units.count(len(entries))} are shown."
    return Page(
        f"{name_of(plan)} on {plan.hardware.name}: what to measure",
        [
            Section("In short", words, [facts]),
            *space_sections(plan, shown, cut_s=cut_s),
            Section(
                "What is kept", [f"In predicted order.{which}"], [candidate_table(kept, "Schedules that are kept")]
            ),
        ],
        [f"Schedules of {plan.workload.describe()} on {plan.hardware.model} for a tuner of one's own."],
        made_by(),
    )
