"""Merging one record store into another: files and servers, in any direction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from anatune.errors import RecordError
from anatune.records.reader import OnDamage
from anatune.records.schema import Record
from anatune.records.store import RecordStore

_BATCH = 1000
"""Trials in one transaction, so that others can write in between, and an interrupted merge keeps its progress."""


class Merged(NamedTuple):
    """The result of a merge: number of new sessions and trials, and of trials that were there already."""

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
    """Copy the sessions and trials that `source` has and `into` lacks; a repeated merge copies only missing ones.

    Parameters
    ----------
    source, into : RecordStore
        The store to read, and the store to write.
    on_damage : callable, optional
        Called with a line for each damaged row of the source, which is left out.
    progress : callable, optional
        Called with (trials done, trials of the source).

    Raises
    ------
    RecordError
        Both are one store; a row is damaged and `on_damage` is None; a session is there with other contents; a store
        fails. Trials that were merged before stay.
    """
    if source.is_same_as(into):
        raise RecordError(f"{into.path}: cannot be merged into itself; name another record file or server")
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
