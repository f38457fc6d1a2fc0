"""AutoTVM's logs (also TopHub's): one JSON line for each measurement, in the form of 2018 ("i") or of 2020 ("input").

A line has the device (a TVM target), the workload (the task's arguments; until 2020 also the workload in a form common
to all tasks), and the knobs of one of topi's templates.

Until August 2019, conv2d_nchw.cuda applied tile_ry to the window's columns and tile_rx to its rows. TopHub then
exchanged the two names in its files, other logs did not. Windows that are not square show which order a file has. In a
file without such windows, lines of that time are left out if the order matters.
Source: apache/tvm, python/tvm/autotvm/record.py, topi/{cuda,gpu,x86,arm_cpu}, issue 3648; logs of tlc-pack/tophub.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from anatune.adapters.logs import autotvm_cpu, autotvm_gpu
from anatune.adapters.logs.autotvm_gpu import Knobs
from anatune.adapters.logs.devices import DeviceStatement, parse_target
from anatune.adapters.logs.parts import LogEntry, Shape, read_tvm_result
from anatune.core.hardware.spec import HardwareSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.core.workload.operators.convolution import conv2d, depthwise_conv2d
from anatune.core.workload.operators.matmul import batch_matmul, matmul
from anatune.core.workload.text import workload_to_text
from anatune.errors import WorkloadError
from anatune.records.traces import Json, UnfitError

_DIRECT = "conv2d_nchw.cuda"
_FIXED_SINCE = 1565000000.0
"""The time (s since 1970) from which window factors are applied to the axes in their names: August 2019."""


class _LoggedTask(NamedTuple):
    """The content of a line without target and times."""

    name: str
    arguments: Sequence[Json]
    knobs: dict[str, Json]


class _Template(NamedTuple):
    """One of topi's templates: functions that read its workload and its schedule."""

    workload: Callable[[Sequence[Json]], Workload]
    schedule: Callable[[Workload, HardwareSpec, Knobs], Schedule]


class AutoTvmReader:
    """Reads the lines of one log.

    Parameters
    ----------
    entries : iterable
        All entries of the log, which decide the order of window factors.
    """

    def __init__(self, entries: Iterable[Json]) -> None:
        self._has_exchanged_names = _has_exchanged_names(entries)

    def device_of(self, entry: Json) -> DeviceStatement:
        """Return the device that a line states."""
        return parse_target(_input(entry)[0])

    def read_line(self, entry: Json, hardware: HardwareSpec, workload: Workload | None) -> LogEntry:
        """Read the schedule and measurement of a line.

        Parameters
        ----------
        workload : Workload, optional
            The workload that the user expects.

        Raises
        ------
        UnfitError
            The template is not supported, anatune cannot express the schedule, or it belongs to another workload.
        """
        task = _task(entry)
        template = _TEMPLATES.get(task.name)
        if template is None:
            raise UnfitError(f"template {task.name} {_UNSUPPORTED.get(task.name, 'is not supported')}"[:160])
        try:
            tuned = template.workload(task.arguments)
        except WorkloadError as error:
            raise UnfitError(f"anatune has no such workload: {error}"[:200]) from None
        if workload is not None and workload != tuned:
            raise UnfitError(f"another workload: {workload_to_text(tuned)}")
        knobs = self._windows(task.knobs, _result(entry)) if task.name == _DIRECT else task.knobs
        return LogEntry(template.schedule(tuned, hardware, knobs), read_tvm_result(_result(entry)))

    def _windows(self, knobs: dict[str, Json], result: Sequence[Json]) -> dict[str, Json]:
        """Return knobs in which the window's factors have the names of the axes that they were applied to."""
        ry, rx = knobs["tile_ry"], knobs["tile_rx"]
        if float(result[3]) >= _FIXED_SINCE or ry[1:] == rx[1:] or self._has_exchanged_names is False:
            return knobs
        if self._has_exchanged_names is None:
            raise UnfitError(
                "window factors from before August 2019, when topi exchanged those of rows and columns; the log does "
                "not show whether it corrected them (TVM issue 3648)"
            )
        return {**knobs, "tile_ry": rx, "tile_rx": ry}


def _input(entry: Json) -> Json:
    return entry["input" if "input" in entry else "i"]


def _result(entry: Json) -> Json:
    return entry["result" if "result" in entry else "r"]


