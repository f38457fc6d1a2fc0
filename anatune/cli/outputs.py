"""Kinds of output files, and how each is recognized: a command replaces only files of the kind that it writes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Protocol

from anatune.cli.output import UsageError, note
from anatune.errors import RecordError
from anatune.files import Output, OutputKind, make_key_check, open_file, read_file
from anatune.named import load

_GENERATOR = b'<meta name="generator" content="anatune"'
"""A tag in the head of every HTML page that anatune writes."""
_HEAD_BYTES = 4096
_ARRAYS_COMMENT = b"outputs of `anatune run`"
"""The comment in the .npz archives that `anatune run` writes."""


def _is_page(path: Path) -> bool:
    with open_file(path, None) as stream:
        return _GENERATOR in stream.read(_HEAD_BYTES)


def _is_table(path: Path) -> bool:
    from anatune.records.export import CSV_COLUMNS

    with open_file(path, None) as stream:  # later versions may add columns at the end
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
SCHEDULE = OutputKind(
    "a schedule that `anatune tune` wrote", make_key_check("workload", "hardware", "tiles", "options")
)
MANIFEST = OutputKind("the manifest of an export", make_key_check("format", "functions", "workload", "written"))
ARRAYS = OutputKind("outputs that `anatune run` wrote", _is_arrays)
RECORD_LINES = OutputKind("a file that `anatune records export` wrote", _is_lines)
RECORD_TABLE = OutputKind(RECORD_LINES.what, _is_table)
EARLIER = OutputKind("a file of the same export", lambda path: True)
OTHER = OutputKind(EARLIER.what, lambda path: False)
"""Files that the manifest of an earlier export of the same name lists, and all other files."""


def mark_archive(archive: bytes) -> bytes:
    """Return the bytes of a .npz file with the comment that marks it as output of `anatune run`."""
    import io
    import zipfile

    stream = io.BytesIO(archive)
    with zipfile.ZipFile(stream, "a") as opened:
        opened.comment = _ARRAYS_COMMENT
    return stream.getvalue()


def move_export(source_folder: Path, folder: Path, name: str, manifest: dict[str, object]) -> Path:
    """Move the files of an export into a folder and write its manifest; replace only an export of the same name.

    Parameters
    ----------
    source_folder : Path
        The folder that holds the files.
    name : str
        The name of the export.
    manifest : dict
        The manifest. It gets the entry ``written``: all files that exports of this name have written, in any format.

    Returns
    -------
    Path
        The manifest's file.

    Raises
    ------
    OSError
        A file that is not part of such an export is in the way; nothing was replaced.
    """
    import msgspec

    path, files = folder / f"{name}.json", sorted(os.listdir(source_folder))
    earlier = _read_exported_names(path)
    manifest["written"] = sorted({*earlier, *files})
    # The manifest is written first, so that a second export may replace all files if this one is interrupted.
    contents = {path: msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"}
    targets = [Output(path, MANIFEST)]
    for file in files:
        contents[folder / file] = (source_folder / file).read_bytes()
        targets.append(Output(folder / file, EARLIER if file in earlier else OTHER))
    for target in targets:
        target.write(contents[target.path])
    return path


def _read_exported_names(manifest: Path) -> set[str]:
    """Return the names of the files that exports have written beside a manifest; empty if there is no manifest."""
    if not MANIFEST.knows(manifest):
        return set()
    written = json.loads(read_file(manifest))["written"]
    return {name for name in written if isinstance(name, str)} if isinstance(written, list) else set()


def check_html(path: Path | None, *others: str | Path | None) -> Output | None:
    """Return the output file of ``--html`` after checking, before a long search, that the page can be written.

    Parameters
    ----------
    others : str, Path or None
        Other files that the command reads or writes; they need not exist yet.

    Raises
    ------
    MissingDependencyError
        A package of the extra ``report`` is not installed.
    UsageError
        The page would replace another file of the command.
    OSError
        There is a file that is no page of anatune, or nothing can be written there.
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
    """The interface of pages that `anatune.pages` returns."""

    def html(self) -> str: ...


def write_page(page: _Page, target: Output) -> None:
    """Write a page to its file, and note the file and its size on stderr."""
    from anatune.report import units

    content = page.html().encode()
    target.write(content)
    note(f"page: {target.path}, {units.size(len(content))}")
