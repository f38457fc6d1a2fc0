"""``anatune compile``: a whole model as machine code in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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


class CompileOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a model; fields of the names of `anatune.compile`'s keywords are passed on as they."""

    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="The folder to write.", show_default=False)
    ] = None
    hw: Device = "host"
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Predict the model on several GPUs (--hw h100,b200,mi300x) beside each other, and where a size has a "
            "range (--size batch=1..32) by that; nothing is compiled.",
        ),
    ] = False
    price: Annotated[
        list[str] | None,
        typer.Option(
            "--price",
            metavar="NAME=AMOUNT",
            help="What an hour of a device costs, with --compare; once for each.",
            show_default=False,
        ),
    ] = None
    threads: Threads = None
    accuracy: Accuracy = "standard"
    precision: Annotated[
        str | None,
        typer.Option(
            "--precision",
            metavar="DTYPE",
            help="What products multiply, sums are float32. Of a CPU bfloat16, float16 or float32, and int8, which "
            "quantises a float32 model with ranges from --calibrate; of a GPU bfloat16, float16 or fp8: all "
            "kernels are Triton's then.  [default: the model's own, where the processor has instructions for it]",
            show_default=False,
        ),
    ] = None
    input_shape: Annotated[
        list[str] | None,
        typer.Option(
            "--input-shape",
            metavar="NxCxHxW",
            help="Sizes of an input, once for each, in order: compiles an ONNX file with dynamic axes for these.",
        ),
    ] = None
    size: Annotated[
        list[str] | None,
        typer.Option(
            "--size",
            metavar="NAME=1..512",
            help="The range of a size that varies, or its only value; once for each.  [default: what the model says, "
            "1..512 where it has no limit]",
            show_default=False,
        ),
    ] = None
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="OUTPUT=INPUT",
            help="An output that is an input of the next call, and stays in the model; once for each. auto: those of "
            "exported decoders (present.0.key, past_key_values.0.key).",
        ),
    ] = None
    trials: Annotated[
        int,
        typer.Option(
            "--trials", metavar="N", min=0, help="Measurements, of all kernels together, recorded ones included."
        ),
    ] = 0
    time_limit_s: Annotated[float | None, seconds_option("Measure nothing new after that.")] = None
    stop_at: StopAt = None
    patience: Patience = None
    records: Annotated[
        Parsed,
        records_option(
            f"The record file; what it has is not measured again.  [default: {DEFAULT_RECORDS} with --trials]",
            show_default=False,
        ),
    ] = None
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the record file, which has to be there.")] = False
    check: Annotated[
        bool | None,
        typer.Option(
            "--check/--no-check",
            help="Compare outputs with the original's on random inputs; for a GPU that is not here: let the emulator "
            "run each kernel (seconds a kernel).  [default: compare where the device is here]",
            show_default=False,
        ),
    ] = None
    fallback: Annotated[
        str | None,
        typer.Option(
            "--fallback",
            metavar="onnxruntime",
            help="Leave the nodes of an ONNX model that cannot be read to it, and compile the parts between them.",
            show_default=False,
        ),
    ] = None
    calibrate: Annotated[
        Path | None,
        typer.Option(
            "--calibrate",
            metavar="DATA",
            help="Inputs of the model (.npz, .npy), of several calls along the first dimension.",
            show_default=False,
        ),
    ] = None
    percentile: Annotated[
        float | None,
        typer.Option(
            "--percentile",
            metavar="P",
            help="Share of an activation's numbers within its range, as 99.99.  [default: all]",
            show_default=False,
        ),
    ] = None
    measure: Annotated[bool, typer.Option("--measure", help="Run it here and say each kernel's time.")] = False

    def request(self, elsewhere: Elsewhere, records: Path | None, listeners: Listeners) -> CompileRequest:
        """Return what the library is asked for, which refuses what contradicts itself."""
        from anatune.network.compiling.request import CompileRequest, MeasuringOptions, QuantisingOptions

        measuring = MeasuringOptions(
            trials=self.trials, time_limit_s=self.time_limit_s, records=records, resume=self.resume,
            reuse=not elsewhere.no_reuse, stop_at=self.stop_at, patience=self.patience, **elsewhere.keywords(),
        )  # fmt: skip
        quantising = QuantisingOptions(self.calibrate, self.percentile)
        return CompileRequest(
            threads=self.threads, accuracy=self.accuracy or "standard", precision=self.precision, check=self.check,
            fallback=self.fallback, measuring=measuring, quantising=quantising, listeners=listeners,
        )  # fmt: skip


