"""``anatune compile``: compile a whole model into a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from anatune.cli.options import (
    DEFAULT_RECORDS,
    Accuracy,
    AsJson,
    Device,
    Elsewhere,
    Html,
    Parsed,
    Patience,
    StopAt,
    Threads,
    named_sizes,
    named_state,
    parse_prices,
    records_option,
    refuse_threads,
    seconds_option,
    spread,
)
from anatune.cli.output import UsageError, line_width, note, print_json, print_lines
from anatune.cli.outputs import check_html, write_page
from anatune.network.cli.display import ModelDisplay

if TYPE_CHECKING:
    from anatune.core.hardware.spec import HardwareSpec
    from anatune.files import Output
    from anatune.network.compiling.compiled import CompiledModel
    from anatune.network.compiling.request import CompileRequest, Listeners
    from anatune.tuning.cost import ModelEstimate

__all__ = ["compile_model"]


def _option(name: str, metavar: str, help: str) -> Any:
    return typer.Option(name, metavar=metavar, help=help)


class CompileOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of compiling; those named like keywords of `anatune.compile` are passed on unchanged."""

    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="The folder to write.", show_default=False)
    ] = None
    hw: Device = "host"
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Predict the model on several GPUs and CPUs (--hw h100,orin,rk3588), side by side; if a size has a "
            "range (--size batch=1..32), at several values of it. Nothing is compiled.",
        ),
    ] = False
    price: Annotated[
        list[str] | None, _option("--price", "NAME=AMOUNT", "With --compare: an hour's price; once for each device.")
    ] = None
    threads: Threads = None
    accuracy: Accuracy = "standard"
    precision: Annotated[
        str | None,
        _option(
            "--precision", "DTYPE", "Number format of products; sums are float32. For a CPU: bfloat16, float16, "
            "float32, or int8, which quantises a float32 model with ranges from --calibrate. For a GPU: bfloat16, "
            "float16 or fp8, with Triton's kernels only.  [default: the model's own, if the processor has it]",
        ),
    ] = None  # fmt: skip
    input_shape: Annotated[
        list[str] | None,
        _option(
            "--input-shape", "NxCxHxW", "Shape of an input of an ONNX file with dynamic axes; once for each, in order."
        ),
    ] = None
    size: Annotated[
        list[str] | None,
        _option(
            "--size", "NAME=1..512", "The range or the only value of a size that the model leaves open; once for each "
            "size.  [default: the model's range; 1..512 if it has no limit]",
        ),
    ] = None  # fmt: skip
    state: Annotated[
        list[str] | None,
        _option(
            "--state", "OUTPUT=INPUT", "An output that the compiled model keeps and reads as an input of the next "
            "call; once for each. auto finds those of exported decoders (present.0.key, past_key_values.0.key).",
        ),
    ] = None  # fmt: skip
    trials: Annotated[
        int,
        typer.Option("--trials", metavar="N", min=0, help="Trials of all kernels together, recorded ones included."),
    ] = 0
    time_limit_s: Annotated[float | None, seconds_option("Start no new trial after this time.")] = None
    stop_at: StopAt = None
    patience: Patience = None
    records: Annotated[
        Parsed,
        records_option(
            f"The record file; its trials are not repeated.  [default: {DEFAULT_RECORDS} with --trials]",
            show_default=False,
        ),
    ] = None
    resume: Annotated[bool, typer.Option("--resume", help="Continue an existing record file.")] = False
    check: Annotated[
        bool | None,
        typer.Option(
            "--check/--no-check",
            help="Compare outputs with the original's on random inputs; for an absent GPU, run each kernel in the "
            "emulator (seconds per kernel).  [default: compare if the device is present]",
        ),
    ] = None
    fallback: Annotated[
        str | None,
        _option(
            "--fallback", "onnxruntime", "Let onnxruntime run ONNX nodes that anatune cannot read; compile the rest."
        ),
    ] = None
    calibrate: Annotated[
        Path | None,
        _option(
            "--calibrate", "DATA", "int8: example inputs (.npz, .npy); several calls are joined along dimension 0."
        ),
    ] = None
    percentile: Annotated[
        float | None,
        _option(
            "--percentile", "P", "int8: percentage of an activation's values in its range, as 99.99.  [default: all]"
        ),
    ] = None
    measure: Annotated[bool, typer.Option("--measure", help="Run the model here and report each kernel's time.")] = (
        False
    )

    def request(self, elsewhere: Elsewhere, records: Path | None, listeners: Listeners) -> CompileRequest:
        """Return the options as the library takes them; the library refuses contradictions."""
        from anatune.network.compiling.request import CompileRequest, Int8Options, MeasuringOptions

        measuring = MeasuringOptions(
            trials=self.trials, time_limit_s=self.time_limit_s, records=records, resume=self.resume,
            reuse=not elsewhere.no_reuse, stop_at=self.stop_at, patience=self.patience, **elsewhere.keywords(),
        )  # fmt: skip
        quantising = Int8Options(self.calibrate, self.percentile)
        return CompileRequest(
            threads=self.threads, accuracy=self.accuracy or "standard", precision=self.precision, check=self.check,
            fallback=self.fallback, measuring=measuring, quantising=quantising, listeners=listeners,
        )  # fmt: skip


