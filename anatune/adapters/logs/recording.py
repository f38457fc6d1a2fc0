"""Trials of another tuner's log into a record file: each once, however often its log is imported, and under one name.

A session a device and workload, all of a file in one transaction. A trial that the file has already (same schedule,
outcome and times) is not recorded again, so a log that grew can be imported again. Where the same lines of a log stand
there for another device or workload, one of the two names is wrong: nothing of the file is recorded then.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from anatune.adapters.logs.parts import Foreign
from anatune.core.hardware.spec import HardwareSpec
from anatune.core.trial import Trial
from anatune.core.workload.nest import Workload
from anatune.errors import RecordError
from anatune.records.environment import environment
from anatune.records.export import workload_text
from anatune.records.schema import Record, Session, now_utc
from anatune.records.store import RecordStore
from anatune.tuning.training import log_lines_of, shared_lines

_Task = tuple[HardwareSpec, Workload]
_Identity = tuple[str, str, tuple[float, ...]]


class Imported(NamedTuple):
    """What an import recorded of one workload on one device.

    Attributes
    ----------
    hardware, workload
    rows, failed : int
        New trials; those of them that have no time.
    known : int
        Trials that the file had already.
    """

    hardware: HardwareSpec
    workload: Workload
    rows: int
    failed: int
    known: int


def record_foreign(store: RecordStore, log: Foreign, path: Path) -> list[Imported]:
    """Record what `read_foreign` returned: all of it in one transaction, or nothing.

    Raises
    ------
    RecordError
        The same measurements stand there under another device or workload, or the file cannot be written.
    """
    tasks: dict[_Task, list[Trial]] = {}
    for entry in log.trials:
        tasks.setdefault((entry.trial.schedule.hardware, entry.workload), []).append(entry.trial)
    before = _recorded(store, log.kind)
    for task, trials in tasks.items():
        _check_other_names(store, before, task, trials)
    imported: list[Imported] = []
    rows: list[Session | Record] = []
    for (hardware, workload), trials in tasks.items():
        known = Counter(map(_identity, before.get((hardware, workload), ())))
        new: list[Trial] = []
        for trial in trials:
            identity = _identity(trial)
            if known[identity]:
                known[identity] -= 1
            else:
                new.append(trial)
        failed = sum(trial.measurement.time_s is None for trial in new)
        imported.append(Imported(hardware, workload, len(new), failed, len(trials) - len(new)))
        rows += _rows(hardware, workload, new, log.kind, path)
    store.insert(rows)
    return imported


def _recorded(store: RecordStore, kind: str) -> dict[_Task, list[Trial]]:
    """Return what earlier imports of this kind recorded; damaged rows, which `records list` names, count as missing."""
    tasks: dict[_Task, list[Trial]] = {}
    for session in store.sessions(strategy=kind, on_damage=_ignore):
        if "imported" in session.settings:
            trials = tasks.setdefault((session.hardware, session.workload), [])
            trials += [record.trial for record in store.iterate(session=session, on_damage=_ignore)]
    return tasks


def _ignore(text: str) -> None:
    pass


def _identity(trial: Trial) -> _Identity:
    return trial.schedule.key, trial.measurement.outcome.value, trial.measurement.times_s


def _check_other_names(
    store: RecordStore, before: dict[_Task, list[Trial]], task: _Task, trials: Sequence[Trial]
) -> None:
    """Raise RecordError if most lines of a task are those of another that was imported before."""
    own = log_lines_of(trials)
    for other, recorded in before.items():
        shared = shared_lines(own, log_lines_of(recorded)) if other != task else 0
        if shared:
            names = [f"{workload_text(workload)} on {hardware.name}" for hardware, workload in (task, other)]
            raise RecordError(
                f"{store.path}: {shared} measurements of {names[0]} are there as {names[1]}: one log, two names; "
                "nothing was recorded, import it into a new file under the right one"
            )


def _rows(
    hardware: HardwareSpec, workload: Workload, trials: Sequence[Trial], kind: str, path: Path
) -> Iterator[Session | Record]:
    if not trials:
        return
    now = now_utc()
    ran_under = environment()
    threads = trials[0].threads
    settings: dict[str, object] = {"imported": str(path)}
    session = Session(uuid.uuid4().hex, now, workload, hardware, threads, kind, 0, settings, ran_under)
    yield session
    for trial in trials:
        yield Record(0, now, session, ran_under, trial)
