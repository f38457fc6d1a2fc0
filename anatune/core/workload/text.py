"""Workloads as text: ``conv2d 1x64x56x56 64x64x3x3 --stride 1 --padding 1``, parsed and written.

Notation
--------
words : the operator and its extents, or the name of a layer ("resnet18:C2").
options : further words ``--name value``; the same names are keywords of `parse_workload`.
Convolution data is always written N x C x H x W and the weight K x C/groups x R x S, independent of the layout.
"""

from __future__ import annotations

import difflib
import inspect
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from anatune.arguments import quote
from anatune.core.workload.layers import layer
from anatune.core.workload.nest import Workload
from anatune.core.workload.operators import CONSTRUCTORS
from anatune.core.workload.operators._windows import INPUT_NAMES, KERNEL_NAMES
from anatune.core.workload.operators.pointwise import ELEMENTWISE_OPERATORS, REDUCTION_KINDS
from anatune.errors import UnknownNameError, WorkloadError

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
"""Operator with one word of extents -> the constructor's names of these extents."""


class Grammar(NamedTuple):
    """The text of an operator: meanings of its words ("" for a shape of any rank), options, example and builder."""

    words: tuple[str, ...]
    options: tuple[str, ...]
    example: str
    build: Build


def _build(operator: str, names: tuple[str, ...]) -> Build:
    """Return a builder that passes the extents of all words by name."""

    def build(extents: Sequence[Extents], options: Mapping[str, object]) -> Workload:
        flat = [extent for word in extents for extent in word]
        return CONSTRUCTORS[operator](**dict(zip(names, flat, strict=True)), **options)

    return build


def _build_from_shape(operator: str, **fixed: str) -> Build:
    """Return a builder for operators of one shape."""

    def build(extents: Sequence[Extents], options: Mapping[str, object]) -> Workload:
        return CONSTRUCTORS[operator](extents[0], **fixed, **options)

    return build


