"""The target of a session (workload, device, templates, conditions) and the source of its schedules.

The source is a model and a strategy, or a manifest of kernels that were built on another machine.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

from anatune.arguments import check_integer
from anatune.core.accuracy import STANDARD
from anatune.core.hardware.spec import HardwareSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.measure.cpu.cold import check_cold
from anatune.measure.cuda.runner import DEFAULT_L2, check_l2
from anatune.measure.devices import measurer_of
from anatune.measure.place import MakeMeasurer
from anatune.model.bound import TimeBound, time_bound
from anatune.model.learned.corrected import CorrectedModel
from anatune.model.learned.residual import ResidualModel
from anatune.records.schema import Session
from anatune.search.base import DEFAULT_STRATEGY, Strategy, make_strategy
from anatune.search.shared import SharedStrategy, SpaceMember
from anatune.templates import (
    Template,
    check_accuracy,
    get_template,
    joined_templates,
    make_model,
    template_of,
    templates_of,
    tuning_template,
)
from anatune.templates.base.model import Model
from anatune.templates.cpu.microkernels import constant_tensors
from anatune.tuning.machine import gpu_templates
from anatune.tuning.manifest import Manifest, ManifestStrategy, read_manifest
from anatune.tuning.places.place import DeviceChoice, Place
from anatune.tuning.settings import TuningSettings


class Target(NamedTuple):
    """The workload and device of a session, and the conditions of measuring.

    Attributes
    ----------
    workload, hardware
        The workload; the spec of the device that measures, as it was given.
    templates : tuple of Template
        The templates that share the trials, the default first.
    accuracy : str
        The admitted arithmetic.
    threads : int
        Number of threads of a kernel; 1 on GPUs.
    conditions : dict
        Other settings that change times, by the names of `tune`'s arguments; a session of other ones is not resumed.
    device : dict
        The GPU to use: "device", "backend"; empty on CPUs.
    manifest : Manifest or None
        Kernels that were built on another machine.
    """

    workload: Workload
    hardware: HardwareSpec
    templates: tuple[Template, ...]
    accuracy: str
    threads: int
    conditions: dict[str, str]
    device: DeviceChoice
    manifest: Manifest | None

    @property
    def candidates(self) -> dict[str, object]:
        """The candidates of a session as it records them; a session of other candidates is not resumed."""
        return {"templates": [template.name for template in self.templates], "accuracy": self.accuracy}

    def candidates_of(self, session: Session) -> dict[str, object]:
        """Return the candidates of a recorded session; older sessions had one template and standard accuracy."""
        default = str(session.settings.get("template", templates_of(self.hardware)[0].name))
        return {
            "templates": session.settings.get("templates", [default]),
            "accuracy": session.settings.get("accuracy", STANDARD),
        }


def target_of(workload: Workload, hw: HardwareSpec, settings: TuningSettings, place: Place) -> Target:
    """Return the target of a session, checked against the devices of its place.

    Raises
    ------
    DeviceError
        `hw` does not describe the device of the place.
    SpaceError, RecordError
        A setting does not fit the workload or the device; the manifest is damaged.
    """
    templates: tuple[Template, ...]
    accuracy = settings.accuracy or STANDARD
    manifest = None if settings.manifest is None else _check_manifest(read_manifest(settings.manifest), workload, hw)
    if hw.kind == "gpu":
        if settings.cold is not None:
            raise SpaceError(f"tune: cold is for CPUs, but {hw.name} is a GPU; use l2")
        if settings.template or manifest is not None:
            named = (settings.template,) if manifest is None else manifest.templates
            templates = tuple(template_of(name, hw) for name in named)
        elif settings.start == "paper":
            templates = (tuning_template(workload, hw),)
        else:
            templates = gpu_templates(workload, hw, accuracy)
        conditions = {"template": templates[0].name, "l2": check_l2(settings.l2 or DEFAULT_L2)}
        device: DeviceChoice = {
            "device": check_integer("tune: device", settings.device, 0, 1023),
            "backend": settings.backend,
        }
    elif given := _gpu_setting(settings):
        raise SpaceError(f"tune: {given} is for GPUs, but {hw.name} is a CPU; leave it out")
    else:
        cold = check_cold(settings.cold, hw)
        conditions, device = ({} if cold is None else {"cold": cold}), {}
        # A published strategy searches one space.
        alone = template_of(settings.template, hw) if settings.template or settings.start == "paper" else None
        templates = joined_templates(workload, hw, accuracy) if alone is None else (alone,)
    for template in templates:
        check_accuracy(workload, template, settings.accuracy)
    accuracy = accuracy if manifest is None else manifest.accuracy
    hardware = place.check(hw, device, built=manifest is not None)
    threads = place.threads(hardware, settings.threads)
    place.check_fits(workload, hardware, [template.name for template in templates])
    return Target(workload, hardware, templates, accuracy, threads, conditions, device, manifest)


def _gpu_setting(settings: TuningSettings) -> str:
    """Return the first given setting that is for GPUs only; "" if there is none."""
    unset = {"l2": (None,), "device": (0,), "backend": (None,), "manifest": (None,)}
    return next((name for name, values in unset.items() if getattr(settings, name) not in values), "")


def _check_manifest(manifest: Manifest, workload: Workload, hw: HardwareSpec) -> Manifest:
    """Return the manifest if it is for this workload and GPU architecture."""
    if manifest.workload != workload:
        raise SpaceError(
            f"the kernels of the manifest compute {manifest.workload.describe()}, expected {workload.describe()}; name "
            "the manifest of this workload"
        )
    if hw.arch != manifest.hardware.arch:
        raise SpaceError(
            f"the kernels of the manifest are for {manifest.hardware.name} ({manifest.hardware.arch}), expected "
            f"{hw.arch} for {hw.name}; build them with --hw {hw.name}"
        )
    return manifest


# ---- where schedules come from ---------------------------------------------------------------------------------

_RANKED = 16
"""Number of ranked points from which strategies start."""


class Source(NamedTuple):
    """The source of a session's schedules.

    Attributes
    ----------
    strategy : Strategy
        The search strategy.
    first : Schedule
        The plan's first choice.
    hardware : CpuSpec or GpuSpec
        The spec of the schedules.
    predicted : callable
        Schedule -> predicted time, s, or None.
    program_key : callable
        Schedule -> key of its program: schedules of equal keys are measured once.
    measurer : callable
        Makes the measurer.
    bound : TimeBound
        Lower bound on the time of every schedule.
    correction : str or None
        Name of the learned correction of predicted times.
    corrected : callable
        Schedule -> predicted time corrected by records, s; None if nothing was learned from records.
    """

    strategy: Strategy
    first: Schedule
    hardware: HardwareSpec
    predicted: Callable[[Schedule], float | None]
    program_key: Callable[[Schedule], Hashable]
    measurer: MakeMeasurer
    bound: TimeBound
    correction: str | None = None
    corrected: Callable[[Schedule], float | None] = lambda schedule: None


def source_of_model(
    target: Target, strategy: str, seed: int, start: str = "model", learned: Mapping[str, ResidualModel] | None = None
) -> Source:
    """Rank the space of each template and start a strategy in it; the strategies share the trials.

    Parameters
    ----------
    learned : mapping of str to ResidualModel
        Template -> correction that the strategy uses instead of a saved one. The plan's first choice and the predicted
        times of trials do not depend on it.

    Raises
    ------
    SpaceError
        No schedule is legal; the template does not apply.
    """
    here = target.hardware.with_threads(target.threads)
    members: dict[str, SpaceMember] = {}
    learners: dict[str, CorrectedModel] = {}
    corrected_by = None
    for template in target.templates:
        model, name = _model(target, template.name, here)
        corrected_by = corrected_by or name
        ranked = model.rank(_RANKED).points
        if len(ranked):
            # On CPUs the default strategy needs CpuModel and learns its errors from the first trial on; a saved
            # correction only determines where it starts.
            walked = model.plain if here.kind == "cpu" else model
            if (residual := (learned or {}).get(template.name)) is None:
                walker = make_strategy(strategy, walked, seed=seed, start=start, ranked=ranked)
            else:
                learners[template.name] = walked = CorrectedModel(model.plain, residual)
                # The default strategy of CPUs starts from the analytical ranking; others rank again.
                begin = ranked if here.kind == "cpu" and strategy == DEFAULT_STRATEGY else None
                walker = make_strategy(strategy, walked, seed=seed, start=start, ranked=begin)
            members[template.name] = SpaceMember(model, walker, ranked)
    if not members:
        raise SpaceError(
            f"{target.workload.describe()} on {here.name}: no schedule is legal; `anatune plan` lists the limits that "
            "exclude them"
        )

    def predict(schedule: Schedule) -> float | None:
        return _seconds(members[schedule.template].model, schedule)

    def predict_corrected(schedule: Schedule) -> float | None:
        return _seconds(learners[schedule.template], schedule) if schedule.template in learners else None

    best, *others = members.values()
    combined = SharedStrategy(tuple(members.values())) if others else best.strategy
    # The default template wins ties, as in a plan.
    chosen = min(members.values(), key=lambda member: float(member.model.times(member.ranked[:1])[0][0]))
    first = chosen.model.space.schedule_of(chosen.ranked[0])
    bound = _bound(target, here, [member.model for member in members.values()])
    measurer = measurer_of(target.hardware)
    return Source(combined, first, here, predict, _program, measurer, bound, corrected_by, predict_corrected)


def _seconds(model: Model, schedule: Schedule) -> float | None:
    """Return the predicted time of a schedule; None if it is not finite."""
    seconds = float(model.times(model.space.point_of(schedule)[None, :])[0][0])
    return seconds if math.isfinite(seconds) else None


def _bound(target: Target, here: HardwareSpec, models: Sequence[Model]) -> TimeBound:
    """Return the lower bound on the time of schedules of several models under the target's conditions."""
    fewest = {model.space.template: model.plain.least_flop for model in models}
    conditions = {name: target.conditions.get(name) for name in ("l2", "cold")}
    constants = constant_tensors(target.workload) if conditions["cold"] else ()
    return time_bound(target.workload, here, fewest, **conditions, constants=constants)


