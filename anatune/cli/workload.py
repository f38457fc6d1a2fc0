"""The words and options that name a workload, for every command that takes one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from anatune.cli.completion import layer_and_operator_names
from anatune.cli.output import UsageError

__all__ = ["refuse_workload_options", "with_workload", "with_workload_words"]

_Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="WORKLOAD...",
        autocompletion=layer_and_operator_names,
        help="An operator and its extents (matmul 512x4096x1024; conv2d 1x64x56x56 64x64x3x3) "
        "or a named layer (resnet18:C2).",
    ),
]


def _options(
    words: _Words = None,
    stride: Annotated[str | None, typer.Option(metavar="S[,S]", help="Windows: step.")] = None,
    padding: Annotated[str | None, typer.Option(metavar="P[,P]|SAME", help="Windows: zeros around.")] = None,
    dilation: Annotated[str | None, typer.Option(metavar="D[,D]", help="Windows: distance of the taps.")] = None,
    groups: Annotated[str | None, typer.Option(metavar="G", help="Convolutions: groups of channels.")] = None,
    layout: Annotated[
        str | None, typer.Option(metavar="NCHW|NHWC|NCHW16c", help="Windows: order in memory; DATA:RESULT.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="DTYPE[:RESULT]",
            help="float32, float16, bfloat16, int8 or uint8xint8; ':' and the result's where it is another.",
        ),
    ] = None,
    transpose_a: Annotated[bool, typer.Option("--transpose-a", help="Products: A is stored K x M.")] = False,
    transpose_b: Annotated[bool, typer.Option("--transpose-b", help="Products: B is stored N x K.")] = False,
    epilogue: Annotated[
        str | None,
        typer.Option(
            metavar="STEP[,STEP]",
            help="Fused steps on the result: bias, add, relu, relu6, silu, gelu, gelu_tanh; of 8-bit sums scale, "
            "requantize.",
        ),
    ] = None,
    input_zero_point: Annotated[
        str | None, typer.Option(metavar="Z", help="8-bit data: the number that means zero, also in the padding.")
    ] = None,
    output_zero_point: Annotated[
        str | None, typer.Option(metavar="Z", help="Requantised results: the number that means zero.")
    ] = None,
    axes: Annotated[str | None, typer.Option(metavar="A[,A]", help="Reductions: axes to reduce.")] = None,
) -> None:
    """Exist for its signature only."""


def with_workload_words(words: Any = _Words) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the words and options of a workload, as they were written.

    The command's parameter ``words`` receives the list of words, ``chosen`` the options by name (None or False where
    they are left out); it also has a parameter ``hw``. Words of its own are parameters before ``words``.

    Parameters
    ----------
    words : annotation
        Another one for the words, where they may be something else than a workload.
    """
    options = inspect.signature(_options, eval_str=True).parameters
    shared = {**options, "words": options["words"].replace(annotation=words)}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            chosen = {key: given.pop(key) for key in shared}
            command(words=chosen.pop("words") or [], chosen=chosen, **given)

        # commands import workloads for type checkers only: anatune starts without it
        own = dict(
            inspect.signature(command, locals={"Workload": Any, "RangedWorkload": Any}, eval_str=True).parameters
        )
        names = list(own)
        before = names[: names.index("workload" if "workload" in own else "words")]
        first = [own[key] for key in before] + [own["hw"]] + list(shared.values())
        rest = [own[key] for key in names if key not in (*before, "hw", "workload", "words", "chosen")]
        parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*first, *rest)]
        # typer reads the signature, and the annotations on their own
        run.__signature__ = inspect.Signature(parameters, return_annotation=None)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": None}
        return run

    return decorate


def refuse_workload_options(chosen: dict[str, Any], why: str) -> None:
    """Raise UsageError for the first of a workload's options that was given where there is no workload.

    Parameters
    ----------
    chosen
        The options by name.
    why : str
        Follows the option.
    """
    for key, value in chosen.items():
        if value:
            raise UsageError(f"--{key.replace('_', '-')} {why}")


def with_workload(
    name: str, unless: str | None = None, *, ranges: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the words and options of a workload.

    The command's parameter ``workload`` receives the parsed Workload; it also has a parameter ``hw``.

    Parameters
    ----------
    name : str
        The command's name, for the example in the error of a missing workload.
    unless : str, optional
        A parameter of the command: where it is given, workload and hw may be missing (None).
    ranges : bool
        Whether one extent may be a range or a list; the command then receives a RangedWorkload.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @with_workload_words()
        @functools.wraps(command)
        def run(words: list[str], chosen: dict[str, Any], **given: Any) -> None:
            from anatune.core.workload.ranges import has_range, parse_ranged
            from anatune.core.workload.text import parse_workload

            if unless is not None and given.get(unless) is not None and not words:
                refuse_workload_options(chosen, "is of a workload, and none is given; leave it out")
                command(workload=None, **given)
                return
            if given["hw"] is None:
                raise UsageError("Missing option '--hw'")
            if not words:
                raise UsageError(
                    "the workload is missing, expected an operator and extents or a layer; write for example "
                    f"anatune {name} --hw {given['hw']} matmul 512x4096x1024"
                )
            if has_range(words) and not ranges:
                parse_ranged(words, **chosen)  # a range that cannot be is said first
                raise UsageError(
                    f"{name} takes one shape, and {' '.join(words)} has a range of extents; plan it: anatune plan "
                    f"--hw {given['hw']} {' '.join(words)}, then {name} the largest extents that programs serve"
                )
            parse = parse_ranged if has_range(words) else parse_workload
            command(workload=parse(words, **chosen), **given)

        return run

    return decorate
