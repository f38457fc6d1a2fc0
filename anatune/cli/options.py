"""Options that several commands have, written once: their names, bounds and help; structs of those that go together."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
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
"""The record file where none is named."""

_LEAST_SECONDS = 1e-6

Parsed: TypeAlias = Any
"""The value of an option that a parser of its own reads: typer takes no other type for it."""
Keywords: TypeAlias = dict[str, Any]
"""Of a call of the library."""


def checked_place(word: str | Path) -> RecordPlace:
    """Return the place of records that a word names; what is none is not repeated: it may hold a password."""
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
        help="Device: a name of `anatune hw list`, host, or a TOML file.",
    ),
]
Template = Annotated[
    str | None,
    typer.Option(
        "--template",
        metavar="NAME",
        autocompletion=template_names,
        parser=_template,
        help="What schedules look like. GPUs: cuda (CUDA cores), pipelined (cuda with several shared-memory buffers "
        "and padded rows; tune takes it in cuda's place), thin (products with a vector or at most 16 "
        "rows, long reductions) or triton (products on the matrix units of NVIDIA and AMD; float32 as tf32 at accuracy "
        "relaxed). CPUs: cpu, winograd (3x3 convolutions of stride 1 in "
        "float32), scaled (products with weights of 8 and 4 bits), fp16_accumulation (float16 with AVX512_FP16, at "
        "accuracy relaxed) or amx (products of 16 and 8 bits on AMX's tiles). "
        "Left out: all that apply, together (GPUs: cuda, thin and triton).",
    ),
]
Accuracy = Annotated[
    Literal["standard", "relaxed"] | None,
    typer.Option(
        "--accuracy",
        help="standard, the default: kernels that err about as much as a plain sum. relaxed: also those that err "
        "several times as much (Winograd's F(4x4, 3x3)), sums in float16 (AVX512_FP16), float32 rounded to tf32, and "
        "sums of 8-bit floats in the few bits that Hopper's tensor cores keep. Left out, a --template that is named "
        "may round float32 to tf32, and the answer says so.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", metavar="T", min=1, help="CPUs: threads of the kernels.  [default: all cores]"),
]


def records_option(help: str, *, show_default: bool = True) -> OptionInfo:
    """Return the option ``--records`` of a command; its value is a `RecordPlace`, which is printed without password."""
    option: OptionInfo = typer.Option(
        "--records", metavar="FILE|URL", parser=checked_place, help=help, show_default=show_default
    )
    return option


RecordFile = Annotated[Parsed, records_option("The record file or server.")]
Tls = Annotated[
    Path | None,
    typer.Option(
        "--tls",
        metavar="DIR",
        help="Certificates of the cluster: ca.pem, cert.pem, key.pem; without, the loopback alone.",
    ),
]
Tracker = Annotated[
    str | None,
    typer.Option(
        "--tracker", metavar="HOST:PORT", help="Measure on boards behind TVM's RPC tracker; --hw host is their CPU."
    ),
]
BoardKey = Annotated[
    str | None, typer.Option("--key", metavar="KEY", help="Which boards: the key that their servers registered with.")
]
Patience = Annotated[
    int | None,
    typer.Option(
        "--patience",
        metavar="N",
        min=1,
        max=MOST_TRIALS,
        help="End after N trials without one that is better beyond noise.",
    ),
]
Backend = Annotated[
    str | None,
    typer.Option("--backend", metavar="NAME", help="GPUs: pycuda or cuda-bindings.  [default: the one that works]"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Html = Annotated[
    Path | None,
    typer.Option(
        "--html", metavar="FILE", help="Write a page with figures and tables besides; it opens without a network."
    ),
]


def share_of(name: str, text: str, most: float = math.inf) -> float:
    """Return a share that is typed as 5% or 0.05, above 0 and up to `most`.

    Raises
    ------
    UsageError
        It is none.
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


def _stop_at(text: str) -> float:
    return share_of("--stop-at", text, most=1.0)


StopAt = Annotated[
    Parsed,
    typer.Option(
        "--stop-at",
        metavar="SHARE",
        parser=_stop_at,
        help="End as soon as a kernel reaches this share of the lower bound on its time: 95% or 0.95.",
    ),
]


def seconds_option(help: str) -> OptionInfo:
    """Return the option ``--time-limit`` of a command, with what the limit means there."""
    option: OptionInfo = typer.Option(
        "--time-limit", metavar="SECONDS", min=_LEAST_SECONDS, max=MOST_SECONDS, help=help
    )
    return option


