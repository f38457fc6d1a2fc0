"""What records already know of a workload on a device: the session to go on with, the schedules to begin with."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import numpy as np

from anatune.core.accuracy import STANDARD
from anatune.core.hardware.spec import HardwareSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.model.plan import MeasuredSchedule
from anatune.records.place import ServerAddress
from anatune.records.reader import OnDamage
from anatune.records.schema import Record, Session
from anatune.records.store import RecordStore
from anatune.templates.base.model import Model
from anatune.tuning.target import Source, Target

__all__ = [
    "MOST_REUSED",
    "best_recorded",
    "recorded_leaders",
    "same_device",
    "session_to_resume",
    "suggested_schedules",
]

MOST_REUSED = 4
"""Recorded schedules that a session begins with."""


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
    workload: Workload,
    device: HardwareSpec,
    template: str | None,
    accuracy: str,
    records: str | Path | ServerAddress,
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
