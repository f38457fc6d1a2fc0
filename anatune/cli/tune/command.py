"""``anatune tune``: build, check, time and record schedules, and return the fastest one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer
from msgspec.structs import asdict

from anatune.cli.completion import device_names, strategy_names
from anatune.cli.interrupts import current_watcher
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
"""Parameters without effect with --build-only; with --manifest; on CPUs; with --manifest; on other machines."""
_PAGE_S = 60.0
"""Seconds that an interrupted session may take to write its page."""


class TuneOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a session; fields with the name of a setting become that setting."""

    hw: Annotated[
        str | None,
        typer.Option(
            "--hw",
            metavar="NAME|FILE",
            autocompletion=device_names,
            help="The device that measures: host (this CPU), host_gpu (this GPU), or a spec of it (a name such as "
            "h200, or a TOML file).",
        ),
    ] = None
    trials: Annotated[
        int, typer.Option("--trials", metavar="N", min=1, help="Number of schedules to measure, resumed ones included.")
    ] = 64
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy",
            metavar="S",
            autocompletion=strategy_names,
            help="The search strategy: model, dgd, droplet, nose, bayes, structured, genetic, genetic-af, random or "
            "grid. bayes takes settings: bayes:acquisition=ei,eviction=lru.",
        ),
    ] = "model"
    start: Annotated[
        Literal["model", "paper"],
        typer.Option("--start", help="Start from the model's ranking, or as the paper of the strategy describes."),
    ] = "model"
    records: RecordFile = DEFAULT_RECORDS
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads",
            metavar="T",
            min=1,
            help="CPUs: number of threads of a kernel.  [default: TVM_NUM_THREADS, else all cores]",
        ),
    ] = None
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue the latest session of this workload, device, threads and strategy."),
    ] = False
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, help="Seed of the strategy and of the random operands.")
    ] = 0
    time_limit_s: Annotated[float | None, seconds_option("Start no new trial after this time.")] = None
    stop_at: StopAt = None
    patience: Patience = None
    template: Template = None
    accuracy: Accuracy = None
    l2: Annotated[
        Literal["flush", "warm"] | None,
        typer.Option(
            "--l2",
            help="GPUs: flush the L2 cache before each launch, or keep the data of the previous launch.  "
            "[default: flush]",
            show_default=False,
        ),
    ] = None
    device: Annotated[int, typer.Option("--device", metavar="N", min=0, help="GPUs: the CUDA device number.")] = 0
    backend: Backend = None
    build_only: Annotated[
        Path | None,
        typer.Option(
            "--build-only", metavar="DIR", help="GPUs: only build the plan's best schedules into DIR; needs no GPU."
        ),
    ] = None
    manifest: Annotated[
        Path | None,
        typer.Option(
            "--manifest",
            metavar="DIR",
            help="GPUs: measure the kernels that --build-only wrote to DIR; this needs neither TVM nor a compiler.",
        ),
    ] = None
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Also write the best schedule to FILE (JSON).")
    ] = None

    def settings(self, elsewhere: Elsewhere, threads: int | None) -> TuningSettings:
        """Return the session's settings."""
        from anatune.tuning.settings import TuningSettings

        values = {name: value for name, value in asdict(self).items() if name in TuningSettings.__struct_fields__}
        values["threads"] = threads
        return TuningSettings(**values, **elsewhere.keywords(), reuse=not elsewhere.no_reuse)