def _task(entry: Json) -> _LoggedTask:
    if "input" in entry:
        return _LoggedTask(str(entry["input"][1]), entry["input"][2], _knobs(entry["config"]["entity"]))
    target, name, arguments, _, workload, config = entry["i"]
    knobs = _knobs(config["e"])
    if isinstance(workload, list) and workload:  # arguments differ between tasks, the workload has one form
        arguments = [_argument(argument) for argument in workload[1:]]
    return _LoggedTask(_modern_name(str(name), str(config.get("t", "")), str(target), knobs), arguments, knobs)


def _argument(argument: Json) -> Json:
    """Convert an argument of a workload to the form in tasks; a tensor is its shape followed by the dtype."""
    is_tensor = isinstance(argument, list) and len(argument) > 1 and isinstance(argument[-1], str)
    return ["TENSOR", argument[:-1], argument[-1]] if is_tensor else argument


def _has_exchanged_names(entries: Iterable[Json]) -> bool | None:
    """Return whether window factors from before August 2019 have exchanged names, or None if it cannot be seen."""
    crosswise = set()
    for entry in entries:
        try:
            task = _task(entry)
            if task.name == _DIRECT and float(_result(entry)[3]) < _FIXED_SINCE:
                window = _tensor(task.arguments[1])[0][2:]
                factors = tuple(math.prod(task.knobs[name]) for name in ("tile_ry", "tile_rx"))
                if window[0] != window[1] and factors in (window, window[::-1]):
                    crosswise.add(factors == window)
        except (KeyError, IndexError, TypeError, ValueError):
            continue  # read_line counts it
    return crosswise.pop() if len(crosswise) == 1 else None


def _knobs(entity: Sequence[Json]) -> dict[str, Json]:
    return {str(name): value for name, _, value in entity}


def _modern_name(name: str, template: str, target: str, knobs: Knobs) -> str:
    """Return the name since 2019 (template and device) of a task of 2018 (operator and template)."""
    is_arm, is_cpu = "arm_cpu" in target, target.startswith("llvm")
    device = "arm_cpu" if is_arm else "x86" if is_cpu else "mali" if "mali" in target else "cuda"
    if name == "topi_nn_conv2d" and template in ("direct", "winograd"):
        if template == "winograd":
            return f"conv2d_nchw_winograd.{device}"
        return {"cuda": "conv2d_nchw.cuda", "x86": "conv2d_NCHWc.x86"}.get(device, f"conv2d_nchw_spatial_pack.{device}")
    if name == "topi_nn_dense" and device == "cuda":
        return "dense_large_batch.gpu" if "tile_y" in knobs else "dense_small_batch.gpu"
    modern_names = {
        "topi_nn_depthwise_conv2d_nchw": f"depthwise_conv2d_nchw.{device}",
        "topi_nn_batch_matmul": f"batch_matmul.{device}",
        "topi_x86_conv2d": "conv2d_NCHWc.x86",
        "topi_x86_conv2d_NCHWc": "conv2d_NCHWc.x86",
    }
    return modern_names.get(name, f"{name} ({template})") if template in ("direct", "") else f"{name} ({template})"


# ---- arguments ------------------------------------------------------------------------------------------------


def _tensor(argument: Json) -> tuple[Shape, str]:
    _, shape, dtype = argument
    return tuple(int(extent) for extent in shape), str(dtype)


def _pair(value: Json) -> tuple[int, int]:
    first, second = value if isinstance(value, list) else (value, value)
    return int(first), int(second)


def _windows(arguments: Sequence[Json]) -> tuple[tuple[int, int], tuple[int, ...], tuple[int, int]]:
    """Return stride, padding and dilation, which precede layouts and dtypes; the oldest logs have no dilation."""
    numbers: list[Json] = []
    for argument in arguments:
        if isinstance(argument, str):
            break
        numbers.append(argument)
    stride, padding, *rest = numbers
    pads = tuple(int(pad) for pad in padding) if isinstance(padding, list) else _pair(padding)
    if len(pads) == 4 and pads[:2] == pads[2:]:
        pads = pads[:2]
    return _pair(stride), pads, _pair(rest[0]) if rest else (1, 1)


