"""Independent pieces of an experiment, one after the other or by a few processes at once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from bench.results import progress_bar

__all__ = ["do_all"]

Piece = TypeVar("Piece")
Found = TypeVar("Found")

_job: tuple[Callable[[Any], Any], Sequence[Any]] | None = None
"""What forked processes inherit: neither models nor closures have to be sent."""


def _one(at: int) -> Any:
    assert _job is not None
    work, pieces = _job
    return work(pieces[at])


def do_all(
    work: Callable[[Piece], Found], pieces: Sequence[Piece], workers: int, name: Callable[[Piece], str]
) -> list[Found]:
    """Return what `work` makes of each piece, in their order, with a bar that names the last one done."""
    global _job
    found: list[Found] = []
    with progress_bar() as progress:
        task = progress.add_task("", total=len(pieces))

        def note(one: Found) -> None:
            progress.update(task, advance=1, description=name(pieces[len(found)])[:70])
            found.append(one)

        if workers == 1:
            for piece in pieces:
                note(work(piece))
            return found
        _job = work, pieces
        try:
            with multiprocessing.get_context("fork").Pool(workers) as pool:
                for one in pool.imap(_one, range(len(pieces))):
                    note(one)
        finally:
            _job = None
    return found
