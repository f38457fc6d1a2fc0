"""The constructors of matrix products, single and batched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anatune.core.workload.nest import Axis, Term, Workload
from anatune.core.workload.operators._arguments import check_extent, check_flag
from anatune.core.workload.operators._product import Dimension, make_product

__all__ = ["batch_matmul", "matmul"]


def _make_matrix_product(operator: str, arguments: Mapping[str, object]) -> Workload:
    """Return the product C = A B for the unchecked arguments of its constructor."""
    sizes = {name: check_extent(operator, name, arguments[name]) for name in "bmnk" if name in arguments}
    flips = {name: check_flag(operator, name, arguments[name]) for name in ("transpose_a", "transpose_b")}
    axis_of = {"b": "b", "m": "i", "n": "j", "k": "k"}

    def dimensions(names: str) -> list[Dimension]:
        return [(sizes[name], (Term(axis_of[name]),), 0) for name in f"b{names}" if name in sizes]

    tensors = {
        "A": dimensions("km" if flips["transpose_a"] else "mk"),
        "B": dimensions("nk" if flips["transpose_b"] else "kn"),
        "C": dimensions("mn"),
    }
    axes = [Axis(axis_of[name], size, "reduction" if name == "k" else "spatial") for name, size in sizes.items()]
    return make_product(operator, arguments, axes, tensors, [len(tensors["C"]) - 1], {**sizes, **flips})


def matmul(
    m: int,
    n: int,
    k: int,
    *,
    dtype: str = "float32",
    transpose_a: bool = False,
    transpose_b: bool = False,
    epilogue: Sequence[str] = (),
    input_zero_point: int = 0,
    output_zero_point: int = 0,
) -> Workload:
    """Return the matrix product ``C[i, j] = sum_k A[i, k] B[k, j]``.

    Parameters
    ----------
    m, n, k : int, >= 1
        Extents of the axes i (rows of C), j (columns of C) and k (summed over), in elements.
    dtype : {"float32", "float16", "bfloat16", "int8", "float8_e4m3fn", "uint8xint8", "bfloat16xint8", ...}
        Dtype of A and B, or of A x B. By default C has the dtype of A, int32 for 8-bit integers, bfloat16 for 8-bit
        floats; another dtype follows a colon: "bfloat16:float32" (unrounded sums), "int8:uint8" with "requantize",
        "int8:float16" with "scale". `anatune.core.workload.number_formats` defines all combinations.
    transpose_a, transpose_b : bool
        Whether A is stored as [k, m] instead of [m, k], and B as [n, k] instead of [k, n].
    epilogue : sequence of {"bias", "relu", "relu6", "silu", "gelu", "gelu_tanh", "add", "scale", "requantize"}
        Steps that are fused behind the product, in order, each at most once. The bias and the float32 factors of
        "scale" (for 8-bit operands) and "requantize" (the last step: to 8 bits) have one element for each column j;
        `anatune.core.workload.number_formats` defines all steps.
    input_zero_point, output_zero_point : int
        The stored number that means zero, for an 8-bit A and for a requantised C (ONNX's ``x_zero_point``,
        ``y_zero_point``).

    Raises
    ------
    WorkloadError
        An argument is out of range.

    Examples
    --------
    >>> matmul(512, 4096, 1024).extents
    {'i': 512, 'j': 4096, 'k': 1024}
    """
    return _make_matrix_product("matmul", locals())


def batch_matmul(
    b: int,
    m: int,
    n: int,
    k: int,
    *,
    dtype: str = "float32",
    transpose_a: bool = False,
    transpose_b: bool = False,
    epilogue: Sequence[str] = (),
    input_zero_point: int = 0,
    output_zero_point: int = 0,
) -> Workload:
    """Return the batched matrix product ``C[b, i, j] = sum_k A[b, i, k] B[b, k, j]``.

    Parameters
    ----------
    b : int, >= 1
        Number of independent products (axis b, the first dimension of all three tensors).
    m, n, k, dtype, transpose_a, transpose_b, epilogue, input_zero_point, output_zero_point
        As in `matmul`, for every product.

    Raises
    ------
    WorkloadError
        An argument is out of range.
    """
    return _make_matrix_product("batch_matmul", locals())
