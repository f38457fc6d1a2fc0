"""``anatune records import``: add exports of anatune and logs of other tuners to a record file."""

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
        help="The workload of another tuner's log, as for `anatune plan`; if the log names one, both must agree.",
    ),
]


@spread
def import_records(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="The JSON lines of `anatune records export`, or a log of AutoTVM, Ansor, MetaSchedule or Kernel "
            "Tuner.",
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
            help="The device that another tuner's log was measured on; if the log names one, both must agree.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add the trials of an export, or of another tuner's log, to a record file.

    An export is imported as a whole or not at all. In another tuner's log, each line may name its own device and
    workload. Lines that contradict --hw or WORKLOAD, or that no template of anatune can express, are left out and
    counted by reason. Trials that were imported before are not recorded again.
    """
    from anatune.records.export import import_json_lines, is_export
    from anatune.records.store import RecordStore

    if not words:
        options.parse_any(words)
    if not is_export(file):
        load("logs", "import", "a log of another tuner")(file, options.parse_any(words), records, hw, as_json)
        return
    if words or hw is not None:
        raise UsageError(
            f"{file} is an export of anatune, which names its device and workload; leave --hw and the workload out"
        )
    with RecordStore(records) as store, Progress() as progress:
        num_sessions, num_trials = import_json_lines(store, file, progress.share("importing"))
    if as_json:
        print_json({"sessions": num_sessions, "trials": num_trials})
    else:
        print_text(f"{store.path}: added {num_sessions} sessions and {num_trials} trials")
