"""``--html FILE``: what commands do with the pages that they write beside their answers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from anatune.cli.output import UsageError, note
from anatune.cli.outputs import PAGE
from anatune.files import Output

if TYPE_CHECKING:
    from anatune.pages.page import Page

__all__ = ["check_html", "write_page"]


def check_html(path: Path | None, *others: str | Path | None) -> Output | None:
    """Return where the page goes; an error where none could be written: better before a long search than after it.

    Parameters
    ----------
    others : str, Path or None
        Files that the command reads or writes besides, which need not be there yet.

    Raises
    ------
    MissingDependencyError
        A package of the extra ``report`` is not installed.
    UsageError
        The page would take the place of another file.
    OSError
        There is something else, or nothing can be written there.
    """
    if path is None:
        return None
    from anatune.pages.page import check_packages

    check_packages()
    for other in others:
        if other is not None and os.path.realpath(other) == os.path.realpath(path):
            raise UsageError(
                f"--html {path}: the page would replace {other}, which this command needs; name another file"
            )
    return Output(path, PAGE)


def write_page(page: Page, target: Output) -> None:
    """Write a page as a whole, and say where it lies and how large it is."""
    from anatune.report import units

    content = page.html().encode()
    target.write(content)
    note(f"page: {target.path}, {units.size(len(content))}")