def _build_convolution(operator: str, rank: int) -> Build:
    """Return a builder for convolutions of `rank` window dimensions."""

    def build(extents: Sequence[Extents], options: Mapping[str, object]) -> Workload:
        (batch, channels, *sizes), (filters, inner, *kernel) = extents
        groups = options.get("groups", 1)
        if isinstance(groups, int) and groups > 0 and (channels % groups or inner != channels // groups):
            raise WorkloadError(
                f"{operator}: weight has {inner} input channels, data has {channels} in {groups} group(s), "
                f"expected C = groups x weight's second extent; correct the channels or --groups"
            )
        arguments = {"n": batch, "c": channels, "k": filters}
        arguments.update(zip(INPUT_NAMES[rank] + KERNEL_NAMES[rank], (*sizes, *kernel), strict=True))
        return CONSTRUCTORS[operator](**arguments, **options)

    return build


def _depthwise(extents: Sequence[Extents], options: Mapping[str, object]) -> Workload:
    """Build a depthwise convolution; the first extent of the weight is channels x multiplier."""
    (batch, channels, height, width), (filters, inner, rows, columns) = extents
    if inner != 1 or channels == 0 or filters % channels:
        raise WorkloadError(
            f"depthwise_conv2d: weight is {filters}x{inner}x{rows}x{columns} for {channels} channels, "
            "expected (channels x multiplier)x1xRxS; write for example depthwise_conv2d 1x32x112x112 32x1x3x3"
        )
    return CONSTRUCTORS["depthwise_conv2d"](
        batch, channels, height, width, rows, columns, multiplier=filters // channels, **options
    )


def _make_grammars() -> dict[str, Grammar]:
    """Return the grammar of every operator but einsum."""
    table = {
        "matmul": Grammar(("MxNxK",), _PRODUCT, "512x4096x1024", _build("matmul", PLAIN["matmul"])),
        "batch_matmul": Grammar(("BxMxNxK",), _PRODUCT, "16x512x64x512", _build("batch_matmul", PLAIN["batch_matmul"])),
        "rotary": Grammar(("TokensxHeadsxHeadDim",), ("dtype",), "4096x32x128", _build("rotary", PLAIN["rotary"])),
        "quantise_groups": Grammar(
            ("RowsxColsxGroup",), ("dtype",), "4096x7168x128", _build("quantise_groups", PLAIN["quantise_groups"])
        ),
        "scaled_matmul": Grammar(
            ("MxNxK",),
            (*_SCALED, "epilogue", "rounded"),
            "512x4096x7168",
            _build("scaled_matmul", PLAIN["scaled_matmul"]),
        ),
        "grouped_matmul": Grammar(
            ("TxExTopKxNxK",),
            (*_SCALED, "routing", "expanded", "activation"),
            "512x256x8x2048x7168",
            _build("grouped_matmul", PLAIN["grouped_matmul"]),
        ),
        "attention": Grammar(
            ("BxHeadsxKvHeadsxQxKvxDim",), _ATTENTION, "4x32x8x2048x2048x128", _build("attention", PLAIN["attention"])
        ),
    }
    for name in ROWS:
        table[name] = Grammar(("RowsxCols",), ("dtype",), "4096x8192", _build(name, PLAIN[name]))
    data = {1: "NxCxW", 2: "NxCxHxW", 3: "NxCxDxHxW"}
    taps = {1: "S", 2: "RxS", 3: "TxRxS"}
    for rank, size, kernel in ((1, "56", "3"), (2, "56x56", "3x3"), (3, "16x56x56", "3x3x3")):
        table[f"conv{rank}d"] = Grammar(
            (data[rank], f"KxC/groupsx{taps[rank]}"),
            (*_WINDOW, "groups", *FUSED),
            f"1x64x{size} 64x64x{kernel}",
            _build_convolution(f"conv{rank}d", rank),
        )
        for short in ("max", "avg"):
            names = ("n", "c", *INPUT_NAMES[rank], *KERNEL_NAMES[rank])
            operator = f"{short}_pool{rank}d"
            words = (data[rank], taps[rank])
            table[operator] = Grammar(words, _WINDOW, f"1x64x{size} {kernel}", _build(operator, names))
    table["depthwise_conv2d"] = Grammar(("NxCxHxW", "Kx1xRxS"), (*_WINDOW, *FUSED), "1x32x112x112 32x1x3x3", _depthwise)
    for word in ("reduction", *REDUCTION_KINDS):
        build = _build_from_shape("reduction", kind="sum" if word == "reduction" else word)
        table[word] = Grammar(("",), ("axes", "dtype"), "1024x4096 --axes 1", build)
    for word in ("elementwise", *ELEMENTWISE_OPERATORS):
        build = _build_from_shape("elementwise", op="relu" if word == "elementwise" else word)
        table[word] = Grammar(("",), ("dtype",), "1024x1024", build)
    return table


GRAMMARS = _make_grammars()
"""Operator word -> grammar; einsum is parsed separately."""


OptionValue = int | str | Sequence[int] | Sequence[str] | None
_MAX_DIGITS = 18
_FLAGS = ("transpose_a", "transpose_b", "causal", "zero_points", "rounded", "expanded", "activation")
_LAYER = ("layout", "dtype", *FUSED)
_OPTIONS = (
    "stride",
    "padding",
    "dilation",
    "groups",
    "layout",
    "dtype",
    *_FLAGS,
    *FUSED,
    "axes",
    "window",
    "page_size",
    "scales",
    "group",
    "routing",
)
_EINSUM_EXAMPLE = "einsum 'bij,bjk->bik' 16x32x64 16x64x128"


def operator_words() -> list[str]:
    """Return the operators that the text of a workload may start with."""
    return [*GRAMMARS, "einsum"]


def _parse_extents(operator: str, word: str, meaning: str, example: str) -> Extents:
    """Return the extents of one word such as 512x4096x1024."""
    expected = f"expected {meaning or 'extents joined by x'}"
    for part in word.split("x"):
        if not re.fullmatch(f"[0-9]{{1,{_MAX_DIGITS}}}", part):
            raise WorkloadError(
                f"{operator} {word}: {part!r} is no extent, {expected} in decimal digits; write for example {example}"
            )
    extents = tuple(int(part) for part in word.split("x"))
    if meaning and len(extents) != meaning.count("x") + 1:
        raise WorkloadError(
            f"{operator} {word}: got {len(extents)} extents, {expected} ({meaning.count('x') + 1}); "
            f"write for example {example}"
        )
    return extents


def _parse_option(name: str, value: OptionValue) -> object:
    """Return the value of an option, with numbers in text as integers: 2, (2, 1), "SAME", ("bias", "relu")."""
    parts: list[object] = []
    for item in [value] if isinstance(value, (int, str)) or not isinstance(value, Sequence) else value:
        if not isinstance(item, str):
            parts.append(item)
            continue
        text = item.strip()
        numeric = re.fullmatch(f"-?[0-9]{{1,{_MAX_DIGITS}}}([,x]-?[0-9]{{1,{_MAX_DIGITS}}})*", text)
        pieces = re.split("[,x]", text) if numeric else text.split(",")
        parts.extend(int(piece) if numeric else piece.strip() for piece in pieces)
    if name in ("epilogue", "axes"):
        return tuple(part for part in parts if part != "")
    return parts[0] if len(parts) == 1 else tuple(parts)


def _split_words(words: Sequence[str] | str) -> tuple[list[str], dict[str, OptionValue]]:
    """Return the leading words, and the ``--name value`` options after them."""
    if isinstance(words, str):
        try:
            words = shlex.split(words)
        except ValueError as error:
            raise WorkloadError(
                f"workload {quote(words)}: {error}, expected words; close the quotation marks"
            ) from error
    if not isinstance(words, Sequence) or not all(isinstance(word, str) for word in words):
        raise WorkloadError(f"workload is {quote(words)}, expected text such as 'matmul 512x4096x1024' or its words")
    leading: list[str] = []
    options: dict[str, OptionValue] = {}
    tokens = iter(words)
    for token in tokens:
        if not token.startswith("--"):
            leading.append(token)
            continue
        spelled, equals, value = token[2:].partition("=")
        name = spelled.replace("-", "_")
        if name not in _OPTIONS or name in options:
            names = ", ".join(_spell_option(option) for option in _OPTIONS)
            problem = "is given twice" if name in options else "is unknown"
            raise WorkloadError(f"workload option {token} {problem}, expected each of {names} at most once; correct it")
        if name in _FLAGS and not equals:
            options[name] = True
            continue
        option_value = value if equals else next(tokens, None)
        if option_value is None or name in _FLAGS:
            raise WorkloadError(
                f"workload option {token} has the wrong number of values, expected "
                f"{'none' if name in _FLAGS else 'one'}; write for example --stride 2 or --transpose-a"
            )
        options[name] = option_value
    return leading, options


def _spell_option(name: str) -> str:
    """Return the text of an option on the command line."""
    return f"--{name.replace('_', '-')}"


def _is_absent(value: OptionValue) -> bool:
    """Return whether the value means that an option was not given: None, False or an empty sequence."""
    return value is None or value is False or (isinstance(value, (tuple, list)) and not value)


def _check_options(operator: str, options: Mapping[str, object], allowed: Sequence[str]) -> None:
    """Raise WorkloadError if an option does not apply to an operator."""
    for name in options:
        if name not in allowed:
            applicable = ", ".join(_spell_option(option) for option in _OPTIONS if option in allowed)
            raise WorkloadError(
                f"{operator}: option {_spell_option(name)} does not apply, expected some of {applicable}; leave it out"
            )


def _parse_layer(name: str, options: Mapping[str, object]) -> Workload:
    """Return a named layer; the options dtype, layout and epilogue replace those of the paper."""
    workload = layer(name)
    _check_options(name, options, [option for option in _LAYER if option in GRAMMARS[workload.operator].options])
    return CONSTRUCTORS[workload.operator](**{**workload.attribute, **options}) if options else workload


def _parse_einsum(words: Sequence[str], options: Mapping[str, object]) -> Workload:
    """Return an einsum from its subscripts and operand shapes."""
    _check_options("einsum", options, ("dtype",))
    if len(words) < 2:
        raise WorkloadError(
            f"einsum: got {len(words)} words, expected subscripts and a shape for each operand; "
            f"write for example {_EINSUM_EXAMPLE}"
        )
    shapes = tuple(_parse_extents("einsum", word, "", _EINSUM_EXAMPLE) for word in words[1:])
    return CONSTRUCTORS["einsum"](words[0], shapes, **options)


def parse_workload(
    words: Sequence[str] | str,
    *,
    stride: OptionValue = None,
    padding: OptionValue = None,
    dilation: OptionValue = None,
    groups: OptionValue = None,
    layout: str | None = None,
    dtype: str | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    epilogue: OptionValue = None,
    axes: OptionValue = None,
    input_zero_point: OptionValue = None,
    output_zero_point: OptionValue = None,
    causal: bool = False,
    window: OptionValue = None,
    page_size: OptionValue = None,
    scales: str | None = None,
    group: OptionValue = None,
    zero_points: bool = False,
    rounded: bool = False,
    routing: OptionValue = None,
    expanded: bool = False,
    activation: bool = False,
) -> Workload:
    """Return the workload that words and options describe.

    Parameters
    ----------
    words : sequence of str or str
        ``["matmul", "512x4096x1024"]``, ``["conv2d", "1x64x56x56", "64x64x3x3"]``, ``["resnet18:C2"]``,
        ``["einsum", "bij,bjk->bik", "16x32x64", "16x64x128"]``; options may follow as further words (``"--stride",
        "2"``). A single string is split as by a shell.
    stride, padding, dilation, groups, layout, dtype, transpose_a, transpose_b, epilogue, axes
    input_zero_point, output_zero_point, causal, window, page_size, scales, group, zero_points, rounded, routing
    expanded, activation
        As in the constructors (`anatune.core.workload.operators`); None or False means that the option is not given.
        Text is accepted, too: "2", "2,1", "SAME", "bias,relu". A named layer takes dtype, layout, epilogue and zero
        points.

    Raises
    ------
    UnknownNameError
        The operator or layer is unknown.
    WorkloadError
        The words cannot be parsed, an option does not apply, or the workload is impossible.

    Examples
    --------
    >>> parse_workload(["matmul", "512x4096x1024"]).extents
    {'i': 512, 'j': 4096, 'k': 1024}
    """
    keywords = {name: value for name, value in locals().items() if name in _OPTIONS}
    leading, typed = _split_words(words)
    if not leading:
        raise WorkloadError("workload is empty, expected an operator and extents; write for example matmul 512x512x512")
    given_options = {**typed, **{name: value for name, value in keywords.items() if not _is_absent(value)}}
    options = {name: _parse_option(name, value) for name, value in given_options.items()}
    operator, extents = leading[0], leading[1:]
    if ":" in operator:
        if extents:
            raise WorkloadError(
                f"layer {operator}: got further words ({' '.join(extents)}), expected only the layer's name; "
                "write for example resnet18:C2"
            )
        return _parse_layer(operator, options)
    if operator == "einsum":
        return _parse_einsum(extents, options)
    grammar = GRAMMARS.get(operator)
    if grammar is None:
        close = difflib.get_close_matches(operator, operator_words(), n=1, cutoff=0.6)
        hint = f"did you mean {close[0]}?" if close else "write for example matmul 512x4096x1024"
        raise UnknownNameError(
            f"operator {operator!r} is unknown, expected one of {', '.join(operator_words())} or a layer "
            f"such as resnet18:C2; {hint}"
        )
    example = f"{operator} {grammar.example}"
    _check_options(operator, options, grammar.options)
    if len(extents) != len(grammar.words):
        raise WorkloadError(
            f"{operator}: got {len(extents)} words of extents ({' '.join(extents) or 'none'}), expected "
            f"{' '.join(word or 'a shape' for word in grammar.words)}; write for example {example}"
        )
    parsed = [_parse_extents(operator, *pair, example) for pair in zip(extents, grammar.words, strict=True)]
    return grammar.build(parsed, options)


def _join_extents(extents: Sequence[object]) -> str:
    """Return extents as one word."""
    return "x".join(str(extent) for extent in extents)


def _count_channels(extents: Mapping[str, int], name: str) -> int:
    """Return the number of channels, whether or not they lie in blocks."""
    return extents.get(name, 1) * extents.get(f"{name}i", 1)


def _list_words(workload: Workload) -> list[str]:
    """Return the canonical words without options."""
    operator, attributes = workload.operator, workload.attribute
    if operator == "reduction":
        return [str(attributes["kind"]), _join_extents(workload.reads[0].shape)]
    if operator == "elementwise":
        return [str(attributes["op"]), _join_extents(workload.reads[0].shape)]
    if operator == "einsum":
        return [operator, str(attributes["subscripts"]), *(_join_extents(access.shape) for access in workload.reads)]
    if operator in PLAIN:
        return [operator, _join_extents([attributes[name] for name in PLAIN[operator]])]
    rank = int(operator[-2])
    kernel = [attributes[name] for name in KERNEL_NAMES[rank]]
    data = [attributes["n"], attributes["c"], *(attributes[name] for name in INPUT_NAMES[rank])]
    if "pool" not in operator:
        extents = workload.extents
        filters, inner = (_count_channels(extents, name) for name in ("f", "rc"))
        kernel = [_count_channels(extents, "g") * filters, inner, *kernel]
    return [operator, _join_extents(data), _join_extents(kernel)]


def workload_to_text(workload: Workload) -> str:
    """Return the canonical text of a workload; `parse_workload` turns it back into an equal workload.

    Options with default values are left out.

    Raises
    ------
    WorkloadError
        The workload was not made by a constructor.
    """
    if workload.operator not in CONSTRUCTORS or not workload.attributes:
        raise WorkloadError(
            f"workload {workload.operator!r} has no text, expected one of the constructors' "
            f"({', '.join(CONSTRUCTORS)}); use to_json instead"
        )
    words = _list_words(workload)
    parameters = inspect.signature(CONSTRUCTORS[workload.operator]).parameters
    for name, value in workload.attributes:
        if name not in _OPTIONS or name in PLAIN.get(workload.operator, ()):  # "group" is an extent of some
            continue
        default = parameters[name].default
        if value == default or (isinstance(value, tuple) and value == (default,) * len(value)):
            continue
        words.append(_spell_option(name))
        if name not in _FLAGS:
            parts = [str(part) for part in value] if isinstance(value, tuple) else [str(value)]
            repeated = name in ("stride", "padding", "dilation") and len(set(parts)) == 1
            words.append(parts[0] if repeated else ",".join(parts))
    return shlex.join(words)
