"""Reuse of records: the session to resume, the best recorded schedules, and corrections learned from all trials."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from anatune.core.accuracy import STANDARD
from anatune.core.hardware.spec import HardwareSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.errors import AnatuneError, MissingDependencyError, ModelVersionError, SpaceError
from anatune.measure.cuda.runner import DEFAULT_L2
from anatune.model.learned.corrections import Card, DataSource, SavedCorrection, save_correction
from anatune.model.learned.cross_fit import fit_shrunk_residual
from anatune.model.learned.residual import ResidualModel, ResidualOptions
from anatune.model.plan import MeasuredSchedule
from anatune.records.place import ServerAddress
from anatune.records.reader import OnDamage
from anatune.records.schema import Record, Session, now_utc
from anatune.records.store import RecordStore
from anatune.resources import user_cache_folder
from anatune.templates.base.model import Model
from anatune.tuning.target import Source, Target
from anatune.tuning.training import families_of

MOST_REUSED = 4
"""Largest number of recorded schedules that a session measures first."""
LEARNED_UNTIL = "learned_until"
"""Setting of a recorded session: the time, UTC, before which records were used for learning."""
MOST_TRIALS = 10_000
"""Largest number of recorded trials for learning; those of the newest sessions come first."""
FEWEST_TRIALS = 10
"""Fewest successful trials of a workload that is used for learning."""
OPTIONS = ResidualOptions(num_members=1, num_trees=150, learning_rate=0.1)
"""A third of a shipped correction's trees, so that fitting at the start of each session takes a second."""


def same_device(spec: HardwareSpec, other: HardwareSpec) -> bool:
    """Return whether two specs describe one device; numbers from detection and calibration may differ."""
    return (type(spec), spec.model, spec.arch) == (type(other), other.model, other.arch)


def recorded_leaders(
    store: RecordStore,
    workload: Workload,
    hardware: HardwareSpec,
    threads: int,
    count: int,
    *,
    template: str | None = None,
    accuracy: str = STANDARD,
    on_damage: OnDamage | None = None,
) -> list[Record]:
    """Return records of the best schedules of this kind of device, fastest first; the device is found by its name."""
    leaders = store.leaders(
        workload, hardware.name, threads, count, template=template, accuracy=accuracy, on_damage=on_damage
    )
    return [record for record in leaders if same_device(record.session.hardware, hardware)]


def session_to_resume(
    store: RecordStore, target: Target, strategy: str, start: str, on_damage: OnDamage | None = None
) -> Session | None:
    """Return the latest session of a target with this strategy and start; None if there is none.

    A resumed session keeps its spec, even if detection reads another clock now.
    """
    here = target.hardware
    same = [
        session
        for session in store.sessions(target.workload, here.name, target.threads, strategy, on_damage=on_damage)
        if same_device(session.hardware, here)
        and {name: session.settings.get(name) for name in (*target.conditions, "cold")}
        == {"cold": None, **target.conditions}
        and session.settings.get("start", "model") == start
        and target.candidates_of(session) == target.candidates
    ]
    return next((session for session in reversed(same) if session.hardware == here), same[-1] if same else None)


def suggested_schedules(
    store: RecordStore, target: Target, source: Source, count: int, on_damage: OnDamage | None = None
) -> list[Schedule]:
    """Return the best `count` recorded schedules of a target that are legal here and now, fastest first."""
    here = (store, target.workload, target.hardware, target.threads, count)
    leaders = [
        record
        for template in target.templates
        for record in recorded_leaders(*here, template=template.name, accuracy=target.accuracy, on_damage=on_damage)
    ]
    leaders.sort(key=lambda record: record.trial.measurement.time_s or math.inf)
    schedules = [msgspec.structs.replace(record.trial.schedule, hardware=source.hardware) for record in leaders]
    return [schedule for schedule in dict.fromkeys(schedules) if _is_legal(schedule, source)][:count]


def _is_legal(schedule: Schedule, source: Source) -> bool:
    try:
        return source.predicted(schedule) is not None
    except (SpaceError, KeyError):  # KeyError: no schedule of its template is legal
        return False


def read_best_record(
    workload: Workload, device: HardwareSpec, template: str | None, accuracy: str, records: str | Path | ServerAddress
) -> Callable[[Mapping[str, Model]], MeasuredSchedule | None]:
    """Read the best record of a workload; return a function that describes it, given the models of the plan."""
    with RecordStore(records, read_only=True) as store:
        threads = device.most_threads or 1
        leaders = recorded_leaders(store, workload, device, threads, 1, template=template, accuracy=accuracy)
        records_text = str(store.path)

    def find_measured(models: Mapping[str, Model]) -> MeasuredSchedule | None:
        return _measured_schedule(leaders[0], records_text, device, models) if leaders else None

    return find_measured


