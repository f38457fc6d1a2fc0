"""Everything one store has into another: files and servers, in any direction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from anatune.errors import RecordError
from anatune.records.reader import OnDamage
from anatune.records.schema import Record
from anatune.records.store import RecordStore

_BATCH = 1000
"""Trials of one transaction: others write in between, and a merge that is cut off keeps what it did."""


class Merged(NamedTuple):
    """What a merge found: sessions and trials that were new, and trials that were there already."""

    sessions: int
    trials: int
    known: int


def merge(
    source: RecordStore,
    into: RecordStore,
    *,
    on_damage: OnDamage | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Merged:
    """Record what `source` has and `into` lacks, as it is; once more does nothing, and goes on where one was cut off.

    Parameters
    ----------
    source, into : RecordStore
        From where, to where.
    on_damage : callable, optional
        Called with a line for each row of the source that is damaged, which is then left out.
    progress : callable, optional
        Called with (trials done, trials of the source).

    Raises
    ------
    RecordError
        Both are one store; a row is damaged and nobody wants to hear of it; a session is there with other contents; a
        store fails. What was merged before stays.
    """
    if source.is_same_as(into):
        raise RecordError(f"{into.path}: is merged into itself; name another store")
    total = source.num_trials()
    num_sessions, _ = into.insert(source.sessions(on_damage=on_damage))
    num_read = num_new = 0
    records = source.iterate(on_damage=on_damage)
    for batch in _batches(records):
        more_sessions, more_trials = into.insert(batch)
        num_sessions, num_new, num_read = num_sessions + more_sessions, num_new + more_trials, num_read + len(batch)
        if progress is not None:
            progress(num_read, total)
    return Merged(num_sessions, num_new, num_read - num_new)


def _batches(records: Iterator[Record]) -> Iterator[list[Record]]:
    while batch := list(islice(records, _BATCH)):
        yield batch
