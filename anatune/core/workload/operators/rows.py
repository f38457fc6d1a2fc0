"""The constructors of operators on rows of activations, as language models use them between their products."""

from __future__ import annotations

from anatune.arguments import quote
from anatune.core.workload.kernels import LARGEST
from anatune.core.workload.nest import Attribute, Axis, Term, Workload
from anatune.core.workload.operators._arguments import check_choice, check_extent
from anatune.core.workload.operators._product import Dimension, make_access
from anatune.errors import WorkloadError

_DTYPES = ("float32", "float16", "bfloat16")


def _make_row_operator(operator: str, rows: int, cols: int, dtype: str, flop: int, *more: str) -> Workload:
    """Return an operator on rows whose operands are data, a residual, and vectors along the columns."""
    sizes = {"i": check_extent(operator, "rows", rows), "j": check_extent(operator, "cols", cols)}
    element = check_choice(operator, "dtype", dtype, _DTYPES)
    along: dict[str, Dimension] = {axis: (size, (Term(axis),), 0) for axis, size in sizes.items()}
    reads = tuple(
        make_access(name, element, [*along.values()] if name in ("data", "residual") else [along["j"]])
        for name in ("data", *more)
    )
    return Workload(
        operator=operator,
        axes=tuple(Axis(axis, size, "spatial") for axis, size in sizes.items()),
        reads=reads,
        write=make_access("output", element, [*along.values()]),
        body=operator,
        flop_per_point=flop,
        attributes=(("rows", sizes["i"]), ("cols", sizes["j"]), ("dtype", element)),
    )


def softmax(rows: int, cols: int, dtype: str = "float32") -> Workload:
    """Return ``output[i, j] = exp(data[i, j] - max_j data[i, j]) / sum_j exp(...)``.

    Parameters
    ----------
    rows, cols : int, >= 1
        Extents of the axes i and j, in elements; rows are contiguous.
    dtype : {"float32", "float16", "bfloat16"}
        Dtype of data and output; sums are in float32.

    Raises
    ------
    WorkloadError
        An argument is out of range.
    """
    return _make_row_operator("softmax", rows, cols, dtype, 5)  # largest, difference, power, sum, quotient


def layer_norm(rows: int, cols: int, dtype: str = "float32") -> Workload:
    """Return ``output[i, j] = (data[i, j] - mean_i) / sqrt(variance_i + 1e-5) * weight[j] + bias[j]``.

    Source: Ba, Kiros and Hinton, Layer Normalization, 2016. Parameters and errors are those of `softmax`; weight and
    bias have the dtype of data.
    """
    return _make_row_operator("layer_norm", rows, cols, dtype, 7, "weight", "bias")


def rms_norm(rows: int, cols: int, dtype: str = "float32") -> Workload:
    """Return ``output[i, j] = data[i, j] / sqrt(mean_j data[i, j]^2 + 1e-5) * weight[j]``.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019. Parameters and errors are those of
    `softmax`; weight has the dtype of data.
    """
    return _make_row_operator("rms_norm", rows, cols, dtype, 4, "weight")


def add_rms_norm(rows: int, cols: int, dtype: str = "float32") -> Workload:
    """Return `rms_norm` of ``data + residual``, with this sum as a second result, "sum", rounded to the dtype.

    Parameters and errors are those of `softmax`. The norm is that of the sum before rounding.
    """
    return _make_row_operator("add_rms_norm", rows, cols, dtype, 5, "weight", "residual")


def silu_multiply(rows: int, cols: int, dtype: str = "float32") -> Workload:
    """Return ``output[i, j] = silu(data[i, 0, j]) * data[i, 1, j]``, silu(x) = x / (1 + exp(-x)).

    A row of data, (rows, 2 cols), holds the gate, then the values: the result of one product with both weights side by
    side. Source: Shazeer, GLU Variants Improve Transformer, 2020 (SwiGLU).

    Parameters
    ----------
    rows, cols : int, >= 1
        Extents of the result, in elements.
    dtype : {"float32", "float16", "bfloat16"}
        Dtype of data and output; arithmetic is in float32.

    Raises
    ------
    WorkloadError
        An argument is out of range.
    """
    i, j = check_extent("silu_multiply", "rows", rows), check_extent("silu_multiply", "cols", cols)
    element = check_choice("silu_multiply", "dtype", dtype, _DTYPES)
    row, column, half = (i, (Term("i"),), 0), (j, (Term("j"),), 0), (2, (Term("h"),), 0)
    return Workload(
        operator="silu_multiply",
        axes=(Axis("i", i, "spatial"), Axis("j", j, "spatial"), Axis("h", 2, "reduction")),
        reads=(make_access("data", element, [row, half, column]),),
        write=make_access("output", element, [row, column]),
        body="silu_multiply",
        flop_per_point=5,
        attributes=(("rows", i), ("cols", j), ("dtype", element)),
    )


