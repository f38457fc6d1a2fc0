"""Options that several commands have, written once: their names, bounds and help."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from anatune.arguments import MOST_SECONDS, MOST_TRIALS
from anatune.cli.completion import device_names, template_names
from anatune.cli.output import UsageError
from anatune.errors import RecordError

if TYPE_CHECKING:
    from anatune.core.hardware.spec import CpuSpec, GpuSpec
    from anatune.records.place import ServerAddress

__all__ = [
    "DEFAULT_RECORDS",
    "RECORDS",
    "Accuracy",
    "AsJson",
    "BoardKey",
    "Cluster",
    "CorrectionName",
    "Device",
    "Html",
    "NoReuse",
    "Patience",
    "Plain",
    "RecordFile",
    "StopAt",
    "Template",
    "Threads",
    "Tls",
    "Tracker",
    "checked_place",
    "correction_of",
    "refuse_places",
    "refuse_threads",
    "seconds_option",
    "share_of",
]

DEFAULT_RECORDS = Path("tuning.sqlite")
"""The record file where none is named."""

_LEAST_SECONDS = 1e-6


RECORDS = "FILE|URL"
"""A file, or postgresql://USER@HOST:PORT/DATABASE."""


def checked_place(word: str | Path) -> Path | ServerAddress:
    """Return the place of records that a word names; what is none is not repeated: it may hold a password."""
    from anatune.records.place import record_place

    try:
        return record_place(word)
    except RecordError as error:
        raise UsageError(str(error)) from None


def _template(word: str) -> str:
    """Return the name of the template that a word names."""
    from anatune.templates import TEMPLATES

    if word not in TEMPLATES:
        raise typer.BadParameter(f"got {word!r}, expected one of {', '.join(TEMPLATES)}")
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
        help="What schedules look like. GPUs: cuda (the default of plan, prune and export), pipelined (the default of "
        "tune: cuda with several shared-memory buffers and padded rows), thin (products with a vector or at most 16 "
        "rows, long reductions) or tensorcore (float16, bfloat16; float32 as tf32). CPUs: cpu, winograd (3x3 "
        "convolutions of stride 1 in float32) or fp16_accumulation (float16 with AVX512_FP16, at accuracy relaxed). "
        "Left out: all that apply, together (GPUs: cuda and thin).",
    ),
]
Accuracy = Annotated[
    Literal["standard", "relaxed"],
    typer.Option(
        "--accuracy",
        help="standard: kernels that err about as much as a plain sum. relaxed: also those that err several times as "
        "much (Winograd's F(4x4, 3x3)), and sums in float16 (AVX512_FP16).",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", metavar="T", min=1, help="CPUs: threads of the kernels.  [default: all cores]"),
]
CorrectionName = Annotated[
    str | None, typer.Option("--model", metavar="NAME|FOLDER", help="Learned correction to use, shipped or your own.")
]
Plain = Annotated[bool, typer.Option("--plain", help="No learned correction, also where one was made for the device.")]
RecordFile = Annotated[
    Any, typer.Option("--records", metavar=RECORDS, parser=checked_place, help="The record file or server.")
]
"""Its value is a `records.place.RecordPlace`: whatever prints it prints no password."""
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="ADDRESS",
        help="Build and measure on a Dask cluster of `anatune worker`s; --hw host is their CPU.",
    ),
]
Tls = Annotated[
    Path | None,
    typer.Option(
        "--tls",
        metavar="DIR",
        help="Certificates of the cluster (`anatune cluster certificates DIR`); without, the loopback alone.",
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
NoReuse = Annotated[
    bool, typer.Option("--no-reuse", help="Do not begin with what the records have of this workload and device.")
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
    Any,
    typer.Option(
        "--stop-at",
        metavar="SHARE",
        parser=_stop_at,
        help="End as soon as a kernel reaches this share of the lower bound on its time: 95% or 0.95.",
    ),
]


def seconds_option(help: str) -> Any:
    """Return the option ``--time-limit`` of a command, with what the limit means there."""
    return typer.Option("--time-limit", metavar="SECONDS", min=_LEAST_SECONDS, max=MOST_SECONDS, help=help)


def refuse_threads(threads: int | None, hardware: CpuSpec | GpuSpec) -> None:
    """Raise UsageError if ``--threads`` is given for a GPU."""
    if threads is not None and hardware.most_threads is None:
        raise UsageError(f"--threads is for CPUs, and {hardware.name} is none; leave it out")


def refuse_places(cluster: str | None, tls: Path | None, tracker: str | None, key: str | None) -> None:
    """Raise UsageError if options that say who measures contradict each other, or one needs another."""
    if cluster is not None and tracker is not None:
        raise UsageError("--cluster and --tracker both say who measures; leave one out")
    for given, needed, name, other in (
        (tls, cluster, "--tls", "--cluster: the certificates are a cluster's"),
        (key, tracker, "--key", "--tracker: boards are found by both"),
        (tracker, key, "--tracker", "--key: boards are found by both"),
    ):
        if given is not None and needed is None:
            raise UsageError(f"{name} needs {other}")


def correction_of(name: str | None, plain: bool) -> str:
    """Return what ``--model`` and ``--plain`` say, as the library takes it.

    Raises
    ------
    UsageError
        Both are given.
    """
    if plain and name is not None:
        raise UsageError("--plain uses no correction, --model names one; leave one out")
    return "none" if plain else name or "auto"