@spread
def compile_model(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="An ONNX file, or a program that torch.export.save wrote (.pt2).")
    ],
    options: CompileOptions,
    elsewhere: Elsewhere,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Compile a whole model for a CPU or a GPU: kernels are planned by the analytical model, weights packed once.

    With --trials, kernels are measured as well, first those with the most time to gain. Every trial is recorded as it
    ends; after Ctrl-C or a crash the same command continues.

    A CPU has to run on this machine, which compiles, checks and runs the model. With --hw NAME, this machine has to
    have the instructions of that CPU, and kernels use this machine's cores.

    A GPU need not be present: kernels become cubins, and the folder runs on any machine with that GPU. Records of the
    GPU (--records, written there by `anatune tune`) are used. Triton compiles all kernels, and products run on matrix
    units, with --precision bfloat16, float16 or fp8; with --accuracy relaxed without records on NVIDIA GPUs from sm_80
    on (float32 is rounded to tf32); and always on AMD GPUs.

    `anatune run DIR` and anatune.load("DIR") run the folder.

    A .pt2 file may contain code, which PyTorch runs when it reads the file: compile only files from people you trust.
    """
    from anatune.measure.named_hardware import hardware
    from anatune.network.compiling import session
    from anatune.network.compiling.folder import check_place
    from anatune.network.compiling.request import Listeners, ModelSource

    if options.compare:
        _compare(model, options, elsewhere, html, as_json=as_json)
        return
    if options.price:
        raise UsageError("--price is for --compare only; leave it out")
    if options.output is None:
        raise UsageError("-o/--output is missing, expected the folder to write; --compare writes none")
    output = options.output
    page_file = check_html(html, model, options.records, output, options.hw)
    check_place(output)
    _refuse_measuring_options(options, elsewhere)
    display = ModelDisplay()
    estimates: list[ModelEstimate] = []

    def report_estimate(estimate: ModelEstimate) -> None:
        from anatune.report.tuning import model_cost_text

        estimates.append(estimate)
        note(f"note: {model_cost_text(estimate)}")

    _note_code(model)
    device = hardware(options.hw)
    refuse_threads(options.threads, device)
    _note_target(device, options)
    records = _choose_records(options, elsewhere)
    count = display.progress.count("planning", then="planning the rest")
    request = options.request(elsewhere, records, Listeners(count, display, report_estimate, display.begin))
    try:
        with display:
            display.begin("reading the model")
            inputs = session.example_arrays(model, shapes) if (shapes := _shapes(options.input_shape)) else None
            source = ModelSource(model, inputs, named_sizes(options.size), state=named_state(options.state))
            compiled = session.compile_source(source, device, request)
    except KeyboardInterrupt as stop:
        from anatune.tuning.result import TuningInterrupted

        if not isinstance(stop, TuningInterrupted):
            raise
        raise KeyboardInterrupt(f"interrupted; all trials are in {records}, and the same command continues") from None
    compiled.save(output)
    _print_result(compiled, options, page_file, model.stem, estimates if as_json else None)


def _choose_records(options: CompileOptions, elsewhere: Elsewhere) -> Path | None:
    """Return the record file to use, and note that its kernels are used; None without records."""
    from anatune.records.place import is_missing

    records = options.records
    if records is not None and not elsewhere.no_reuse and not is_missing(records):
        note(f"note: kernels with records of this device in {records} are taken from there; --no-reuse plans them anew")
    return records if records is not None or not (options.trials or options.resume) else DEFAULT_RECORDS


def _print_result(
    compiled: CompiledModel,
    options: CompileOptions,
    page_file: Output | None,
    name: str,
    estimates: list[ModelEstimate] | None,
) -> None:
    """Print the report of a compiled model, or JSON with the estimates if `estimates` is given."""
    from anatune.network.report import model_dict, model_lines

    measured = compiled.profile() if options.measure else None
    if page_file is not None:
        from anatune.network.pages.compiled import model_page

        write_page(model_page(compiled, measured, name=name), page_file)
    if estimates is not None:
        estimate = msgspec.to_builtins(estimates[0]) if estimates else None
        print_json({"folder": str(options.output), **model_dict(compiled.summary, measured), "estimate": estimate})
        return
    print_lines(model_lines(compiled.summary, measured, width=line_width()))
    where = f", where there is a GPU of {compiled.summary.arch}" if compiled.summary.device == "gpu" else ""
    note(f"written to {options.output}; `anatune run {options.output} --benchmark` times it{where}")


def _compare(model: Path, options: CompileOptions, elsewhere: Elsewhere, html: Path | None, *, as_json: bool) -> None:
    """Print the predictions of a model on several devices."""
    from anatune.cli.progress import Progress
    from anatune.network.comparison_report import comparison_dict, comparison_lines
    from anatune.network.compiling import session
    from anatune.network.compiling.targets.comparing import compare

    if elsewhere != Elsewhere():
        raise UsageError("--compare only predicts; leave out the options that say where kernels are measured")
    usual = CompileOptions()
    changed = {name for name in options.__struct_fields__ if getattr(options, name) != getattr(usual, name)}
    refused = changed - {"hw", "compare", "price", "threads", "precision", "accuracy", "input_shape", "size", "state"}
    if refused:
        raise UsageError(f"--compare only predicts; leave out --{min(refused).replace('_', '-')}")
    names = [name.strip() for name in str(options.hw).split(",")]
    prices = parse_prices(options.price, names)
    page_file = check_html(html, model)
    _note_code(model)
    with Progress() as progress:
        inputs = session.example_arrays(model, shapes) if (shapes := _shapes(options.input_shape)) else None
        summaries = compare(
            model, inputs, hw=names, threads=options.threads, precision=options.precision,
            accuracy=options.accuracy or "standard", sizes=named_sizes(options.size), state=named_state(options.state),
            progress=progress.count("predictions"),
        )  # fmt: skip
    named = {one.hardware: prices[name] for one, name in zip(summaries, names, strict=False) if name in prices}
    if page_file is not None:
        from anatune.network.pages.comparison import comparison_page

        write_page(comparison_page(summaries, named, model.stem), page_file)
    if as_json:
        print_json(comparison_dict(summaries, named))
        return
    print_lines(comparison_lines(summaries, named, width=line_width()))


def _note_target(device: HardwareSpec, options: CompileOptions) -> None:
    """Print a note if kernels use only a part of the CPU's cores."""
    if device.most_threads is None or options.threads is not None:
        return
    from anatune.report import units
    from anatune.tuning.machine import choose_threads

    threads, cores = choose_threads(device, None), device.most_threads
    if threads < cores:
        note(
            f"note: kernels are planned for {units.threads(threads)}, the cores that this process may use; "
            f"{device.name} has {cores}. A CPU model is compiled, checked and measured here: compile it on the "
            "machine that runs it"
        )