def rotary(tokens: int, heads: int, head_dim: int, dtype: str = "float32") -> Workload:
    """Return heads with rotated halves (rotary embedding): pairs (x, y) become (x cos - y sin, y cos + x sin).

    Pair d of a head consists of its elements d and d + head_dim / 2; its angle is given by ``cos[t, d]`` and
    ``sin[t, d]``. Source: Su et al., RoFormer, 2021; halves instead of neighbours as in GPT-NeoX.

    Parameters
    ----------
    tokens, heads, head_dim : int, >= 1
        Extents of data and output, in elements; head_dim is even.
    dtype : {"float32", "float16", "bfloat16"}
        Dtype of all tensors; arithmetic is in float32.

    Raises
    ------
    WorkloadError
        An argument is out of range.
    """
    names = ("tokens", "heads", "head_dim")
    extents = (tokens, heads, head_dim)
    t, h, width = (check_extent("rotary", name, size) for name, size in zip(names, extents, strict=True))
    element = check_choice("rotary", "dtype", dtype, _DTYPES)
    if width % 2:
        raise WorkloadError(f"rotary: head_dim is {width}, expected an even number: it has two halves")
    half = width // 2
    token, head, angle = (t, (Term("t"),), 0), (h, (Term("h"),), 0), (half, (Term("d"),), 0)
    output = make_access("output", element, [token, head, (width, (Term("s", half), Term("d")), 0)])
    data = make_access("data", element, [token, head, (width, (Term("r", half), Term("d")), 0)])
    angles = (make_access(name, element, [token, angle]) for name in ("cos", "sin"))
    axes = (("t", t), ("h", h), ("s", 2), ("d", half))
    return Workload(
        operator="rotary",
        axes=(*(Axis(name, size, "spatial") for name, size in axes), Axis("r", 2, "reduction")),
        reads=(data, *angles),
        write=output,
        body="rotary",
        flop_per_point=3,
        attributes=(*zip(names, (t, h, width), strict=True), ("dtype", element)),
    )


def _split_formats(operator: str, dtype: object) -> tuple[str, str]:
    """Return the dtypes of operand and result in a word such as "bfloat16:float8_e4m3fn"."""
    first, colon, second = dtype.partition(":") if isinstance(dtype, str) else ("", "", "")
    if not colon or first not in _DTYPES or second not in LARGEST:
        raise WorkloadError(
            f"{operator}: dtype is {quote(dtype)}, expected one of {', '.join(_DTYPES)}, a colon and one of "
            f"{', '.join(LARGEST)}; write for example bfloat16:float8_e4m3fn"
        )
    return first, second


def _make_quantiser(operator: str, sizes: dict[str, int], dtype: str, body: str, flop: int, *more: str) -> Workload:
    """Return an operator on rows, or on groups of columns in them, with a result of 8 bits."""
    checked = {name: check_extent(operator, name, size) for name, size in sizes.items()}
    element, result_dtype = _split_formats(operator, dtype)
    rows, cols = checked["rows"], checked["cols"]
    group = checked.get("group", cols)
    if cols % group:
        raise WorkloadError(f"{operator}: cols is {cols}, expected a multiple of group ({group}); pad the rows")
    axes = [("i", rows), ("j", cols)] if "group" not in checked else [("i", rows), ("g", cols // group), ("j", group)]
    terms = (Term("j"),) if "group" not in checked else (Term("g", group), Term("j"))
    along: list[Dimension] = [(rows, (Term("i"),), 0), (cols, terms, 0)]
    factors = (make_access(name, "float32", [(1, (), 0)]) for name in more)
    attributes: dict[str, Attribute] = {**checked, "dtype": f"{element}:{result_dtype}"}
    return Workload(
        operator=operator,
        axes=tuple(Axis(axis, size, "spatial") for axis, size in axes),
        reads=(make_access("data", element, along), *factors),
        write=make_access("output", result_dtype, along),
        body=body,
        flop_per_point=flop,
        attributes=tuple(attributes.items()),
    )


def quantise_tensor(rows: int, cols: int, dtype: str = "bfloat16:float8_e4m3fn") -> Workload:
    """Return ``output[i, j] = round(data[i, j] / scale)`` with a given scale for the whole tensor.

    Values that are too large are saturated; integers are rounded to nearest, ties to even.

    Parameters
    ----------
    rows, cols : int, >= 1
        Extents of the axes i and j, in elements; rows are contiguous.
    dtype : str
        Dtypes of data and output: "bfloat16:float8_e4m3fn", "float16:int8". The operand "scale" is one float32.

    Raises
    ------
    WorkloadError
        An argument is out of range.
    """
    sizes = {"rows": rows, "cols": cols}
    return _make_quantiser("quantise_tensor", sizes, dtype, "quantise_tensor", 3, "scale")


def quantise_rows(rows: int, cols: int, dtype: str = "bfloat16:float8_e4m3fn") -> Workload:
    """Return ``output[i, j] = round(data[i, j] / scales[i])``, which scales each row to the range of the dtype.

    ``scales``, (rows,) float32, is a second result: the largest magnitude of a row (at least 1e-10) over the largest
    number of the result's dtype. Parameters and errors are those of `quantise_tensor`.
    """
    return _make_quantiser("quantise_rows", {"rows": rows, "cols": cols}, dtype, "quantise_rows", 5)


def quantise_groups(rows: int, cols: int, group: int, dtype: str = "bfloat16:float8_e4m3fn") -> Workload:
    """Return `quantise_rows` with a scale for each `group` columns; scales are (rows, cols / group).

    Source: [DeepSeek-V3] Sec. 3.3.2 (groups of 128). Parameters and errors are those of `quantise_tensor`.
    """
    sizes = {"rows": rows, "cols": cols, "group": group}
    return _make_quantiser("quantise_groups", sizes, dtype, "quantise_rows", 5)
