"""The constructors of products with scaled operands and of products of experts: the products of language models."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from anatune.arguments import is_iterable, quote
from anatune.core.workload.nest import Access, Attribute, Axis, Term, Workload
from anatune.core.workload.number_formats import FACTOR_STEPS, Formats
from anatune.core.workload.operators._arguments import check_choice, check_extent, check_flag, check_integer
from anatune.core.workload.operators._product import Dimension, check_steps, epilogue_reads, make_access
from anatune.core.workload.scaling import SCALED_FORMATS, SCALES, SIDE, ScaledFormat
from anatune.errors import WorkloadError

_RESULTS = ("float16", "bfloat16")
_GROUPS = (32, 64, 128, 256)


def scaled_matmul(
    m: int, n: int, k: int, dtype: str = "float8_e4m3fn", scales: str = "tensor", group: int = 0,
    zero_points: bool = False, *, epilogue: Sequence[str] = (), rounded: bool = False,
) -> Workload:  # fmt: skip
    """Return ``output[i, j] = sum_k (data[i, k] data_scales) (weight[j, k] weight_scales)``, a product with scales.

    Tensors are data (m, k), weight (n, k), both with k contiguous, and output (m, n); `scales`, `group` or the format
    determine the shapes of the scales. Weights of 4 bits are (n, k / 2) bytes.

    Parameters
    ----------
    m, n, k : int, >= 1
        Extents of the axes i, j and k, in elements.
    dtype : str
        A word of `anatune.core.workload.scaling.SCALED_FORMATS`, then ":" and the result's dtype if it is not the
        default: an 8-bit float or "int8" (both operands); "bfloat16xint8" or "bfloat16xint4" (only weights are small;
        with "float32" for CPUs); "mxfp8", "mxfp4", "nvfp4".
    scales : {"tensor", "rows", "blocks"}
        For two operands of 8 bits, all scales being float32 and sizes rounded up: data_scales are (1,), (m,) or
        (m, k / 128), weight_scales (1,), (n,) or (n / 128, k / 128). Other formats have one kind of scales: if only the
        weights are small, weight_scales (n, k / group) in the data's dtype; mx formats a scale for each 32 elements of
        both operands; nvfp4 one for each 16 and a factor (1,), or (experts,) for experts.
    group : int
        If only the weights are small: number of elements along k that share a scale. It divides k and is a power of two
        from 32 (16 with float32 data) to 256; 0: all share one.
    zero_points : bool
        Whether weights have zero points: weight_zeros (n, k / group) uint8 for 4-bit weights, which otherwise have the
        zero point 8; int8 for 8-bit weights with float32 data.
    epilogue : sequence of {"bias", "relu", "relu6", "silu", "gelu", "gelu_tanh", "add"}
        Steps that are fused behind the product, as in `matmul`; only with float32 data.
    rounded : bool
        Whether float32 data may be rounded to 8 bits, with a scale for each 32 neighbours along k (16 if the weights
        share a scale among so few): ONNX's ``accuracy_level`` 4, and the method of llama.cpp.

    Raises
    ------
    WorkloadError
        An argument is out of range.
    """
    sizes = {name: check_extent("scaled_matmul", name, size) for name, size in (("m", m), ("n", n), ("k", k))}
    formats = _check_operand_formats("scaled_matmul", sizes["k"], dtype, scales, group, zero_points)
    if not formats.format.scale:
        raise WorkloadError(
            f"scaled_matmul: dtype is {dtype!r}, which has no scales, expected operands of 8 or 4 bits; use matmul"
        )
    rows, columns, depth = (
        (size, (Term(axis),), 0) for size, axis in zip(sizes.values(), ("i", "j", "k"), strict=True)
    )
    steps, may_round = check_steps("scaled_matmul", epilogue), check_flag("scaled_matmul", "rounded", rounded)
    on_cpu = formats.format.data == "float32"
    if (not on_cpu and (steps or may_round)) or {*steps} & {*FACTOR_STEPS}:
        raise WorkloadError(
            f"scaled_matmul: epilogue {', '.join(steps) or 'none'}, rounded {may_round} with {dtype}; both need "
            "float32 data, and the steps may not scale; leave them out"
        )
    write = make_access("output", formats.result, [rows, columns])
    further_attributes = (("epilogue", steps),) * bool(steps) + (("rounded", True),) * may_round
    return Workload(
        operator="scaled_matmul",
        axes=_axes(sizes["m"], sizes["n"], sizes["k"]),
        reads=_operands(formats, rows, [], columns, depth),
        write=write,
        body="scaled_matmul",
        flop_per_point=2,
        epilogue=steps,
        epilogue_reads=epilogue_reads(steps, Formats("float32", "float32", "float32"), write, (1,)),
        attributes=(*sizes.items(), *formats.attributes, *further_attributes),
    )


def grouped_matmul(
    tokens: int, experts: int, top_k: int, n: int, k: int, dtype: str = "bfloat16", scales: str = "tensor",
    group: int = 0, zero_points: bool = False, routing: str | tuple[int, ...] = "uniform", expanded: bool = False,
    activation: bool = False,
) -> Workload:  # fmt: skip
    """Return the product of each row with the weights of its expert: a mixture of experts in one kernel.

    Each token goes to `top_k` experts; row token x top_k + choice belongs to a token and one of its experts. ``order``,
    (tokens x top_k) int32, lists all rows, those of the first expert first; ``ends``, (experts,) int32, has where each
    expert's rows end in it. Row r of output (tokens x top_k, n) is ``data[r / top_k] weight[expert of r]^T`` (the up
    and gate products), or with ``data[r]`` if rows are expanded (the down product). weight is (experts, n, k) with k
    contiguous.

    Parameters
    ----------
    tokens, experts, top_k, n, k : int, >= 1
        Extents, in elements; top_k <= experts.
    dtype, scales, group, zero_points
        As in `scaled_matmul`, for the weights of each expert; also "bfloat16" and "float16", without scales.
    routing : str or sequence of int
        Spread of the tokens over the experts: "uniform" (at random), "balanced", "power:1.2" (a power law with this
        exponent), or the number of rows of each expert. The code does not depend on it, but the time does.
    expanded : bool
        Whether data has a row for each token and choice, (tokens x top_k, k), or one for each token, (tokens, k).
    activation : bool
        Whether weight has 2 n rows for each expert, the gate's first, and output is silu(gate) x up.

    Raises
    ------
    WorkloadError
        An argument is out of range.
    """
    extents = {"tokens": tokens, "experts": experts, "top_k": top_k, "n": n, "k": k}
    sizes = {name: check_extent("grouped_matmul", name, size) for name, size in extents.items()}
    formats = _check_operand_formats("grouped_matmul", sizes["k"], dtype, scales, group, zero_points)
    if sizes["top_k"] > sizes["experts"]:
        raise WorkloadError(
            f"grouped_matmul: top_k is {top_k} of {experts} experts, expected at most all of them; correct one of them"
        )
    total = sizes["tokens"] * sizes["top_k"]
    spread = check_routing("grouped_matmul", routing, sizes["experts"], total)
    is_expanded, is_activated = (
        check_flag("grouped_matmul", *pair) for pair in (("expanded", expanded), ("activation", activation))
    )
    rows: Dimension = (total, (Term("i"),), 0) if is_expanded else (sizes["tokens"], (), 0)
    columns: Dimension = (sizes["n"], (Term("j"),), 0)
    weight_columns: Dimension = (2 * sizes["n"], (), 0) if is_activated else columns
    expert: Dimension = (sizes["experts"], (), 0)
    return Workload(
        operator="grouped_matmul",
        axes=_axes(total, sizes["n"], sizes["k"]),
        reads=(
            *_operands(formats, rows, [expert], weight_columns, (sizes["k"], (Term("k"),), 0)),
            make_access("order", "int32", [(total, (Term("i"),), 0)]),
            make_access("ends", "int32", [expert]),
        ),
        write=make_access("output", formats.result, [(total, (Term("i"),), 0), columns]),
        body="grouped_matmul",
        flop_per_point=4 if is_activated else 2,
        attributes=(
            *sizes.items(), *formats.attributes,
            ("routing", spread), ("expanded", is_expanded), ("activation", is_activated),
        ),
    )  # fmt: skip


class _OperandFormats(NamedTuple):
    """The operands' formats that the arguments of a constructor describe."""

    format: ScaledFormat
    result: str
    scales: str
    run: int
    """Number of elements along k that share a scale of the weights; 0: all."""
    zero_points: bool
    attributes: tuple[tuple[str, Attribute], ...]


