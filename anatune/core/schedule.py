"""Schedules: one point of a tile space together with its workload, hardware and template.

`Schedule.check` tests whether a schedule fits its own workload, hardware and template: every factor is there and their
product is the extent, every option is known, has the right type and fits the tiles. It is called where schedules enter
(JSON, lists of candidates, code generation), once for each object; later code relies on it. Rows of records are read as
they were written and checked when they are used. The rules of the model, not this check, tell whether a device can run
a schedule.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec

from anatune.arguments import quote
from anatune.core.frozen import EMPTY, freeze
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.show import html_table
from anatune.core.templates import LATE, all_templates, note_removed
from anatune.core.workload.nest import Workload
from anatune.decoding import from_json
from anatune.errors import SpaceError

OptionValue = int | str | bool | tuple[int | str, ...]


class Schedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True, omit_defaults=True):
    """A schedule: one point of a tile space with its workload, hardware and template. Immutable; JSON both ways.

    Attributes
    ----------
    workload, hardware
        The computation, and the device that the schedule was chosen for.
    template : str
        Name of the template: "cuda" (factors block, vthread, thread, reg_outer, reg_inner of spatial axes and k0, k1,
        k2 of reduction axes), "pipelined" (the same, with operands staged by a pipeline), "triton" (block, tile; step,
        tile), "cpu" (cache and register tiles), "thin", "winograd", "scaled", "fp16_accumulation" or "amx". The module
        ``rules.py`` of a template's package documents its factors.
    tiles : mapping of str to tuple of int
        Axis -> factors from the outermost to the innermost loop. Their product is the axis's extent, or on a GPU just
        above it where the last tile is masked. Templates for matrix units fuse axes: "m", "n" and "k" -> factors.
    unroll : int
        GPU: largest number of statements that are unrolled (TVM's auto_unroll_max_step). CPU: steps of the reduction
        that the microkernel unrolls.
    vector : mapping of str to int
        GPU: staged tensor -> number of elements that a thread fetches at once.
    options : mapping
        Options that only some templates have. "cpu": loop orders, packing, the parallel loop, a second microkernel
        (`anatune.templates.cpu.space`). GPU templates with a reduction: "split" (blocks that share the reduction of one
        tile), "whole" (number of first tiles that are not split) and "atomic" (whether the blocks add their sums to the
        result with atomic operations instead of a second kernel). "pipelined": "stages" (buffers in shared memory) and
        "pad" (elements between the rows of staged tiles). "triton": "group_m", "split_k", "num_warps", "num_stages" and
        others (`anatune.templates.triton.rules.OPTIONS`).

    Examples
    --------
    >>> import anatune
    >>> space = anatune.space(anatune.matmul(512, 4096, 1024), "rtx3090")
    >>> tiles = {"i": (8, 2, 16, 2, 1), "j": (32, 2, 16, 4, 1), "k": (64, 4, 4)}
    >>> schedule = space.schedule(tiles=tiles, unroll=512, vector={"A": 4, "B": 4})
    >>> schedule == anatune.Schedule.from_json(schedule.to_json())
    True
    """

    workload: Workload
    hardware: GpuSpec | CpuSpec
    template: str
    tiles: Mapping[str, tuple[int, ...]]
    unroll: int = 0
    vector: Mapping[str, int] = EMPTY
    options: Mapping[str, OptionValue] = EMPTY

    def __post_init__(self) -> None:
        freeze(self, "tiles", "vector", "options")

    def check(self) -> Schedule:
        """Return the schedule if it fits its own workload, hardware and template; the result is cached.

        Constructors do not check, because plans make thousands of schedules that are right by construction. Functions
        that read, score or build schedules of callers call this method first.

        Raises
        ------
        SpaceError
            A field does not fit; the message names it, the value, and the expected value.
        """
        _ = self._is_checked
        return self

    @cached_property
    def _is_checked(self) -> bool:
        _check(self)
        return True

    @cached_property
    def key(self) -> str:
        """Hash (16 hexadecimal digits) of the schedule, workload and hardware included; equal in every process."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()[:16]

    def __hash__(self) -> int:
        return int(self.key, 16)

    def __repr__(self) -> str:
        try:
            return f"Schedule({self.workload.describe()} on {self.hardware.name}, {self.template}: {self.describe()})"
        except (AttributeError, TypeError):  # fields of wrong types: error messages show such objects, too
            return super().__repr__()

    def _repr_html_(self) -> str:
        others = {"unroll": self.unroll, **{f"vector {name}": width for name, width in self.vector.items()}}
        rows = [(axis, " x ".join(map(str, factors))) for axis, factors in self.tiles.items()]
        rows += [(name, str(value)) for name, value in (others | dict(self.options)).items()]
        title = f"{self.workload.describe()} on {self.hardware.name}, template {self.template}"
        return html_table(title, ("", "outer to inner"), rows)

    def to_json(self) -> str:
        """Return the schedule as one JSON object that contains its workload and hardware."""
        return msgspec.json.encode(self).decode()

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain dictionaries and lists."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return from_json(msgspec.json.encode(fields), dict[str, Any])

    @classmethod
    def from_json(cls, text: str | bytes) -> Schedule:
        """Read a schedule from the JSON of `to_json`, or of a plan, a subset, trials or records.

        If the JSON holds several schedules, the best is returned: the first of ``schedules`` of a plan or subset,
        ``best_schedule`` of a tuning session, ``schedule`` of a trial or record, the first entry of a list.

        Raises
        ------
        SpaceError
            The text is not such JSON, or its fields do not fit each other; the message names the field.
        """
        if not isinstance(text, str | bytes):
            raise SpaceError(f"schedule JSON: got {quote(text)}, expected the text of Schedule.to_json()")
        try:
            while (inner := _find_best(text)) is not None:
                text = inner
            parsed = from_json(text, _ListedSchedule)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise SpaceError(
                f"schedule JSON: {error!s:.300}; expected the text of Schedule.to_json(), or the output of a command "
                "with --json"
            ) from None
        return cls(*(getattr(parsed, name) for name in cls.__struct_fields__)).check()

    def apply(self) -> Any:
        """Return the schedule as a ``tvm.s_tir.Schedule``, ready for ``tvm.compile``.

        Its function ``main`` takes all tensors in the workload's own layouts, and packs in every call what a CPU
        schedule would pack once before the run. Parallel loops use as many threads as the hardware has cores.

        Raises
        ------
        anatune.errors.BuildError
            The schedule cannot be lowered: it needs more than the device has, or the GPU is not an NVIDIA GPU.
        anatune.errors.MissingDependencyError
            TVM is not installed.
        """
        lower = LATE["lower"]
        return lower(self.check(), self.hardware.most_threads or 1).tvm_schedule()

    def source(self) -> str:
        """Return the readable source code of the schedule's kernel; no device is needed.

        Template "triton": a Python module for Triton; neither Triton nor TVM has to be installed. Other GPU templates:
        CUDA C. CPUs: TVMScript, whose parallel loops use as many threads as the hardware has cores.

        Raises
        ------
        anatune.errors.BuildError
            The schedule cannot be lowered: it needs more than the device has, or the GPU is not an NVIDIA GPU.
        anatune.errors.MissingDependencyError
            TVM is not installed.
        """
        return str(LATE["source"](self.check(), self.hardware.most_threads or 1))

    def describe(self) -> str:
        """Return one line: the tiles of each axis (outer to inner), unroll, fetch widths and options."""
        words = [f"{axis}={'x'.join(map(str, factors))}" for axis, factors in self.tiles.items()]
        options = self.told_options
        words += [f"{name}={options.pop(name)}" for name in ("unroll",) if name in options]
        words += [f"{tensor}:v{width}" for tensor, width in self.vector.items()]
        words += [f"{name}={value}" for name, value in options.items()]
        return " ".join(words)

    @property
    def told_options(self) -> dict[str, OptionValue]:
        """``unroll`` and the options, without those that have no effect in the schedule's template."""
        ineffective = getattr(all_templates().get(self.template), "silent", {})
        values = {"unroll": self.unroll, **self.options}
        return {name: value for name, value in values.items() if ineffective.get(name) != value}


class _ListedSchedule(Schedule, frozen=True, forbid_unknown_fields=True, dict=True, omit_defaults=True):
    """A schedule as plans and subsets write it to JSON."""

    prediction: Any = None
    num_alike: int | None = None
    error_bound: float | None = None


class _ScheduleAnswer(msgspec.Struct, frozen=True):
    """The fields of a plan, subset, trial or session that contain schedules."""

    schedules: tuple[msgspec.Raw, ...] | None = None
    best_schedule: msgspec.Raw = msgspec.Raw()
    schedule: msgspec.Raw = msgspec.Raw()


def _find_best(text: str | bytes | msgspec.Raw) -> msgspec.Raw | None:
    """Return the JSON of the best schedule inside an answer; None if the JSON may be a schedule itself.

    Raises
    ------
    msgspec.DecodeError
        The text is not JSON, or neither an object nor a list.
    SpaceError
        The answer contains no schedule.
    """
    answer = from_json(text, tuple[msgspec.Raw, ...] | _ScheduleAnswer)
    if isinstance(answer, _ScheduleAnswer) and answer.schedules is None:
        schedules = [raw for raw in (answer.best_schedule, answer.schedule) if bytes(raw)]
        if not schedules:
            return None
        candidates = [raw for raw in schedules if bytes(raw) != b"null"]
    else:
        candidates = list((answer.schedules or ()) if isinstance(answer, _ScheduleAnswer) else answer)
    if not candidates:
        raise SpaceError("schedule JSON: no schedule is listed, because none was legal or none ran; expected one")
    return candidates[0]


def check_schedule(what: str, value: object) -> Schedule:
    """Return `value` if it is a schedule that fits its own workload, hardware and template; `what` begins the message.

    Raises
    ------
    SpaceError
        The value is not such a schedule.
    """
    if not isinstance(value, Schedule):
        raise SpaceError(f"{what}: got {quote(value)}, expected a Schedule; build one with space.schedule(...)")
    return value.check()


def _check(schedule: Schedule) -> None:
    """Raise SpaceError unless the fields of a schedule, which may have any type, fit each other."""
    workload, hardware, template = schedule.workload, schedule.hardware, schedule.template
    if not isinstance(workload, Workload):
        raise SpaceError(f"schedule: workload is {workload!r:.60}, expected a Workload")
    if not isinstance(hardware, GpuSpec | CpuSpec):
        raise SpaceError(f"schedule: hardware is {hardware!r:.60}, expected a GpuSpec or a CpuSpec")
    templates = all_templates().of_kind(hardware.kind)
    if not isinstance(template, str) or template not in templates:
        raise SpaceError(
            f"schedule: template is {template!r:.40}, expected one of {', '.join(templates)} for {hardware.name}"
            f"{note_removed(template)}"
        )
    for name, value in ((name, getattr(schedule, name)) for name in ("tiles", "vector", "options")):
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise SpaceError(f"schedule: {name} is {value!r:.60}, expected a mapping with names as keys")
    try:
        all_templates()[template].check(schedule)
    except SpaceError as error:
        raise SpaceError(f"schedule of {workload.operator} ({template}): {error}") from None
