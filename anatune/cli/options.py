"""Options that several commands share, and structs of options that belong together."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_type_hints

import msgspec
import typer
from typer.models import OptionInfo

from anatune.arguments import MOST_SECONDS, MOST_TRIALS
from anatune.cli.completion import device_names, template_names
from anatune.cli.output import UsageError
from anatune.errors import RecordError

if TYPE_CHECKING:
    from anatune.core.hardware.spec import HardwareSpec
    from anatune.records.place import RecordPlace

DEFAULT_RECORDS = Path("tuning.sqlite")
"""The default record file."""

_LEAST_SECONDS = 1e-6

Parsed: TypeAlias = Any
"""The value of an option with its own parser; typer accepts no other type for it."""
Keywords: TypeAlias = dict[str, Any]
"""Keyword arguments for a call of the library."""


def parse_record_place(word: str | Path) -> RecordPlace:
    """Return the record file or server that a word names; errors leave the word out, which may hold a password."""
    from anatune.records.place import record_place

    try:
        return record_place(word)
    except RecordError as error:
        raise UsageError(str(error)) from None


def _template(word: str) -> str:
    """Return the name of the template that a word names."""
    from anatune.core.templates import note_removed
    from anatune.templates import TEMPLATES

    if word not in TEMPLATES:
        raise typer.BadParameter(f"got {word!r}, expected one of {', '.join(TEMPLATES)}{note_removed(word)}")
    return word


Device = Annotated[
    str,
    typer.Option(
        "--hw",
        metavar="NAME|FILE",
        autocompletion=device_names,
        help="The device: a name from `anatune hw list`, host (this machine), or a spec file (TOML).",
    ),
]
Template = Annotated[
    str | None,
    typer.Option(
        "--template",
        metavar="NAME",
        autocompletion=template_names,
        parser=_template,
        help="Use the schedules of one template only. GPUs: cuda (CUDA cores), pipelined (cuda with several "
        "shared-memory buffers and padded rows; tune uses it instead of cuda), thin (products with a vector or at "
        "most 16 rows, long reductions) or triton (products on the matrix units of NVIDIA and AMD; float32 is rounded "
        "to tf32 at accuracy relaxed). CPUs: cpu, winograd (3x3 convolutions of stride 1 in float32), scaled "
        "(products with weights of 8 and 4 bits), fp16_accumulation (float16 with AVX512_FP16, at accuracy relaxed) "
        "or amx (products of 16 and 8 bits on AMX tiles).  [default: all that apply, ranked together]",
        show_default=False,
    ),
]
Accuracy = Annotated[
    Literal["standard", "relaxed"] | None,
    typer.Option(
        "--accuracy",
        help="standard (the default): kernels whose error is about that of a plain sum. relaxed: also kernels with "
        "several times that error: Winograd's F(4x4, 3x3), sums in float16 (AVX512_FP16), float32 rounded to tf32, "
        "and sums of 8-bit floats in the few bits that Hopper's tensor cores keep. Without this option, --template "
        "triton may round float32 to tf32; the output mentions it.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", metavar="T", min=1, help="CPUs: number of threads of a kernel.  [default: all cores]"),
]


def records_option(help: str, *, show_default: bool = True) -> OptionInfo:
    """Return the option ``--records`` of a command; its value is a `RecordPlace`, which prints without a password."""
    option: OptionInfo = typer.Option(
        "--records", metavar="FILE|URL", parser=parse_record_place, help=help, show_default=show_default
    )
    return option


RecordFile = Annotated[Parsed, records_option("The record file or server.")]
Tls = Annotated[
    Path | None,
    typer.Option(
        "--tls",
        metavar="DIR",
        help="Folder with the cluster's certificates: ca.pem, cert.pem, key.pem. Without it, only clusters on this "
        "machine can be used.",
    ),
]
Tracker = Annotated[
    str | None,
    typer.Option(
        "--tracker", metavar="HOST:PORT", help="Measure on boards at this TVM RPC tracker; --hw host means their CPU."
    ),
]
BoardKey = Annotated[
    str | None, typer.Option("--key", metavar="KEY", help="The key under which the boards registered at the tracker.")
]
Patience = Annotated[
    int | None,
    typer.Option(
        "--patience",
        metavar="N",
        min=1,
        max=MOST_TRIALS,
        help="End after N trials in a row without a kernel that is faster beyond measurement noise.",
    ),
]
Backend = Annotated[
    str | None,
    typer.Option(
        "--backend", metavar="NAME", help="GPUs: driver package: pycuda or cuda-bindings.  [default: the installed one]"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
Html = Annotated[
    Path | None,
    typer.Option(
        "--html", metavar="FILE", help="Also write an HTML page with figures and tables; it needs no network."
    ),
]


def parse_share(name: str, text: str, most: float = math.inf) -> float:
    """Return a share that is typed as 5% or 0.05, above 0 and up to `most`.

    Raises
    ------
    UsageError
        The text is not such a share.
    """
    number, percent, rest = text.strip().partition("%")
    try:
        value = float(number) / (100.0 if percent else 1.0)
    except ValueError:
        value = math.nan
    if rest or not (0.0 < value < math.inf and value <= most):
        up_to = "" if most == math.inf else f" and up to {100 * most:g}%"
        raise UsageError(f"{name} {text}: expected a share above 0{up_to}; write for example 5% or 0.05")
    return value


def _parse_stop_at(text: str) -> float:
    return parse_share("--stop-at", text, most=1.0)


StopAt = Annotated[
    Parsed,
    typer.Option(
        "--stop-at",
        metavar="SHARE",
        parser=_parse_stop_at,
        help="End as soon as the lower bound on the time is this share of a kernel's measured time: 95% or 0.95.",
    ),
]


def seconds_option(help: str) -> OptionInfo:
    """Return the option ``--time-limit`` with the help text of one command."""
    option: OptionInfo = typer.Option(
        "--time-limit", metavar="SECONDS", min=_LEAST_SECONDS, max=MOST_SECONDS, help=help
    )
    return option


def parse_prices(words: Sequence[str] | None, names: Sequence[str]) -> dict[str, float]:
    """Return the price of an hour of each device, from texts such as h100=2.5; `names` are the devices.

    Raises
    ------
    UsageError
        A text does not name one of the devices and an amount above 0.
    """
    prices: dict[str, float] = {}
    for word in words or ():
        name, _, amount = word.partition("=")
        try:
            prices[name] = float(amount)
        except ValueError:
            prices[name] = -1.0
        if name not in names or not 0 < prices[name] < math.inf:
            raise UsageError(
                f"--price is {word!r}, expected one of {', '.join(names)} and an amount, as {names[0]}=2.5"
            )
    return prices


def refuse_threads(threads: int | None, hardware: HardwareSpec) -> None:
    """Raise UsageError if ``--threads`` is given for a GPU."""
    if threads is not None and hardware.most_threads is None:
        raise UsageError(f"--threads is for CPUs, but {hardware.name} is a GPU; leave --threads out")


class Predicting(msgspec.Struct, frozen=True, kw_only=True):
    """Options that say for which device schedules are ranked, and how."""

    hw: Device
    template: Template = None
    accuracy: Accuracy = None
    threads: Threads = None
    correction: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME|FOLDER", help="Learned correction to use: a shipped one, or a folder."),
    ] = None
    plain: Annotated[
        bool, typer.Option("--plain", help="Use the analytical model alone, without a learned correction.")
    ] = False

    def hardware(self) -> HardwareSpec:
        """Return the device.

        Raises
        ------
        UsageError
            Options contradict each other, or are for another kind of device.
        """
        from anatune import api

        if self.plain and self.correction is not None:
            raise UsageError("--plain uses no learned correction, but --model names one; leave one of them out")
        hardware = api.hardware(self.hw)
        refuse_threads(self.threads, hardware)
        return hardware

    def keywords(self) -> Keywords:
        """Return the keyword arguments for `anatune.plan` and similar calls."""
        correction = "none" if self.plain else self.correction or "auto"
        shared = {"template": self.template, "accuracy": self.accuracy, "threads": self.threads}
        return {**shared, "correction": correction}


class Elsewhere(msgspec.Struct, frozen=True, kw_only=True):
    """Options that say which machines measure (by default this one) and whether records are reused."""

    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="ADDRESS",
            help="Build and measure on the `anatune worker`s of a Dask cluster; --hw host means their CPU.",
        ),
    ] = None
    tls: Tls = None
    tracker: Tracker = None
    key: BoardKey = None
    no_reuse: Annotated[
        bool, typer.Option("--no-reuse", help="Ignore earlier records of this workload and device.")
    ] = False

    def keywords(self) -> Keywords:
        """Return the keyword arguments of `anatune.tune` that say who measures.

        Raises
        ------
        UsageError
            Options contradict each other, or one needs another.
        """
        if self.cluster is not None and self.tracker is not None:
            raise UsageError("--cluster and --tracker both say which machines measure; leave one of them out")
        for value, needed, name, other in (
            (self.tls, self.cluster, "--tls", "--cluster: the certificates are those of a cluster"),
            (self.key, self.tracker, "--key", "--tracker: together they find the boards"),
            (self.tracker, self.key, "--tracker", "--key: together they find the boards"),
        ):
            if value is not None and needed is None:
                raise UsageError(f"{name} needs {other}")
        return {"cluster": self.cluster, "tls": self.tls, "tracker": self.tracker, "key": self.key}


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with one option for each field of its struct parameters; it builds and passes the structs."""
    structs: dict[str, type[msgspec.Struct]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        struct = parameter.annotation
        if not (isinstance(struct, type) and issubclass(struct, msgspec.Struct)):
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
            continue
        structs[parameter.name] = struct
        annotations = get_type_hints(struct, include_extras=True)
        for field in msgspec.structs.fields(struct):
            default = parameter.empty if field.required else field.default
            annotation = annotations[field.name]
            parameters.append(
                inspect.Parameter(field.name, parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            )

    @functools.wraps(command)
    def run(**values: object) -> None:
        for name, kind in structs.items():
            values[name] = kind(**{field: values.pop(field) for field in kind.__struct_fields__})
        command(**values)

    # typer reads both the signature and the annotations
    run.__signature__ = inspect.Signature(parameters, return_annotation=None)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters} | {"return": None}
    return run


def named_sizes(words: list[str] | None) -> dict[str, str]:
    """Return the values of ``--size NAME=VALUE`` by name."""
    sizes = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not name or not equals or not value:
            raise UsageError(f"--size is {word!r}, expected a name and a range such as tokens=1..512, or batch=4")
        sizes[name] = value
    return sizes


def named_state(words: list[str] | None) -> str | dict[str, str] | None:
    """Return the value of ``--state``: "auto", or the input for each output by name."""
    if words == ["auto"]:
        return "auto"
    inputs: dict[str, str] = {}
    for word in words or ():
        output, equals, source = word.partition("=")
        if not output or not equals or not source:
            raise UsageError(f"--state is {word!r}, expected auto, or an output and its input: present.0=past.0")
        if output in inputs:
            raise UsageError(f"--state names the output {output} twice; name each output once")
        inputs[output] = source
    return inputs or None
