"""``anatune records merge``: what several stores have into one."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer

from anatune.cli.options import AsJson, checked_place
from anatune.cli.output import UsageError, print_json, print_text
from anatune.cli.progress import Progress
from anatune.cli.records.place import Damaged

__all__ = ["merge_records"]


def merge_records(
    stores: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE... INTO", help="Record files or postgresql:// URLs; the last one gets what the others have."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Copy sessions and trials of record files and servers into another one, in any direction.

    What is there already is not recorded again: merging twice does nothing, and one that was interrupted goes on. Rows
    of a source that are damaged are named on stderr and left out.
    """
    from anatune.records.merge import merge
    from anatune.records.store import RecordStore

    *sources, into = [checked_place(store) for store in stores]
    if not sources:
        raise UsageError("expected two stores at least: anatune records merge SOURCE... INTO")
    damaged = Damaged()
    with ExitStack() as opened, Progress() as progress:
        # All sources first: one that is missing is said before anything is written.
        read = [opened.enter_context(RecordStore(source, read_only=True)) for source in sources]
        written = opened.enter_context(RecordStore(into))
        told = [merge(store, written, on_damage=damaged, progress=progress.count("merging")) for store in read]
    if as_json:
        print_json([{"source": str(source), **new._asdict()} for source, new in zip(sources, told, strict=True)])
    else:
        for source, new in zip(sources, told, strict=True):
            there = f", {new.known} trials were there" if new.known else ""
            print_text(f"{into}: {new.sessions} sessions and {new.trials} trials of {source} are new{there}")
    damaged.check(f"{damaged.num_rows} rows of the sources", "merged")
