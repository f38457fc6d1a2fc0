"""What records already know of a workload on a device: the session to go on with, the schedules to begin with.

And what they teach about the model's errors on the device, other workloads included.
"""

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
from anatune.model.learned.cross_fit import shrunk_residual
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
"""Recorded schedules that a session begins with."""
LEARNED_UNTIL = "learned_until"
"""Setting of a recorded session: it learned from what was recorded before that time, UTC."""
MOST_TRIALS = 10_000
"""Recorded trials that are learned from, those of the newest sessions first."""
FEWEST_TRIALS = 10
"""Successful trials of a workload that is learned from."""
OPTIONS = ResidualOptions(num_members=1, num_trees=150, learning_rate=0.1)
"""A third of a shipped correction's trees: what is fitted at the start of each session takes a second."""


def same_device(one: HardwareSpec, other: HardwareSpec) -> bool:
    """Whether two specs are of one device: detection and calibration may have read other numbers."""
    return (type(one), one.model, one.arch) == (type(other), other.model, other.arch)


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
    """Return records of the best schedules that were measured on this very kind of device, fastest first.

    The device is found by its name, as sessions that are resumed.
    """
    leaders = store.leaders(
        workload, hardware.name, threads, count, template=template, accuracy=accuracy, on_damage=on_damage
    )
    return [record for record in leaders if same_device(record.session.hardware, hardware)]


