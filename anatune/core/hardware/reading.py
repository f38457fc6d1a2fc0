"""Reading of spec files: the TOML tree becomes a spec, or a list of everything that is wrong with it."""

from __future__ import annotations

import difflib
import functools
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from anatune.core.hardware.dot import dot_features, tile_features
from anatune.core.hardware.groups import value_problem
from anatune.core.hardware.spec import CpuSpec, GpuSpec, HardwareSpec
from anatune.decoding import convert
from anatune.files import read_file, reason

_KINDS: dict[str, type[GpuSpec] | type[CpuSpec]] = {"gpu": GpuSpec, "cpu": CpuSpec}
_UNIT_ENDING = re.compile(r"_(g|m|k)?(hz|bytes|b|kb|mb|gb|kib|mib|gbs|gb_per_s|tflops|gflops|flops|s|us|ns|ms)$")


class SpecFinding(NamedTuple):
    """A result of `check_spec_file`; ``str()`` gives the line to print."""

    level: Literal["error", "warning", "note"]
    """An error makes the file unusable, a warning marks a doubtful number, a note gives information."""
    key: str
    """Dotted key ("dram.bandwidth_bytes_per_s"), or "" for the whole file."""
    text: str

    def __str__(self) -> str:
        return f"{self.level}: {self.key}: {self.text}" if self.key else f"{self.level}: {self.text}"


def read_spec(path: Path) -> tuple[HardwareSpec | None, list[SpecFinding]]:
    """Return the spec in a file, or None together with all errors if it cannot be used."""
    try:
        raw = read_file(path)
    except OSError as error:
        return None, [SpecFinding("error", "", f"cannot read the spec file: {reason(error)}; check the path")]
    try:
        tree = msgspec.toml.decode(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        text = f"not UTF-8 text (byte {error.start}); expected a TOML file saved as UTF-8"
        return None, [SpecFinding("error", "", text)]
    except (msgspec.DecodeError, RecursionError) as error:
        return None, [SpecFinding("error", "", f"not valid TOML: {error}; correct the line")]
    tag = tree.pop("kind", "nothing")
    kind = _KINDS.get(tag) if isinstance(tag, str) else None
    if kind is None:
        text = f"got {tag!r}, expected 'gpu' or 'cpu'; start from a file of hwspecs/"
        return None, [SpecFinding("error", "kind", text)]
    findings = list(_walk(kind, tree, ""))
    if findings:
        return None, findings
    try:
        spec: HardwareSpec = convert(tree | {"kind": tag}, kind)
    except msgspec.ValidationError as error:
        return None, [SpecFinding("error", "", f"{error}; correct the file")]
    if spec.kind == "gpu":
        return spec, []
    used = (*dot_features(spec), *tile_features(spec))
    if clash := [name for name in used if name in (spec.hidden_features or ())]:
        text = f"names {clash[0]!r}, but an instruction of the spec needs it; leave one of them out"
        return None, [SpecFinding("error", "hidden_features", text)]
    return spec, []


@functools.lru_cache(maxsize=32)
def _fields(struct: type[msgspec.Struct]) -> dict[str, tuple[object, bool]]:
    """Return key -> (type, whether it is required) for the fields of a struct."""
    hints = typing.get_type_hints(struct)
    return {field.name: (hints[field.name], field.required) for field in msgspec.structs.fields(struct)}


def _walk(struct: type[msgspec.Struct], table: dict[str, object], prefix: str) -> Iterator[SpecFinding]:
    """Yield a finding for each unknown, missing, wrongly typed or implausible key, with its full name."""
    fields = _fields(struct)
    unknown = [key for key in table if key not in fields]
    missing = [key for key, (_, required) in fields.items() if required and key not in table]
    for key in unknown:
        yield SpecFinding("error", prefix + key, _unknown_key_text(key, list(fields)))
    for key in missing:
        if not any(_stem(key) == _stem(other) for other in unknown):
            yield SpecFinding("error", prefix + key, f"is missing; expected {_type_text(fields[key][0])}")
    for key, value in table.items():
        if key not in fields:
            continue
        kind = _table_type(fields[key][0])
        if kind is not None and isinstance(value, dict):
            yield from _walk(kind, value, f"{prefix}{key}.")
            continue
        try:
            convert(value, fields[key][0])
        except msgspec.ValidationError:
            yield SpecFinding("error", prefix + key, f"got {value!r}, expected {_type_text(fields[key][0])}")
            continue
        if problem := value_problem(struct.__name__, key, value):
            yield SpecFinding("error", prefix + key, problem)


def _stem(key: str) -> str:
    return _UNIT_ENDING.sub("", key)


def _unknown_key_text(key: str, keys: list[str]) -> str:
    same = [other for other in keys if _stem(other) == _stem(key)]
    if same:
        return f"unknown key; write {same[0]} (numbers are in plain SI units, named at the end of the key)"
    close = difflib.get_close_matches(key, keys, n=3)
    return f"unknown key; expected {'perhaps ' + ' or '.join(close) if close else 'one of ' + ', '.join(keys)}"


def _table_type(hint: object) -> type[msgspec.Struct] | None:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        if isinstance(option, type) and issubclass(option, msgspec.Struct):
            return option
    return None


def _type_text(hint: object) -> str:
    if typing.get_origin(hint) is Literal:
        return " or ".join(repr(value) for value in typing.get_args(hint))
    table = _table_type(hint)
    if table is not None:
        return f"a table with {', '.join(_fields(table))}"
    if isinstance(hint, types.UnionType):
        hint = next(option for option in typing.get_args(hint) if option is not type(None))
    words: dict[object, str] = {int: "a whole number", float: "a number", str: "text in quotes", bool: "true or false"}
    if typing.get_origin(hint) is tuple and typing.get_origin(typing.get_args(hint)[0]) is tuple:
        return "a list of lists of numbers"
    return words.get(hint, "a list of texts")
