"""``anatune tune``: build, check and time schedules on the present machine, keep everything, return the fastest."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from anatune.cli.completion import device_names, strategy_names
from anatune.cli.html import check_html
from anatune.cli.interrupts import present
from anatune.cli.options import (
    DEFAULT_RECORDS,
    Accuracy,
    AsJson,
    BoardKey,
    Cluster,
    Html,
    NoReuse,
    Patience,
    RecordFile,
    StopAt,
    Template,
    Tls,
    Tracker,
    refuse_places,
    refuse_threads,
    seconds_option,
)
from anatune.cli.output import UsageError, note, refuse_given
from anatune.cli.outputs import SCHEDULE
from anatune.cli.tune.build import build_kernels
from anatune.cli.tune.output import Display, show_result, write_session
from anatune.cli.workload import with_workload
from anatune.errors import DeviceError
from anatune.files import Output

if TYPE_CHECKING:
    from anatune.core.hardware.spec import CpuSpec, GpuSpec
    from anatune.core.workload.nest import Workload
    from anatune.tuning.places.place import Place

__all__ = ["tune"]

_MEASURING = (
    "strategy", "start", "records", "threads", "resume", "time_limit", "l2", "device", "backend", "output",
    "cluster", "tls", "tracker", "key", "no_reuse", "stop_at", "patience", "html",
)  # fmt: skip
_BUILDING = ("strategy", "start", "seed", "template", "threads")
_OF_GPUS = ("l2", "device", "backend")
_ELSEWHERE = ("cluster", "tls", "tracker", "key")
_OF_THIS_MACHINE = ("device", "backend")
"""Parameters that do not count with --build-only; with --manifest; on CPUs; with --manifest, too; elsewhere."""
_PAGE_S = 60.0
"""How long an interrupted session may take to write its page: seconds on a machine that has nothing else to do."""


@with_workload("tune", unless="manifest")
def tune(
    context: typer.Context,
    workload: Workload | None,
    hw: Annotated[
        str | None,
        typer.Option(
            "--hw",
            metavar="NAME|FILE",
            autocompletion=device_names,
            help="The device that measures: host, its GPU (host_gpu, h200), or a spec of it (name or TOML file).",
        ),
    ] = None,
    trials: Annotated[
        int,
        typer.Option("--trials", metavar="N", min=1, help="Schedules to measure, resumed ones included."),
    ] = 64,
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy",
            metavar="S",
            autocompletion=strategy_names,
            help="Who asks: model, dgd, droplet, nose, bayes, structured, genetic, random or grid.",
        ),
    ] = "model",
    start: Annotated[
        Literal["model", "paper"],
        typer.Option("--start", help="Start from the model's ranking, or as the strategy was published."),
    ] = "model",
    records: RecordFile = DEFAULT_RECORDS,
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads",
            metavar="T",
            min=1,
            help="CPUs: threads of the kernels.  [default: TVM_NUM_THREADS, else all cores]",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the latest session of this workload, hardware and strategy.")
    ] = False,
    seed: Annotated[
        int,
        typer.Option("--seed", metavar="N", min=0, help="Of the strategy's choices and the operands."),
    ] = 0,
    time_limit: Annotated[float | None, seconds_option("Ask for nothing new after that.")] = None,
    stop_at: StopAt = None,
    patience: Patience = None,
    template: Template = None,
    accuracy: Accuracy = "standard",
    l2: Annotated[
        Literal["flush", "warm"] | None,
        typer.Option(
            "--l2",
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
            help="Write the best schedule there, besides; the records have it in any case.",
        ),
    ] = None,
    cluster: Cluster = None,
    tls: Tls = None,
    tracker: Tracker = None,
    key: BoardKey = None,
    no_reuse: NoReuse = False,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Measure schedules of a workload on this machine, a cluster or boards and return the fastest.

    The plan's own first choice comes first, then what the strategy asks for; every trial is checked against a float64
    reference and recorded as it ends. Ctrl-C keeps everything, and --resume goes on, also after a crash.

    Where the machine with the GPU has no compiler: --build-only here, then --manifest there.
    """
    from anatune.tuning.places.choose import place_of
    from anatune.tuning.result import TuningInterrupted
    from anatune.tuning.session import TuningSession
    from anatune.tuning.settings import TuningSettings

    if build_only is not None:
        if manifest is not None or workload is None or hw is None:
            raise UsageError("--build-only builds and --manifest measures what was built; leave one out")
        gpu = _gpu(hw)
        refuse_given(context, _MEASURING, "is said where kernels are measured, with --manifest; --build-only builds")
        build_kernels(workload, gpu, build_only, trials, template, seed, as_json)
        return
    if manifest is not None:
        refuse_given(context, _BUILDING, "was decided when --build-only wrote the manifest")
        refuse_given(context, _ELSEWHERE, "says who builds and measures, --manifest measures here what was built")
    refuse_places(cluster, tls, tracker, key)
    target = None if output is None else Output(output, SCHEDULE)
    page_file = check_html(html, records, manifest, hw, output)
    if cluster is not None or tracker is not None:
        refuse_given(context, _OF_THIS_MACHINE, "is said where the GPU is, to `anatune worker` or the board's server")
    elsewhere: dict[str, Any] = {"cluster": cluster, "tls": tls, "tracker": tracker, "key": key}
    with contextlib.closing(place_of(TuningSettings(**elsewhere))) as place:
        workload, hardware = _task(workload, hw, manifest, place)
        if hardware.kind != "gpu":
            refuse_given(context, _OF_GPUS, f"is for GPUs, and {hardware.name} is none")
        refuse_threads(threads, hardware)
        display = Display()
        settings = TuningSettings(
            trials=trials, strategy=strategy, start=start, seed=seed, time_limit_s=time_limit, records=records,
            resume=resume, threads=_threads(threads, hardware, place), template=template, accuracy=accuracy, l2=l2,
            device=device, backend=backend, manifest=manifest, reuse=not no_reuse,
            stop_at=stop_at, patience=patience, **elsewhere,
        )  # fmt: skip
        tuning = TuningSession(workload, hardware, settings, display, place=place)
        try:
            with display:
                result = tuning.run()
        except TuningInterrupted as stop:
            if page_file is not None and (interrupts := present()) is not None:
                interrupts.allow(_PAGE_S)
                note("note: interrupted; the page is written, Ctrl-C again ends at once")
            _note_all(tuning.damaged)
            show_result(stop.result, target, as_json)
            write_session(stop.result, page_file, records)
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
    if result.num_reused:
        some = "the best schedule" if result.num_reused == 1 else f"the best {result.num_reused} schedules"
        note(f"note: began with {some} that {records} has of this workload and device; --no-reuse leaves them out")
    show_result(result, target, as_json)
    write_session(result, page_file, records)
    if result.best_trial is None:
        _ = result.best  # raises, and says how the trials ended