def _note_code(model: Path) -> None:
    """Print a note that a file may contain code."""
    if model.suffix == ".pt2" and model.is_file():
        note(
            f"note: torch.export.load reads {model} and runs code that it may contain: compile only files of people "
            "you trust; ONNX files contain none"
        )


def _refuse_measuring_options(options: CompileOptions, elsewhere: Elsewhere) -> None:
    """Raise UsageError for options of measuring if nothing is measured."""
    if options.trials:
        return
    for name, value, effect in (
        ("--cluster", elsewhere.cluster, "says where kernels are measured"),
        ("--tracker", elsewhere.tracker, "says where kernels are measured"),
        ("--stop-at", options.stop_at, "ends measuring"),
        ("--patience", options.patience, "ends measuring"),
    ):
        if value is not None:
            raise UsageError(f"{name} {effect}, but without --trials nothing is measured; give a number of trials")


def _shapes(words: list[str] | None) -> list[tuple[int, ...]]:
    """Return the shapes given by ``--input-shape``."""
    shapes = []
    for word in words or ():
        sizes = word.split("x")
        if not all(size.strip().isdecimal() and int(size) for size in sizes):
            raise UsageError(f"--input-shape is {word!r}, expected sizes such as 1x3x224x224")
        shapes.append(tuple(map(int, sizes)))
    return shapes
