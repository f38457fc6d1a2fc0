"""What commands write to files that options name, and how each is known again: nothing else is replaced."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Protocol

from anatune.cli.output import UsageError, note
from anatune.errors import RecordError
from anatune.files import Output, OutputKind, json_with, open_file, read_file
from anatune.named import load

_GENERATOR = b'<meta name="generator" content="anatune"'
"""In the head of every page."""
_HEAD_BYTES = 4096
_ARRAYS_COMMENT = b"outputs of `anatune run`"
"""The comment of the archive."""


def _is_page(path: Path) -> bool:
    with open_file(path, None) as stream:
        return _GENERATOR in stream.read(_HEAD_BYTES)


def _is_table(path: Path) -> bool:
    from anatune.records.export import CSV_COLUMNS

    with open_file(path, None) as stream:  # later versions add columns at the end
        return stream.readline(_HEAD_BYTES).startswith(",".join(CSV_COLUMNS[:5]).encode())


def _is_lines(path: Path) -> bool:
    from anatune.records.export import is_export

    try:
        return is_export(path)
    except RecordError:
        return False


def _is_arrays(path: Path) -> bool:
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            return archive.comment == _ARRAYS_COMMENT
    except zipfile.BadZipFile:
        return False


PAGE = OutputKind("a page that anatune wrote", _is_page)
SCHEDULE = OutputKind("a schedule that `anatune tune` wrote", json_with("workload", "hardware", "tiles", "options"))
MANIFEST = OutputKind("the manifest of an export", json_with("format", "functions", "workload", "written"))
ARRAYS = OutputKind("outputs that `anatune run` wrote", _is_arrays)
RECORD_LINES = OutputKind("what `anatune records export` wrote", _is_lines)
RECORD_TABLE = OutputKind(RECORD_LINES.what, _is_table)
EARLIER = OutputKind("a file of the same export", lambda path: True)
OTHER = OutputKind(EARLIER.what, lambda path: False)
"""What an export of the same name wrote, by its manifest, and what it did not."""


def marked(archive: bytes) -> bytes:
    """Return the bytes of a .npz file with the mark that it is of `anatune run`."""
    import io
    import zipfile

    stream = io.BytesIO(archive)
    with zipfile.ZipFile(stream, "a") as opened:
        opened.comment = _ARRAYS_COMMENT
    return stream.getvalue()


def move_export(made: Path, folder: Path, name: str, manifest: dict[str, object]) -> Path:
    """Move the files of an export into a folder and write its manifest there; only an export of that name is replaced.

    Parameters
    ----------
    made : Path
        The folder that holds them.
    name : str
        Of the export.
    manifest : dict
        Gets ``written``: all files that exports of this name have written there, of other forms, too.

    Returns
    -------
    Path
        The manifest's file.

    Raises
    ------
    OSError
        Something else lies in the way; nothing was replaced.
    """
    import msgspec

    path, files = folder / f"{name}.json", sorted(os.listdir(made))
    earlier = _written(path)
    manifest["written"] = sorted({*earlier, *files})
    # The manifest goes first: whatever ends the process, a second export may replace all.
    contents = {path: msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"}
    targets = [Output(path, MANIFEST)]
    for file in files:
        contents[folder / file] = (made / file).read_bytes()
        targets.append(Output(folder / file, EARLIER if file in earlier else OTHER))
    for target in targets:
        target.write(contents[target.path])
    return path


def _written(manifest: Path) -> set[str]:
    """Return the names of the files that exports have written beside a manifest; none where there is none."""
    if not MANIFEST.knows(manifest):
        return set()
    written = json.loads(read_file(manifest))["written"]
    return {name for name in written if isinstance(name, str)} if isinstance(written, list) else set()


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
    load("pages", "check", "--html")()
    for other in others:
        if other is not None and os.path.realpath(other) == os.path.realpath(path):
            raise UsageError(
                f"--html {path}: the page would replace {other}, which this command needs; name another file"
            )
    return Output(path, PAGE)


class _Page(Protocol):
    """What `anatune.pages` makes."""

    def html(self) -> str: ...


def write_page(page: _Page, target: Output) -> None:
    """Write a page as a whole, and say where it lies and how large it is."""
    from anatune.report import units

    content = page.html().encode()
    target.write(content)
    note(f"page: {target.path}, {units.size(len(content))}")
