"""Logs as files: the tuner that wrote a log, and its entries. Comments and blank lines are skipped.

Python and C++ write NaN and Infinity, which JSON does not have: they are read as null. Damage affects only the entry in
which it occurs, not the whole file.
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
"""The format of files that `anatune records export` wrote."""
NO_JSON = (msgspec.DecodeError, RecursionError)
"""The errors of reading a text that is not JSON, or nested too deeply."""
_COMMENT = "#"
_MOST_BYTES = 1 << 30
_NO_NUMBER = re.compile(r'"(?:[^"\\]|\\.)*"|[-+]?\b(?:nan|inf(?:inity)?)\b', re.IGNORECASE)
"""A quoted text, which stays unchanged, or a number that JSON does not have."""


def read_log(path: Path) -> str:
    """Return the text of a log in UTF-8 (with or without byte-order mark) or UTF-16 (with one).

    Raises
    ------
    RecordError
        The file is missing, cannot be read, or is not text.
    """
    try:
        content = read_file(path, _MOST_BYTES)
        if content.startswith(b"\x1f\x8b"):
            raise RecordError(f"{path} is compressed, expected a log as text; unpack it with gunzip")
        return content.decode(
            "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
        )
    except OSError as error:
        raise RecordError(f"{path}: {reason(error)}; name a log that can be read") from None
    except UnicodeDecodeError:
        raise RecordError(f"{path} is not UTF-8 text, expected a log of JSON lines or one JSON object") from None


def format_of(text: str, path: Path) -> str:
    """Return the tuner that wrote a log: one of `FORMATS`, or `OWN`.

    The first JSON line decides.

    Raises
    ------
    RecordError
        The format is unknown.
    """
    if isinstance(decode_document(text), dict):
        return "kernel_tuner"
    begins = ""
    for _, line in _lines(text):
        begins = begins or line
        try:
            kind = _tuner_of(decode(line))
        except NO_JSON:
            continue
        if kind:
            return kind
        break
    raise RecordError(
        f"{path} begins with {begins[:40]!r}, expected JSON lines of anatune, AutoTVM, Ansor or MetaSchedule, or a "
        "cache or results file of Kernel Tuner"
    )


def _tuner_of(entry: Json) -> str:
    """Return the tuner that wrote an entry, or an empty text."""
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
    """Yield the number (from 1) and the content of each entry; the content is None if a line is not JSON."""
    if kind == "kernel_tuner":
        document = decode_document(text) or {"results": []}
        yield from enumerate(document["cache"].values() if "cache" in document else document["results"], 1)
        return
    for number, line in _lines(text):
        try:
            yield number, decode(line)
        except NO_JSON:
            yield number, None


def decode(text: str) -> Json:
    """Decode JSON, with None for NaN and Infinity.

    Raises
    ------
    msgspec.DecodeError, RecursionError
        The text is not JSON.
    """
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return msgspec.json.decode(_replace_non_numbers(text))


def _replace_non_numbers(text: str) -> str:
    """Replace numbers that JSON does not have by null."""
    return _NO_NUMBER.sub(lambda hit: hit[0] if hit[0].startswith('"') else "null", text)


def _decode_object(text: str) -> dict[str, Json] | None:
    """Decode a JSON object; return None if the text is not one."""
    try:
        document = decode(text)
    except NO_JSON:
        return None
    return document if isinstance(document, dict) else None


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and not line.lstrip().startswith(_COMMENT):
            yield number, line


def decode_document(text: str) -> dict[str, Json] | None:
    """Return a cache or results file of Kernel Tuner as one object, or None if the text is neither.

    While Kernel Tuner writes a cache, the last brackets are missing. Damaged entries are None.
    """
    stripped = text.strip()
    if not stripped.startswith("{"):
        return None
    for text in (stripped, stripped.rstrip(",") + "}\n}"):
        whole = _decode_object(text)
        if whole is not None:
            entries = whole.get("cache", whole.get("results"))
            return whole if isinstance(entries, dict if "cache" in whole else list) else None
    return _read_damaged_cache(stripped) or _read_damaged_results(_replace_non_numbers(stripped))


def _read_damaged_cache(text: str) -> dict[str, Json] | None:
    """Read a cache with damaged lines; Kernel Tuner writes one line for each entry."""
    head, key, tail = text.partition('"cache": {')
    if not key:
        return None
    whole = _decode_object(head.rstrip() + '"cache": {}}')
    if whole is None:
        return None
    for number, line in enumerate(tail.split("\n")):
        entry = line.strip().rstrip(",")
        if entry and entry.strip("}"):
            whole["cache"] |= _decode_object("{" + entry + "}") or {f"line {number}": None}
    return whole


def _read_damaged_results(text: str) -> dict[str, Json] | None:
    """Read a results file that is damaged or cut off: its intact entries, with None for damage between them."""
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
    trailer = _decode_object("{" + text[end:].lstrip(" \t\r\n,]"))
    if trailer is None and text[end:].strip(" \t\r\n,]}"):
        results.append(None)
    return {**(_decode_object(head.rstrip().rstrip(",") + "}") or {}), **(trailer or {}), "results": results}