def session_to_resume(
    store: RecordStore, target: Target, strategy: str, start: str, on_damage: OnDamage | None = None
) -> Session | None:
    """Return the latest session of a target that a strategy asked for from a start; None if there is none.

    Detection may read another clock than it did then; the session goes on under the spec it began with.
    """
    here = target.hardware
    same = [
        session
        for session in store.sessions(target.workload, here.name, target.threads, strategy, on_damage=on_damage)
        if same_device(session.hardware, here)
        and {name: session.settings.get(name) for name in (*target.conditions, "cold")}
        == {"cold": None, **target.conditions}
        and session.settings.get("start", "model") == start
        and target.asked_of(session) == target.asked
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
    made = [msgspec.structs.replace(record.trial.schedule, hardware=source.hardware) for record in leaders]
    return [schedule for schedule in dict.fromkeys(made) if _is_legal(schedule, source)][:count]


def _is_legal(schedule: Schedule, source: Source) -> bool:
    try:
        return source.predicted(schedule) is not None
    except (SpaceError, KeyError):  # KeyError: no schedule of its template is legal
        return False


def best_recorded(
    workload: Workload, device: HardwareSpec, template: str | None, accuracy: str, records: str | Path | ServerAddress
) -> Callable[[Mapping[str, Model]], MeasuredSchedule | None]:
    """Read the best record of what is planned; return what tells of it, given the models of the plan."""
    with RecordStore(records, read_only=True) as store:
        threads = device.most_threads or 1
        leaders = recorded_leaders(store, workload, device, threads, 1, template=template, accuracy=accuracy)
        place = str(store.path)

    def measured(models: Mapping[str, Model]) -> MeasuredSchedule | None:
        return _measured_schedule(leaders[0], place, device, models) if leaders else None

    return measured


def _measured_schedule(
    record: Record, place: str, device: HardwareSpec, models: Mapping[str, Model]
) -> MeasuredSchedule:
    """Return what a plan tells of a record."""
    trial = record.trial
    schedule = msgspec.structs.replace(trial.schedule, hardware=device)
    predicted_s = None
    if schedule.template in models:
        model = models[schedule.template]
        with contextlib.suppress(SpaceError):  # no point of the space, which may have changed since
            seconds = float(model.times(model.space.point_of(schedule)[None, :])[0][0])
            predicted_s = seconds if np.isfinite(seconds) else None
    time_s = trial.measurement.time_s
    assert time_s is not None
    return MeasuredSchedule(
        schedule, time_s, predicted_s, record.created_utc, record.session.id, trial.measurement.worker, place
    )


class Learned(NamedTuple):
    """What the records of a device say about the model's errors.

    Attributes
    ----------
    residuals : dict of str to ResidualModel
        Template -> what helps there on workloads left out; templates without it are not in it.
    num_trials, num_workloads : int
        What those were fitted to.
    counts : dict of str to (int, int)
        The same of each template.
    """

    residuals: Mapping[str, ResidualModel] = {}
    num_trials: int = 0
    num_workloads: int = 0
    counts: Mapping[str, tuple[int, int]] = {}


def learned_of(
    store: RecordStore,
    hardware: HardwareSpec,
    templates: Sequence[str],
    conditions: Mapping[str, str],
    until_utc: str,
    on_damage: OnDamage | None = None,
) -> Learned:
    """Learn from what was recorded of a device before a time; nothing without LightGBM, or from too little.

    The same records give the same answer, whatever was recorded since.

    Parameters
    ----------
    templates : sequence of str
        What schedules look like.
    conditions : mapping of str to str
        What times depend on, as `Target.conditions`: trials that were timed in another way teach nothing.
    """
    records = list(itertools.islice(_records(store, hardware, conditions, until_utc, on_damage), MOST_TRIALS))
    residuals: dict[str, ResidualModel] = {}
    counts: dict[str, tuple[int, int]] = {}
    workloads: set[object] = set()
    for template in templates:
        own = [record for record in records if record.trial.schedule.template == template]
        try:
            families = [family for family in families_of(own, FEWEST_TRIALS) if family.kernels == "anatune"]
            measured = [points for family in families for points in family.measured]
            model = shrunk_residual(measured, OPTIONS)
        except MissingDependencyError:
            return Learned()
        except AnatuneError as error:  # records of other templates may be fine
            if on_damage is not None:
                on_damage(f"nothing is learned from the records of template {template}: {error}")
            continue
        if model is not None:
            residuals[template] = model
            names = {points.workload for points in measured}
            counts[template] = sum(len(points.time_s) for points in measured), len(names)
            workloads |= names
    return Learned(residuals, sum(trials for trials, _ in counts.values()), len(workloads), counts)


def record_corrections(
    hardware: HardwareSpec, templates: Sequence[str], records: str | Path | ServerAddress
) -> dict[str, SavedCorrection]:
    """Return what records teach of a device as corrections of plans, by template.

    Templates where it does not help are not in it; none is where LightGBM is missing, or the cache folder cannot be
    written.

    Raises
    ------
    RecordError
        There are no such records, or they cannot be read.
    """
    folder = user_cache_folder()
    if folder is None or not templates:
        return {}
    conditions = {"l2": DEFAULT_L2} if hardware.kind == "gpu" else {}
    with RecordStore(records, read_only=True) as store:
        learned = learned_of(store, hardware, templates, conditions, now_utc())
        place = str(store.path)
    corrections: dict[str, SavedCorrection] = {}
    for template, model in learned.residuals.items():
        trials, workloads = learned.counts[template]
        name = f"{trials} trials of {workloads} workloads in {place}"
        data = DataSource(place, "the user's own", "anatune records", (hardware.name,), (), trials, 0)
        card = Card(
            name=name, kernels="anatune", template=template, devices=(hardware.name,), vendors=(), data=(data,),
            metrics={}, feature_names=(), low=(), high=(), offset=0.0, noise=0.0, files={}, versions={},
            options=model.options,
        )  # fmt: skip
        key = hashlib.sha256(f"{place} {hardware.name} {template}".encode()).hexdigest()[:16]
        target = folder / "corrections" / key  # pages read it from there
        with contextlib.suppress(ModelVersionError):  # it cannot be written: the plan is that of the model alone
            corrections[template] = SavedCorrection(save_correction(target, card, model), model, target)
    return corrections


def _records(
    store: RecordStore, here: HardwareSpec, conditions: Mapping[str, str], until_utc: str, on_damage: OnDamage | None
) -> Iterator[Record]:
    """Yield the trials of a device, the newest sessions first, without those timed in another way."""
    wanted = {name: conditions.get(name) for name in ("l2", "cold")}
    sessions = store.sessions(hardware=here.name, on_damage=on_damage)
    for session in sorted(sessions, key=lambda one: (one.created_utc, one.id), reverse=True):
        timed = {name: session.settings.get(name, wanted[name]) for name in wanted}
        if session.created_utc >= until_utc or timed != wanted or not same_device(session.hardware, here):
            continue
        for record in store.iterate(session=session, on_damage=on_damage):
            if record.created_utc < until_utc:
                yield record