def _measured_schedule(
    record: Record, records_text: str, device: HardwareSpec, models: Mapping[str, Model]
) -> MeasuredSchedule:
    """Return the description of a record for a plan."""
    trial = record.trial
    schedule = msgspec.structs.replace(trial.schedule, hardware=device)
    predicted_s = None
    if schedule.template in models:
        model = models[schedule.template]
        with contextlib.suppress(SpaceError):  # the space may have changed since
            seconds = float(model.times(model.space.point_of(schedule)[None, :])[0][0])
            predicted_s = seconds if np.isfinite(seconds) else None
    time_s = trial.measurement.time_s
    assert time_s is not None
    return MeasuredSchedule(
        schedule, time_s, predicted_s, record.created_utc, record.session.id, trial.measurement.worker, records_text
    )


class RecordCorrections(NamedTuple):
    """Corrections of the model learned from the records of a device.

    Attributes
    ----------
    residuals : dict of str to ResidualModel
        Template -> correction; only templates where it helps on left-out workloads.
    num_trials, num_workloads : int
        Number of trials and workloads that they were fitted to.
    counts : dict of str to (int, int)
        The same numbers for each template.
    """

    residuals: Mapping[str, ResidualModel] = {}
    num_trials: int = 0
    num_workloads: int = 0
    counts: Mapping[str, tuple[int, int]] = {}


def learn_corrections(
    store: RecordStore,
    hardware: HardwareSpec,
    templates: Sequence[str],
    conditions: Mapping[str, str],
    until_utc: str,
    on_damage: OnDamage | None = None,
) -> RecordCorrections:
    """Learn corrections from the trials of a device before a time; none without LightGBM, or from too few trials.

    Records that were added later do not change the answer.

    Parameters
    ----------
    templates : sequence of str
        Templates of the schedules.
    conditions : mapping of str to str
        `Target.conditions`; trials under other conditions are not used.
    """
    records = list(itertools.islice(_records(store, hardware, conditions, until_utc, on_damage), MOST_TRIALS))
    residuals: dict[str, ResidualModel] = {}
    counts: dict[str, tuple[int, int]] = {}
    workloads: set[object] = set()
    for template in templates:
        template_records = [record for record in records if record.trial.schedule.template == template]
        try:
            families = [
                family for family in families_of(template_records, FEWEST_TRIALS) if family.kernels == "anatune"
            ]
            measured = [points for family in families for points in family.measured]
            model = fit_shrunk_residual(measured, OPTIONS)
        except MissingDependencyError:
            return RecordCorrections()
        except AnatuneError as error:  # records of other templates may be fine
            if on_damage is not None:
                on_damage(f"no correction is learned from the records of the template {template}: {error}")
            continue
        if model is not None:
            residuals[template] = model
            names = {points.workload for points in measured}
            counts[template] = sum(len(points.time_s) for points in measured), len(names)
            workloads |= names
    return RecordCorrections(residuals, sum(trials for trials, _ in counts.values()), len(workloads), counts)


def record_corrections(
    hardware: HardwareSpec, templates: Sequence[str], records: str | Path | ServerAddress
) -> dict[str, SavedCorrection]:
    """Return corrections for plans that are learned from the records of a device, by template.

    Only templates where the correction helps are included; none if LightGBM is not installed or the cache folder cannot
    be written.

    Raises
    ------
    RecordError
        The records do not exist or cannot be read.
    """
    folder = user_cache_folder()
    if folder is None or not templates:
        return {}
    conditions = {"l2": DEFAULT_L2} if hardware.kind == "gpu" else {}
    with RecordStore(records, read_only=True) as store:
        learned = learn_corrections(store, hardware, templates, conditions, now_utc())
        records_text = str(store.path)
    corrections: dict[str, SavedCorrection] = {}
    for template, model in learned.residuals.items():
        trials, workloads = learned.counts[template]
        name = f"{trials} trials of {workloads} workloads in {records_text}"
        data = DataSource(records_text, "the user's own", "anatune records", (hardware.name,), (), trials, 0)
        card = Card(
            name=name, kernels="anatune", template=template, devices=(hardware.name,), vendors=(), data=(data,),
            metrics={}, feature_names=(), low=(), high=(), offset=0.0, noise=0.0, files={}, versions={},
            options=model.options,
        )  # fmt: skip
        key = hashlib.sha256(f"{records_text} {hardware.name} {template}".encode()).hexdigest()[:16]
        target = folder / "corrections" / key  # pages read it
        with contextlib.suppress(ModelVersionError):  # if it cannot be written, the plan uses the model alone
            corrections[template] = SavedCorrection(save_correction(target, card, model), model, target)
    return corrections


def _records(
    store: RecordStore, here: HardwareSpec, conditions: Mapping[str, str], until_utc: str, on_damage: OnDamage | None
) -> Iterator[Record]:
    """Yield the trials of a device under the given conditions, the newest sessions first."""
    wanted = {name: conditions.get(name) for name in ("l2", "cold")}
    sessions = store.sessions(hardware=here.name, on_damage=on_damage)
    for session in sorted(sessions, key=lambda one: (one.created_utc, one.id), reverse=True):
        timed = {name: session.settings.get(name, wanted[name]) for name in wanted}
        if session.created_utc >= until_utc or timed != wanted or not same_device(session.hardware, here):
            continue
        for record in store.iterate(session=session, on_damage=on_damage):
            if record.created_utc < until_utc:
                yield record
