"""``anatune compile``: a whole model as machine code in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from anatune.cli.html import check_html, write_page
from anatune.cli.options import (
    DEFAULT_RECORDS,
    RECORDS,
    Accuracy,
    AsJson,
    BoardKey,
    Cluster,
    Device,
    Html,
    NoReuse,
    Patience,
    StopAt,
    Threads,
    Tls,
    Tracker,
    checked_place,
    refuse_places,
    refuse_threads,
    seconds_option,
)
from anatune.cli.output import (
    UsageError,
    line_width,
    note,
    print_json,
    print_lines,
)
from anatune.cli.tune.output import ModelDisplay

if TYPE_CHECKING:
    from anatune.tuning.cost import ModelEstimate

__all__ = ["compile_model"]


def compile_model(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="An ONNX file, or a program that torch.export.save wrote (.pt2)."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="The folder to write.")],
    hw: Device = "host",
    threads: Threads = None,
    accuracy: Accuracy = "standard",
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input-shape",
            metavar="NxCxHxW",
            help="Sizes of an input, once for each, in order: for ONNX files with dynamic axes.",
        ),
    ] = None,
    trials: Annotated[
        int,
        typer.Option(
            "--trials", metavar="N", min=0, help="Measurements, of all kernels together, recorded ones included."
        ),
    ] = 0,
    time_limit: Annotated[float | None, seconds_option("Measure nothing new after that.")] = None,
    stop_at: StopAt = None,
    patience: Patience = None,
    records: Annotated[
        Any,
        typer.Option(
            "--records",
            metavar=RECORDS,
            parser=checked_place,
            help=f"The record file; what it has is not measured again.  [default: {DEFAULT_RECORDS} with --trials]",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the record file, which has to be there.")
    ] = False,
    check: Annotated[
        bool | None,
        typer.Option(
            "--check/--no-check",
            help="Compare outputs with the original's on random inputs; for a GPU that is not here: let the emulator "
            "run each kernel (seconds a kernel).  [default: compare where the device is here]",
            show_default=False,
        ),
    ] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Run it here and say each kernel's time.")] = False,
    cluster: Cluster = None,
    tls: Tls = None,
    tracker: Tracker = None,
    key: BoardKey = None,
    no_reuse: NoReuse = False,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Compile a whole model for a CPU or an NVIDIA GPU: kernels planned by the analytical model, weights packed once.

    With --trials kernels are measured, too: those first that occur often and are far from their bound. Every trial is
    recorded as it ends; after Ctrl-C or a crash the same command goes on.

    A GPU need not be here: kernels become cubins, and the folder runs where that GPU is. Records of it (--records,
    written by `anatune tune` there) are used.

    `anatune run DIR` and anatune.load("DIR") run it.

    A .pt2 file may hold code, which PyTorch runs when it reads it: compile only those of people you trust.
    """
    from anatune.compiling import session
    from anatune.compiling.folder import check_place
    from anatune.measure.named_hardware import hardware
    from anatune.records.place import is_missing
    from anatune.report.models import model_dict, model_lines
    from anatune.report.tuning import model_cost_text
    from anatune.tuning.result import TuningInterrupted

    refuse_places(cluster, tls, tracker, key)
    page_file = check_html(html, model, records, output, hw)
    check_place(output)
    if not trials and (cluster is not None or tracker is not None):
        given = "--cluster" if tracker is None else "--tracker"
        raise UsageError(f"{given} says who measures, and without --trials nothing is measured; say how many")
    if not trials and (stop_at is not None or patience is not None):
        given = "--stop-at" if stop_at is not None else "--patience"
        raise UsageError(f"{given} ends measuring, and without --trials nothing is measured; say how many")
    if model.suffix == ".pt2" and model.is_file():
        note(
            f"note: {model} is read by torch.export.load, which runs code that it may hold: compile only files "
            "of people you trust; ONNX files hold none"
        )
    device = hardware(hw)
    refuse_threads(threads, device)
    kept = records if records is not None or not (trials or resume) else DEFAULT_RECORDS
    if records is not None and not no_reuse and not is_missing(records):
        note(
            f"note: kernels are those that {records} has of this device, where it has some; --no-reuse plans them anew"
        )
    display = ModelDisplay()
    told: list[ModelEstimate] = []

    def say(estimate: ModelEstimate) -> None:
        told.append(estimate)
        note(f"note: {model_cost_text(estimate)}")

    try:
        with display:
            compiled = session.compile(
                model,
                session.example_arrays(model, [_shape(word) for word in inputs]) if inputs else None,
                hw=device,
                threads=threads,
                accuracy=accuracy,
                trials=trials,
                time_limit_s=time_limit,
                records=kept,
                resume=resume,
                check=check,
                progress=display.progress.count("planning", then="building"),
                tuning_progress=display,
                cluster=cluster,
                tls=tls,
                tracker=tracker,
                key=key,
                reuse=not no_reuse,
                stop_at=stop_at,
                patience=patience,
                on_estimate=say,
            )
    except TuningInterrupted:
        raise KeyboardInterrupt(f"interrupted, all trials are kept in {kept}; the same command goes on") from None
    compiled.save(output)
    measured = compiled.profile() if measure else None
    if page_file is not None:
        from anatune.pages.compiled import model_page

        write_page(model_page(compiled, measured, name=model.stem), page_file)
    if as_json:
        estimate = msgspec.to_builtins(told[0]) if told else None
        print_json({"folder": str(output), **model_dict(compiled.summary, measured), "estimate": estimate})
        return
    print_lines(model_lines(compiled.summary, measured, width=line_width()))
    where = "" if compiled.summary.device == "cpu" else f", where there is a GPU of {compiled.summary.arch}"
    note(f"written to {output}; `anatune run {output} --benchmark` times it{where}")


def _shape(word: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(size) for size in word.split("x"))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise UsageError(f"--input-shape is {word!r}, expected sizes such as 1x3x224x224")
    return shape