def _check_operand_formats(
    operator: str, k: int, dtype: object, scales: object, group: object, zero_points: object
) -> _OperandFormats:
    """Return the formats of the operands; raise WorkloadError if the arguments contradict each other."""
    name, _, result = str(dtype).partition(":")
    scheme = SCALED_FORMATS[check_choice(operator, "dtype", name, tuple(SCALED_FORMATS))]
    on_cpu = scheme.data == "float32"
    result = check_choice(
        operator, "dtype of the result", result or scheme.result, ("float32",) if on_cpu else _RESULTS
    )
    scale_kind = check_choice(operator, "scales", scales, SCALES)
    size = check_integer(operator, "group", group, 0, "leave it out where a column has one scale")
    has_zeros = check_flag(operator, "zero_points", zero_points)
    if scale_kind != "tensor" and (scheme.converts or scheme.scale != "float32"):
        raise WorkloadError(
            f"{operator}: scales is {scale_kind!r} with {name}, expected two operands of 8 bits; leave it out"
        )
    groups = (16, *_GROUPS) if on_cpu else _GROUPS
    if size and (not scheme.converts or size not in groups or k % size):
        raise WorkloadError(
            f"{operator}: group is {size} with {name} and k = {k}, expected {', '.join(map(str, groups[:-1]))} "
            "or 256, a divisor of k, and weights of fewer bits than the data; correct it or leave it out"
        )
    if has_zeros and not on_cpu and (scheme.weight != "uint8" or not scheme.converts):
        raise WorkloadError(f"{operator}: zero_points with {name}, expected 4-bit weights only; leave them out")
    divisor = max(scheme.run, 2 if scheme.weight == "uint8" else 1)
    if k % divisor:
        raise WorkloadError(f"{operator}: k is {k}, expected a multiple of {divisor} for {name}; pad it")
    word = name if result == scheme.result else f"{name}:{result}"
    attributes = (("dtype", word), ("scales", scale_kind), ("group", size), ("zero_points", has_zeros))
    return _OperandFormats(scheme, result, scale_kind, scheme.run or size, has_zeros, attributes)


