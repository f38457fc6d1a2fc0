"""Kernel Tuner's files: its cache (JSON with one entry for each configuration) and its results format T4.

Reading files and writing a cache do not need Kernel Tuner. T4 files are written by Kernel Tuner itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from anatune.adapters.logs import KernelTunerLog, read_kernel_tuner
from anatune.arguments import check_path
from anatune.core.trial import Measurement, Outcome
from anatune.errors import RecordError
from anatune.files import reason
from anatune.named import import_optional
from anatune.records.traces import Json

__all__ = ["read_results", "results_of", "write_cache", "write_t4"]

Entry: TypeAlias = dict[str, Json]
"""The JSON of one configuration: parameters, times, error."""
Result: TypeAlias = tuple[Mapping[str, object], Measurement]
"""A configuration and its measurement."""

_ERRORS = {
    Outcome.INVALID: "InvalidConfig",
    Outcome.BUILD_ERROR: "CompilationFailedConfig",
    Outcome.BUILD_TIMEOUT: "CompilationFailedConfig",
}
"""Outcome -> Kernel Tuner's error class; all other failures are "RuntimeFailedConfig"."""
_UNKNOWN_MS = ("compile_time", "verification_time", "benchmark_time", "strategy_time", "framework_time")
_TIMESTAMP = "1970-01-01 00:00:00+00:00"
"""The timestamp of measurements that have none."""


def read_results(path: str | Path) -> KernelTunerLog:
    """Return the configurations and measurements of a cache or a T4 file, see `read_kernel_tuner`.

    `anatune.adapters.logs.read_foreign` reads the same files as trials of anatune's template (CLBlast's Xgemm only).

    Raises
    ------
    RecordError
        The file is neither a cache nor a T4 file, or it is damaged.
    """
    return read_kernel_tuner(check_path("path", path, RecordError))


def write_cache(
    path: str | Path,
    entries: Iterable[Result],
    *,
    kernel_name: str,
    problem_size: Sequence[int],
    device_name: str,
    tune_params: Mapping[str, Sequence[object]] | None = None,
) -> None:
    """Write a cache for ``tune_kernel(cache=...)`` and for Kernel Tuner's simulation mode.

    Parameters
    ----------
    entries : iterable of (mapping, Measurement)
        Configurations with the same parameters in the same order, and their measurements. Failures are written as
        Kernel Tuner's errors.
    kernel_name, problem_size, device_name
        The values of the later call of ``tune_kernel``, which refuses a cache with other values. The device's name is
        the one that Kernel Tuner prints.
    tune_params : mapping, optional
        The values of each parameter. The default is the values that occur, sorted if they can be compared.

    Raises
    ------
    RecordError
        There is no entry, entries have different parameters, a configuration occurs twice, or the file cannot be
        written.
    """
    listed = list(entries)
    names = _names(listed)
    values = {name: _values(config[name] for config, _ in listed) for name in names}
    cache: dict[str, Entry] = {}
    for config, measurement in listed:
        key = ",".join(str(config[name]) for name in names)
        if key in cache:
            raise RecordError(f"{path}: configuration {key} occurs twice; merge its measurements into one entry")
        cache[key] = _entry(config, measurement)
    header = {
        "device_name": device_name, "kernel_name": kernel_name, "problem_size": list(problem_size),
        "tune_params_keys": names, "tune_params": dict(tune_params or values), "objective": "time",
    }  # fmt: skip
    # Kernel Tuner appends to a cache by cutting its last three characters, and adds a line for each entry
    lines = ",\n".join(f'"{key}": {msgspec.json.encode(entry).decode()}' for key, entry in cache.items())
    text = msgspec.json.encode(header).decode()[:-1] + ',\n"cache": {\n' + lines + "}\n}"
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise RecordError(f"{path}: the cache was not written ({reason(error)}); name another file") from None


def write_t4(path: str | Path, entries: Iterable[Result]) -> None:
    """Let Kernel Tuner write results in its format T4.

    Raises
    ------
    RecordError
        There is no entry, entries have different parameters, or the file cannot be written.
    MissingDependencyError
        Kernel Tuner is not installed.
    """
    files = import_optional("kernel_tuner.file_utils", "kernel-tuner", "writing T4 files")
    listed = list(entries)
    names = _names(listed)
    try:
        files.store_output_file(str(path), results_of(listed), dict.fromkeys(names, ()), "time")
    except OSError as error:
        raise RecordError(f"{path}: the results were not written ({reason(error)}); name another file") from None


def results_of(entries: Iterable[Result]) -> list[Entry]:
    """Return measurements in the form in which ``tune_kernel`` returns its results.

    Raises
    ------
    MissingDependencyError
        Kernel Tuner is not installed.
    """
    util = import_optional("kernel_tuner.util", "kernel-tuner", "results in Kernel Tuner's form")
    results = []
    for config, measurement in entries:
        entry = _entry(config, measurement)
        if "__error__" in entry:
            del entry["time"]
            entry["__error__"] = getattr(util, entry["__error__"])()
        results.append(entry)
    return results


def _names(listed: Sequence[Result]) -> list[str]:
    if not listed:
        raise RecordError("no measurement to write, expected pairs of a configuration and its Measurement")
    names = list(listed[0][0])
    for config, _ in listed:
        if list(config) != names:
            raise RecordError(
                f"a configuration has the parameters {', '.join(config)}, expected those of the first configuration "
                f"in the same order: {', '.join(names)}"
            )
    return names


def _values(values: Iterable[Json]) -> list[Json]:
    distinct = list(dict.fromkeys(values))
    try:
        return sorted(distinct)
    except TypeError:  # numbers cannot be compared with words
        return distinct


def _entry(config: Mapping[str, object], measurement: Measurement) -> Entry:
    """Return an entry of a cache, with times in ms."""
    entry: Entry = dict(config)
    if measurement.time_s is not None:
        entry |= {"time": measurement.time_s * 1e3, "times": [time * 1e3 for time in measurement.times_s]}
    else:
        error = _ERRORS.get(measurement.outcome, "RuntimeFailedConfig")
        entry |= {"time": error, "__error__": error}
    return entry | dict.fromkeys(_UNKNOWN_MS, 0.0) | {"timestamp": _TIMESTAMP}
