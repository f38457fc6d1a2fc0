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
    """Options of a workload; None or False if left out."""

    stride: Annotated[str | None, typer.Option(metavar="S[,S]", help="Convolution, pooling: the stride.")] = None
    padding: Annotated[str | None, typer.Option(metavar="P[,P]|SAME", help="Convolution, pooling: padding.")] = None
    dilation: Annotated[str | None, typer.Option(metavar="D[,D]", help="Convolution, pooling: the dilation.")] = None
    groups: Annotated[str | None, typer.Option(metavar="G", help="Convolution: the number of channel groups.")] = None
    layout: Annotated[
        str | None, typer.Option(metavar="NCHW|NHWC|NCHW16c", help="Memory layout; NCHW:NHWC if the result's differs.")
    ] = None
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="DTYPE[:RESULT]",
            help="Number format: float32, float16, bfloat16, int8, float8_e4m3fn and others; of both operands of a "
            "product, such as uint8xint8; int8:int32 names another format for the result.",
        ),
    ] = None
    transpose_a: Annotated[bool, typer.Option("--transpose-a", help="Products: A is stored as K x M.")] = False
    transpose_b: Annotated[bool, typer.Option("--transpose-b", help="Products: B is stored as N x K.")] = False
    epilogue: Annotated[
        str | None,
        typer.Option(
            metavar="STEP[,STEP]",
            help="Elementwise steps that the kernel applies to its results: bias, add, relu, relu6, silu, gelu, "
            "gelu_tanh; for 8-bit operands also scale, requantize.",
        ),
    ] = None
    input_zero_point: Annotated[
        str | None, typer.Option(metavar="Z", help="8-bit data: the zero point of the input, which fills the padding.")
    ] = None
    output_zero_point: Annotated[
        str | None, typer.Option(metavar="Z", help="Requantized results: the zero point of the output.")
    ] = None
    axes: Annotated[str | None, typer.Option(metavar="A[,A]", help="Reductions: the axes to reduce.")] = None

    causal: Annotated[bool, typer.Option("--causal", help="Attention: use keys up to the query's position.")] = False
    window: Annotated[str | None, typer.Option(metavar="N", help="Causal attention: use the last N keys.")] = None
    page_size: Annotated[str | None, typer.Option(metavar="N", help="Attention: the cache has pages of N keys.")] = None

    scales: Annotated[
        str | None, typer.Option(metavar="tensor|rows|blocks", help="Scaled 8-bit products: a scale for each of these.")
    ] = None
    group: Annotated[str | None, typer.Option(metavar="N", help="Quantized weights: N of them share a scale.")] = None
    zero_points: Annotated[bool, typer.Option("--zero-points", help="4-bit weights: groups have zero points.")] = False
    rounded: Annotated[bool, typer.Option("--rounded", help="Quantized weights: data may be rounded to int8.")] = False
    routing: Annotated[
        str | None,
        typer.Option(metavar="uniform|balanced|power:P|N,..", help="Experts: how tokens choose them, or their counts."),
    ] = None
    expanded: Annotated[bool, typer.Option("--expanded", help="Experts: data has a row for each chosen expert.")] = (
        False
    )
    activation: Annotated[bool, typer.Option("--activation", help="Experts: the result is silu(gate) * up.")] = False

    @property
    def workload_keywords(self) -> Keywords:
        """The given options as keyword arguments of `parse_workload`."""
        return {name: getattr(self, name) for name in WorkloadOptions.__struct_fields__}

    def parse(self, words: list[str]) -> Workload:
        """Return the workload that some words name; raise the errors of `parse_workload`."""
        from anatune.core.workload.text import parse_workload

        return parse_workload(words, **self.workload_keywords)

    def parse_any(self, words: list[str] | None) -> Workload | None:
        """Return the workload that some words name; None without words, where options of a workload are refused."""
        if words:
            return self.parse(words)
        self.refuse("is an option of a workload, but no workload is given; name one, or leave the option out")
        return None

    def parse_range(self, command: str, words: list[str] | None, hw: str | None) -> Workload | RangedWorkload:
        """Return the workload of a command; one extent may be a range or a list.

        Raises
        ------
        UsageError
            The workload or `hw` is missing.
        """
        from anatune.core.workload.ranges import has_range, parse_ranged_workload

        if hw is None:
            raise UsageError("Missing option '--hw'")
        if not words:
            raise UsageError(
                "the workload is missing, expected an operator and its extents, or a named layer; write for example "
                f"anatune {command} --hw {hw} matmul 512x4096x1024"
            )
        return parse_ranged_workload(words, **self.workload_keywords) if has_range(words) else self.parse(words)

    def parse_one(self, command: str, words: list[str] | None, hw: str | None) -> Workload:
        """Return the workload of a command that takes no ranges; raise the errors of `parse_range`."""
        from anatune.core.workload.nest import Workload

        workload = self.parse_range(command, words, hw)  # an invalid range is reported first
        if isinstance(workload, Workload):
            return workload
        text = " ".join(words or ())
        raise UsageError(
            f"{command} takes one shape, but {text} has a range of extents; run `anatune plan --hw {hw} {text}`, then "
            f"{command} the largest extent of each kernel in that plan"
        )

    def refuse(self, why: str) -> None:
        """Raise UsageError for the first given option of a workload; `why` follows its name in the message."""
        for name, value in self.workload_keywords.items():
            if value:
                raise UsageError(f"--{name.replace('_', '-')} {why}")
