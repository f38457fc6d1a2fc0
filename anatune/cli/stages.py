"""Stages of a calibration, told while they go on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from anatune.cli.output import note

__all__ = ["stage_progress"]


@contextmanager
def stage_progress() -> Iterator[Callable[[str, float], None]]:
    """Give a callback that shows stages on stderr: a bar for each on a terminal, else a line."""
    if not sys.stderr.isatty():
        told: set[str] = set()

        def tell(stage: str, _share: float) -> None:
            if stage not in told:
                told.add(stage)
                note(f"calibrate: {stage}")

        yield tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description:<16}"), BarColumn(), TimeElapsedColumn(), console=Console(stderr=True)
    ) as bars:
        tasks: dict[str, TaskID] = {}

        def show(stage: str, share: float) -> None:
            if stage not in tasks:
                for task in tasks.values():
                    bars.update(task, completed=1.0)
                tasks[stage] = bars.add_task(stage, total=1.0)
            bars.update(tasks[stage], completed=share)

        yield show
