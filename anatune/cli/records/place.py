"""Options of ``anatune records`` that name a record file or server and select trials in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from anatune.cli.options import DEFAULT_RECORDS, Keywords, Parsed, parse_record_place, records_option
from anatune.cli.output import UsageError, note
from anatune.cli.workload import WorkloadOptions
from anatune.errors import RecordError

if TYPE_CHECKING:
    from anatune.core.workload.nest import Workload
    from anatune.records.place import RecordPlace
    from anatune.records.schema import Record
    from anatune.records.store import RecordStore

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="WORKLOAD...",
        help="Only trials of this workload: an operator and its extents or a named layer, as for `anatune plan`.",
    ),
]
OutcomeName = Annotated[
    Literal[
        "ok", "invalid", "build_error", "build_timeout", "run_error", "run_timeout", "wrong_result", "lost_device",
    ]
    | None,
    typer.Option("--outcome", metavar="OUTCOME", help="Only trials of this outcome: ok, build_error, run_timeout ..."),
]  # fmt: skip
WorkerName = Annotated[
    str | None, typer.Option("--worker", metavar="NAME", help="Only trials that this worker or board measured.")
]


class RecordOptions(WorkloadOptions, frozen=True, kw_only=True):
    """Options that name a record file or server and select trials by workload and device."""

    records: Annotated[
        Parsed, records_option(f"The record file or server.  [default: {DEFAULT_RECORDS}]", show_default=False)
    ] = None
    hw: Annotated[
        str | None, typer.Option("--hw", metavar="NAME", help="Only trials measured on the device of this name.")
    ] = None

    def parse_place_and_workload(self, words: list[str] | None) -> tuple[RecordPlace, Workload | None]:
        """Return the record file or server, and the workload that the words name.

        The record file may also be the first word, as in earlier versions.

        Raises
        ------
        UsageError
            There are two record files, or options of a workload without a workload.
        """
        remaining = list(words or ())
        file = None
        # Names of operators and layers have no dot and no slash, so the first word may be the record file.
        first = remaining[0] if remaining else "-"
        if not first.startswith("-") and ("." in first or os.sep in first or Path(first).is_file()):
            file = parse_record_place(remaining.pop(0))
            if self.records is not None:
                raise UsageError(f"got two record files, {file} and --records {self.records}; leave one of them out")
        return file or self.records or DEFAULT_RECORDS, self.parse_any(remaining)


class SessionOptions(RecordOptions, frozen=True, kw_only=True):
    """Options that select sessions of a record file or server."""

    threads: Annotated[
        int | None, typer.Option("--threads", metavar="T", min=1, help="Only trials with this number of threads.")
    ] = None
    session: Annotated[
        str | None, typer.Option("--session", metavar="ID", help="Only this session (first digits of its id).")
    ] = None

    def session_id(self, store: RecordStore) -> str | None:
        """Return the full id of the selected session; None selects all sessions.

        Raises
        ------
        RecordError
            The ids of no session or of several sessions begin with the given digits.
        """
        start = self.session
        if start is None:
            return None
        ids = [session.id for session in store.sessions(on_damage=lambda text: None) if session.id.startswith(start)]
        if len(ids) == 1:
            return ids[0]
        problem = f"{len(ids)} session ids begin with {start!r}" if ids else f"no session id begins with {start!r}"
        raise RecordError(f"{store.path}: {problem}, expected one; `anatune records list --sessions` lists them")


class TrialOptions(SessionOptions, frozen=True, kw_only=True):
    """Options that select trials of a record file or server."""

    outcome: OutcomeName = None
    worker: WorkerName = None
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Only the last N trials.")] = None

    def keywords(self, store: RecordStore, workload: Workload | None) -> Keywords:
        """Return the keyword arguments of `RecordStore.trials` and `RecordStore.iterate`."""
        return {
            "workload": workload, "hardware": self.hw, "session": self.session_id(store), "threads": self.threads,
            "outcome": self.outcome, "limit": self.limit, "worker": self.worker,
        }  # fmt: skip


def open_records(path: RecordPlace) -> RecordStore:
    """Open a record file or server for reading."""
    from anatune.records.store import RecordStore

    return RecordStore(path, read_only=True)


class DamagedRows:
    """A counter of damaged rows, which notes each on stderr and raises an error at the end."""

    def __init__(self) -> None:
        self.num_rows = 0

    def __call__(self, text: str) -> None:
        """Count a damaged row and note it on stderr."""
        self.num_rows += 1
        note(f"note: {text}")

    def check(self, where: str, done: str) -> None:
        """Raise RecordError if there were any; the message begins with `where`, and the other rows are `done`."""
        if self.num_rows:
            raise RecordError(f"{where} are damaged and were left out; all other rows were {done}")


def drop_unknown_templates(records: Iterable[Record], tell: Callable[[str], None]) -> Iterator[Record]:
    """Yield the records whose template this version knows; call `tell` once for each other template."""
    from anatune.templates import TEMPLATES

    for record in records:
        template = record.trial.schedule.template
        if template in TEMPLATES:
            yield record
        else:
            tell(f"trials of the template {template} are left out: this version of anatune does not have it")
