"""Logs of other tuners as trials: AutoTVM, Ansor, MetaSchedule, Kernel Tuner (CLBlast's GEMM).

A log names no device of anatune's and, except AutoTVM's, no workload: both are given. What the template cannot express
is counted by reason, never guessed. Failed measurements become trials with an outcome and no time: the times that these
tools write for failures (1e10, 1e20) are not times.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from anatune.core.hardware import CpuSpec, GpuSpec
from anatune.core.operators.convolution import conv2d
from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement, Outcome, Trial
from anatune.core.workload import Workload
from anatune.errors import RecordError, WorkloadError
from anatune.files import read_file, reason
from anatune.records.traces import GPU_TILING, UnfitError, match_axes, read_trace

__all__ = [
    "FORMATS",
    "SENTINEL_S",
    "Foreign",
    "ForeignTrial",
    "KernelTunerLog",
    "format_of",
    "read_foreign",
    "read_kernel_tuner",
]

FORMATS = ("autotvm", "ansor", "metaschedule", "kernel_tuner")
SENTINEL_S = 1e9
"""Times from here on stand for failures. Source: TVM's MAX_FLOAT (1e10), 1e20 of Kernel Tuner's old caches."""
_MOST_BYTES = 1 << 30
_TVM_OUTCOMES = {
    1: Outcome.INVALID, 2: Outcome.BUILD_ERROR, 3: Outcome.BUILD_ERROR, 4: Outcome.RUN_ERROR, 5: Outcome.WRONG_RESULT,
    6: Outcome.BUILD_TIMEOUT, 7: Outcome.RUN_TIMEOUT,
}  # fmt: skip
"""TVM's MeasureErrorNo."""
_KERNEL_TUNER_ERRORS = {
    "InvalidConfig": Outcome.INVALID, "CompilationFailedConfig": Outcome.BUILD_ERROR,
    "RuntimeFailedConfig": Outcome.RUN_ERROR,
}  # fmt: skip
"""What stands in a cache in the place of a time."""
_CLBLAST_UNROLL = 512
"""Unroll depth that stands for CLBlast's unrolled KWI loop."""


class ForeignTrial(NamedTuple):
    """A trial and the workload it is of."""

    workload: Workload
    trial: Trial


class Foreign(NamedTuple):
    """What a log holds.

    Attributes
    ----------
    kind : str
        One of `FORMATS`.
    trials : list of ForeignTrial
    left_out : dict of str to int
        Reason -> entries.
    """

    kind: str
    trials: list[ForeignTrial]
    left_out: dict[str, int]


class KernelTunerLog(NamedTuple):
    """A cache or a results file (T4) of Kernel Tuner, whatever kernel it is of.

    Attributes
    ----------
    header : dict
        What stands beside the entries: of a cache the device's and the kernel's name, the problem size, tune_params.
    entries : list of (dict, Measurement)
        Configurations, parameter -> value, and what was measured.
    """

    header: dict[str, Any]
    entries: list[tuple[dict[str, Any], Measurement]]


def read_foreign(path: Path, hardware: GpuSpec | CpuSpec, workload: Workload | None = None) -> Foreign:
    """Read a log of another tuner.

    Parameters
    ----------
    hardware : GpuSpec or CpuSpec
        The device it was measured on; only GPU kernels are read so far.
    workload : Workload, optional
        What was tuned; AutoTVM's conv2d_nchw logs name it themselves. Entries of other extents are left out.

    Raises
    ------
    RecordError
        The file is none of the known forms, is damaged, or names no workload and none is given.
    """
    if not isinstance(hardware, GpuSpec):
        raise RecordError(f"{path}: --hw {hardware.name} is a CPU; logs of other tuners are read for GPUs only, so far")
    text = _read(path)
    kind = format_of(text, path)
    counts: Counter[str] = Counter()
    trials: list[ForeignTrial] = []
    for number, entry in enumerate(_entries(text, kind, path)):
        try:
            found, schedule, measurement = _READERS[kind](entry, hardware, workload)
        except UnfitError as reason:
            counts[str(reason)] += 1
            continue
        except (KeyError, IndexError, TypeError, ValueError):
            counts["damaged or of an unknown version"] += 1
            continue
        trials.append(ForeignTrial(found, Trial(schedule, measurement, number=number, source=kind)))
    return Foreign(kind, trials, dict(counts))


