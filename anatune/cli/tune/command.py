"""``anatune tune``: build, check and time schedules on the present machine, keep everything, return the fastest."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer
from msgspec.structs import asdict

from anatune.cli.completion import device_names, strategy_names
from anatune.cli.interrupts import present
from anatune.cli.options import (
    DEFAULT_RECORDS,
    Accuracy,
    AsJson,
    Backend,
    Elsewhere,
    Html,
    Patience,
    RecordFile,
    StopAt,
    Template,
    refuse_threads,
    seconds_option,
    spread,
)
from anatune.cli.output import UsageError, note, print_json, print_text, refuse_given
from anatune.cli.outputs import SCHEDULE, check_html
from anatune.cli.progress import Progress
from anatune.cli.tune.output import Display, show_result, write_session
from anatune.cli.workload import Words, WorkloadOptions
from anatune.errors import BuildError, DeviceError
from anatune.files import Output

if TYPE_CHECKING:
    from anatune.core.hardware.spec import GpuSpec, HardwareSpec
    from anatune.core.workload.nest import Workload
    from anatune.tuning.places.place import Place
    from anatune.tuning.result import TuningResult
    from anatune.tuning.settings import TuningSettings

_MEASURING = (
    "strategy", "start", "records", "threads", "resume", "time_limit_s", "l2", "device", "backend", "output",
    "cluster", "tls", "tracker", "key", "no_reuse", "stop_at", "patience", "html",
)  # fmt: skip
_BUILDING = ("strategy", "start", "seed", "template", "accuracy", "threads")
_OF_GPUS = ("l2", "device", "backend")
_ELSEWHERE = ("cluster", "tls", "tracker", "key")
_OF_THIS_MACHINE = ("device", "backend")
"""Parameters that do not count with --build-only; with --manifest; on CPUs; with --manifest, too; elsewhere."""
_PAGE_S = 60.0
"""How long an interrupted session may take to write its page: seconds on a machine that has nothing else to do."""


class TuneOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What one asks of a session; fields of a setting's name are passed on as it (`settings`)."""

    hw: Annotated[
        str | None,
        typer.Option(
            "--hw",
            metavar="NAME|FILE",
            autocompletion=device_names,
            help="The device that measures: host, its GPU (host_gpu, h200), or a spec of it (name or TOML file).",
        ),
    ] = None
    trials: Annotated[
        int,
        typer.Option("--trials", metavar="N", min=1, help="Schedules to measure, resumed ones included."),
    ] = 64
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy",
            metavar="S",
            autocompletion=strategy_names,
            help="Who asks: model, dgd, droplet, nose, bayes, structured, genetic, genetic-af, random, grid. bayes has "
            "settings: bayes:acquisition=ei,eviction=lru.",
        ),
    ] = "model"
    start: Annotated[
        Literal["model", "paper"],
        typer.Option("--start", help="Start from the model's ranking, or as the strategy was published."),
    ] = "model"
    records: RecordFile = DEFAULT_RECORDS
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads",
            metavar="T",
            min=1,
            help="CPUs: threads of the kernels.  [default: TVM_NUM_THREADS, else all cores]",
        ),
    ] = None
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the latest session of this workload, hardware and strategy.")
    ] = False
    seed: Annotated[
        int,
        typer.Option("--seed", metavar="N", min=0, help="Of the strategy's choices and the operands."),
    ] = 0
    time_limit_s: Annotated[float | None, seconds_option("Ask for nothing new after that.")] = None
    stop_at: StopAt = None
    patience: Patience = None
    template: Template = None
    accuracy: Accuracy = None
    l2: Annotated[
        Literal["flush", "warm"] | None,
        typer.Option(
            "--l2",
            help="GPUs: empty the L2 cache before each launch, or leave it as it is.  [default: flush]",
            show_default=False,
        ),
    ] = None
    device: Annotated[
        int, typer.Option("--device", metavar="N", min=0, help="GPUs: number of the device, as CUDA counts.")
    ] = 0
    backend: Backend = None
    build_only: Annotated[
        Path | None,
        typer.Option(
            "--build-only", metavar="DIR", help="GPUs: build the plan's first schedules into DIR; no GPU is needed."
        ),
    ] = None
    manifest: Annotated[
        Path | None,
        typer.Option(
            "--manifest",
            metavar="DIR",
            help="GPUs: measure what --build-only wrote; neither TVM nor a compiler needed.",
        ),
    ] = None
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write the best schedule there; the records have it, too."),
    ] = None

    def settings(self, elsewhere: Elsewhere, threads: int | None) -> TuningSettings:
        """Return the session's settings."""
        from anatune.tuning.settings import TuningSettings

        own = {name: value for name, value in asdict(self).items() if name in TuningSettings.__struct_fields__}
        own["threads"] = threads
        return TuningSettings(**own, **elsewhere.keywords(), reuse=not elsewhere.no_reuse)


