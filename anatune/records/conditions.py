"""Conditions on trials and sessions, as SQLAlchemy has them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, ColumnElement, true

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.trial import Outcome
from anatune.core.workload.nest import Workload
from anatune.errors import RecordError
from anatune.records.reader import OnDamage, RecordReader
from anatune.records.schema import Session
from anatune.records.tables import sessions, trials

__all__ = ["Condition", "of_sessions", "of_trials"]

Condition = ColumnElement[bool]


def of_trials(
    reader: RecordReader,
    workload: Workload | None,
    hardware: GpuSpec | CpuSpec | str | None,
    session: Session | str | None,
    threads: int | None,
    outcome: Outcome | str | None,
    worker: str | None,
    on_damage: OnDamage | None,
) -> Condition:
    """Return the condition on trials; None: any."""
    ended = None if outcome is None else _outcome(outcome).value
    session_id = session.id if isinstance(session, Session) else session
    devices = None if hardware is None else reader.hardware.keys_of(hardware, on_damage)
    return _all(
        (trials.c.workload, None if workload is None else reader.workloads.keys_of(workload, on_damage)),
        (trials.c.device, devices),
        (trials.c.session, session_id), (trials.c.threads, threads), (trials.c.outcome, ended),
        (trials.c.worker, worker),
    )  # fmt: skip


def of_sessions(
    reader: RecordReader,
    workload: Workload | None,
    hardware: GpuSpec | CpuSpec | str | None,
    threads: int | None,
    strategy: str | None,
    on_damage: OnDamage | None,
) -> Condition:
    """Return the condition on sessions; None: any."""
    return _all(
        (sessions.c.workload, None if workload is None else reader.workloads.keys_of(workload, on_damage)),
        (sessions.c.hardware, None if hardware is None else reader.hardware.keys_of(hardware, on_damage)),
        (sessions.c.threads, threads), (sessions.c.strategy, strategy),
    )  # fmt: skip


def _all(*terms: tuple[Column[Any], Any]) -> Condition:
    """Return that each column is a value, one of a list (of an empty list: nothing), or anything (None)."""
    found: Condition = true()
    for column, wanted in terms:
        if wanted is not None:
            found = found & (column.in_(wanted) if isinstance(wanted, list) else column == wanted)
    return found


def _outcome(outcome: Outcome | str) -> Outcome:
    try:
        return Outcome(outcome)
    except ValueError:
        known = ", ".join(one.value for one in Outcome)
        raise RecordError(f"outcome is {outcome!r}, expected one of {known}") from None
