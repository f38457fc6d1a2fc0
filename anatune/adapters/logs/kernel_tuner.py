"""Kernel Tuner's caches and results (T4): entries of any kernel, and CLBlast's GEMM as schedules.

A cache has the device and the problem size, which for CLBlast's Xgemm is (M, N) of its column-major result. It does not
have K, so the user gives the workload, and it is checked. Results in the format T4 have neither.

Times in a cache are in ms. A T4 file has the unit of each measurement, or one unit for the whole file
(``metadata.timeunit``, as KTT and Kernel Tuner write it). Without a unit, times are in ms, as Kernel Tuner measures.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from anatune.adapters.logs.devices import DeviceStatement, parse_device_name
from anatune.adapters.logs.files import decode_document, entries_of, format_of, read_log
from anatune.adapters.logs.parts import DAMAGED, NO_WORKLOAD, UNROLLED, LogEntry, gpu_schedule, number_of, read_times
from anatune.arguments import quote
from anatune.core.hardware.spec import HardwareSpec
from anatune.core.trial import Measurement, Outcome
from anatune.core.workload.nest import Workload
from anatune.errors import RecordError
from anatune.records.traces import Json, UnfitError

_ERRORS = {
    "InvalidConfig": Outcome.INVALID, "CompilationFailedConfig": Outcome.BUILD_ERROR,
    "RuntimeFailedConfig": Outcome.RUN_ERROR,
}  # fmt: skip
"""The errors that a cache has instead of a time."""
_PER_SECOND = {"": 1.0, **dict.fromkeys(("m", "milli"), 1e3), **dict.fromkeys(("u", "\u00b5", "\u03bc", "micro"), 1e6),
               **dict.fromkeys(("n", "nano"), 1e9)}  # fmt: skip
_UNIT = re.compile(rf"({'|'.join(_PER_SECOND)})s(?:ec(?:ond)?s?)?")
"""The units of time that tuners write: "ms", "usec", "nanoseconds"."""
_CLBLAST_KNOBS = ("MWG", "NWG", "KWG", "MDIMC", "NDIMC", "KWI", "VWM", "VWN", "STRM", "STRN")


class KernelTunerLog(NamedTuple):
    """A cache or a results file (T4) of Kernel Tuner, for any kernel.

    Attributes
    ----------
    header : dict
        The content besides the entries. For a cache: names of the device and the kernel, problem size, tune_params.
    entries : list of (dict, Measurement)
        The configurations (parameter -> value) with their measurements.
    left_out : dict of str to int
        The number of entries that cannot be read, by reason.
    """

    header: dict[str, Json]
    entries: list[tuple[dict[str, Json], Measurement]]
    left_out: dict[str, int] = {}  # noqa: RUF012  a NamedTuple's default


def read_kernel_tuner(path: Path) -> KernelTunerLog:
    """Read a cache of Kernel Tuner (also one that was never closed), or results in the format T4.

    Raises
    ------
    RecordError
        The file is neither, or no entry of it can be read.
    """
    text = read_log(path)
    kind = format_of(text, path)
    if kind != "kernel_tuner":
        raise RecordError(f"{path} is a log of {kind}, expected a cache or a results file of Kernel Tuner")
    document = decode_document(text) or {}
    entries, reasons = [], Counter[str]()
    for _, entry in entries_of(text, kind):
        try:
            names = entry["configuration"] if "configuration" in entry else document["tune_params_keys"]
            config = entry.get("configuration", entry)
            entries.append(({name: config[name] for name in names}, _times(entry, _time_unit(document))))
        except UnfitError as unfit:
            reasons[str(unfit)] += 1
        except (KeyError, IndexError, TypeError, ValueError, ArithmeticError, AttributeError):
            reasons[DAMAGED] += 1
    if reasons and not entries:
        raise RecordError(f"{path}: no entry can be read ({next(iter(reasons))}), expected parameters and times")
    return KernelTunerLog(_header(document), entries, dict(reasons))


class KernelTunerReader:
    """Reads the entries of one cache or results file as schedules.

    Parameters
    ----------
    text : str
        The content of the file.
    """

    def __init__(self, text: str) -> None:
        document = decode_document(text) or {}
        self._header, self._unit = _header(document), _time_unit(document)

    def device_of(self, entry: Json) -> DeviceStatement | None:
        """Return the device that the file states."""
        return parse_device_name(self._header.get("device_name"))

    def read_line(self, entry: Json, hardware: HardwareSpec, workload: Workload | None) -> LogEntry:
        """Read an entry of CLBlast's Xgemm, whose M is the contiguous dimension of the result, which is axis j here.

        Raises
        ------
        UnfitError
            The kernel is another one, it has another size, or the template cannot express the schedule.
        """
        knobs = {  # KTT writes numbers as text
            name: value if (number := _whole_number(value)) is None else number
            for name, value in entry.get("configuration", entry).items()
        }
        if any(name not in knobs for name in _CLBLAST_KNOBS):
            kernel = self._header.get("kernel_name")
            raise UnfitError(f"kernel {quote(kernel)} does not have the parameters of CLBlast's GEMM" if kernel
                             else "it does not have the parameters of CLBlast's GEMM")  # fmt: skip
        if workload is None:
            raise UnfitError(NO_WORKLOAD + self._size_text())
        if workload.operator != "matmul":
            raise UnfitError(f"it is CLBlast's GEMM, but the given workload is {workload.operator}")
        self._check_size(entry, workload)
        if not knobs.get("SA", 1) or not knobs.get("SB", 1) or knobs.get("GEMMK", 0):
            raise UnfitError("its operands are not staged in shared memory")
        extents = workload.extents
        tiles: dict[str, tuple[int, ...]] = {}
        for axis, letter in (("i", "N"), ("j", "M")):
            tile, threads = int(knobs[f"{letter}WG"]), int(knobs[f"{letter}DIMC"])
            inner = int(knobs[f"VW{letter}"]) if knobs[f"STR{letter}"] else tile // threads
            tiles[axis] = (extents[axis] // tile, tile // threads // inner, threads, 1, inner)
        deep, unrolled = int(knobs["KWG"]), int(knobs["KWI"])
        tiles["k"] = (extents["k"] // deep, deep // unrolled, unrolled)
        staged = [access.tensor for access in workload.reads]
        vector = dict(zip(staged, (int(knobs["VWN"]), int(knobs["VWM"])), strict=True))
        return LogEntry(gpu_schedule(workload, hardware, tiles, UNROLLED, vector), _times(entry, self._unit))

    def _size(self) -> tuple[int, ...]:
        """Return the problem size without a last size of 1, or () if the file does not give it as numbers."""
        size = self._header.get("problem_size")
        mnk = [_whole_number(part) for part in (size if isinstance(size, list) else [size])]
        if None in mnk:
            return ()
        numbers = tuple(part for part in mnk if part is not None)
        return numbers[:2] if numbers[2:] == (1,) else numbers

    def _size_text(self) -> str:
        size = self._size()
        return f" (its problem size is {'x'.join(map(str, size))}, M x N, but the file does not have K)" if size else ""

    def _check_size(self, entry: Json, workload: Workload) -> None:
        """Raise UnfitError unless the problem size and the recorded rate (if any) fit the workload."""
        extents, size = workload.extents, self._size()
        mnk = (extents["j"], extents["i"], extents["k"])
        if size and (size != mnk[: len(size)] if len(size) in (2, 3) else size[0] not in (mnk[0], mnk[0] * mnk[1])):
            raise UnfitError(f"another workload: problem size {'x'.join(map(str, size))}, expected {mnk[0]}x{mnk[1]}")
        rate, time = number_of(entry.get("GFLOP/s", entry.get("GFLOPS"))), number_of(entry.get("time"))
        if 0 < time < 1e9 and rate > 0:
            flop = rate * 1e6 * time  # GFLOP/s times ms
            if not 0.9 < flop / workload.flop < 1.1:
                raise UnfitError(f"another workload: {flop / 1e9:.4g} GFLOP, expected {workload.flop / 1e9:.4g}")


def _whole_number(value: Json) -> int | None:
    """Return a size that is written as a number or text, or None if it is not an integer."""
    try:
        number = None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return int(number) if number is not None and number.is_integer() else None


def _header(whole: dict[str, Json]) -> dict[str, Json]:
    return {key: value for key, value in whole.items() if key not in ("cache", "results")}


def _time_unit(whole: dict[str, Json]) -> Json:
    """Return the unit of times in the metadata of a T4 file, or None."""
    metadata = whole.get("metadata")
    return metadata.get("timeunit") if isinstance(metadata, dict) else None


def _per_second(*units: Json) -> float:
    """Return the number of units in a second, for the first unit that is stated; ms if none is.

    Raises
    ------
    UnfitError
        The unit is not one of time.
    """
    unit = next((unit for unit in units if unit not in (None, "")), "ms")
    hit = _UNIT.fullmatch(str(unit).strip().lower())
    if hit is None:
        raise UnfitError(f"its time is in {quote(unit)}, expected s, ms, us or ns")
    return _PER_SECOND[hit[1]]


def _times(entry: Json, time_unit: Json) -> Measurement:
    """Return the measurement of a cache's entry or a T4 result, with all samples.

    Raises
    ------
    UnfitError
        The unit is unknown, or a correct result has no time.
    """
    if "configuration" in entry or "measurements" in entry:
        values, per_second = _t4_times(entry, time_unit)
        invalid = str(entry.get("invalidity", "")).lower()
        outcome = None if invalid in ("correct", "") else _outcome_of(invalid)
        if outcome is None and not values:
            raise UnfitError("it is correct but has no time (neither a measurement named time nor times.runtimes)")
    else:
        value = entry.get("__error__", entry.get("times") or entry.get("time"))
        values, per_second, outcome = _samples(value), 1e3, None
    if values and values[0] in _ERRORS:
        return read_times([], _ERRORS[values[0]])
    return read_times([number_of(value) / per_second for value in values], outcome)


def _t4_times(entry: Json, time_unit: Json) -> tuple[list[Json], float]:
    """Return the samples of a T4 result, and the number of their units in a second.

    Samples are the measurement named "time", otherwise an objective with a unit of time, otherwise times.runtimes.
    """
    named = {str(one.get("name")).lower(): one for one in reversed(entry.get("measurements") or [])}
    for name in ("time", *(str(name).lower() for name in entry.get("objectives") or ())):
        unit = named.get(name, {}).get("unit")
        if name in named and (name == "time" or _UNIT.fullmatch(str(unit).strip().lower())):
            return _samples(named[name].get("value")), _per_second(unit, time_unit)
    times = entry.get("times")
    return _samples(times.get("runtimes") if isinstance(times, dict) else None), _per_second(time_unit)


def _samples(value: Json) -> list[Json]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _outcome_of(text: str) -> Outcome:
    words = {"compile": Outcome.BUILD_ERROR, "timeout": Outcome.RUN_TIMEOUT, "correctness": Outcome.WRONG_RESULT}
    named_outcome = next((outcome for word, outcome in words.items() if re.search(word, text)), None)
    return named_outcome or (Outcome.INVALID if re.search("constraint", text) else Outcome.RUN_ERROR)
