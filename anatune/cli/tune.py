"""``anatune tune``: build, check and time schedules on the present machine, keep everything, return the fastest."""

from __future__ import annotations

import math
import os
import re
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anatune.cli.output import (
    UsageError,
    count_progress,
    line_width,
    note,
    note_first_compilation,
    print_json,
    print_lines,
    print_text,
    refuse_given,
    write_text,
)
from anatune.cli.plan import check_template
from anatune.cli.workload import with_workload
from anatune.errors import DeviceError, RecordError
from anatune.files import reason

if TYPE_CHECKING:
    from anatune.core.hardware.spec import CpuSpec, GpuSpec
    from anatune.core.workload.nest import Workload
    from anatune.tuning.result import TuningProgress, TuningResult

__all__ = ["DEFAULT_RECORDS", "schedule_file", "tune"]

DEFAULT_RECORDS = "tuning.sqlite"
_EXPORT = {
    False: "--format so --output DIR` makes a library of it",
    True: "--target cuda --output DIR` writes its CUDA C and cubin",
}
_MEASURING = (
    "strategy", "start", "records", "threads", "resume", "time_limit", "l2", "device", "backend", "output",
)  # fmt: skip
_BUILDING = ("strategy", "start", "seed", "template", "threads")
_OF_GPUS = ("l2", "device", "backend")
"""Parameters that do not count with --build-only; with --manifest; on CPUs."""
_QUIET_S = 10.0
"""Without a terminal: seconds between lines about trials that are neither better nor failed."""


def _check_trials(value: int) -> int:
    if value < 1:
        raise typer.BadParameter(f"got {value}, expected an integer >= 1")
    return value


def _check_seed(value: int) -> int:
    if value < 0:
        raise typer.BadParameter(f"got {value}, expected an integer >= 0")
    return value


def _check_seconds(value: float | None) -> float | None:
    if value is not None and not (value > 0 and math.isfinite(value)):
        raise typer.BadParameter(f"got {value:g}, expected a number of seconds > 0")
    return value


