"""Logs as files: which tuner wrote one, and its entries. Comments and blank lines are passed over.

Python and C++ write NaN and Infinity, which JSON does not have: they are read as null. What is damaged costs the entry
that it stands in, not the file.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from anatune.errors import RecordError
from anatune.files import read_file, reason
from anatune.records.export import is_export_line
from anatune.records.traces import Json

FORMATS = ("autotvm", "ansor", "metaschedule", "kernel_tuner")
OWN = "anatune"
"""Format of what `anatune records export` wrote."""
NO_JSON = (msgspec.DecodeError, RecursionError)
"""What reading a text raises that is no JSON, or nested too deeply to be a log."""
_COMMENT = "#"
_MOST_BYTES = 1 << 30
_NO_NUMBER = re.compile(r'"(?:[^"\\]|\\.)*"|[-+]?\b(?:nan|inf(?:inity)?)\b', re.IGNORECASE)
"""A text, which stays, or what JSON has no number for."""


def read_log(path: Path) -> str:
    """Return the text of a log: UTF-8, with a byte-order mark or without, or UTF-16 with one.

    Raises
    ------
    RecordError
        It is no file, cannot be read, or is no text.
    """
    try:
        content = read_file(path, _MOST_BYTES)
        if content.startswith(b"\x1f\x8b"):
            raise RecordError(f"{path}: is compressed, expected a log as text; unpack it (gunzip)")
        return content.decode(
            "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
        )
    except OSError as error:
        raise RecordError(f"{path}: {reason(error)}; give a log to import") from None
    except UnicodeDecodeError:
        raise RecordError(f"{path}: not UTF-8 text, expected a log of JSON lines or one JSON object") from None


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
            kind = _kind(decode(line))
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
    if is_export_line(entry):
        return OWN
    if isinstance(entry, dict):
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
            yield number, decode(line)
        except NO_JSON:
            yield number, None


def decode(text: str) -> Json:
    """Return what JSON says, null for NaN and Infinity.

    Raises
    ------
    msgspec.DecodeError, RecursionError
        It is no JSON.
    """
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return msgspec.json.decode(_with_nulls(text))


def _with_nulls(text: str) -> str:
    """Return a text with null for what JSON has no number for."""
    return _NO_NUMBER.sub(lambda hit: hit[0] if hit[0].startswith('"') else "null", text)


def _object(text: str) -> dict[str, Json] | None:
    """Return the object that a text is, None if it is none."""
    try:
        whole = decode(text)
    except NO_JSON:
        return None
    return whole if isinstance(whole, dict) else None


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and not line.lstrip().startswith(_COMMENT):
            yield number, line


def whole_of(text: str) -> dict[str, Json] | None:
    """Return a cache or results file of Kernel Tuner as one object, None if it is none.

    A cache is open while Kernel Tuner writes it: its last brackets are missing. What is damaged leaves an entry None.
    """
    stripped = text.strip()
    if not stripped.startswith("{"):
        return None
    for text in (stripped, stripped.rstrip(",") + "}\n}"):
        whole = _object(text)
        if whole is not None:
            entries = whole.get("cache", whole.get("results"))
            return whole if isinstance(entries, dict if "cache" in whole else list) else None
    return _by_lines(stripped) or _by_results(_with_nulls(stripped))


def _by_lines(text: str) -> dict[str, Json] | None:
    """Return a cache of which some lines are damaged; Kernel Tuner writes an entry a line."""
    head, found, tail = text.partition('"cache": {')
    if not found:
        return None
    whole = _object(head.rstrip() + '"cache": {}}')
    if whole is None:
        return None
    for number, line in enumerate(tail.split("\n")):
        entry = line.strip().rstrip(",")
        if entry and entry.strip("}"):
            whole["cache"] |= _object("{" + entry + "}") or {f"line {number}": None}
    return whole


def _by_results(text: str) -> dict[str, Json] | None:
    """Return a results file that is damaged or cut: its whole entries, None for what stands between them."""
    head, key, _ = text.partition('"results"')
    results: list[Json] = []
    decoder, end = json.JSONDecoder(), len(head + key)
    start = text.find("{", end) if key else -1
    while start >= 0:
        try:
            entry, stop = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            entry, stop = None, start + 1
        if isinstance(entry, dict) and "configuration" in entry:
            results += [None, entry] if text[end:start].strip(" \t\r\n,:[") else [entry]
            end = stop
        else:
            stop = start + 1
        start = text.find("{", stop)
    if not results:
        return None
    behind = _object("{" + text[end:].lstrip(" \t\r\n,]"))
    if behind is None and text[end:].strip(" \t\r\n,]}"):
        results.append(None)
    return {**(_object(head.rstrip().rstrip(",") + "}") or {}), **(behind or {}), "results": results}
