"""Where a session's schedules come from: a model and a strategy, or a manifest of kernels that were built elsewhere."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.schedule import Schedule
from anatune.errors import SpaceError
from anatune.measure.devices import measurer_of
from anatune.measure.place import MakeMeasurer
from anatune.model.bound import TimeBound, time_bound
from anatune.search.base import Strategy, make_strategy
from anatune.search.shared import Member, SharedStrategy
from anatune.templates import template_named
from anatune.templates.base.model import Model
from anatune.templates.cpu.microkernels import constant_tensors
from anatune.tuning.manifest import Manifest, ManifestStrategy
from anatune.tuning.target import Target

__all__ = ["Source", "source_of_manifest", "source_of_model"]

_RANKED = 16
"""Points of the ranking that strategies start from."""


class Source(NamedTuple):
    """What a session asks.

    Attributes
    ----------
    strategy : Strategy
        Who proposes schedules.
    first : Schedule
        The plan's own first choice.
    hardware : CpuSpec or GpuSpec
        Of the schedules.
    predicted : callable
        Schedule -> the model's time, s, or None.
    program_key : callable
        Schedule -> key of the program it is lowered to: schedules of equal keys are measured once.
    measurer : callable
        Makes the measurer.
    bound : TimeBound
        Time that no schedule undercuts.
    correction : str or None
        Name of the learned correction of the model's times.
    """

    strategy: Strategy
    first: Schedule
    hardware: CpuSpec | GpuSpec
    predicted: Callable[[Schedule], float | None]
    program_key: Callable[[Schedule], Hashable]
    measurer: MakeMeasurer
    bound: TimeBound
    correction: str | None = None


def source_of_model(target: Target, strategy: str, seed: int, start: str = "model") -> Source:
    """Rank and start a strategy; of several templates one for each, which share the trials.

    Raises
    ------
    SpaceError
        No schedule is legal; the template does not apply.
    """
    here = target.hardware.with_threads(target.threads)
    members: dict[str, Member] = {}
    corrected_by = None
    for template in target.templates:
        model, name = _model(target, template.name, here)
        corrected_by = corrected_by or name
        ranked = model.rank(_RANKED).points
        if len(ranked):
            # CPUs: the default strategy is made for CpuModel, and learns of its errors from the first trial on; a
            # saved correction says where it starts.
            walked = model.plain if here.kind == "cpu" else model
            walker = make_strategy(strategy, walked, seed=seed, start=start, ranked=ranked)
            members[template.name] = Member(model, walker, ranked)
    if not members:
        raise SpaceError(
            f"{target.workload.describe()} on {here.name}: no schedule is legal; "
            f"`anatune plan` says which limits are in the way"
        )

    def predicted(schedule: Schedule) -> float | None:
        model = members[schedule.template].model
        seconds = float(model.times(model.space.point_of(schedule)[None, :])[0][0])
        return seconds if math.isfinite(seconds) else None

    best, *others = members.values()
    made = SharedStrategy(tuple(members.values())) if others else best.strategy
    # The default's where they are equal, as in a plan.
    chosen = min(members.values(), key=lambda member: float(member.model.times(member.ranked[:1])[0][0]))
    first = chosen.model.space.schedule_of(chosen.ranked[0])
    bound = _bound(target, here, [member.model for member in members.values()])
    measurer = measurer_of(target.hardware)
    return Source(made, first, here, predicted, _program, measurer, bound, corrected_by)


def _bound(target: Target, here: CpuSpec | GpuSpec, models: Sequence[Model]) -> TimeBound:
    """Return the bound of schedules of several models, timed under the target's conditions."""
    fewest: dict[bool, float] = {}
    for model in models:
        on = template_named(model.space.template).tensor_cores
        fewest[on] = min(fewest.get(on, math.inf), model.plain.least_flop)
    conditions = {name: target.conditions.get(name) for name in ("l2", "cold")}
    constants = constant_tensors(target.workload) if conditions["cold"] else ()
    return time_bound(target.workload, here, fewest, **conditions, constants=constants)


def _model(target: Target, template: str, here: CpuSpec | GpuSpec) -> tuple[Model, str | None]:
    """Return the model of a template, and the name of the correction in it."""
    from anatune.model.learned.corrections import corrected, find_correction
    from anatune.templates import make_model

    model: Model = make_model(target.workload, here, template, target.accuracy)
    saved = find_correction(here, template)
    return corrected(model, saved), None if saved is None else saved.card.name


def _program(schedule: Schedule) -> Hashable:
    """Return the key of a schedule's program; no two templates have one in common."""
    return schedule.template, template_named(schedule.template).program_key(schedule)


def source_of_manifest(target: Target, manifest: Manifest) -> Source:
    """Go through a manifest in its order; no model is needed."""
    from anatune.measure.cuda.measurer import ManifestMeasurer

    on = template_named(manifest.template).tensor_cores
    schedules, predictions = manifest.schedules(), manifest.predictions()
    measurer = functools.partial(ManifestMeasurer, built=manifest.built(), reference=manifest.reference)
    return Source(
        ManifestStrategy(schedules),
        schedules[0],
        manifest.hardware,
        lambda schedule: predictions.get(schedule.key),
        lambda schedule: schedule.key,
        measurer,
        time_bound(manifest.workload, target.hardware, {on: manifest.workload.flop}, l2=target.conditions.get("l2")),
    )
