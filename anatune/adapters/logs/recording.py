"""Recording the trials of another tuner's log in a record file, each trial once.

There is a session for each device and workload, and one transaction for a log. A trial that the file has already (same
schedule, outcome and times) is not recorded again, so a log that grew can be imported again. If the same lines of a log
are recorded for another device or workload already, one of the two is wrong, and nothing is recorded.
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


class ImportedTrials(NamedTuple):
    """The trials of one workload on one device that an import recorded.

    Attributes
    ----------
    hardware, workload
        The device and the workload.
    rows, failed : int
        The number of new trials, and of failures among them.
    known : int
        The number of trials that the file had already.
    """

    hardware: HardwareSpec
    workload: Workload
    rows: int
    failed: int
    known: int


def record_foreign(store: RecordStore, log: Foreign, path: Path) -> list[ImportedTrials]:
    """Record the result of `read_foreign` in one transaction.

    Raises
    ------
    RecordError
        The same measurements are recorded for another device or workload, or the file cannot be written.
    """
    tasks: dict[_Task, list[Trial]] = {}
    for entry in log.trials:
        tasks.setdefault((entry.trial.schedule.hardware, entry.workload), []).append(entry.trial)
    earlier = _read_imported(store, log.kind)
    for task, trials in tasks.items():
        _check_names(store, earlier, task, trials)
    imported: list[ImportedTrials] = []
    rows: list[Session | Record] = []
    for (hardware, workload), trials in tasks.items():
        known_counts = Counter(map(_identity, earlier.get((hardware, workload), ())))
        new: list[Trial] = []
        for trial in trials:
            identity = _identity(trial)
            if known_counts[identity]:
                known_counts[identity] -= 1
            else:
                new.append(trial)
        failed = sum(trial.measurement.time_s is None for trial in new)
        imported.append(ImportedTrials(hardware, workload, len(new), failed, len(trials) - len(new)))
        rows += _rows(hardware, workload, new, log.kind, path)
    store.insert(rows)
    return imported


def _read_imported(store: RecordStore, kind: str) -> dict[_Task, list[Trial]]:
    """Return the trials of earlier imports of this kind, without damaged rows (which `records list` reports)."""
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


def _check_names(store: RecordStore, earlier: dict[_Task, list[Trial]], task: _Task, trials: Sequence[Trial]) -> None:
    """Raise RecordError if most lines of a task were imported before for another device or workload."""
    own_lines = log_lines_of(trials)
    for other, recorded in earlier.items():
        shared = shared_lines(own_lines, log_lines_of(recorded)) if other != task else 0
        if shared:
            names = [f"{workload_text(workload)} on {hardware.name}" for hardware, workload in (task, other)]
            raise RecordError(
                f"{store.path}: {shared} measurements of {names[0]} are recorded already for {names[1]}, so one of the "
                "two is wrong; nothing was recorded, import the log into a new file with the right device and workload"
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