def _axes(rows: int, columns: int, depth: int) -> tuple[Axis, ...]:
    return Axis("i", rows, "spatial"), Axis("j", columns, "spatial"), Axis("k", depth, "reduction")


def _operands(
    formats: _OperandFormats, rows: Dimension, experts: list[Dimension], columns: Dimension, depth: Dimension
) -> tuple[Access, ...]:
    """Return the accesses to data, weight and their scales; dimensions with several elements an entry have no index."""
    scheme, k = formats.format, depth[0]

    def size_dimension(size: int, whole: Dimension) -> Dimension:
        return whole if size == whole[0] else (size, (), 0)

    packed = {8: depth, 16: depth, 32: depth, 4: size_dimension(k // 2, depth)}
    data = make_access("data", scheme.data, [rows, packed[scheme.data_bits]])
    weight = make_access("weight", scheme.weight, [*experts, columns, packed[scheme.weight_bits]])
    if not scheme.scale:
        return data, weight
    runs = size_dimension(-(-k // (SIDE if formats.scales == "blocks" else formats.run or k)), depth)
    data_scales: dict[str, list[Dimension]] = {"tensor": [(1, (), 0)], "rows": [rows], "blocks": [rows, runs]}
    weight_scales_by_kind: dict[str, list[Dimension]] = {
        "tensor": [*experts] or [(1, (), 0)],
        "rows": [*experts, columns],
        "blocks": [*experts, size_dimension(-(-columns[0] // SIDE), columns), runs],
    }
    if scheme.run:
        scales = [make_access("data_scales", scheme.scale, [rows, runs])]
        scales += [make_access("factor", "float32", [*experts] or [(1, (), 0)])] if scheme.run == 16 else []
    elif scheme.converts:
        scales = [make_access("weight_zeros", scheme.weight, [*experts, columns, runs])] if formats.zero_points else []
    else:
        scales = [make_access("data_scales", scheme.scale, data_scales[formats.scales])]
    weight_scales = (
        [*experts, columns, runs] if scheme.run or scheme.converts else weight_scales_by_kind[formats.scales]
    )
    return data, weight, make_access("weight_scales", scheme.scale, weight_scales), *scales


def check_routing(operator: str, value: object, experts: int, rows: int) -> str | tuple[int, ...]:
    """Return the spread of tokens over experts as a workload stores it: a word, or the number of rows of each expert.

    Parameters
    ----------
    value : str or sequence of int
        "uniform" (at random), "balanced" (as equal as possible), "power:1.2" (power law with this exponent), or counts.

    Raises
    ------
    WorkloadError
        The value is none of these, or the counts do not belong to `experts` experts with `rows` rows in all.
    """
    expected = f"uniform, balanced, power:EXPONENT, or {experts} counts with the sum {rows}"
    if isinstance(value, str):
        if value in ("uniform", "balanced") or re.fullmatch(r"power:\d{1,3}(\.\d{1,9})?", value):
            return value
    elif is_iterable(value):
        counts = tuple(value)
        numbers = all(isinstance(count, int) and not isinstance(count, bool) and count >= 0 for count in counts)
        if numbers and len(counts) == experts and sum(counts) == rows:
            return counts
    raise WorkloadError(f"{operator}: routing is {quote(value)}, expected {expected}; correct it")