@spread
def tune(
    context: typer.Context,
    workload: WorkloadOptions,
    asked: TuneOptions,
    elsewhere: Elsewhere,
    words: Words = None,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Measure schedules of a workload on this machine, a cluster or boards and return the fastest.

    The plan's own first choice comes first, then what the strategy asks for; every trial is checked against a float64
    reference and recorded as it ends. Ctrl-C keeps everything, and --resume goes on, also after a crash.

    Where the machine with the GPU has no compiler: --build-only here, then --manifest there.
    """
    from anatune.tuning.places.local import place_of
    from anatune.tuning.result import TuningInterrupted
    from anatune.tuning.session import TuningSession
    from anatune.tuning.settings import TuningSettings

    records = asked.records
    named = None if asked.manifest is not None and not words else workload.parse_one("tune", words, asked.hw)
    if named is None:
        workload.parse_any(words)
    if asked.build_only is not None:
        if asked.manifest is not None or named is None:
            raise UsageError("--build-only builds and --manifest measures what was built; leave one out")
        gpu = _gpu(str(asked.hw))
        refuse_given(context, _MEASURING, "is said where kernels are measured, with --manifest; --build-only builds")
        build_kernels(named, gpu, asked, as_json)
        return
    if asked.manifest is not None:
        refuse_given(context, _BUILDING, "was decided when --build-only wrote the manifest")
        refuse_given(context, _ELSEWHERE, "says who builds and measures, --manifest measures here what was built")
    measures = elsewhere.keywords()
    target = None if asked.output is None else Output(asked.output, SCHEDULE)
    page_file = check_html(html, records, asked.manifest, asked.hw, asked.output)
    if elsewhere.cluster is not None or elsewhere.tracker is not None:
        refuse_given(context, _OF_THIS_MACHINE, "is said where the GPU is, to `anatune worker` or the board's server")
    with contextlib.closing(place_of(TuningSettings(**measures))) as place:
        task, hardware = _task(named, asked, place)
        if hardware.kind != "gpu":
            refuse_given(context, _OF_GPUS, f"is for GPUs, and {hardware.name} is none")
        refuse_threads(asked.threads, hardware)
        display = Display()
        settings = asked.settings(elsewhere, _threads(asked.threads, hardware, place))
        tuning = TuningSession(task, hardware, settings, display, place=place)
        stopped: KeyboardInterrupt | None = None
        try:
            with display:
                result = tuning.run()
        except TuningInterrupted as stop:
            result = stop.result
            stopped = KeyboardInterrupt(
                f"interrupted after {len(result.trials)} of {asked.trials} trials, all of them kept in {records}; "
                "the same command with --resume goes on"
            )
            if page_file is not None and (interrupts := present()) is not None:
                interrupts.allow(_PAGE_S)
                note("note: interrupted; the page is written, Ctrl-C again ends at once")
        for line in dict.fromkeys(tuning.damaged):
            note(f"note: {line}")
        if stopped is None:
            _note_beginning(result, asked)
        show_result(result, target, as_json)
        write_session(result, page_file, records)
        if stopped is not None:
            raise stopped
    if result.best_trial is None:
        _ = result.best  # raises, and says how the trials ended


def _note_beginning(result: TuningResult, asked: TuneOptions) -> None:
    """Say what a session began with."""
    records = asked.records
    if asked.resume and not result.num_resumed:
        note(f"note: {records} has no session of this workload, hardware, threads and strategy; began a new one")
    if asked.resume and result.num_resumed and asked.seed != result.seed:
        note(f"note: the session goes on with its own seed, {result.seed}")
    if result.num_reused:
        some = "the best schedule" if result.num_reused == 1 else f"the best {result.num_reused} schedules"
        note(f"note: began with {some} that {records} has of this workload and device; --no-reuse leaves them out")


def _gpu(hw: str) -> GpuSpec:
    """Return the GPU to build for."""
    from anatune import api

    spec = api.hardware(hw)
    if spec.kind != "gpu":
        raise DeviceError(f"--build-only is for GPUs, and {spec.name} is none; tune it where it is")
    return spec


def _task(workload: Workload | None, asked: TuneOptions, place: Place) -> tuple[Workload, HardwareSpec]:
    """Return what is tuned, where: as given, else as the manifest says."""
    if asked.manifest is None:
        assert workload is not None
        return workload, place.hardware(str(asked.hw))
    from anatune.tuning.manifest import read_manifest

    built = read_manifest(asked.manifest)
    return workload or built.workload, built.hardware if asked.hw is None else place.hardware(asked.hw)


def _threads(given: int | None, hardware: HardwareSpec, place: Place) -> int | None:
    """Return the threads to tune for: the option, else TVM_NUM_THREADS (at most the cores), else None."""
    text = os.environ.get("TVM_NUM_THREADS")
    if given is not None or not text:
        return given
    if not text.isdigit() or int(text) < 1:
        raise UsageError(
            f"the variable TVM_NUM_THREADS is {text!r}, expected an integer >= 1; unset it or use --threads"
        )
    return min(int(text), place.threads(hardware, None)) if hardware.most_threads else None


def build_kernels(workload: Workload, hardware: GpuSpec, asked: TuneOptions, as_json: bool) -> None:
    """Build kernels and a manifest for the machine with the GPU, and say where they are.

    Raises
    ------
    BuildError
        None of the schedules can be built.
    """
    from anatune.tuning.manifest import MANIFEST, build_manifest

    folder = asked.build_only
    assert folder is not None
    with Progress(compiles=True) as progress:
        report = progress.count("building")
        made = build_manifest(
            workload, hardware, folder, trials=asked.trials, template=asked.template, accuracy=asked.accuracy,
            seed=asked.seed, progress=lambda done, failed, total: report(done, total),
        )  # fmt: skip
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
