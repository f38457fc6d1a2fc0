"""The words and options that name a workload, for every command that takes one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from anatune.cli.completion import layer_and_operator_names
from anatune.cli.options import Keywords
from anatune.cli.output import UsageError

if TYPE_CHECKING:
    from anatune.core.workload.nest import Workload
    from anatune.core.workload.ranges import RangedWorkload

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="WORKLOAD...",
        autocompletion=layer_and_operator_names,
        help="An operator and its extents (matmul 512x4096x1024; conv2d 1x64x56x56 64x64x3x3) "
        "or a named layer (resnet18:C2).",
    ),
]


class WorkloadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What belongs to a workload beside its words; None or False where it is left out."""

    stride: Annotated[str | None, typer.Option(metavar="S[,S]", help="Windows: step.")] = None
    padding: Annotated[str | None, typer.Option(metavar="P[,P]|SAME", help="Windows: zeros around.")] = None
    dilation: Annotated[str | None, typer.Option(metavar="D[,D]", help="Windows: distance of the taps.")] = None
    groups: Annotated[str | None, typer.Option(metavar="G", help="Convolutions: groups of channels.")] = None
    layout: Annotated[
        str | None, typer.Option(metavar="NCHW|NHWC|NCHW16c", help="Windows: order in memory; DATA:RESULT.")
    ] = None
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="DTYPE[:RESULT]",
            help="float32, float16, bfloat16, int8, float8_e4m3fn, ..; of products also two, as uint8xint8 or "
            "bfloat16xint8; ':' and the result's where it is another.",
        ),
    ] = None
    transpose_a: Annotated[bool, typer.Option("--transpose-a", help="Products: A is stored K x M.")] = False
    transpose_b: Annotated[bool, typer.Option("--transpose-b", help="Products: B is stored N x K.")] = False
    epilogue: Annotated[
        str | None,
        typer.Option(
            metavar="STEP[,STEP]",
            help="Fused steps on the result: bias, add, relu, relu6, silu, gelu, gelu_tanh; of 8-bit operands "
            "scale, requantize.",
        ),
    ] = None
    input_zero_point: Annotated[
        str | None, typer.Option(metavar="Z", help="8-bit data: the number that means zero, also in the padding.")
    ] = None
    output_zero_point: Annotated[
        str | None, typer.Option(metavar="Z", help="Requantised results: the number that means zero.")
    ] = None
    axes: Annotated[str | None, typer.Option(metavar="A[,A]", help="Reductions: axes to reduce.")] = None

    causal: Annotated[bool, typer.Option("--causal", help="Attention: no query sees keys behind its own.")] = False
    window: Annotated[str | None, typer.Option(metavar="N", help="Causal attention: last keys a query sees.")] = None
    page_size: Annotated[str | None, typer.Option(metavar="N", help="Attention: keys of a page of the cache.")] = None

    scales: Annotated[
        str | None, typer.Option(metavar="tensor|rows|blocks", help="Scaled products of 8 bits: where scales lie.")
    ] = None
    group: Annotated[str | None, typer.Option(metavar="N", help="Weights only: elements along k with a scale.")] = None
    zero_points: Annotated[bool, typer.Option("--zero-points", help="4-bit weights: they have zero points.")] = False
    rounded: Annotated[bool, typer.Option("--rounded", help="Weights only: data may be rounded to 8 bits.")] = False
    routing: Annotated[
        str | None,
        typer.Option(metavar="uniform|balanced|power:P|N,..", help="Experts: how tokens spread over them."),
    ] = None
    expanded: Annotated[bool, typer.Option("--expanded", help="Experts: data has a row for each choice.")] = False
    activation: Annotated[bool, typer.Option("--activation", help="Experts: result is silu(gate) x up.")] = False

    @property
    def of_workload(self) -> Keywords:
        """What was given for the workload, by the names of `parse_workload`'s keywords."""
        return {name: getattr(self, name) for name in WorkloadOptions.__struct_fields__}

    def parse(self, words: list[str]) -> Workload:
        """Return the workload of some words; errors as `parse_workload`."""
        from anatune.core.workload.text import parse_workload

        return parse_workload(words, **self.of_workload)

    def parse_any(self, words: list[str] | None) -> Workload | None:
        """Return the workload of some words; None where there are none: then there may be no options of one."""
        if words:
            return self.parse(words)
        self.refuse("is of a workload, and none is given; leave it out")
        return None

    def parse_range(self, command: str, words: list[str] | None, hw: str | None) -> Workload | RangedWorkload:
        """Return the workload of a command, in which one extent may be a range or a list.

        Raises
        ------
        UsageError
            It is missing, or `hw` is.
        """
        from anatune.core.workload.ranges import has_range, parse_ranged

        if hw is None:
            raise UsageError("Missing option '--hw'")
        if not words:
            raise UsageError(
                "the workload is missing, expected an operator and extents or a layer; write for example "
                f"anatune {command} --hw {hw} matmul 512x4096x1024"
            )
        return parse_ranged(words, **self.of_workload) if has_range(words) else self.parse(words)

    def parse_one(self, command: str, words: list[str] | None, hw: str | None) -> Workload:
        """Return the workload of a command that takes one shape; errors as `parse_range`."""
        from anatune.core.workload.nest import Workload

        workload = self.parse_range(command, words, hw)  # a range that cannot be is said first
        if isinstance(workload, Workload):
            return workload
        text = " ".join(words or ())
        raise UsageError(
            f"{command} takes one shape, and {text} has a range of extents; plan it: anatune plan --hw {hw} {text}, "
            f"then {command} the largest extents that programs serve"
        )

    def refuse(self, why: str) -> None:
        """Raise UsageError for the first option that was given where there is no workload; `why` follows it."""
        for name, value in self.of_workload.items():
            if value:
                raise UsageError(f"--{name.replace('_', '-')} {why}")