@spread
def tune(
    context: typer.Context,
    workload: WorkloadOptions,
    options: TuneOptions,
    elsewhere: Elsewhere,
    words: Words = None,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Measure schedules of a workload on this machine, a cluster or boards, and return the fastest.

    The plan's first choice is measured first, then the schedules that the search strategy proposes. Each result is
    checked against a float64 reference, and each trial is recorded when it ends. After Ctrl-C or a crash, --resume
    continues the session.

    If the machine with the GPU has no compiler, use --build-only here and --manifest there.
    """
    from anatune.tuning.places.local import place_of
    from anatune.tuning.result import TuningInterrupted
    from anatune.tuning.session import TuningSession
    from anatune.tuning.settings import TuningSettings

    records = options.records
    parsed_workload = (
        None if options.manifest is not None and not words else workload.parse_one("tune", words, options.hw)
    )
    if parsed_workload is None:
        workload.parse_any(words)
    if options.build_only is not None:
        if options.manifest is not None or parsed_workload is None:
            raise UsageError("--build-only builds kernels, --manifest measures built kernels; leave one of them out")
        gpu = _gpu(str(options.hw))
        refuse_given(context, _MEASURING, "has no effect with --build-only; give it with --manifest, which measures")
        build_kernels(parsed_workload, gpu, options, as_json)
        return
    if options.manifest is not None:
        refuse_given(context, _BUILDING, "has no effect with --manifest; --build-only decided it")
        refuse_given(context, _ELSEWHERE, "is for other machines, but --manifest measures on this one")
    measures = elsewhere.keywords()
    target = None if options.output is None else Output(options.output, SCHEDULE)
    page_file = check_html(html, records, options.manifest, options.hw, options.output)
    if elsewhere.cluster is not None or elsewhere.tracker is not None:
        refuse_given(context, _OF_THIS_MACHINE, "is for this machine; give it to `anatune worker` or the board server")
    with contextlib.closing(place_of(TuningSettings(**measures))) as place:
        task, hardware = _task(parsed_workload, options, place)
        if hardware.kind != "gpu":
            refuse_given(context, _OF_GPUS, f"is for GPUs, but {hardware.name} is a CPU")
        refuse_threads(options.threads, hardware)
        display = Display()
        settings = options.settings(elsewhere, _threads(options.threads, hardware, place))
        tuning = TuningSession(task, hardware, settings, display, place=place)
        stopped: KeyboardInterrupt | None = None
        try:
            with display:
                result = tuning.run()
        except TuningInterrupted as stop:
            result = stop.result
            stopped = KeyboardInterrupt(
                f"interrupted after {len(result.trials)} of {options.trials} trials, which are kept in {records}; "
                "run the same command with --resume to continue"
            )
            if page_file is not None and (interrupts := current_watcher()) is not None:
                interrupts.allow(_PAGE_S)
                note("note: interrupted; writing the page, press Ctrl-C again to end at once")
        for line in dict.fromkeys(tuning.damaged):
            note(f"note: {line}")
        if stopped is None:
            _note_beginning(result, options)
        show_result(result, target, as_json)
        write_session(result, page_file, records)
        if stopped is not None:
            raise stopped
    if result.best_trial is None:
        _ = result.best  # raises an error that says how the trials ended


def _note_beginning(result: TuningResult, options: TuneOptions) -> None:
    """Print on stderr the records and correction that the session started from."""
    records = options.records
    if options.resume and not result.num_resumed:
        note(f"note: {records} has no session of this workload, device, threads and strategy; started a new session")
    if options.resume and result.num_resumed and options.seed != result.seed:
        note(f"note: the resumed session keeps its seed, {result.seed}")
    if result.num_reused:
        schedules = "the best schedule" if result.num_reused == 1 else f"the best {result.num_reused} schedules"
        note(f"note: measured {schedules} of earlier sessions in {records} again; --no-reuse turns that off")


def _gpu(hw: str) -> GpuSpec:
    """Return the GPU to build for."""
    from anatune import api

    spec = api.hardware(hw)
    if spec.kind != "gpu":
        raise DeviceError(f"--build-only is for GPUs, but {spec.name} is a CPU; tune on the machine that has this CPU")
    return spec


def _task(workload: Workload | None, options: TuneOptions, place: Place) -> tuple[Workload, HardwareSpec]:
    """Return the workload and the device: as given, else those of the manifest."""
    if options.manifest is None:
        assert workload is not None
        return workload, place.hardware(str(options.hw))
    from anatune.tuning.manifest import read_manifest

    built = read_manifest(options.manifest)
    return workload or built.workload, built.hardware if options.hw is None else place.hardware(options.hw)


def _threads(threads: int | None, hardware: HardwareSpec, place: Place) -> int | None:
    """Return the number of threads: the option, else TVM_NUM_THREADS (at most the cores), else None."""
    text = os.environ.get("TVM_NUM_THREADS")
    if threads is not None or not text:
        return threads
    if not text.isdigit() or int(text) < 1:
        raise UsageError(
            f"the environment variable TVM_NUM_THREADS is {text!r}, expected an integer >= 1; unset it or use --threads"
        )
    return min(int(text), place.threads(hardware, None)) if hardware.most_threads else None


def build_kernels(workload: Workload, hardware: GpuSpec, options: TuneOptions, as_json: bool) -> None:
    """Build kernels and a manifest for the machine with the GPU, and print where they are.

    Raises
    ------
    BuildError
        No schedule can be built.
    """
    from anatune.tuning.manifest import MANIFEST, build_manifest

    folder = options.build_only
    assert folder is not None
    with Progress(compiles=True) as progress:
        report = progress.count("building")
        manifest = build_manifest(
            workload, hardware, folder, trials=options.trials, template=options.template, accuracy=options.accuracy,
            seed=options.seed, progress=lambda done, failed, total: report(done, total),
        )  # fmt: skip
    failures = [entry.failure for entry in manifest.entries if entry.failure is not None]
    if len(failures) == len(manifest.entries):
        raise BuildError(f"none of {len(failures)} schedules can be built; the first error: {failures[0].message}")
    path, number = folder / MANIFEST, len(manifest.entries) - len(failures)
    if as_json:
        print_json({"manifest": str(path), "kernels": number, "failed": len(failures), "compiler": manifest.compiler})
        return
    print_text(
        f"wrote {path}: {number} kernels for {hardware.name} ({hardware.arch}), compiled by {manifest.compiler}"
        + (f"; {len(failures)} schedules cannot be built, the first error: {failures[0].message}" if failures else "")
        + f"\nnext, on a machine with that GPU: anatune tune --manifest {folder} --records FILE"
    )
