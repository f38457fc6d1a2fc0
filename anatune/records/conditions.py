"""Conditions on trials and sessions, as SQL with parameters."""

from __future__ import annotations

from typing import NamedTuple

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.trial import Outcome
from anatune.core.workload.nest import Workload
from anatune.errors import RecordError
from anatune.records.reader import OnDamage, RecordReader
from anatune.records.schema import Session

__all__ = ["Condition", "of_sessions", "of_trials"]


class Condition(NamedTuple):
    """A condition in SQL with its parameters."""

    text: str
    parameters: tuple[object, ...]


def of_trials(
    reader: RecordReader,
    workload: Workload | None,
    hardware: GpuSpec | CpuSpec | str | None,
    session: Session | str | None,
    threads: int | None,
    outcome: Outcome | str | None,
    on_damage: OnDamage | None,
) -> Condition:
    """Return the condition on trials ``t`` and their sessions ``s``; None: any."""
    ended = None if outcome is None else _outcome(outcome).value
    session_id = session.id if isinstance(session, Session) else session
    return _all(
        *_common("t", reader, workload, hardware, on_damage),
        ("t.session", session_id), ("t.threads", threads), ("t.outcome", ended),
    )  # fmt: skip


def of_sessions(
    reader: RecordReader,
    workload: Workload | None,
    hardware: GpuSpec | CpuSpec | str | None,
    threads: int | None,
    strategy: str | None,
    on_damage: OnDamage | None,
) -> Condition:
    """Return the condition on sessions ``s``; None: any."""
    return _all(*_common("s", reader, workload, hardware, on_damage), ("s.threads", threads), ("s.strategy", strategy))


_Term = tuple[str, object]
"""A column and what it must be: a value, one of a list, or anything (None)."""


def _common(
    table: str,
    reader: RecordReader,
    workload: Workload | None,
    hardware: GpuSpec | CpuSpec | str | None,
    on_damage: OnDamage | None,
) -> tuple[_Term, _Term]:
    computed = None if workload is None else reader.workloads.keys_of(workload, on_damage)
    if hardware is None or isinstance(hardware, str):
        return (f"{table}.workload", computed), ("s.hardware_name", hardware)
    return (f"{table}.workload", computed), ("s.hardware", reader.hardware.keys_of(hardware, on_damage))


def _all(*terms: _Term) -> Condition:
    texts = ["1"]
    parameters: list[object] = []
    for column, wanted in terms:
        if wanted is None:
            continue
        values = wanted if isinstance(wanted, list) else [wanted]
        texts.append(f"{column} IN ({', '.join('?' * len(values))})")  # of an empty list: nothing
        parameters += values
    return Condition(" AND ".join(texts), tuple(parameters))


def _outcome(outcome: Outcome | str) -> Outcome:
    try:
        return Outcome(outcome)
    except ValueError:
        known = ", ".join(one.value for one in Outcome)
        raise RecordError(f"outcome is {outcome!r}, expected one of {known}") from None
