"""Kernel Tuner's caches and results (T4): entries of any kernel, and CLBlast's GEMM as schedules.

A cache states the device and the problem size, which for CLBlast's Xgemm is (M, N) of its column-major result; K stands
nowhere, so the workload is given, and checked. Results in the form T4 state neither.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from anatune.arguments import shown
from anatune.core.hardware.spec import HardwareSpec
from anatune.core.trial import Measurement, Outcome
from anatune.core.workload.nest import Workload
from anatune.errors import RecordError
from anatune.records.foreign.devices import DeviceStatement, device_name
from anatune.records.foreign.files import entries_of, format_of, read_log, whole_of
from anatune.records.foreign.parts import NO_WORKLOAD, UNROLLED, Line, gpu_schedule, measured
from anatune.records.traces import Json, UnfitError

__all__ = ["KernelTunerLog", "KernelTunerReader", "read_kernel_tuner"]

_ERRORS = {
    "InvalidConfig": Outcome.INVALID, "CompilationFailedConfig": Outcome.BUILD_ERROR,
    "RuntimeFailedConfig": Outcome.RUN_ERROR,
}  # fmt: skip
"""What stands in a cache in the place of a time."""
_CLBLAST_KNOBS = ("MWG", "NWG", "KWG", "MDIMC", "NDIMC", "KWI", "VWM", "VWN", "STRM", "STRN")


class KernelTunerLog(NamedTuple):
    """A cache or a results file (T4) of Kernel Tuner, whatever kernel it is of.

    Attributes
    ----------
    header : dict
        What stands beside the entries: of a cache the device's and the kernel's name, the problem size, tune_params.
    entries : list of (dict, Measurement)
        Configurations, parameter -> value, and what was measured.
    """

    header: dict[str, Json]
    entries: list[tuple[dict[str, Json], Measurement]]


def read_kernel_tuner(path: Path) -> KernelTunerLog:
    """Read a cache of Kernel Tuner, one that was never closed included, or results in the form T4.

    Raises
    ------
    RecordError
        The file is neither, or damaged.
    """
    text = read_log(path)
    kind = format_of(text, path)
    if kind != "kernel_tuner":
        raise RecordError(f"{path}: is a log of {kind}, expected a cache or a results file of Kernel Tuner")
    whole = whole_of(text) or {}
    entries = []
    try:
        for _, entry in entries_of(text, kind):
            names = entry["configuration"] if "configuration" in entry else whole["tune_params_keys"]
            config = entry.get("configuration", entry)
            entries.append(({name: config[name] for name in names}, _times(entry)))
    except (KeyError, TypeError, ValueError):
        raise RecordError(f"{path}: an entry lacks its parameters or its time; expected a cache or T4 file") from None
    return KernelTunerLog(_header(whole), entries)


class KernelTunerReader:
    """Reads the entries of one cache or results file as schedules.

    Parameters
    ----------
    text : str
        The file's.
    """

    def __init__(self, text: str) -> None:
        self._header = _header(whole_of(text) or {})

    def device_of(self, entry: Json) -> DeviceStatement | None:
        """Return what the file says about the device."""
        return device_name(self._header.get("device_name"))

    def read_line(self, entry: Json, hardware: HardwareSpec, workload: Workload | None) -> Line:
        """Read an entry of CLBlast's Xgemm: M is the contiguous dimension of its column-major result, so it is j here.

        Raises
        ------
        UnfitError
            It is no such kernel, of another size, or not a schedule of the template.
        """
        knobs = entry.get("configuration", entry)
        if any(name not in knobs for name in _CLBLAST_KNOBS):
            kernel = self._header.get("kernel_name")
            raise UnfitError(f"kernel {shown(kernel)} has not CLBlast's GEMM parameters" if kernel
                             else "not a GEMM with CLBlast's parameters")  # fmt: skip
        if workload is None:
            raise UnfitError(NO_WORKLOAD + self._known_size())
        if workload.operator != "matmul":
            raise UnfitError(f"CLBlast's GEMM, which is no {workload.operator}")
        self._check_size(entry, workload)
        if not knobs.get("SA", 1) or not knobs.get("SB", 1) or knobs.get("GEMMK", 0):
            raise UnfitError("operands that are not staged in shared memory")
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
        return Line(gpu_schedule(workload, hardware, tiles, UNROLLED, vector), _times(entry))

    def _size(self) -> tuple[int, ...]:
        """Return the problem size without a depth of 1, () where the file does not say it in numbers."""
        size = self._header.get("problem_size")
        sizes = [_whole_number(part) for part in (size if isinstance(size, list) else [size])]
        if None in sizes:
            return ()
        numbers = tuple(part for part in sizes if part is not None)
        return numbers[:2] if numbers[2:] == (1,) else numbers

    def _known_size(self) -> str:
        size = self._size()
        return f" (its problem size is {'x'.join(map(str, size))}, M x N, and K stands nowhere)" if size else ""

    def _check_size(self, entry: Json, workload: Workload) -> None:
        """Raise UnfitError unless the problem size, and the rate where one is recorded, are the workload's."""
        extents, size = workload.extents, self._size()
        own = (extents["j"], extents["i"], extents["k"])
        if size and (size != own[: len(size)] if len(size) in (2, 3) else size[0] not in (own[0], own[0] * own[1])):
            raise UnfitError(
                f"another workload: problem size {'x'.join(map(str, size))} (M x N), expected {own[0]}x{own[1]}"
            )
        rate, time = entry.get("GFLOP/s", entry.get("GFLOPS")), entry.get("time")
        if isinstance(rate, int | float) and isinstance(time, int | float) and 0 < time < 1e9 and rate > 0:
            flop = rate * 1e6 * time  # GFLOP/s times ms
            if not 0.9 < flop / workload.flop < 1.1:
                raise UnfitError(
                    f"another workload: {flop / 1e9:.4g} GFLOP by its recorded rate, expected {workload.flop / 1e9:.4g}"
                )


