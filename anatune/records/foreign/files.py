"""Logs as files: which tuner wrote one, and its entries. Comments and blank lines are passed over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from anatune.errors import RecordError
from anatune.files import read_file, read_lines, reason
from anatune.records.traces import Json

__all__ = ["FORMATS", "NO_JSON", "OWN", "entries_of", "format_of", "is_export", "read_log", "whole_of"]

FORMATS = ("autotvm", "ansor", "metaschedule", "kernel_tuner")
OWN = "anatune"
"""Format of what `anatune records export` wrote."""
NO_JSON = (msgspec.DecodeError, RecursionError)
"""What reading a text raises that is no JSON, or nested too deeply to be a log."""
_COMMENT = "#"
_MOST_BYTES = 1 << 30


def read_log(path: Path) -> str:
    """Return the text of a log.

    Raises
    ------
    RecordError
        It is no file, cannot be read, or is no text.
    """
    try:
        return read_file(path, _MOST_BYTES).decode()
    except OSError as error:
        raise RecordError(f"{path}: {reason(error)}; give a log to import") from None
    except UnicodeDecodeError:
        raise RecordError(f"{path}: not UTF-8 text, expected a log of JSON lines or one JSON object") from None


def is_export(path: Path) -> bool:
    """Return whether a file is what `anatune records export` wrote, of any size: its first line of JSON says so.

    So is an empty one.

    Raises
    ------
    RecordError
        As `read_log`.
    """
    is_empty = True
    try:
        for line in read_lines(path):
            is_empty = is_empty and not line.strip()
            try:
                return _kind(msgspec.json.decode(line)) == OWN
            except NO_JSON:
                continue
    except OSError as error:
        raise RecordError(f"{path}: {reason(error)}; give a log to import") from None
    except UnicodeDecodeError:
        return False
    return is_empty


def format_of(text: str, path: Path) -> str:
    """Return which tuner wrote a log: one of `FORMATS`, or `OWN`.

    The first line that is JSON decides.

    Raises
    ------
    RecordError
        None of those that are known.
    """
    if isinstance(whole_of(text), dict):
        return "kernel_tuner"
    begins = ""
    for _, line in _lines(text):
        begins = begins or line
        try:
            kind = _kind(msgspec.json.decode(line))
        except NO_JSON:
            continue
        if kind:
            return kind
        break
    raise RecordError(
        f"{path}: begins with {begins[:40]!r}, expected JSON lines of anatune, AutoTVM, Ansor or MetaSchedule, or a "
        "cache or results file of Kernel Tuner"
    )


def _kind(entry: Json) -> str:
    """Return whose line an entry is, "" if nobody's."""
    if isinstance(entry, dict):
        if {"kind", "format"} <= set(entry):
            return OWN
        if {"input", "config", "result"} <= set(entry):
            return "autotvm"
        if {"i", "r"} <= set(entry) and isinstance(entry["i"], list) and entry["i"]:
            return "ansor" if isinstance(entry["i"][0], list) else "autotvm"
    if isinstance(entry, list) and len(entry) == 2 and isinstance(entry[1], list):
        return "metaschedule"
    return ""


def entries_of(text: str, kind: str) -> Iterator[tuple[int, Json]]:
    """Yield (number, entry) of a log, from 1; None for a line that is no JSON."""
    if kind == "kernel_tuner":
        whole = whole_of(text) or {"results": []}
        yield from enumerate(whole["cache"].values() if "cache" in whole else whole["results"], 1)
        return
    for number, line in _lines(text):
        try:
            yield number, msgspec.json.decode(line)
        except NO_JSON:
            yield number, None


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and not line.lstrip().startswith(_COMMENT):
            yield number, line


def whole_of(text: str) -> dict[str, Json] | None:
    """Return a cache or results file of Kernel Tuner as one object, None if it is none.

    A cache is open while Kernel Tuner writes it: its last brackets are missing. A line of it that is damaged leaves an
    entry None.
    """
    stripped = text.strip()
    if not stripped.startswith("{"):
        return None
    for end in ("", "}\n}"):
        try:
            whole = msgspec.json.decode(stripped.rstrip(",") + end if end else stripped)
        except NO_JSON:
            continue
        entries = whole.get("cache", whole.get("results"))
        return whole if isinstance(entries, dict if "cache" in whole else list) else None
    return _by_lines(stripped)


def _by_lines(text: str) -> dict[str, Json] | None:
    """Return a cache of which some lines are damaged; Kernel Tuner writes an entry a line."""
    head, found, tail = text.partition('"cache": {')
    if not found:
        return None
    try:
        whole: dict[str, Json] = msgspec.json.decode(head.rstrip() + '"cache": {}}')
    except NO_JSON:
        return None
    for number, line in enumerate(tail.split("\n")):
        entry = line.strip().rstrip(",")
        if entry and entry.strip("}"):
            try:
                whole["cache"] |= msgspec.json.decode("{" + entry + "}")
            except NO_JSON:
                whole["cache"][f"line {number}"] = None
    return whole