def _gpu(hw: str) -> GpuSpec:
    """Return the GPU to build for."""
    from anatune import api
    from anatune.core.hardware.spec import GpuSpec

    spec = api.hardware(hw)
    if not isinstance(spec, GpuSpec):
        raise DeviceError(f"--build-only is for GPUs, and {spec.name} is none; tune it where it is")
    return spec


def _task(
    workload: Workload | None, hw: str | None, manifest: Path | None, place: Place
) -> tuple[Workload, CpuSpec | GpuSpec]:
    """Return what is tuned, where: as given, else as the manifest says."""
    if manifest is None:
        assert workload is not None
        assert hw is not None
        return workload, place.hardware(hw)
    from anatune.tuning.manifest import read_manifest

    built = read_manifest(manifest)
    return workload or built.workload, built.hardware if hw is None else place.hardware(hw)


def _note_all(lines: list[str]) -> None:
    for line in dict.fromkeys(lines):
        note(f"note: {line}")


def _threads(given: int | None, hardware: CpuSpec | GpuSpec, place: Place) -> int | None:
    """Return the threads to tune for: the option, else TVM_NUM_THREADS (at most the cores), else None."""
    text = os.environ.get("TVM_NUM_THREADS")
    if given is not None or not text:
        return given
    if not text.isdigit() or int(text) < 1:
        raise UsageError(
            f"the variable TVM_NUM_THREADS is {text!r}, expected an integer >= 1; unset it or use --threads"
        )
    return min(int(text), place.threads(hardware, None)) if hardware.most_threads else None