def read_kernel_tuner(path: Path) -> KernelTunerLog:
    """Read a cache of Kernel Tuner, one that was never closed included, or results in the form T4.

    Raises
    ------
    RecordError
        The file is neither, or damaged.
    """
    text = _read(path).strip()
    if not text.endswith("}"):  # a cache is open while Kernel Tuner runs: its last brackets are missing
        text = text.rstrip(",") + "}\n}"
    elif text.startswith("{") and text.count("}") < text.count("{"):
        text += "}\n}"
    kind = format_of(text, path)
    if kind != "kernel_tuner":
        raise RecordError(f"{path}: is a log of {kind}, expected a cache or a results file of Kernel Tuner")
    whole = msgspec.json.decode(text)
    names = whole.get("tune_params_keys")
    entries = []
    try:
        for entry in _entries(text, kind, path):
            config = entry["configuration"] if "configuration" in entry else {name: entry[name] for name in names}
            entries.append((dict(config), _kernel_tuner_times(entry)))
    except (KeyError, TypeError, ValueError):
        raise RecordError(f"{path}: an entry lacks its parameters or its time; expected a cache or T4 file") from None
    header = {key: value for key, value in whole.items() if key not in ("cache", "results")}
    return KernelTunerLog(header, entries)


def _read(path: Path) -> str:
    try:
        return read_file(path, _MOST_BYTES).decode()
    except OSError as error:
        raise RecordError(f"{path}: {reason(error)}, expected a log to import") from None
    except UnicodeDecodeError:
        raise RecordError(f"{path}: not UTF-8 text, expected a log of JSON lines or one JSON object") from None


def format_of(text: str, path: Path) -> str:
    """Return which tuner wrote a log.

    Raises
    ------
    RecordError
        None of those that are known.
    """
    try:
        whole = msgspec.json.decode(text)
    except msgspec.DecodeError:
        whole = None
    if isinstance(whole, dict) and ("cache" in whole or "results" in whole):
        return "kernel_tuner"
    first = next((line for line in text.splitlines() if line.strip()), "")
    try:
        entry = msgspec.json.decode(first)
    except msgspec.DecodeError:
        entry = None
    if isinstance(entry, dict) and {"input", "config", "result"} <= set(entry):
        return "autotvm"
    if isinstance(entry, dict) and {"i", "r"} <= set(entry):
        return "ansor"
    if isinstance(entry, list) and len(entry) == 2 and isinstance(entry[1], list):
        return "metaschedule"
    raise RecordError(
        f"{path}: begins with {first[:40]!r}, expected JSON lines of anatune, AutoTVM, Ansor or MetaSchedule, or a "
        "cache or results file of Kernel Tuner"
    )


def _entries(text: str, kind: str, path: Path) -> Iterator[Any]:
    if kind == "kernel_tuner":
        whole = msgspec.json.decode(text)
        yield from whole["cache"].values() if "cache" in whole else whole["results"]
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield msgspec.json.decode(line)
            except msgspec.DecodeError as error:
                raise RecordError(f"{path}, line {number}: {error}; nothing was imported") from None


# ---- parts ---------------------------------------------------------------------------------------------------


def _measurement(times_s: Sequence[Any], outcome: Outcome | None) -> Measurement:
    """Return a measurement; sentinel times are failures."""
    times = tuple(float(time) for time in times_s if isinstance(time, int | float))
    if outcome is None and times and all(0.0 < time < SENTINEL_S and math.isfinite(time) for time in times):
        return Measurement(Outcome.OK, times_s=times)
    return Measurement(outcome or Outcome.RUN_ERROR, "recorded as failed")


def _tvm_measurement(result: Sequence[Any]) -> Measurement:
    """Return the measurement of a TVM result: times, error number, .."""
    number = int(result[1])
    return _measurement(result[0], _TVM_OUTCOMES.get(number, Outcome.RUN_ERROR) if number else None)


def _given(workload: Workload | None) -> Workload:
    if workload is None:
        raise UnfitError("the log does not name the workload: give it, as for anatune plan")
    return workload


