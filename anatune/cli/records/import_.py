"""``anatune records import``: exports of anatune's and logs of other tuners into a record file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anatune.cli.options import DEFAULT_RECORDS, AsJson, RecordFile, spread
from anatune.cli.output import UsageError, print_json, print_text
from anatune.cli.progress import Progress
from anatune.cli.workload import WorkloadOptions
from anatune.named import load

_Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="WORKLOAD...",
        help="What another tuner's log is of, as for `anatune plan`; checked where the log says so.",
    ),
]


@spread
def import_records(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="JSON lines of `anatune records export`, or a log of AutoTVM, Ansor, MetaSchedule or Kernel Tuner.",
        ),
    ],
    options: WorkloadOptions,
    words: _Words = None,
    records: RecordFile = DEFAULT_RECORDS,
    hw: Annotated[
        str | None,
        typer.Option(
            "--hw",
            metavar="NAME|FILE",
            help="The device another tuner's log was measured on, where it does not say so; checked where it does.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add exported JSON lines to a record file, all of them or none; or what fits of another tuner's log.

    Of another tuner's log, what a line says of device and workload is believed: one log may hold several. A line that
    contradicts --hw or WORKLOAD, or that anatune's templates cannot express, is left out and counted by reason. What
    was imported before is not recorded again.
    """
    from anatune.records.export import import_json_lines, is_export
    from anatune.records.store import RecordStore

    if not words:
        options.parse_any(words)
    if not is_export(file):
        load("logs", "import", "a log of another tuner")(file, options.parse_any(words), records, hw, as_json)
        return
    if words or hw is not None:
        raise UsageError(f"{file} is an export of anatune's, which names device and workload; leave both out")
    with RecordStore(records) as store, Progress() as progress:
        num_sessions, num_trials = import_json_lines(store, file, progress.share("importing"))
    if as_json:
        print_json({"sessions": num_sessions, "trials": num_trials})
    else:
        print_text(f"{store.path}: {num_sessions} sessions and {num_trials} trials are new")
