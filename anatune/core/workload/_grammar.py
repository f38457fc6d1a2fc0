"""What the words of each operator's text mean, and how they become a workload."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from anatune.core.workload.nest import Workload
from anatune.core.workload.operators import CONSTRUCTORS
from anatune.core.workload.operators._windows import INPUT_NAMES, KERNEL_NAMES
from anatune.core.workload.operators.pointwise import ELEMENTWISE_OPERATORS, REDUCTION_KINDS
from anatune.errors import WorkloadError

__all__ = ["FUSED", "GRAMMARS", "PLAIN", "Extents", "Grammar"]

Extents = tuple[int, ...]
Build = Callable[[Sequence[Extents], Mapping[str, object]], Workload]

FUSED = ("epilogue", "input_zero_point", "output_zero_point")
_PRODUCT = ("dtype", "transpose_a", "transpose_b", *FUSED)
_WINDOW = ("stride", "padding", "dilation", "layout", "dtype")
_SCALED = ("dtype", "scales", "group", "zero_points")
_ATTENTION = ("causal", "window", "page_size", "dtype")

ROWS = ("softmax", "layer_norm", "rms_norm", "add_rms_norm", "silu_multiply", "quantise_tensor", "quantise_rows")
"""Operators on rows of activations."""
PLAIN: dict[str, tuple[str, ...]] = {
    "matmul": ("m", "n", "k"),
    "batch_matmul": ("b", "m", "n", "k"),
    **dict.fromkeys(ROWS, ("rows", "cols")),
    "rotary": ("tokens", "heads", "head_dim"),
    "quantise_groups": ("rows", "cols", "group"),
    "scaled_matmul": ("m", "n", "k"),
    "grouped_matmul": ("tokens", "experts", "top_k", "n", "k"),
    "attention": ("batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim"),
}
"""Operators of one word -> the constructor's names of its extents."""


class Grammar(NamedTuple):
    """One operator: its words' meanings ("" for a shape of any rank), options, example and builder."""

    words: tuple[str, ...]
    options: tuple[str, ...]
    example: str
    build: Build


def _named(operator: str, names: tuple[str, ...]) -> Build:
    """Return a builder that passes the extents of all words by name."""

    def build(extents: Sequence[Extents], options: Mapping[str, object]) -> Workload:
        flat = [extent for word in extents for extent in word]
        return CONSTRUCTORS[operator](**dict(zip(names, flat, strict=True)), **options)

    return build


def _shaped(operator: str, **fixed: str) -> Build:
    """Return a builder for operators of one shape."""

    def build(extents: Sequence[Extents], options: Mapping[str, object]) -> Workload:
        return CONSTRUCTORS[operator](extents[0], **fixed, **options)

    return build


def _convolved(operator: str, rank: int) -> Build:
    """Return a builder for convolutions of `rank` window dimensions."""

    def build(extents: Sequence[Extents], options: Mapping[str, object]) -> Workload:
        (batch, channels, *sizes), (filters, inner, *kernel) = extents
        groups = options.get("groups", 1)
        if isinstance(groups, int) and groups > 0 and (channels % groups or inner != channels // groups):
            raise WorkloadError(
                f"{operator}: weight has {inner} input channels, data has {channels} in {groups} group(s), "
                f"expected C = groups x weight's second extent; correct the channels or --groups"
            )
        named = {"n": batch, "c": channels, "k": filters}
        named.update(zip(INPUT_NAMES[rank] + KERNEL_NAMES[rank], (*sizes, *kernel), strict=True))
        return CONSTRUCTORS[operator](**named, **options)

    return build


def _depthwise(extents: Sequence[Extents], options: Mapping[str, object]) -> Workload:
    """Build a depthwise convolution; the weight's first extent is channels x multiplier."""
    (batch, channels, height, width), (filters, inner, rows, columns) = extents
    if inner != 1 or channels == 0 or filters % channels:
        raise WorkloadError(
            f"depthwise_conv2d: weight is {filters}x{inner}x{rows}x{columns} for {channels} channels, "
            "expected (channels x multiplier)x1xRxS; write for example depthwise_conv2d 1x32x112x112 32x1x3x3"
        )
    return CONSTRUCTORS["depthwise_conv2d"](
        batch, channels, height, width, rows, columns, multiplier=filters // channels, **options
    )


def _grammars() -> dict[str, Grammar]:
    """Return the grammar of every operator but einsum."""
    table = {
        "matmul": Grammar(("MxNxK",), _PRODUCT, "512x4096x1024", _named("matmul", PLAIN["matmul"])),
        "batch_matmul": Grammar(("BxMxNxK",), _PRODUCT, "16x512x64x512", _named("batch_matmul", PLAIN["batch_matmul"])),
        "rotary": Grammar(("TokensxHeadsxHeadDim",), ("dtype",), "4096x32x128", _named("rotary", PLAIN["rotary"])),
        "quantise_groups": Grammar(
            ("RowsxColsxGroup",), ("dtype",), "4096x7168x128", _named("quantise_groups", PLAIN["quantise_groups"])
        ),
        "scaled_matmul": Grammar(
            ("MxNxK",),
            (*_SCALED, "epilogue", "rounded"),
            "512x4096x7168",
            _named("scaled_matmul", PLAIN["scaled_matmul"]),
        ),
        "grouped_matmul": Grammar(
            ("TxExTopKxNxK",),
            (*_SCALED, "routing", "expanded", "activation"),
            "512x256x8x2048x7168",
            _named("grouped_matmul", PLAIN["grouped_matmul"]),
        ),
        "attention": Grammar(
            ("BxHeadsxKvHeadsxQxKvxDim",), _ATTENTION, "4x32x8x2048x2048x128", _named("attention", PLAIN["attention"])
        ),
    }
    for name in ROWS:
        table[name] = Grammar(("RowsxCols",), ("dtype",), "4096x8192", _named(name, PLAIN[name]))
    data = {1: "NxCxW", 2: "NxCxHxW", 3: "NxCxDxHxW"}
    taps = {1: "S", 2: "RxS", 3: "TxRxS"}
    for rank, size, kernel in ((1, "56", "3"), (2, "56x56", "3x3"), (3, "16x56x56", "3x3x3")):
        table[f"conv{rank}d"] = Grammar(
            (data[rank], f"KxC/groupsx{taps[rank]}"),
            (*_WINDOW, "groups", *FUSED),
            f"1x64x{size} 64x64x{kernel}",
            _convolved(f"conv{rank}d", rank),
        )
        for short in ("max", "avg"):
            names = ("n", "c", *INPUT_NAMES[rank], *KERNEL_NAMES[rank])
            operator = f"{short}_pool{rank}d"
            words = (data[rank], taps[rank])
            table[operator] = Grammar(words, _WINDOW, f"1x64x{size} {kernel}", _named(operator, names))
    table["depthwise_conv2d"] = Grammar(("NxCxHxW", "Kx1xRxS"), (*_WINDOW, *FUSED), "1x32x112x112 32x1x3x3", _depthwise)
    for word in ("reduction", *REDUCTION_KINDS):
        build = _shaped("reduction", kind="sum" if word == "reduction" else word)
        table[word] = Grammar(("",), ("axes", "dtype"), "1024x4096 --axes 1", build)
    for word in ("elementwise", *ELEMENTWISE_OPERATORS):
        build = _shaped("elementwise", op="relu" if word == "elementwise" else word)
        table[word] = Grammar(("",), ("dtype",), "1024x1024", build)
    return table


GRAMMARS = _grammars()
"""Operator word -> grammar; einsum has its own."""
