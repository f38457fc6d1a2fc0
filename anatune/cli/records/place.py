"""The record file, and which of its trials, as every command of ``anatune records`` names them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from anatune.cli.options import DEFAULT_RECORDS, RECORDS, checked_place
from anatune.cli.output import UsageError
from anatune.cli.workload import refuse_workload_options
from anatune.errors import RecordError

if TYPE_CHECKING:
    from anatune.core.workload.nest import Workload
    from anatune.records.place import RecordPlace
    from anatune.records.store import RecordStore

__all__ = [
    "AnyRecordFile",
    "Limit",
    "OfHardware",
    "OfThreads",
    "OutcomeName",
    "SessionStart",
    "Words",
    "WorkerName",
    "opened",
    "place",
    "session_id",
]

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="WORKLOAD...",
        help="Only its trials: an operator and its extents or a named layer, as for `anatune plan`.",
    ),
]
AnyRecordFile = Annotated[
    Any,
    typer.Option(
        "--records",
        metavar=RECORDS,
        parser=checked_place,
        help=f"The record file or server.  [default: {DEFAULT_RECORDS}]",
        show_default=False,
    ),
]
OfHardware = Annotated[
    str | None, typer.Option("--hw", metavar="NAME", help="Only what was measured on hardware of this name.")
]
OfThreads = Annotated[
    int | None, typer.Option("--threads", metavar="T", min=1, help="Only kernels of so many threads.")
]
SessionStart = Annotated[
    str | None, typer.Option("--session", metavar="ID", help="Only this session (its first digits).")
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
Limit = Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Only the last N trials.")]


def place(words: list[str], chosen: dict[str, Any], records: RecordPlace | None) -> tuple[RecordPlace, Workload | None]:
    """Return the record file or server and the workload that the words name.

    The place may also be the first word, as in earlier versions.

    Raises
    ------
    UsageError
        There are two record files, or options of a workload without one.
    """
    from anatune.core.workload.text import parse_workload

    rest = list(words)
    file = None
    # No operator or layer has a dot, a slash or a file of its name: the first word may be the record file.
    if rest and not rest[0].startswith("-") and ("." in rest[0] or os.sep in rest[0] or Path(rest[0]).is_file()):
        file = checked_place(rest.pop(0))
        if records is not None:
            raise UsageError(f"got two record files, {file} and --records {records}; leave one out")
    if not rest:
        refuse_workload_options(chosen, "is of a workload, and none is given; leave it out")
    return file or records or DEFAULT_RECORDS, parse_workload(rest, **chosen) if rest else None


def opened(path: RecordPlace) -> RecordStore:
    """Open a record file or server to read it."""
    from anatune.records.store import RecordStore

    return RecordStore(path, read_only=True)


def session_id(store: RecordStore, start: str | None) -> str | None:
    """Return the id of the session whose id starts so."""
    if start is None:
        return None
    found = [one.id for one in store.sessions(on_damage=lambda text: None) if one.id.startswith(start)]
    if len(found) == 1:
        return found[0]
    problem = f"{len(found)} sessions begin with {start!r}" if found else f"no session begins with {start!r}"
    raise RecordError(f"{store.path}: {problem}, expected one; `anatune records list --sessions` shows them")
