"""Where ``anatune export`` takes its schedule from: a file, records, or a plan made for it."""

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


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What chooses a schedule, and what is made of it."""

    hw: Annotated[
        str | None,
        typer.Option(
            "--hw",
            metavar="NAME",
            help="With --records: what was measured on this hardware. Without: the plan's first choice for it.",
        ),
    ] = None
    records: Annotated[Any, records_option("Take the best schedule of this record file or server.")] = None
    form: Annotated[
        Literal["so", "o", "a", "tvm", "py"] | None,
        typer.Option(
            "--format",
            help="CPUs: a shared library (so, the default), an object (o) or a static library (a), with a C header. "
            "tvm: an IRModule as JSON. py: of the template triton the Python file only, without machine code.",
        ),
    ] = None
    target: Annotated[
        Literal["cpu", "cuda"] | None,
        typer.Option(
            "--target",
            help="cuda: CUDA C, a cubin and a C header that launches it; no GPU is needed.  [default: the schedule's]",
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
            help="CPUs: threads of parallel loops; with --records only what was measured with so many.  "
            "[default: what it was tuned or planned for]",
        ),
    ] = None


def find_schedule(asked: Asked, words: list[str], options: WorkloadOptions) -> tuple[Schedule, int]:
    """Return the schedule that is asked for, and the threads it was tuned for.

    Raises
    ------
    UsageError
        Words or options do not go together.
    AnatuneError
        There is no such file, record or legal schedule.
    """
    from anatune.templates import check_accuracy, template_named

    if asked.records is not None:
        chosen = _from_records(asked, words, options)
    elif asked.hw is not None:
        chosen = _from_plan(asked, words, options)
    else:
        chosen = _from_file(words, options)
    schedule, _ = chosen
    schedule.check()  # a record of a former version may be of a template that is gone
    _check(asked, schedule.hardware)
    if asked.form == "py" and template_named(schedule.template).toolchain != "triton":
        raise UsageError(f"--format py is for schedules of the template triton, this one is of {schedule.template}")
    check_accuracy(schedule.workload, template_named(schedule.template), asked.accuracy)
    if asked.template not in (None, schedule.template):
        raise UsageError(f"--template {asked.template}: the schedule is of the template {schedule.template}")
    return chosen


def find_range(asked: Asked, words: list[str], options: WorkloadOptions) -> RangePlan | None:
    """Return the plan for a range that a file holds; None: it holds something else, or no file is asked for.

    Raises
    ------
    UsageError
        Options do not go with it, or words have a range.
    """
    from anatune.core.workload.ranges import has_range

    if has_range(words):
        raise UsageError(
            f"{' '.join(words)} has a range of extents; plan it first: anatune plan --hw NAME "
            f"{' '.join(words)} --json > range.json, then anatune export range.json"
        )
    if asked.records is not None or asked.hw is not None or len(words) != 1:
        return None
    from anatune.files import read_file
    from anatune.model.ranges.plan import RangePlan

    path = Path(words[0])
    try:
        tree = msgspec.json.decode(read_file(path)) if path.is_file() else {}
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    tree = tree.get("range", tree) if isinstance(tree, dict) else {}  # of a manifest, or a plan
    if "intervals" not in tree:
        return None
    plan = RangePlan.from_json(msgspec.json.encode(tree))
    options.refuse("is for a WORKLOAD, a plan has its own")
    _check(asked, plan.hardware)
    if asked.form in ("tvm", "py"):
        raise UsageError(
            f"--format {asked.form} is for single schedules, the file is a plan for a range; say so, o or a"
        )
    if asked.template not in (None, *(program.schedule.template for program in plan.programs)):
        raise UsageError(f"--template {asked.template}: the programs are of another template")
    return plan


def _check(asked: Asked, hardware: GpuSpec | CpuSpec) -> None:
    """Raise UsageError where an option does not go with the hardware."""
    kind = "cuda" if hardware.kind == "gpu" else "cpu"
    if asked.target not in (None, kind):
        raise UsageError(f"--target {asked.target}: the schedule is for {hardware.name}; leave it out or say {kind}")
    if kind == "cuda" and asked.threads is not None:
        raise UsageError("--threads is for CPU schedules; a GPU schedule has its own launch configuration")
    if kind == "cuda" and asked.form not in (None, "tvm", "py"):
        raise UsageError(
            f"--format {asked.form} is for CPU schedules, this one is for {hardware.name}; leave it out for CUDA C, "
            "a cubin and a header"
        )


def _workload(words: list[str], options: WorkloadOptions, example: str) -> Workload:
    if not words:
        raise UsageError(f"the workload is missing; write for example anatune export {example}")
    return options.parse(words)


def _cores(schedule: Schedule) -> int:
    return schedule.hardware.most_threads or 1


def _from_plan(asked: Asked, words: list[str], options: WorkloadOptions) -> tuple[Schedule, int]:
    """Return the plan's first choice, and the cores that it was planned for."""
    from anatune.api import hardware, plan
    from anatune.core.generation import check_generation
    from anatune.errors import SpaceError
    from anatune.measure.cuda.compiler import check_compiler
    from anatune.model.joint import asked_templates

    if len(words) == 1 and Path(words[0]).is_file():
        raise UsageError(f"{words[0]} is a file, which says what it is for; leave out --hw")
    workload = _workload(words, options, "--hw rtx3090 matmul 512x4096x1024")
    spec = hardware(str(asked.hw))
    _check(asked, spec)  # better before a search than after it
    names = asked_templates(workload, spec, asked.template, asked.accuracy)
    if spec.kind == "gpu" and asked.form != "py":
        check_compiler(spec, names)
    check_generation(workload, spec, names)
    schedules = plan(
        workload, spec, top_k=1, template=asked.template, accuracy=asked.accuracy, threads=asked.threads
    ).schedules
    if not schedules:
        raise SpaceError(f"no schedule of {workload.describe()} is legal on {spec.name}; `anatune plan` says why")
    return schedules[0], _cores(schedules[0])