def _whole_number(value: Json) -> int | None:
    """Return a size that may be written as text or with a fraction of 0; None: it is an expression, or nothing."""
    try:
        number = None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return int(number) if number is not None and number.is_integer() else None


def _header(whole: dict[str, Json]) -> dict[str, Json]:
    return {key: value for key, value in whole.items() if key not in ("cache", "results")}


def _times(entry: Json) -> Measurement:
    """Return the times of a cache entry (ms), or of a result in the form T4 (seconds or ms, by its unit)."""
    if "measurements" in entry:
        time: dict[str, Json] = next((one for one in entry["measurements"] if one.get("name") == "time"), {})
        invalid = str(entry.get("invalidity", "correct"))
        scale = {"s": 1.0, "seconds": 1.0, "us": 1e-6}.get(str(time.get("unit", "ms")), 1e-3)
        values = [time["value"] * scale] if isinstance(time.get("value"), int | float) else []
        return measured(values, None if invalid in ("correct", "") else _invalidity(invalid))
    error = entry.get("__error__", entry.get("time"))
    if isinstance(error, str):
        return measured([], _ERRORS.get(error, Outcome.RUN_ERROR))
    value = entry.get("times") or [entry.get("time")]
    numbers = [one / 1e3 for one in value if isinstance(one, int | float)]
    return measured(numbers, None if numbers else Outcome.RUN_ERROR)


def _invalidity(text: str) -> Outcome:
    words = {"compile": Outcome.BUILD_ERROR, "timeout": Outcome.RUN_TIMEOUT, "correctness": Outcome.WRONG_RESULT}
    known = next((outcome for word, outcome in words.items() if re.search(word, text)), None)
    return known or (Outcome.INVALID if re.search("constraint", text) else Outcome.RUN_ERROR)
