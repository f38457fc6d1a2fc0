"""Kernel Tuner's files: its cache (JSON, one entry a configuration) and the results format T4.

Reading needs no Kernel Tuner, nor does writing a cache; T4 is written by Kernel Tuner itself, so that it is its T4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from anatune.adapters.logs import KernelTunerLog, read_kernel_tuner
from anatune.arguments import checked_path
from anatune.core.trial import Measurement, Outcome
from anatune.errors import RecordError
from anatune.files import reason
from anatune.named import import_optional
from anatune.records.traces import Json

__all__ = ["read_results", "results_of", "write_cache", "write_t4"]

Entry: TypeAlias = dict[str, Json]
"""JSON of one configuration: parameters, times, error."""
Result: TypeAlias = tuple[Mapping[str, object], Measurement]
"""A configuration and what came back."""

_ERRORS = {
    Outcome.INVALID: "InvalidConfig",
    Outcome.BUILD_ERROR: "CompilationFailedConfig",
    Outcome.BUILD_TIMEOUT: "CompilationFailedConfig",
}
"""Outcome -> Kernel Tuner's class of errors; all others: "RuntimeFailedConfig"."""
_UNKNOWN_MS = ("compile_time", "verification_time", "benchmark_time", "strategy_time", "framework_time")
_TIMESTAMP = "1970-01-01 00:00:00+00:00"
"""Of measurements that do not say when they were made."""


def read_results(path: str | Path) -> KernelTunerLog:
    """Return the configurations and measurements of a cache or a T4 file; see `read_kernel_tuner`.

    As trials of anatune's own template (CLBlast's Xgemm): `anatune.adapters.logs.read_foreign`.

    Raises
    ------
    RecordError
        The file is neither, or damaged.
    """
    return read_kernel_tuner(checked_path("path", path, RecordError))


def write_cache(
    path: str | Path,
    entries: Iterable[Result],
    *,
    kernel_name: str,
    problem_size: Sequence[int],
    device_name: str,
    tune_params: Mapping[str, Sequence[object]] | None = None,
) -> None:
    """Write a cache that ``tune_kernel(cache=...)`` continues and its simulation mode replays.

    Parameters
    ----------
    entries : iterable of (mapping, Measurement)
        All of the same parameters in the same order. Failed ones are written as Kernel Tuner's errors.
    kernel_name, problem_size, device_name
        As in the later call of ``tune_kernel``, which refuses a cache that differs. The device's name is the one Kernel
        Tuner prints.
    tune_params : mapping, optional
        Left out: the values that occur, sorted where they can be.

    Raises
    ------
    RecordError
        No entry, other parameters, a configuration twice, or the file cannot be written.
    """
    listed = list(entries)
    names = _names(listed)
    values = {name: _values(config[name] for config, _ in listed) for name in names}
    cache: dict[str, Entry] = {}
    for config, measurement in listed:
        key = ",".join(str(config[name]) for name in names)
        if key in cache:
            raise RecordError(f"{path}: configuration {key} is there twice; merge its measurements")
        cache[key] = _entry(config, measurement)
    whole = {
        "device_name": device_name, "kernel_name": kernel_name, "problem_size": list(problem_size),
        "tune_params_keys": names, "tune_params": dict(tune_params or values), "objective": "time",
    }  # fmt: skip
    # Kernel Tuner appends to a cache by cutting its last three characters, and adds a line for each entry
    lines = ",\n".join(f'"{key}": {msgspec.json.encode(entry).decode()}' for key, entry in cache.items())
    text = msgspec.json.encode(whole).decode()[:-1] + ',\n"cache": {\n' + lines + "}\n}"
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise RecordError(f"{path}: {reason(error)}, the cache was not written; name another file") from None


def write_t4(path: str | Path, entries: Iterable[Result]) -> None:
    """Write results in the form T4, through Kernel Tuner.

    Raises
    ------
    RecordError
        No entry, other parameters, or the file cannot be written.
    MissingDependencyError
        Kernel Tuner is not installed.
    """
    files = import_optional("kernel_tuner.file_utils", "kernel-tuner", "writing T4 files")
    listed = list(entries)
    names = _names(listed)
    try:
        files.store_output_file(str(path), results_of(listed), dict.fromkeys(names, ()), "time")
    except OSError as error:
        raise RecordError(f"{path}: {reason(error)}, the results were not written; name another file") from None


def results_of(entries: Iterable[Result]) -> list[Entry]:
    """Return measurements as ``tune_kernel`` returns its results.

    Raises
    ------
    MissingDependencyError
        Kernel Tuner is not installed.
    """
    util = import_optional("kernel_tuner.util", "kernel-tuner", "results in Kernel Tuner's form")
    found = []
    for config, measurement in entries:
        entry = _entry(config, measurement)
        if "__error__" in entry:
            del entry["time"]
            entry["__error__"] = getattr(util, entry["__error__"])()
        found.append(entry)
    return found


def _names(listed: Sequence[Result]) -> list[str]:
    if not listed:
        raise RecordError("no measurement to write, expected pairs of a configuration and its Measurement")
    names = list(listed[0][0])
    for config, _ in listed:
        if list(config) != names:
            raise RecordError(
                f"configuration has the parameters {', '.join(config)}, expected those of the first one, in its order: "
                f"{', '.join(names)}"
            )
    return names


def _values(values: Iterable[Json]) -> list[Json]:
    found = list(dict.fromkeys(values))
    try:
        return sorted(found)
    except TypeError:  # numbers and words
        return found


def _entry(config: Mapping[str, object], measurement: Measurement) -> Entry:
    """Return an entry of a cache; times in ms, as Kernel Tuner measures them."""
    entry: Entry = dict(config)
    if measurement.time_s is not None:
        entry |= {"time": measurement.time_s * 1e3, "times": [time * 1e3 for time in measurement.times_s]}
    else:
        error = _ERRORS.get(measurement.outcome, "RuntimeFailedConfig")
        entry |= {"time": error, "__error__": error}
    return entry | dict.fromkeys(_UNKNOWN_MS, 0.0) | {"timestamp": _TIMESTAMP}