def _from_file(words: list[str], options: WorkloadOptions) -> tuple[Schedule, int]:
    """Return the schedule of a file, and the cores that it was planned for."""
    from anatune.core.schedule import Schedule
    from anatune.errors import SpaceError
    from anatune.files import read_file

    if len(words) != 1:
        got = f"got {' '.join(words)!r}" if words else "it is missing"
        raise UsageError(
            f"expected a schedule file, {got}; write anatune export FILE.json, or --records FILE WORKLOAD, "
            "or --hw NAME WORKLOAD"
        )
    options.refuse("is for a WORKLOAD, a schedule file has its own")
    path = Path(words[0])
    try:
        schedule = Schedule.from_json(read_file(path))
    except SpaceError as error:
        raise SpaceError(f"{path}: {error}") from None
    return schedule, _cores(schedule)


def _from_records(asked: Asked, words: list[str], options: WorkloadOptions) -> tuple[Schedule, int]:
    """Return the best recorded schedule of a workload, and the threads it was measured with."""
    from anatune.core.accuracy import RELAXED, STANDARD
    from anatune.errors import RecordError
    from anatune.records.store import RecordStore

    workload, records = _workload(words, options, "--records FILE matmul 64x64x64"), asked.records
    accuracy = asked.accuracy or STANDARD
    with RecordStore(records, read_only=True) as store:
        best = store.best(
            workload, asked.hw, asked.threads, template=asked.template, accuracy=accuracy, on_damage=note_once()
        )
        relaxed = None
        if best is None and accuracy != RELAXED:
            relaxed = store.best(workload, asked.hw, asked.threads, template=asked.template, accuracy=RELAXED)
    if relaxed is not None:
        raise RecordError(
            f"{records}: has only trials of {workload.describe()} whose arithmetic is not admitted; "
            f"--accuracy {RELAXED} takes them"
        )
    if best is None:
        only = {"on": asked.hw, "of the template": asked.template, "with --threads": asked.threads}
        what = [workload.describe(), *(f"{word} {value}" for word, value in only.items() if value is not None)]
        raise RecordError(
            f"{records}: has no trial of {' '.join(what)} that ran; `anatune records list --records {records}` "
            "shows those it has"
        )
    return best.trial.schedule, best.trial.threads