def _operands(arguments: Sequence[Json]) -> tuple[Shape, Shape, str]:
    """Return the shapes of the two operands and their dtype.

    Raises
    ------
    UnfitError
        The dtype of sums is not that of the operands, or the operands differ.
    """
    (left, dtype), (right, other) = _tensor(arguments[0]), _tensor(arguments[1])
    rest = [argument for argument in arguments[2:] if isinstance(argument, str)]
    words = [argument for argument in rest if argument.rstrip("0123456789") in ("float", "int", "uint")]
    if dtype != other or any(word != ("int32" if dtype == "int8" else dtype) for word in words):
        raise UnfitError(f"the operands are {dtype} and {other}, the result is {', '.join(words) or 'the same'}")
    return left, right, dtype


def _conv2d(arguments: Sequence[Json]) -> Workload:
    data, weight, dtype = _operands(arguments)
    if len(data) == 5 and len(weight) == 6:  # AlterOpLayout blocked them before the task was extracted
        data = (data[0], data[1] * data[4], *data[2:4])
        weight = (weight[0] * weight[5], weight[1] * weight[4], *weight[2:4])
    (n, c, h, w), (k, channels, r, s) = data, weight
    if channels != c:
        raise UnfitError("it is a grouped convolution in a template for dense convolutions")
    return conv2d(n, c, h, w, k, r, s, *_windows(arguments[2:]), dtype=dtype)


def _depthwise(arguments: Sequence[Json]) -> Workload:
    data, weight, dtype = _operands(arguments)
    (n, c, h, w), (_, multiplier, r, s) = data, weight
    return depthwise_conv2d(n, c, h, w, r, s, multiplier, *_windows(arguments[2:]), dtype=dtype)


def _dense(arguments: Sequence[Json]) -> Workload:
    data, weight, dtype = _operands(arguments)
    if len(weight) == 3:  # packed: [n / block, k, block]
        weight = (weight[0] * weight[2], weight[1])
    (m, k), (n, _) = data, weight
    biased = len(arguments) > 2 and isinstance(arguments[2], list)
    return matmul(m, n, k, dtype=dtype, transpose_b=True, epilogue=("bias",) if biased else ())


def _batch_matmul(arguments: Sequence[Json]) -> Workload:
    (batch, *left), (other_batch, *right), dtype = _operands(arguments)
    flags = [argument for argument in arguments[2:] if isinstance(argument, bool | int)]
    flip_a, flip_b = (bool(flag) for flag in flags) if len(flags) == 2 else (False, True)
    if batch != other_batch:
        raise UnfitError("only one operand has a batch")
    (m, k), n = left[::-1] if flip_a else left, right[0 if flip_b else 1]
    return batch_matmul(batch, m, n, k, dtype=dtype, transpose_a=flip_a, transpose_b=flip_b)


_TEMPLATES = {
    _DIRECT: _Template(_conv2d, autotvm_gpu.schedule_direct),
    "depthwise_conv2d_nchw.cuda": _Template(_depthwise, autotvm_gpu.schedule_depthwise),
    "dense_large_batch.gpu": _Template(_dense, autotvm_gpu.schedule_dense),
    "dense_large_batch.cuda": _Template(_dense, autotvm_gpu.schedule_dense),
    "batch_matmul.cuda": _Template(_batch_matmul, autotvm_gpu.schedule_batch_matmul),
    "dense_pack.x86": _Template(_dense, autotvm_cpu.schedule_dense_pack),
    "conv2d_NCHWc.x86": _Template(_conv2d, autotvm_cpu.schedule_blocked),
    "conv2d_nchw_spatial_pack.arm_cpu": _Template(_conv2d, autotvm_cpu.schedule_spatial_pack),
}
_UNSUPPORTED = {
    **{f"dense_small_batch.{device}": "splits the reduction over threads, which no template of anatune does"
       for device in ("gpu", "cuda")},
    **{f"conv2d_nchw_winograd.{device}": "is another algorithm (Winograd)" for device in ("cuda", "arm_cpu", "mali")},
    "dense_nopack.x86": "vectorises the reduction, but the template cpu vectorises the result's columns",
    "batch_matmul.x86": "vectorises the reduction, but the template cpu vectorises the result's columns",
    "depthwise_conv2d_NCHWc.x86": "vectorises channels, but the template cpu vectorises columns",
    "depthwise_conv2d_nchw.arm_cpu": "vectorises channels, but the template cpu vectorises columns",
}  # fmt: skip
"""The reasons why the templates of anatune cannot express the schedules of these templates of topi."""