def refuse_threads(threads: int | None, hardware: HardwareSpec) -> None:
    """Raise UsageError if ``--threads`` is given for a GPU."""
    if threads is not None and hardware.most_threads is None:
        raise UsageError(f"--threads is for CPUs, and {hardware.name} is none; leave it out")


class Predicting(msgspec.Struct, frozen=True, kw_only=True):
    """For which device schedules are ranked, and how."""

    hw: Device
    template: Template = None
    accuracy: Accuracy = None
    threads: Threads = None
    correction: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME|FOLDER", help="Learned correction to use, shipped or your own."),
    ] = None
    plain: Annotated[
        bool, typer.Option("--plain", help="No learned correction, also where one was made for the device.")
    ] = False

    def hardware(self) -> HardwareSpec:
        """Return the device.

        Raises
        ------
        UsageError
            Options contradict each other, or are of another kind of device.
        """
        from anatune import api

        if self.plain and self.correction is not None:
            raise UsageError("--plain uses no correction, --model names one; leave one out")
        hardware = api.hardware(self.hw)
        refuse_threads(self.threads, hardware)
        return hardware

    def keywords(self) -> Keywords:
        """Return what calls of the library take besides, by their names."""
        correction = "none" if self.plain else self.correction or "auto"
        shared = {"template": self.template, "accuracy": self.accuracy, "threads": self.threads}
        return {**shared, "correction": correction}


class Elsewhere(msgspec.Struct, frozen=True, kw_only=True):
    """Who measures, by default this machine; what was measured before."""

    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="ADDRESS",
            help="Build and measure on a Dask cluster of `anatune worker`s; --hw host is their CPU.",
        ),
    ] = None
    tls: Tls = None
    tracker: Tracker = None
    key: BoardKey = None
    no_reuse: Annotated[
        bool, typer.Option("--no-reuse", help="Use nothing of what the records have of this workload and device.")
    ] = False

    def keywords(self) -> Keywords:
        """Return who measures, by the names of the library's keywords.

        Raises
        ------
        UsageError
            Options contradict each other, or one needs another.
        """
        if self.cluster is not None and self.tracker is not None:
            raise UsageError("--cluster and --tracker both say who measures; leave one out")
        for given, needed, name, other in (
            (self.tls, self.cluster, "--tls", "--cluster: the certificates are a cluster's"),
            (self.key, self.tracker, "--key", "--tracker: boards are found by both"),
            (self.tracker, self.key, "--tracker", "--key: boards are found by both"),
        ):
            if given is not None and needed is None:
                raise UsageError(f"{name} needs {other}")
        return {"cluster": self.cluster, "tls": self.tls, "tracker": self.tracker, "key": self.key}


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with an option for each field of the structs among its parameters; it gets the structs whole."""
    structs: dict[str, type[msgspec.Struct]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        kind = parameter.annotation
        if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
            continue
        structs[parameter.name] = kind
        annotations = get_type_hints(kind, include_extras=True)
        for field in msgspec.structs.fields(kind):
            default = parameter.empty if field.required else field.default
            annotation = annotations[field.name]
            parameters.append(
                inspect.Parameter(field.name, parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            )

    @functools.wraps(command)
    def run(**given: object) -> None:
        for name, kind in structs.items():
            given[name] = kind(**{field: given.pop(field) for field in kind.__struct_fields__})
        command(**given)

    # typer reads the signature, and the annotations on their own
    run.__signature__ = inspect.Signature(parameters, return_annotation=None)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters} | {"return": None}
    return run


def named_sizes(words: list[str] | None) -> dict[str, str]:
    """Return what ``--size`` says by name."""
    found = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not name or not equals or not value:
            raise UsageError(f"--size is {word!r}, expected a name and a range such as tokens=1..512, or batch=4")
        found[name] = value
    return found


def named_state(words: list[str] | None) -> str | dict[str, str] | None:
    """Return what ``--state`` says: "auto", or inputs by the names of outputs."""
    if words == ["auto"]:
        return "auto"
    found: dict[str, str] = {}
    for word in words or ():
        output, equals, given = word.partition("=")
        if not output or not equals or not given:
            raise UsageError(f"--state is {word!r}, expected auto, or an output and its input: present.0=past.0")
        if output in found:
            raise UsageError(f"--state names the output {output} twice, expected once")
        found[output] = given
    return found or None
