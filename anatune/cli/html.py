"""``--html FILE``: what commands do with the pages that they write beside their answers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from anatune.cli.output import UsageError, note, write_text

if TYPE_CHECKING:
    from anatune.pages.page import Page

__all__ = ["check_html", "write_page"]


def check_html(path: Path | None, *others: str | Path | None) -> None:
    """Raise an error where no page could be written: better before a long search than after it.

    Parameters
    ----------
    others : str, Path or None
        Files that the command reads or writes besides.

    Raises
    ------
    MissingDependencyError
        A package of the extra ``report`` is not installed.
    UsageError
        The page would take the place of another file.
    OSError
        The folder is missing or cannot be written to, or the page would be a folder.
    """
    if path is None:
        return
    from anatune.pages.page import check_packages

    check_packages()
    for other in others:
        if other is not None and os.path.realpath(other) == os.path.realpath(path):
            raise UsageError(
                f"--html {path}: the page would replace {other}, which this command needs; name another file"
            )
    if path.is_dir():
        raise IsADirectoryError(21, "is a directory, expected the name of a file", str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(2, "the folder is missing", str(path))
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(13, "the folder cannot be written to", str(path.parent))


def write_page(page: Page, path: Path) -> None:
    """Write a page as a whole, and say where it lies and how large it is."""
    from anatune.report import units

    text = page.html()
    write_text(path, text)
    note(f"page: {path}, {units.size(len(text.encode()))}")
