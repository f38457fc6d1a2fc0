"""The schedule that ``anatune export`` writes: from a file, from records, or from a new plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from anatune.cli.options import Accuracy, Template, records_option
from anatune.cli.output import UsageError, note_once
from anatune.cli.workload import WorkloadOptions

if TYPE_CHECKING:
    from anatune.core.hardware.spec import CpuSpec, GpuSpec
    from anatune.core.schedule import Schedule
    from anatune.core.workload.nest import Workload
    from anatune.model.ranges.plan import RangePlan


class ExportSource(msgspec.Struct, frozen=True, kw_only=True):
    """The options that choose a schedule and the form of the export."""

    hw: Annotated[
        str | None,
        typer.Option(
            "--hw",
            metavar="NAME",
            help="With --records: the device of the trials. Else: the device to plan for; its first schedule is taken.",
        ),
    ] = None
    records: Annotated[Any, records_option("Take the best schedule of this record file or server.")] = None
    form: Annotated[
        Literal["so", "o", "a", "tvm", "py"] | None,
        typer.Option(
            "--format",
            help="CPUs: a shared library (so, the default), an object (o) or a static library (a), with a C header. "
            "tvm: an IRModule as JSON. py: only the Python file of the template triton, without machine code.",
        ),
    ] = None
    target: Annotated[
        Literal["cpu", "cuda"] | None,
        typer.Option(
            "--target",
            help="cuda: CUDA C, a cubin and a C header that launches it; needs no GPU.  [default: the schedule's]",
        ),
    ] = None
    template: Template = None
    accuracy: Accuracy = None
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads",
            metavar="T",
            min=1,
            help="CPUs: number of threads of a kernel; with --records, only trials with this number.  "
            "[default: those that it was tuned or planned for]",
        ),
    ] = None


def find_schedule(source: ExportSource, words: list[str], options: WorkloadOptions) -> tuple[Schedule, int]:
    """Return the chosen schedule, and the threads it was tuned for.

    Raises
    ------
    UsageError
        The words or options cannot be combined.
    AnatuneError
        The file, the record or a legal schedule does not exist.
    """
    from anatune.templates import check_accuracy, get_template

    if source.records is not None:
        chosen = _find_recorded(source, words, options)
    elif source.hw is not None:
        chosen = _plan_schedule(source, words, options)
    else:
        chosen = _read_schedule(words, options)
    schedule, _ = chosen
    schedule.check()  # a record of a former version may have a template that was removed
    _check(source, schedule.hardware)
    if source.form == "py" and get_template(schedule.template).toolchain != "triton":
        raise UsageError(f"--format py is for schedules of the template triton, this one has {schedule.template}")
    check_accuracy(schedule.workload, get_template(schedule.template), source.accuracy)
    if source.template not in (None, schedule.template):
        raise UsageError(f"--template {source.template}: the schedule has the template {schedule.template}")
    return chosen


def find_range(source: ExportSource, words: list[str], options: WorkloadOptions) -> RangePlan | None:
    """Return the plan for a range in a file, or None if there is no file or it has something else.

    Raises
    ------
    UsageError
        The options cannot be combined with it, or the words contain a range.
    """
    from anatune.core.workload.ranges import has_range

    if has_range(words):
        raise UsageError(
            f"{' '.join(words)} has a range of extents; plan it first: anatune plan --hw NAME "
            f"{' '.join(words)} --json > range.json, then anatune export range.json"
        )
    if source.records is not None or source.hw is not None or len(words) != 1:
        return None
    from anatune.files import read_file
    from anatune.model.ranges.plan import RangePlan

    path = Path(words[0])
    try:
        tree = msgspec.json.decode(read_file(path)) if path.is_file() else {}
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    tree = tree.get("range", tree) if isinstance(tree, dict) else {}  # the file is a manifest or a plan
    if "intervals" not in tree:
        return None
    plan = RangePlan.from_json(msgspec.json.encode(tree))
    options.refuse("is for a WORKLOAD, but a plan has its own workload")
    _check(source, plan.hardware)
    if source.form in ("tvm", "py"):
        raise UsageError(f"--format {source.form} is for single schedules, the file is for a range; choose so, o or a")
    if source.template not in (None, *(program.schedule.template for program in plan.programs)):
        raise UsageError(f"--template {source.template}: the kernels of the range have another template")
    return plan


def _check(source: ExportSource, hardware: GpuSpec | CpuSpec) -> None:
    """Raise UsageError if an option does not fit the hardware."""
    kind = "cuda" if hardware.kind == "gpu" else "cpu"
    if source.target not in (None, kind):
        raise UsageError(f"--target {source.target}: the schedule is for {hardware.name}; choose {kind}")
    if kind == "cuda" and source.threads is not None:
        raise UsageError("--threads is for CPU schedules; a GPU schedule has its own launch configuration")
    if kind == "cuda" and source.form not in (None, "tvm", "py"):
        raise UsageError(
            f"--format {source.form} is for CPU schedules, but this one is for {hardware.name}; leave it out for "
            "CUDA C, a cubin and a header"
        )


def _workload(words: list[str], options: WorkloadOptions, example: str) -> Workload:
    if not words:
        raise UsageError(f"the workload is missing; give one, for example: anatune export {example}")
    return options.parse(words)


def _cores(schedule: Schedule) -> int:
    return schedule.hardware.most_threads or 1


def _plan_schedule(source: ExportSource, words: list[str], options: WorkloadOptions) -> tuple[Schedule, int]:
    """Return the first schedule of a new plan, and the cores that it was planned for."""
    from anatune.api import hardware, plan
    from anatune.core.generation import check_generation
    from anatune.errors import SpaceError
    from anatune.measure.cuda.compiler import check_compiler
    from anatune.model.joint import choose_templates

    if len(words) == 1 and Path(words[0]).is_file():
        raise UsageError(f"{words[0]} is a file, which names its hardware; leave out --hw")
    workload = _workload(words, options, "--hw rtx3090 matmul 512x4096x1024")
    spec = hardware(str(source.hw))
    _check(source, spec)  # check options before the search
    names = choose_templates(workload, spec, source.template, source.accuracy)
    if spec.kind == "gpu" and source.form != "py":
        check_compiler(spec, names)
    check_generation(workload, spec, names)
    schedules = plan(
        workload, spec, top_k=1, template=source.template, accuracy=source.accuracy, threads=source.threads
    ).schedules
    if not schedules:
        raise SpaceError(f"no schedule of {workload.describe()} is legal on {spec.name}; `anatune plan` says why")
    return schedules[0], _cores(schedules[0])


def _read_schedule(words: list[str], options: WorkloadOptions) -> tuple[Schedule, int]:
    """Return the schedule of a file, and the cores that it was planned for."""
    from anatune.core.schedule import Schedule
    from anatune.errors import SpaceError
    from anatune.files import read_file

    if len(words) != 1:
        got = f"got {' '.join(words)!r}" if words else "it is missing"
        raise UsageError(
            f"expected a schedule file, {got}; give anatune export FILE.json, or --records FILE WORKLOAD, "
            "or --hw NAME WORKLOAD"
        )
    options.refuse("is for a WORKLOAD, but a schedule file has its own workload")
    path = Path(words[0])
    try:
        schedule = Schedule.from_json(read_file(path))
    except SpaceError as error:
        raise SpaceError(f"{path}: {error}") from None
    return schedule, _cores(schedule)


def _find_recorded(source: ExportSource, words: list[str], options: WorkloadOptions) -> tuple[Schedule, int]:
    """Return the best recorded schedule of a workload, and the threads it was measured with."""
    from anatune.core.accuracy import RELAXED, STANDARD
    from anatune.errors import RecordError
    from anatune.records.store import RecordStore

    workload, records = _workload(words, options, "--records FILE matmul 64x64x64"), source.records
    accuracy = source.accuracy or STANDARD
    with RecordStore(records, read_only=True) as store:
        best = store.best(
            workload, source.hw, source.threads, template=source.template, accuracy=accuracy, on_damage=note_once()
        )
        relaxed = None
        if best is None and accuracy != RELAXED:
            relaxed = store.best(workload, source.hw, source.threads, template=source.template, accuracy=RELAXED)
    if relaxed is not None:
        raise RecordError(
            f"{records} only has trials of {workload.describe()} whose arithmetic is less accurate than "
            f"--accuracy {accuracy}; --accuracy {RELAXED} accepts them"
        )
    if best is None:
        only = {"on": source.hw, "of the template": source.template, "with --threads": source.threads}
        what = [workload.describe(), *(f"{word} {value}" for word, value in only.items() if value is not None)]
        raise RecordError(
            f"{records} has no trial of {' '.join(what)} with a time; `anatune records list --records {records}` "
            "lists its trials"
        )
    return best.trial.schedule, best.trial.threads
