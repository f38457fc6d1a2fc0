"""Ranking of several templates together: plans of one template each are merged by predicted time.

The proofs of the single plans hold for the merged one: a schedule that a plan does not list is no faster than the last
one of that plan, hence no faster than the last one of the merged plan.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from anatune.core.accuracy import RELAXED, STANDARD
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.model.learned.corrected import CorrectedModel
from anatune.model.learned.corrections import (
    AUTO,
    NONE,
    SavedCorrection,
    apply_correction,
    find_correction,
    find_named_correction,
)
from anatune.model.plan import AppliedCorrection, JoinedSpace, Plan, prediction_row
from anatune.templates import check_accuracy, joined_templates, make_model, template_of
from anatune.templates.base.model import Guarantee, Model

_KINDS = ("exhaustive", "certified", "best_found")
"""Kinds of guarantees, the strongest first."""


def choose_templates(
    workload: Workload, hardware: GpuSpec | CpuSpec, template: str | None, accuracy: str | None
) -> tuple[str, ...]:
    """Return the names of the templates to rank: the given one, or the device's default and those that join it.

    Raises
    ------
    SpaceError
        The device has no template of this name, or it does not satisfy the given `accuracy`.
    """
    if template is not None:
        check_accuracy(workload, template_of(template, hardware), accuracy)
        return (template,)
    return tuple(joined.name for joined in joined_templates(workload, hardware, accuracy or STANDARD))


Corrections: TypeAlias = Mapping[str, SavedCorrection | None]
"""Mapping from template to its correction, or None."""


def find_corrections(
    hardware: GpuSpec | CpuSpec, templates: Sequence[str], correction: str | Path = AUTO
) -> dict[str, SavedCorrection | None]:
    """Return the correction of each template; a named one is used only for the template on its card."""
    corrections = {name: find_correction(hardware, name, correction) for name in templates}
    if len(templates) > 1 and str(correction) not in (AUTO, NONE):
        fitting = [name for name, one in corrections.items() if one is not None and one.card.template == name]
        # If it fits none of them, the default's model raises an error that says why.
        corrections = {name: one if name in (fitting or templates[:1]) else None for name, one in corrections.items()}
    return corrections


def make_applied_model(plan: Plan, template: str, correction: AppliedCorrection | None) -> Model:
    """Return the model of one of a plan's templates, with the correction that the plan used."""
    saved = None if correction is None else find_named_correction(correction.folder)
    return apply_correction(make_model(plan.workload, plan.hardware, template, plan.accuracy), saved)


def predict_rows(
    workload: Workload, hardware: GpuSpec | CpuSpec, schedules: Sequence[Schedule], correction: str | Path
) -> list[dict[str, object]]:
    """Return the predictions of schedules of any templates, in their order; `anatune.predict` lists the columns.

    Raises
    ------
    SpaceError
        A schedule belongs to another workload or template.
    UnknownNameError, ModelVersionError, MissingDependencyError
        As in `find_correction`.
    """
    rows: list[dict[str, object]] = [{} for _ in schedules]
    for template in dict.fromkeys(schedule.template for schedule in schedules):
        model = make_model(workload, hardware, template)
        positions = [place for place, schedule in enumerate(schedules) if schedule.template == template]
        points = np.array([model.space.point_of(schedules[place]) for place in positions], dtype=np.int64)
        for row, prediction in zip(positions, model.predictions(points), strict=True):
            rows[row] = prediction_row(prediction)
        saved = find_correction(hardware, template, correction)
        if saved is None:
            continue
        learned = CorrectedModel(model, saved.model)
        support = learned.correction(points).support.tolist()
        for row, prediction, share in zip(positions, learned.predictions(points), support, strict=True):
            extra = {"correction": saved.card.name, "plain_s": rows[row]["time_s"], "support": share}
            rows[row] = prediction_row(prediction) | extra
    return rows


def make_corrected_model(
    workload: Workload, hw: GpuSpec | CpuSpec, correction: str | Path, template: str | None, accuracy: str = RELAXED
) -> Model:
    """Return the model of a template, with its correction if there is one."""
    chosen = make_model(workload, hw, template, accuracy)
    return apply_correction(chosen, find_correction(hw, chosen.space.template, correction))


def merge_plans(plans: Sequence[Plan], top_k: int) -> Plan:
    """Return one plan with the first `top_k` schedules of several plans.

    Parameters
    ----------
    plans : sequence of Plan
        Plans for one workload, hardware and accuracy, each of another template, with its first `top_k` schedules or all
        that it has. At equal times the schedule of the earlier plan comes first.
    """
    if len(plans) == 1:
        return plans[0].first(top_k)
    # Only the next schedules of the plans are compared, so that each plan keeps its own order.
    entries_of_plans = ([(plan, at) for at in range(len(plan.schedules))] for plan in plans)
    order = heapq.merge(*entries_of_plans, key=lambda entry: entry[0].predictions[entry[1]].time_s)
    entries = list(itertools.islice(order, top_k))
    best = entries[0][0] if entries else plans[0]
    alike = [0 if plan.num_alike is None else plan.num_alike[at] for plan, at in entries]
    spaces = tuple(
        JoinedSpace(
            plan.template, plan.space_size, plan.num_legal, plan.rejected, plan.rules, plan.guarantee,
            plan.plain_best_s, plan.correction, plan.left_out,
        ) for plan in plans
    )  # fmt: skip
    legal = [plan.num_legal for plan in plans]
    return replace(
        plans[0],
        schedules=[plan.schedules[at] for plan, at in entries],
        predictions=[plan.predictions[at] for plan, at in entries],
        guarantee=join_guarantees(spaces),
        space_size=sum(plan.space_size for plan in plans),
        num_legal=None if None in legal else sum(count for count in legal if count is not None),
        rejected=sum_rejections(spaces),
        rules=tuple({rule.id: rule for plan in reversed(plans) for rule in plan.rules}.values()),
        template=best.template,
        num_alike=None if all(plan.num_alike is None for plan in plans) else alike,
        alike_is_exact=all(plan.alike_is_exact for plan in plans),
        correction=best.correction,
        left_out=None,
        joined=spaces,
    )


def join_guarantees(spaces: Sequence[JoinedSpace]) -> Guarantee:
    """Return the guarantee of the merged order: the weakest kind, with the gap over all templates.

    No schedule of a template is faster than its best found one over (1 + its gap). The gap of the merged order compares
    the best schedule of all with the smallest of these times.
    """
    kind = max((space.guarantee.kind for space in spaces), key=_KINDS.index)
    best_s = min((space.best_s for space in spaces if space.best_s is not None), default=math.inf)
    gap = 0.0
    if kind == "best_found":
        bounds = [
            # A template without schedules proves nothing after a time limit; otherwise it has none.
            (0.0 if space.guarantee.kind == "best_found" else math.inf)
            if space.best_s is None
            else space.best_s / (1.0 + space.guarantee.gap)
            for space in spaces
        ]
        gap = best_s / min(bounds) - 1.0 if 0.0 < min(bounds) < math.inf else math.inf
    return Guarantee(
        kind,
        max(0.0, gap),
        sum(space.guarantee.num_evaluated for space in spaces),
        sum(space.guarantee.num_bounded for space in spaces),
    )


def sum_rejections(spaces: Sequence[JoinedSpace]) -> dict[str, int] | None:
    """Return the number of points that each rule rejected in all spaces; None if a space was not counted."""
    counts: dict[str, int] = {}
    for space in spaces:
        if space.rejected is None:
            return None
        for rule, number in space.rejected.items():
            counts[rule] = counts.get(rule, 0) + number
    return counts