def _model(target: Target, template: str, here: HardwareSpec) -> tuple[Model, str | None]:
    """Return the model of a template, and the name of the correction in it."""
    from anatune.model.learned.corrections import apply_correction, find_correction

    model: Model = make_model(target.workload, here, template, target.accuracy)
    saved = find_correction(here, template)
    return apply_correction(model, saved), None if saved is None else saved.card.name


def _program(schedule: Schedule) -> Hashable:
    """Return the key of a schedule's program; keys of different templates differ."""
    return schedule.template, get_template(schedule.template).program_key(schedule)


def source_of_manifest(target: Target, manifest: Manifest) -> Source:
    """Return the kernels of a manifest in their order as a source, without a model."""
    from anatune.measure.cuda.measurer import ManifestMeasurer

    fewest = dict.fromkeys(manifest.templates, float(manifest.workload.flop))
    schedules, predictions = manifest.schedules(), manifest.predictions()
    measurer = functools.partial(ManifestMeasurer, built=manifest.read_results(), reference=manifest.reference)
    return Source(
        ManifestStrategy(schedules),
        schedules[0],
        manifest.hardware,
        lambda schedule: predictions.get(schedule.key),
        lambda schedule: schedule.key,
        measurer,
        time_bound(manifest.workload, target.hardware, fewest, l2=target.conditions.get("l2")),
    )