@spread
def compile_model(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="An ONNX file, or a program that torch.export.save wrote (.pt2).")
    ],
    asked: CompileOptions,
    elsewhere: Elsewhere,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Compile a whole model for a CPU or a GPU: kernels planned by the analytical model, weights packed once.

    With --trials kernels are measured, too: those first that occur often and are far from their bound. Every trial is
    recorded as it ends; after Ctrl-C or a crash the same command goes on.

    A CPU is the kind of this machine, which compiles, checks and runs the model; with --hw NAME it has to run the
    instructions of that CPU, and gives it its own cores.

    A GPU need not be here: kernels become cubins, and the folder runs where that GPU is. Records of it (--records,
    written by `anatune tune` there) are used. With --precision bfloat16, float16 or fp8, on NVIDIA from sm_80 on with
    --accuracy relaxed (float32 rounded to tf32) unless records are named, and on AMD's GPUs always, products run on
    matrix units, and everything is Triton's kernels.

    `anatune run DIR` and anatune.load("DIR") run it.

    A .pt2 file may hold code, which PyTorch runs when it reads it: compile only those of people you trust.
    """
    from anatune.measure.named_hardware import hardware
    from anatune.network.compiling import session
    from anatune.network.compiling.folder import check_place
    from anatune.network.compiling.request import Listeners, ModelSource

    if asked.compare:
        _compare(model, asked, elsewhere, html, as_json=as_json)
        return
    if asked.price:
        raise UsageError("--price is for --compare; leave it out")
    if asked.output is None:
        raise UsageError("-o/--output is missing, expected the folder to write; --compare writes none")
    output = asked.output
    page_file = check_html(html, model, asked.records, output, asked.hw)
    check_place(output)
    _refuse_unmeasured(asked, elsewhere)
    display = ModelDisplay()
    told: list[ModelEstimate] = []

    def say(estimate: ModelEstimate) -> None:
        from anatune.report.tuning import model_cost_text

        told.append(estimate)
        note(f"note: {model_cost_text(estimate)}")

    _warn_of_code(model)
    device = hardware(asked.hw)
    refuse_threads(asked.threads, device)
    _say_target(device, asked)
    kept = _kept_records(asked, elsewhere)
    count = display.progress.count("planning", then="planning what is left")
    request = asked.request(elsewhere, kept, Listeners(count, display, say, display.begin))
    try:
        with display:
            display.begin("reading the model")
            inputs = session.example_arrays(model, shapes) if (shapes := _shapes(asked.input_shape)) else None
            source = ModelSource(model, inputs, named_sizes(asked.size), state=named_state(asked.state))
            compiled = session.compile_source(source, device, request)
    except KeyboardInterrupt as stop:
        from anatune.tuning.result import TuningInterrupted

        if not isinstance(stop, TuningInterrupted):
            raise
        raise KeyboardInterrupt(f"interrupted, all trials are kept in {kept}; the same command goes on") from None
    compiled.save(output)
    _tell(compiled, asked, page_file, model.stem, told if as_json else None)


def _kept_records(asked: CompileOptions, elsewhere: Elsewhere) -> Path | None:
    """Return where records are read and written, and say that kernels are taken from there; None: nowhere."""
    from anatune.records.place import is_missing

    records = asked.records
    if records is not None and not elsewhere.no_reuse and not is_missing(records):
        note(
            f"note: kernels are those that {records} has of this device, where it has some; --no-reuse plans them anew"
        )
    return records if records is not None or not (asked.trials or asked.resume) else DEFAULT_RECORDS


def _tell(
    compiled: CompiledModel,
    asked: CompileOptions,
    page_file: Output | None,
    name: str,
    told: list[ModelEstimate] | None,
) -> None:
    """Print what a model has become; `told`: as JSON, with what was estimated."""
    from anatune.network.report import model_dict, model_lines

    measured = compiled.profile() if asked.measure else None
    if page_file is not None:
        from anatune.network.pages.compiled import model_page

        write_page(model_page(compiled, measured, name=name), page_file)
    if told is not None:
        estimate = msgspec.to_builtins(told[0]) if told else None
        print_json({"folder": str(asked.output), **model_dict(compiled.summary, measured), "estimate": estimate})
        return
    print_lines(model_lines(compiled.summary, measured, width=line_width()))
    where = f", where there is a GPU of {compiled.summary.arch}" if compiled.summary.device == "gpu" else ""
    note(f"written to {asked.output}; `anatune run {asked.output} --benchmark` times it{where}")


def _compare(model: Path, asked: CompileOptions, elsewhere: Elsewhere, html: Path | None, *, as_json: bool) -> None:
    """Print what a model is predicted to be on several devices."""
    from anatune.cli.progress import Progress
    from anatune.network.comparison_report import comparison_dict, comparison_lines
    from anatune.network.compiling import session
    from anatune.network.compiling.targets.comparing import compare

    if elsewhere != Elsewhere():
        raise UsageError("--compare plans and predicts; leave who measures out")
    usual = CompileOptions()
    given = {name for name in asked.__struct_fields__ if getattr(asked, name) != getattr(usual, name)}
    others = given - {"hw", "compare", "price", "precision", "accuracy", "input_shape", "size", "state"}
    if others:
        raise UsageError(f"--compare plans and predicts; leave out --{min(others).replace('_', '-')}")
    names = [name.strip() for name in str(asked.hw).split(",")]
    prices = _prices(asked.price, names)
    page_file = check_html(html, model)
    _warn_of_code(model)
    with Progress() as progress:
        inputs = session.example_arrays(model, shapes) if (shapes := _shapes(asked.input_shape)) else None
        found = compare(
            model, inputs, hw=names, precision=asked.precision, accuracy=asked.accuracy or "standard",
            sizes=named_sizes(asked.size), state=named_state(asked.state), progress=progress.count("predictions"),
        )  # fmt: skip
    named = {one.hardware: prices[name] for one, name in zip(found, names, strict=False) if name in prices}
    if page_file is not None:
        from anatune.network.pages.comparison import comparison_page

        write_page(comparison_page(found, named, model.stem), page_file)
    if as_json:
        print_json(comparison_dict(found, named))
        return
    print_lines(comparison_lines(found, named, width=line_width()))


def _prices(words: list[str] | None, names: list[str]) -> dict[str, float]:
    """Return what an hour of each device costs."""
    found: dict[str, float] = {}
    for word in words or ():
        name, _, amount = word.partition("=")
        try:
            found[name] = float(amount)
        except ValueError:
            found[name] = -1.0
        if name not in names or not 0 < found[name] < float("inf"):
            raise UsageError(
                f"--price is {word!r}, expected one of {', '.join(names)} and an amount, as {names[0]}=2.5"
            )
    return found


def _say_target(device: HardwareSpec, asked: CompileOptions) -> None:
    """Say for which machine a model is compiled, where that is a CPU other than this one, or a part of it."""
    if device.most_threads is None or asked.threads is not None:
        return
    from anatune.report import units
    from anatune.tuning.machine import choose_threads

    threads, cores = choose_threads(device, None), device.most_threads
    if threads < cores:
        note(
            f"note: planned for {units.threads(threads)}, the cores that this process may use; {device.name} has "
            f"{cores}. A model for a CPU is compiled, checked and measured here: compile it on the machine that runs it"
        )


def _warn_of_code(model: Path) -> None:
    """Say that a file may hold code."""
    if model.suffix == ".pt2" and model.is_file():
        note(
            f"note: {model} is read by torch.export.load, which runs code that it may hold: compile only files "
            "of people you trust; ONNX files hold none"
        )


def _refuse_unmeasured(asked: CompileOptions, elsewhere: Elsewhere) -> None:
    """Raise UsageError for an option about measuring where nothing is measured."""
    if asked.trials:
        return
    for name, value, does in (
        ("--cluster", elsewhere.cluster, "says who measures"),
        ("--tracker", elsewhere.tracker, "says who measures"),
        ("--stop-at", asked.stop_at, "ends measuring"),
        ("--patience", asked.patience, "ends measuring"),
    ):
        if value is not None:
            raise UsageError(f"{name} {does}, and without --trials nothing is measured; say how many")


def _shapes(words: list[str] | None) -> list[tuple[int, ...]]:
    """Return the sizes that ``--input-shape`` names."""
    shapes = []
    for word in words or ():
        sizes = word.split("x")
        if not all(size.strip().isdecimal() and int(size) for size in sizes):
            raise UsageError(f"--input-shape is {word!r}, expected sizes such as 1x3x224x224")
        shapes.append(tuple(map(int, sizes)))
    return shapes