@with_workload("tune", unless="manifest")
def tune(
    context: typer.Context,
    workload: Workload | None,
    hw: Annotated[
        str | None,
        typer.Option(
            "--hw",
            metavar="NAME|FILE",
            help="The present machine: host, its GPU (host_gpu, h200), or a spec of it (name or TOML file).",
        ),
    ] = None,
    trials: Annotated[
        int,
        typer.Option(
            "--trials", metavar="N", callback=_check_trials, help="Schedules to measure, resumed ones included."
        ),
    ] = 64,
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy",
            metavar="S",
            help="Who asks: model, dgd, droplet, nose, bayes, structured, genetic, random or grid.",
        ),
    ] = "model",
    start: Annotated[
        str,
        typer.Option(
            "--start", metavar="model|paper", help="Start from the model's ranking, or as the strategy was published."
        ),
    ] = "model",
    records: Annotated[Path, typer.Option("--records", metavar="FILE", help="Where every trial is kept.")] = Path(
        DEFAULT_RECORDS
    ),
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads", metavar="T", help="Threads of the kernels.  [default: TVM_NUM_THREADS, else all cores]"
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the latest session of this workload, hardware and strategy.")
    ] = False,
    seed: Annotated[
        int,
        typer.Option("--seed", metavar="N", callback=_check_seed, help="Of the strategy's choices and the operands."),
    ] = 0,
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit", metavar="SECONDS", callback=_check_seconds, help="Ask for nothing new after that."
        ),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(
            "--template", metavar="NAME", callback=check_template, help="GPUs: pipelined (default), cuda or tensorcore."
        ),
    ] = None,
    l2: Annotated[
        str | None,
        typer.Option(
            "--l2",
            metavar="flush|warm",
            help="GPUs: empty the L2 cache before each launch, or leave it as it is.  [default: flush]",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        int, typer.Option("--device", metavar="N", min=0, help="GPUs: number of the device, as CUDA counts.")
    ] = 0,
    backend: Annotated[
        str | None,
        typer.Option("--backend", metavar="NAME", help="GPUs: pycuda or cuda-bindings.  [default: the one that works]"),
    ] = None,
    build_only: Annotated[
        Path | None,
        typer.Option(
            "--build-only", metavar="DIR", help="GPUs: build the plan's first schedules into DIR; no GPU is needed."
        ),
    ] = None,
    manifest: Annotated[
        Path | None,
        typer.Option(
            "--manifest",
            metavar="DIR",
            help="GPUs: measure what --build-only wrote; neither TVM nor a compiler needed.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="The best schedule.  [default: <workload>.schedule.json]",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure schedules of a workload on the present machine and return the fastest.

    The plan's own first choice comes first, then what the strategy asks for; every trial is checked against a float64
    reference and recorded as it ends. Ctrl-C keeps everything, and --resume goes on, also after a crash.

    Where the machine with the GPU has no compiler: --build-only here, then --manifest there.
    """
    from anatune import api
    from anatune.tuning import session
    from anatune.tuning.result import TuningInterrupted

    if build_only is not None:
        if manifest is not None or workload is None or hw is None:
            raise UsageError("--build-only builds and --manifest measures what was built; leave one out")
        spec = api.hardware(hw)
        if spec.__struct_config__.tag != "gpu":
            raise DeviceError(f"--build-only is for GPUs, and {spec.name} is none; tune it where it is")
        refuse_given(context, _MEASURING, "is said where kernels are measured, with --manifest; --build-only builds")
        _build(workload, spec, build_only, trials, template, seed, as_json)
        return
    if manifest is not None:
        from anatune.tuning.manifest import read_manifest

        refuse_given(context, _BUILDING, "was decided when --build-only wrote the manifest")
        built = read_manifest(manifest)
        workload = workload or built.workload
        hardware = built.hardware if hw is None else api.hardware(hw)
    else:
        assert hw is not None
        hardware = api.hardware(hw)
    assert workload is not None
    if hardware.__struct_config__.tag != "gpu":
        refuse_given(context, _OF_GPUS, f"is for GPUs, and {hardware.name} is none")
    chosen = _threads(threads, hardware)
    target = output or Path(schedule_file(workload))
    if not target.parent.is_dir():
        raise UsageError(f"--output {target}: the folder {target.parent} does not exist; make it")
    if target.is_dir():
        raise UsageError(f"--output {target}: is a folder, expected a file; name one in it")
    display = _Display()
    tuning = session.TuningSession(
        workload, hardware, trials=trials, strategy=strategy, records=records, threads=chosen, seed=seed,
        resume=resume, progress=display, time_limit_s=time_limit, template=template, l2=l2, device=device,
        backend=backend, manifest=manifest, start=start,
    )  # fmt: skip
    if manifest is None:
        note_first_compilation(hardware, template)  # after the session has checked its arguments
    try:
        with display:
            result = tuning.run()
    except TuningInterrupted as stop:
        _note_all(tuning.damaged)
        _show(stop.result, target, as_json)
        done = len(stop.result.trials)
        raise KeyboardInterrupt(
            f"interrupted after {done} of {trials} trials, all of them kept in {records}; "
            "the same command with --resume goes on"
        ) from None
    _note_all(tuning.damaged)
    if resume and not result.num_resumed:
        note(f"note: {records} has no session of this workload, hardware, threads and strategy; began a new one")
    if resume and result.num_resumed and seed != result.seed:
        note(f"note: the session goes on with its own seed, {result.seed}")
    _show(result, target, as_json)
    if result.best_trial is None:
        _ = result.best  # raises, and says how the trials ended


def _note_all(lines: list[str]) -> None:
    for line in dict.fromkeys(lines):
        note(f"note: {line}")


def _build(
    workload: Workload,
    hardware: CpuSpec | GpuSpec,
    folder: Path,
    trials: int,
    template: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """Build kernels for another machine and say where they are."""
    from anatune.errors import BuildError
    from anatune.tuning.manifest import MANIFEST, build_manifest

    note_first_compilation(hardware, template)
    progress = count_progress("building")
    made = build_manifest(
        workload,
        hardware,  # type: ignore[arg-type]
        folder,
        trials=trials,
        template=template,
        seed=seed,
        progress=lambda done, failed, total: progress(done, total),
    )
    failures = [entry.failure for entry in made.entries if entry.failure is not None]
    if len(failures) == len(made.entries):
        raise BuildError(f"none of {len(failures)} schedules can be built; the first says: {failures[0].message}")
    path, number = folder / MANIFEST, len(made.entries) - len(failures)
    if as_json:
        print_json({"manifest": str(path), "kernels": number, "failed": len(failures), "compiler": made.compiler})
        return
    print_text(
        f"wrote {path}: {number} kernels for {hardware.name} ({hardware.arch}), by {made.compiler}"
        + (f"; {len(failures)} schedules cannot be built, the first: {failures[0].message}" if failures else "")
        + f"\non a machine with that GPU: anatune tune --manifest {folder} --records FILE"
    )


def _threads(given: int | None, hardware: CpuSpec | GpuSpec) -> int | None:
    """Return the threads to tune for: the option, else TVM_NUM_THREADS (at most the cores), else None."""
    from anatune.core.hardware.spec import CpuSpec
    from anatune.tuning.machine import choose_threads

    text = os.environ.get("TVM_NUM_THREADS")
    if given is not None or not text:
        return given
    if not text.isdigit() or int(text) < 1:
        raise UsageError(
            f"the variable TVM_NUM_THREADS is {text!r}, expected an integer >= 1; unset it or use --threads"
        )
    return min(int(text), choose_threads(hardware, None)) if isinstance(hardware, CpuSpec) else None


def schedule_file(workload: Workload) -> str:
    """Return the name of the file that the best schedule is written to by default."""
    from anatune.records.export import workload_text

    return f"{re.sub(r'[^A-Za-z0-9.]+', '_', workload_text(workload)).strip('_')}.schedule.json"


def _show(result: TuningResult, target: Path, as_json: bool) -> None:
    """Write the best schedule to its file and say what was found."""
    from anatune.report.tuning import result_lines

    hints, failure = [], ""
    if result.best_trial is not None:
        try:
            write_text(target, result.best.to_json() + "\n")
        except OSError as error:  # what was found is said all the same
            failure = reason(error)
    if result.best_trial is not None and not failure:
        hints.append(f"best schedule: {target}; `anatune export {target} {_EXPORT[result.best.template != 'cpu']}")
    hints.append(f"all trials: {result.records}; `anatune records list {result.records}` shows them")
    if as_json:
        written = result.best_trial is not None and not failure
        print_json({**result.to_dict(), "output": str(target) if written else None})
    else:
        print_lines(result_lines(result, hints, width=line_width()))
    if failure:
        raise RecordError(
            f"{target}: {failure}, the best schedule was not written; it is in {result.records}: "
            f"`anatune export --records {result.records}` with the workload, or --output with another place"
        )


class _Display:
    """Progress on stderr: a bar on a terminal, lines elsewhere. Called with each `TuningProgress`."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None
        self._said_s = -math.inf
        self._best: int | None = None

    def __enter__(self) -> _Display:
        if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn
            from rich.table import Column

            # Drawn only between trials: a thread that redraws would take time from the kernel that is measured.
            self._bar = Progress(
                BarColumn(bar_width=20),
                TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
                console=Console(stderr=True),
                transient=True,
                auto_refresh=False,
            )
            self._task = self._bar.add_task("planning", total=None)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, progress: TuningProgress) -> None:
        from anatune.report.tuning import progress_text

        text = progress_text(progress)
        if self._bar is not None:
            self._bar.update(self._task, description=text, completed=progress.done, total=progress.total, refresh=True)
            return
        best = None if progress.best is None else progress.best.number
        failed = progress.trial is not None and progress.trial.measurement.time_s is None
        news = progress.stage != "measure" or best != self._best or failed or progress.done == progress.total
        now = time.monotonic()
        if news or now - self._said_s >= _QUIET_S:
            note(text)
            self._said_s, self._best = now, best