def _schedule(
    workload: Workload, hardware: GpuSpec, tiles: Mapping[str, Sequence[int]], unroll: int, vector: Mapping[str, int]
) -> Schedule:
    """Return a schedule of the GPU template; its factors must multiply to the extents."""
    complete = {axis.name: tuple(int(factor) for factor in tiles[axis.name]) for axis in workload.axes}
    for axis in workload.axes:
        width = 5 if axis.kind == "spatial" else 3
        if len(complete[axis.name]) != width or math.prod(complete[axis.name]) != axis.extent:
            raise UnfitError("tiles do not multiply to the workload's extents")
    staged = [access.tensor for access in workload.reads] if workload.reduction_axes else []
    return Schedule(
        workload, hardware, "cuda", complete, int(unroll), {tensor: int(vector.get(tensor, 1)) for tensor in staged}
    )


def _pair(value: Any) -> tuple[int, int]:
    first, second = value if isinstance(value, list) else (value, value)
    return int(first), int(second)


def _autotvm(entry: Any, hardware: GpuSpec, workload: Workload | None) -> tuple[Workload, Schedule, Measurement]:
    """Read a line of AutoTVM's conv2d_nchw.cuda template: four factors a spatial axis, two a reduction axis."""
    if entry["input"][1] != "conv2d_nchw.cuda":
        raise UnfitError(f"template {entry['input'][1]!s:.40} is not read, only conv2d_nchw.cuda")
    data, weight, strides, padding, dilation = entry["input"][2][:5]
    (n, c, h, w), (k, _, r, s) = data[1], weight[1]
    pads = list(padding) if isinstance(padding, list) else [padding, padding]
    if len(pads) == 4 and pads[:2] != pads[2:]:
        raise UnfitError("padding that differs between the two sides of an image")
    if _pair(dilation) != (1, 1):
        raise UnfitError("dilation")
    try:
        found = conv2d(n, c, h, w, k, r, s, stride=_pair(strides), padding=_pair(pads[:2]))
    except WorkloadError as error:
        raise UnfitError(f"no workload: {error}") from None
    if workload is not None and workload != found:
        raise UnfitError("another workload")
    knobs = {name: value for name, _, value in entry["config"]["entity"]}
    tiles = {"n": (n, 1, 1, 1, 1)}
    for axis, extent in found.extents.items():
        if axis != "n":
            factors = list(knobs[f"tile_{axis}"])
            if factors and factors[0] == -1:
                factors[0] = extent // math.prod(factors[1:])
            tiles[axis] = (*factors[:3], 1, *factors[3:]) if len(factors) == 4 else (*factors, 1)
    schedule = _schedule(found, hardware, tiles, knobs["auto_unroll_max_step"], {})
    return found, schedule, _tvm_measurement(entry["result"])


def _ansor(entry: Any, hardware: GpuSpec, workload: Workload | None) -> tuple[Workload, Schedule, Measurement]:
    """Read a line of Ansor's multi-level tiling: the split steps (SP) with four or two lengths, in the axes' order."""
    found = _given(workload)
    steps = entry["i"][1][1]
    splits = [step for step in steps if step[0] == "SP" and len(step[4]) in (2, 4)]
    spatial = [step for step in splits if len(step[4]) == 4]
    if not spatial:
        raise UnfitError("no multi-level tiling of five levels")
    stage = spatial[0][1]
    spatial = [step for step in spatial if step[1] == stage]
    reduction = [step for step in splits if len(step[4]) == 2 and step[1] == stage]
    tiles: dict[str, tuple[int, ...]] = {}
    for axes, own in ((found.spatial_axes, spatial), (found.reduction_axes, reduction)):
        if len(own) != len(axes):
            raise UnfitError("another number of tiled axes than the workload has")
        for axis, step in zip(axes, own, strict=True):
            lengths = [int(length) for length in step[4]]
            outer, rest = divmod(int(step[3]), math.prod(lengths))
            if rest or int(step[3]) != axis.extent:
                raise UnfitError("tiles do not multiply to the workload's extents")
            tiles[axis.name] = (outer, *lengths)
    pragmas = [step[3] for step in steps if step[0] == "PR" and str(step[3]).startswith("auto_unroll_max_step$")]
    unroll = int(str(pragmas[-1]).partition("$")[2]) if pragmas else 0
    return found, _schedule(found, hardware, tiles, unroll, {}), _tvm_measurement(entry["r"])


