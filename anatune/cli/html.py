"""``--html FILE``: what commands do with the pages that they write beside their answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from anatune.cli.output import note, write_text

if TYPE_CHECKING:
    from anatune.pages.page import Page

__all__ = ["check_html", "write_page"]


def check_html(path: Path | None) -> None:
    """Raise an error where no page could be written: better before a long search than after it.

    Raises
    ------
    MissingDependencyError
        A package of the extra ``report`` is not installed.
    OSError
        The folder is missing.
    """
    if path is None:
        return
    from anatune.pages.page import check_packages

    check_packages()
    if not path.parent.is_dir():
        raise FileNotFoundError(2, "the folder is missing", str(path))


def write_page(page: Page, path: Path) -> None:
    """Write a page as a whole, and say where it lies and how large it is."""
    from anatune.report import units

    text = page.html()
    write_text(path, text)
    note(f"page: {path}, {units.size(len(text.encode()))}")
