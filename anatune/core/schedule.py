"""A schedule: one point of a tile space together with its workload, hardware and template.

`Schedule.check` decides, for every way in, whether one fits its own workload, hardware and template. It is called where
schedules enter (JSON, lists of candidates, code generation), once for each object. Rows of records are read as they
were written, and checked where they are used. Whatever comes behind it may rely on it: every factor is there and
multiplies to its extent, every option is known, typed and fits the tiles. Whether a device can run the schedule is
another question: the model's rules.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec

from anatune.arguments import shown
from anatune.core.frozen import EMPTY, freeze
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.show import html_table
from anatune.core.templates import LATE, known_templates, note_removed
from anatune.core.workload.nest import Workload
from anatune.decoding import from_json
from anatune.errors import SpaceError

OptionValue = int | str | bool | tuple[int | str, ...]


class Schedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True, omit_defaults=True):
    """One decoded point: readable, hashable, JSON both ways; immutable, its mappings too.

    Attributes
    ----------
    workload, hardware
        What is computed, and on which device the choice was made.
    template : str
        "cuda" (block, vthread, thread, reg_outer, reg_inner | k0, k1, k2), "pipelined" (the same with a staging
        pipeline), "triton" (block, tile | step, tile), "cpu" (cache and register tiles), "thin", "winograd", "scaled",
        "fp16_accumulation" or "amx"; `rules.py` of a template's folder says what its factors are.
    tiles : mapping of str to tuple of int
        Axis -> factors from the outermost to the innermost loop; each product is the axis's extent or, on a GPU whose
        last tile is guarded, just above it. Matrix units: fused index ("m", "n", "k") -> factors, likewise.
    unroll : int
        GPU: largest number of statements that is unrolled explicitly (TVM's auto_unroll_max_step). CPU: steps of the
        reduction that the microkernel unrolls.
    vector : mapping of str to int
        Staged tensor -> elements a thread fetches at once (GPU).
    options : mapping
        What only some templates have. CPU: loop order, packing, parallel loop, second microkernel. Pipelined GPU:
        stages (shared-memory buffers) and pad (elements between the rows of staged tiles).
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
        """Return the schedule itself, if it is one of its own workload, hardware and template; free the second time.

        Constructors do not check, because plans make thousands of schedules that cannot be wrong. Whatever reads,
        scores or builds schedules of others calls this first.

        Raises
        ------
        SpaceError
            The message names the field, what was got and what was expected.
        """
        _ = self._is_checked
        return self

    @cached_property
    def _is_checked(self) -> bool:
        _check(self)
        return True

    @cached_property
    def key(self) -> str:
        """Stable content hash (16 hexadecimal digits) of the whole schedule, workload and hardware included."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()[:16]

    def __hash__(self) -> int:
        return int(self.key, 16)

    def __repr__(self) -> str:
        try:
            return f"Schedule({self.workload.describe()} on {self.hardware.name}, {self.template}: {self.describe()})"
        except (AttributeError, TypeError):  # made by hand, of other types: the message that says so shows it
            return super().__repr__()

    def _repr_html_(self) -> str:
        others = {"unroll": self.unroll, **{f"vector {name}": width for name, width in self.vector.items()}}
        rows = [(axis, " x ".join(map(str, factors))) for axis, factors in self.tiles.items()]
        rows += [(name, str(value)) for name, value in (others | dict(self.options)).items()]
        title = f"{self.workload.describe()} on {self.hardware.name}, template {self.template}"
        return html_table(title, ("", "outer to inner"), rows)

    def to_json(self) -> str:
        """Return the schedule as one JSON object (with its workload and hardware, so that it stands alone)."""
        return msgspec.json.encode(self).decode()

    def to_dict(self) -> dict[str, Any]:
        """Return plain dictionaries and lists, every field among them."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return from_json(msgspec.json.encode(fields), dict[str, Any])

    @classmethod
    def from_json(cls, text: str | bytes) -> Schedule:
        """Read what `to_json` wrote, or the JSON of a plan, a subset, trials or records.

        Of several schedules it is the best: ``schedules`` of a plan or subset, ``best_schedule`` of a tuning session,
        ``schedule`` of a trial or record; the first of a list.

        Raises
        ------
        SpaceError
            The text is no such object, or its fields do not fit each other; the message names the field.
        """
        if not isinstance(text, str | bytes):
            raise SpaceError(f"schedule JSON: got {shown(text)}, expected the text of Schedule.to_json()")
        try:
            while (inner := _inner(text)) is not None:
                text = inner
            read = from_json(text, _Printed)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise SpaceError(
                f"schedule JSON: {error!s:.300}; expected the text of Schedule.to_json(), or what a command prints "
                "with --json"
            ) from None
        return cls(*(getattr(read, name) for name in cls.__struct_fields__)).check()

    def apply(self) -> Any:
        """Return the schedule as a ``tvm.s_tir.Schedule``, ready for ``tvm.compile``.

        Its function ``main`` takes all tensors in the workload's own layouts: what a CPU schedule packs ahead of the
        run is packed in every call. Parallel loops are for as many threads as the hardware has cores.

        Raises
        ------
        anatune.errors.BuildError
            The schedule cannot be lowered: it needs more than the device has, or the GPU is not one of NVIDIA's.
        anatune.errors.MissingDependencyError
            TVM is not installed.
        """
        lower = LATE["lower"]
        return lower(self.check(), self.hardware.most_threads or 1).tvm_schedule()

    def source(self) -> str:
        """Return the schedule's program as people read it; no device is needed.

        Template "triton": the text of a Python module of Triton's, which neither Triton nor TVM is needed for. Other
        GPU templates: CUDA C. CPUs: TVMScript, whose parallel loops are for as many threads as the hardware has cores.

        Raises
        ------
        anatune.errors.BuildError
            The schedule cannot be lowered: it needs more than the device has, or the GPU is not one of NVIDIA's.
        anatune.errors.MissingDependencyError
            TVM is not installed.
        """
        return str(LATE["source"](self.check(), self.hardware.most_threads or 1))

    def describe(self) -> str:
        """One line: the tiles of each axis (outer to inner), unroll, fetch widths, options."""
        words = [f"{axis}={'x'.join(map(str, factors))}" for axis, factors in self.tiles.items()]
        told = self.told_options
        words += [f"{name}={told.pop(name)}" for name in ("unroll",) if name in told]
        words += [f"{tensor}:v{width}" for tensor, width in self.vector.items()]
        words += [f"{name}={value}" for name, value in told.items()]
        return " ".join(words)

    @property
    def told_options(self) -> dict[str, OptionValue]:
        """``unroll`` and the options, without those that say nothing of a schedule of its template."""
        silent = getattr(known_templates().get(self.template), "silent", {})
        values = {"unroll": self.unroll, **self.options}
        return {name: value for name, value in values.items() if silent.get(name) != value}


class _Printed(Schedule, frozen=True, forbid_unknown_fields=True, dict=True, omit_defaults=True):
    """A schedule as plans and subsets list it."""

    prediction: Any = None
    num_alike: int | None = None
    error_bound: float | None = None


class _Answer(msgspec.Struct, frozen=True):
    """What has schedules in it, as far as that goes."""

    schedules: tuple[msgspec.Raw, ...] | None = None
    best_schedule: msgspec.Raw = msgspec.Raw()
    schedule: msgspec.Raw = msgspec.Raw()


def _inner(text: str | bytes | msgspec.Raw) -> msgspec.Raw | None:
    """Return the best schedule of an answer, or what holds it; None for JSON that holds none and may be one itself.

    Raises
    ------
    msgspec.DecodeError
        It is no JSON, or neither an object nor a list.
    SpaceError
        It is an answer without a schedule.
    """
    found = from_json(text, tuple[msgspec.Raw, ...] | _Answer)
    if isinstance(found, _Answer) and found.schedules is None:
        held = [raw for raw in (found.best_schedule, found.schedule) if bytes(raw)]
        if not held:
            return None
        listed = [raw for raw in held if bytes(raw) != b"null"]
    else:
        listed = list((found.schedules or ()) if isinstance(found, _Answer) else found)
    if not listed:
        raise SpaceError("schedule JSON: the answer has no schedule: nothing was legal, or nothing ran")
    return listed[0]


def checked_schedule(what: str, value: object) -> Schedule:
    """Return `value` if it is a schedule that fits its own workload, hardware and template; `what` leads the message.

    Raises
    ------
    SpaceError
        It is none.
    """
    if not isinstance(value, Schedule):
        raise SpaceError(f"{what}: got {shown(value)}, expected a Schedule; build one with space.schedule(...)")
    return value.check()


def _check(schedule: Schedule) -> None:
    """Raise SpaceError unless the fields of a schedule, which may be of any type, fit each other."""
    workload, hardware, template = schedule.workload, schedule.hardware, schedule.template
    if not isinstance(workload, Workload):
        raise SpaceError(f"schedule: workload is {workload!r:.60}, expected a Workload")
    if not isinstance(hardware, GpuSpec | CpuSpec):
        raise SpaceError(f"schedule: hardware is {hardware!r:.60}, expected a GpuSpec or a CpuSpec")
    templates = known_templates().of_kind(hardware.kind)
    if not isinstance(template, str) or template not in templates:
        raise SpaceError(
            f"schedule: template is {template!r:.40}, expected one of {', '.join(templates)} for {hardware.name}"
            f"{note_removed(template)}"
        )
    for name, value in ((name, getattr(schedule, name)) for name in ("tiles", "vector", "options")):
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise SpaceError(f"schedule: {name} is {value!r:.60}, expected a mapping by name")
    try:
        known_templates()[template].check(schedule)
    except SpaceError as error:
        raise SpaceError(f"schedule of {workload.operator} ({template}): {error}") from None
