"""The record file, and which of its trials, as every command of ``anatune records`` names them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from anatune.cli.options import DEFAULT_RECORDS, Keywords, Parsed, checked_place, records_option
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
        help="Only its trials: an operator and its extents or a named layer, as for `anatune plan`.",
    ),
]
OutcomeName = Annotated[
    Literal[
        "ok", "invalid", "build_error", "build_timeout", "run_error", "run_timeout", "wrong_result", "lost_device",
    ]
    | None,
    typer.Option("--outcome", metavar="OUTCOME", help="Only trials that ended so: ok, build_error, run_timeout ..."),
]  # fmt: skip
WorkerName = Annotated[
    str | None, typer.Option("--worker", metavar="NAME", help="Only what this worker of a cluster or board measured.")
]


class Place(WorkloadOptions, frozen=True, kw_only=True):
    """A record file or server, and the workload and the hardware of what is meant in it."""

    records: Annotated[
        Parsed, records_option(f"The record file or server.  [default: {DEFAULT_RECORDS}]", show_default=False)
    ] = None
    hw: Annotated[
        str | None, typer.Option("--hw", metavar="NAME", help="Only what was measured on hardware of this name.")
    ] = None

    def named(self, words: list[str] | None) -> tuple[RecordPlace, Workload | None]:
        """Return the record file or server, and the workload that the words name.

        The place may also be the first word, as in earlier versions.

        Raises
        ------
        UsageError
            There are two record files, or options of a workload without one.
        """
        rest = list(words or ())
        file = None
        # No operator or layer has a dot, a slash or a file of its name: the first word may be the record file.
        if rest and not rest[0].startswith("-") and ("." in rest[0] or os.sep in rest[0] or Path(rest[0]).is_file()):
            file = checked_place(rest.pop(0))
            if self.records is not None:
                raise UsageError(f"got two record files, {file} and --records {self.records}; leave one out")
        return file or self.records or DEFAULT_RECORDS, self.parse_any(rest)


class Selection(Place, frozen=True, kw_only=True):
    """Which sessions of a record file or server are meant."""

    threads: Annotated[
        int | None, typer.Option("--threads", metavar="T", min=1, help="Only kernels of so many threads.")
    ] = None
    session: Annotated[
        str | None, typer.Option("--session", metavar="ID", help="Only this session (its first digits).")
    ] = None

    def session_id(self, store: RecordStore) -> str | None:
        """Return the id of the session that is meant; None: any.

        Raises
        ------
        RecordError
            No session begins so, or several do.
        """
        start = self.session
        if start is None:
            return None
        ids = [session.id for session in store.sessions(on_damage=lambda text: None) if session.id.startswith(start)]
        if len(ids) == 1:
            return ids[0]
        problem = f"{len(ids)} sessions begin with {start!r}" if ids else f"no session begins with {start!r}"
        raise RecordError(f"{store.path}: {problem}, expected one; `anatune records list --sessions` shows them")


class Trials(Selection, frozen=True, kw_only=True):
    """Which trials of a record file or server are meant."""

    outcome: OutcomeName = None
    worker: WorkerName = None
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Only the last N trials.")] = None

    def keywords(self, store: RecordStore, workload: Workload | None) -> Keywords:
        """Return which trials `RecordStore.trials` and `RecordStore.iterate` shall yield."""
        return {
            "workload": workload, "hardware": self.hw, "session": self.session_id(store), "threads": self.threads,
            "outcome": self.outcome, "limit": self.limit, "worker": self.worker,
        }  # fmt: skip


def opened(path: RecordPlace) -> RecordStore:
    """Open a record file or server to read it."""
    from anatune.records.store import RecordStore

    return RecordStore(path, read_only=True)


class Damaged:
    """Rows that cannot be read: each is named on stderr; in the end there is an error."""

    def __init__(self) -> None:
        self.num_rows = 0

    def __call__(self, text: str) -> None:
        """Name a row."""
        self.num_rows += 1
        note(f"note: {text}")

    def check(self, where: str, done: str) -> None:
        """Raise RecordError if there were any; `where` leads the message, and `done` says what became of the others."""
        if self.num_rows:
            raise RecordError(f"{where} are damaged and were left out; all others are {done}")


def of_known_templates(records: Iterable[Record], tell: Callable[[str], None]) -> Iterator[Record]:
    """Yield the records whose template this version has; `tell` hears once of each other template."""
    from anatune.templates import TEMPLATES

    for record in records:
        template = record.trial.schedule.template
        if template in TEMPLATES:
            yield record
        else:
            tell(f"trials of the template {template} are left out, which this version lacks; `records list` shows them")