def _metaschedule(entry: Any, hardware: GpuSpec, workload: Workload | None) -> tuple[Workload, Schedule, Measurement]:
    """Read a line of a MetaSchedule database."""
    found = _given(workload)
    (instructions, decisions), times = entry[1][0], entry[1][1]
    tiling = read_trace(instructions, decisions)
    if tiling.structure != GPU_TILING:
        raise UnfitError(f"tiling {tiling.structure}, which is for CPUs")
    if tiling.stages > 1:
        raise UnfitError("a staging pipeline, which the template lacks")
    staged = [access.tensor for access in found.reads]
    vector = {staged[number]: width for number, width in tiling.fetch.items() if number < len(staged)}
    schedule = _schedule(found, hardware, match_axes(tiling, found), tiling.unroll, vector)
    return found, schedule, _measurement(times or [], None if times else Outcome.RUN_ERROR)


def _kernel_tuner(entry: Any, hardware: GpuSpec, workload: Workload | None) -> tuple[Workload, Schedule, Measurement]:
    """Read a result of CLBlast's Xgemm: M is the contiguous dimension of its column-major result, so it is j here."""
    found = _given(workload)
    knobs = entry.get("configuration", entry)
    needed = ("MWG", "NWG", "KWG", "MDIMC", "NDIMC", "KWI", "VWM", "VWN", "STRM", "STRN")
    if found.operator != "matmul" or any(name not in knobs for name in needed):
        raise UnfitError("not a GEMM with CLBlast's parameters")
    if not knobs.get("SA", 1) or not knobs.get("SB", 1) or knobs.get("GEMMK", 0):
        raise UnfitError("operands that are not staged in shared memory")
    extents = found.extents
    tiles: dict[str, tuple[int, ...]] = {}
    for axis, letter in (("i", "N"), ("j", "M")):
        tile, threads = int(knobs[f"{letter}WG"]), int(knobs[f"{letter}DIMC"])
        inner = int(knobs[f"VW{letter}"]) if knobs[f"STR{letter}"] else tile // threads
        tiles[axis] = (extents[axis] // tile, tile // threads // inner, threads, 1, inner)
    deep, unrolled = int(knobs["KWG"]), int(knobs["KWI"])
    tiles["k"] = (extents["k"] // deep, deep // unrolled, unrolled)
    staged = [access.tensor for access in found.reads]
    vector = dict(zip(staged, (int(knobs["VWN"]), int(knobs["VWM"])), strict=True))
    schedule = _schedule(found, hardware, tiles, _CLBLAST_UNROLL, vector)
    return found, schedule, _kernel_tuner_times(entry)


def _kernel_tuner_times(entry: Any) -> Measurement:
    """Return the times of a cache entry (ms), or of a result in the form T4 (seconds or ms, by its unit)."""
    if "measurements" in entry:
        time: dict[str, Any] = next((one for one in entry["measurements"] if one.get("name") == "time"), {})
        invalid = str(entry.get("invalidity", "correct"))
        scale = {"s": 1.0, "seconds": 1.0, "us": 1e-6}.get(str(time.get("unit", "ms")), 1e-3)
        values = [time["value"] * scale] if isinstance(time.get("value"), int | float) else []
        return _measurement(values, None if invalid in ("correct", "") else _invalidity(invalid))
    error = entry.get("__error__", entry.get("time"))
    if isinstance(error, str):
        return _measurement([], _KERNEL_TUNER_ERRORS.get(error, Outcome.RUN_ERROR))
    value = entry.get("times") or [entry.get("time")]
    numbers = [one / 1e3 for one in value if isinstance(one, int | float)]
    return _measurement(numbers, None if numbers else Outcome.RUN_ERROR)


def _invalidity(text: str) -> Outcome:
    words = {"compile": Outcome.BUILD_ERROR, "timeout": Outcome.RUN_TIMEOUT, "correctness": Outcome.WRONG_RESULT}
    known = next((outcome for word, outcome in words.items() if re.search(word, text)), None)
    return known or (Outcome.INVALID if re.search("constraint", text) else Outcome.RUN_ERROR)


_READERS = {"autotvm": _autotvm, "ansor": _ansor, "metaschedule": _metaschedule, "kernel_tuner": _kernel_tuner}


def workloads_of(trials: Iterable[ForeignTrial]) -> list[Workload]:
    """Return the workloads of trials, each once, in order."""
    return list(dict.fromkeys(one.workload for one in trials))
