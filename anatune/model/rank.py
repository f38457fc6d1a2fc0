"""Ranking of the schedules of a workload on a device, with the analytical model and learned corrections.

`tuning.plans` adds the facts of compilers and records to such a plan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from anatune.arguments import check_flag, check_seconds
from anatune.core.accuracy import STANDARD, validate_accuracy
from anatune.core.hardware.spec import HardwareSpec
from anatune.core.workload.nest import Workload
from anatune.model import joint
from anatune.model.learned.corrected import SHORTLIST, CorrectedModel
from anatune.model.learned.corrections import AUTO
from anatune.model.plan import AppliedCorrection, LeftOut, Plan
from anatune.templates import get_template, make_model
from anatune.templates.base.model import Guarantee, Model, Progress, Ranking
from anatune.templates.base.watch import Watch

__all__ = ["Constraints", "rank", "rank_templates"]

_LEAST_S = 1e-3
"""Shortest time limit of a single search, s."""


class Constraints(msgspec.Struct, frozen=True, kw_only=True):
    """Restrictions of a ranking: which schedules, and for how long. Immutable; checked when it is made.

    Attributes
    ----------
    template, accuracy, time_limit_s, distinct
        As in `anatune.plan`.
    call : str
        Name of the calling function, for messages.

    Raises
    ------
    SpaceError
        The accuracy is unknown, the time limit is not positive, or `distinct` is no bool.
    """

    template: str | None = None
    accuracy: str | None = None
    time_limit_s: float | None = None
    distinct: bool = False
    call: str = "plan"

    def __post_init__(self) -> None:
        if self.accuracy is not None:
            validate_accuracy(f"{self.call}: accuracy", self.accuracy)
        limit_s = check_seconds(f"{self.call}: time_limit_s", self.time_limit_s)
        msgspec.structs.force_setattr(self, "time_limit_s", limit_s)  # NumPy numbers become Python numbers
        msgspec.structs.force_setattr(self, "distinct", check_flag(f"{self.call}: distinct", self.distinct))

    @property
    def allowed_accuracy(self) -> str:
        """The requested accuracy, "standard" by default."""
        return self.accuracy or STANDARD

    def templates(self, workload: Workload, hardware: HardwareSpec) -> tuple[str, ...]:
        """Return the names of the templates to rank; errors as in `joint.choose_templates`."""
        return joint.choose_templates(workload, hardware, self.template, self.accuracy)


def rank(
    workload: Workload,
    hardware: HardwareSpec,
    top_k: int = 10,
    constraints: Constraints = Constraints(),  # noqa: B008  immutable
    correction: str | Path = AUTO,
    progress: Progress | None = None,
) -> Plan:
    """Return the first `top_k` schedules of all requested templates, in one order.

    Raises
    ------
    SpaceError
        The template or its accuracy does not apply.
    UnknownNameError, ModelVersionError, MissingDependencyError
        As in `joint.find_corrections`.
    """
    names = constraints.templates(workload, hardware)
    corrections = joint.find_corrections(hardware, names, correction)
    return rank_templates(workload, hardware, names, top_k, constraints, corrections, progress)[0]


def rank_templates(
    workload: Workload,
    hardware: HardwareSpec,
    names: Sequence[str],
    count: int,
    constraints: Constraints,
    corrections: joint.Corrections,
    progress: Progress | None = None,
) -> tuple[Plan, dict[str, Model]]:
    """Return the first schedules of templates in one order, and the model that ranked each template.

    Templates are ranked one after the other, first those whose spaces are evaluated as a whole. A template is not
    searched if a lower bound of all its times is above the times that such a space lists; its legal points are then not
    counted.

    Parameters
    ----------
    count : int
        Number of schedules to list, of each template and of all.
    constraints : Constraints
        The time limit holds for all templates; the remaining time is divided evenly among the remaining ones.

    Raises
    ------
    SpaceError
        A template does not apply.
    ModelVersionError
        A correction does not fit its model.
    """
    watch, accuracy = Watch(constraints.time_limit_s, progress), constraints.allowed_accuracy
    plans: dict[str, Plan] = {}
    models: dict[str, Model] = {}
    number, cut_s = len(names), math.inf
    for index, name in enumerate(sorted(names, key=lambda name: not get_template(name).is_whole)):
        saved, analytical = corrections[name], make_model(workload, hardware, name, accuracy)
        corrected = None if saved is None else CorrectedModel(analytical, saved.model)
        model = models[name] = analytical if corrected is None else corrected
        left_s = None if watch.left_s is None else max(_LEAST_S, watch.left_s / (number - index))
        part = watch.part(index / number, (index + 1) / number)
        left_out = LeftOut(analytical.floor_s, cut_s) if corrected is None and analytical.floor_s > cut_s else None
        if left_out is None:
            ranking = model.rank(count, left_s, distinct=constraints.distinct, progress=part.report)
        else:
            ranking = _skip_search(model)
        plan, points = replace(_make_plan(model, ranking, accuracy), left_out=left_out), ranking.points
        if corrected is not None and saved is not None and len(points):
            support = float(corrected.correction(points[:1]).support[0])
            applied = AppliedCorrection(saved.card.name, max(count, SHORTLIST), support, str(saved.folder))
            plan = replace(plan, correction=applied)
        plans[name] = plan
        if get_template(name).is_whole and len(points) >= count:
            cut_s = min(cut_s, max(prediction.time_s for prediction in plan.predictions))
    return joint.merge_plans([plans[name] for name in names], count), models


def _skip_search(model: Model) -> Ranking:
    """Return the ranking of a space that is not searched, because its times are above those of other templates."""
    guarantee = Guarantee("certified", 0.0, 0, model.space.size)
    no_points = np.empty((0, len(model.space.columns)), dtype=np.int64)
    return Ranking(no_points, guarantee, None, None, alike_is_exact=True)


def _make_plan(model: Model, ranking: Ranking, accuracy: str) -> Plan:
    """Return the plan of one template, without its correction."""
    points = ranking.points
    predictions = model.predictions(points)
    if model.plain is model or not len(points):
        plain_best_s = min((prediction.time_s for prediction in predictions), default=None)
    else:
        plain_best_s = float(model.plain.times(points)[0].min())
    return Plan(
        model.workload,
        model.hardware,
        [model.space.schedule_of(point) for point in points],
        predictions,
        ranking.guarantee,
        model.space.size,
        ranking.num_legal,
        ranking.rejected,
        model.rules,
        model.space.template,
        None if ranking.num_alike is None else ranking.num_alike.tolist(),
        ranking.alike_is_exact,
        accuracy=accuracy,
        plain_best_s=plain_best_s,
    )
