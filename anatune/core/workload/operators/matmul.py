"""Matrix products, single and batched."""

from __future__ import annotations

from collections.abc import Sequence

from anatune.core.workload.nest import Access, Axis, Term, Workload
from anatune.core.workload.number_formats import format_word
from anatune.core.workload.operators._arguments import (
    checked_epilogue,
    checked_extent,
    checked_flag,
    checked_formats,
    epilogue_reads,
    zero_points,
)

__all__ = ["batch_matmul", "matmul"]


def _matrix_product(
    operator: str,
    sizes: dict[str, object],
    dtype: object,
    transpose_a: object,
    transpose_b: object,
    epilogue: object,
    input_zero_point: object,
    output_zero_point: object,
) -> Workload:
    """Build C = A B from the sizes ``[b,] m, n, k`` by name."""
    extents = {name: checked_extent(operator, name, size) for name, size in sizes.items()}
    flip_a = checked_flag(operator, "transpose_a", transpose_a)
    flip_b = checked_flag(operator, "transpose_b", transpose_b)
    steps = checked_epilogue(operator, epilogue)
    formats = checked_formats(operator, dtype, steps)
    zeros = zero_points(operator, formats, steps, input_zero_point, output_zero_point)
    axis_extents = {"i": extents["m"], "j": extents["n"], "k": extents["k"]}
    batch: tuple[str, ...] = ()
    if "b" in extents:
        axis_extents = {"b": extents["b"], **axis_extents}
        batch = ("b",)

    def access(tensor: str, names: tuple[str, ...], element: str, zero_point: int = 0) -> Access:
        dimensions = batch + names
        shape = tuple(axis_extents[name] for name in dimensions)
        terms = tuple((Term(name),) for name in dimensions)
        return Access(tensor, element, shape, terms, (0,) * len(shape), zero_point)

    write = access("C", ("i", "j"), formats.result, zeros.get("output_zero_point", 0))
    return Workload(
        operator=operator,
        axes=tuple(
            Axis(name, extent, "reduction" if name == "k" else "spatial") for name, extent in axis_extents.items()
        ),
        reads=(
            access("A", ("k", "i") if flip_a else ("i", "k"), formats.left, zeros.get("input_zero_point", 0)),
            access("B", ("j", "k") if flip_b else ("k", "j"), formats.right),
        ),
        write=write,
        body="multiply_add",
        flop_per_point=2,
        epilogue=steps,
        epilogue_reads=epilogue_reads(steps, formats.left, write, channels=[len(write.shape) - 1]),
        attributes=(
            *extents.items(),
            ("dtype", format_word(formats[:2], formats.result, steps)),
            ("transpose_a", flip_a),
            ("transpose_b", flip_b),
            ("epilogue", steps),
            *zeros.items(),
        ),
    )


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
    """Return ``C[i, j] = sum_k A[i, k] B[k, j]``.

    Parameters
    ----------
    m, n, k : int, >= 1
        Extents of the axes i (rows of C), j (columns of C) and k (summed over), elements.
    dtype : {"float32", "float16", "bfloat16", "int8", "uint8xint8"}
        Dtype of A and B, or of A x B; C has the same, int32 for 8-bit operands. Another dtype of C follows a colon:
        "bfloat16:float32" (sums as they are), behind "requantize" "int8:uint8" or "uint8xint8:int8".
    transpose_a, transpose_b : bool
        A is stored as [k, m] instead of [m, k], B as [n, k] instead of [k, n].
    epilogue : sequence of {"bias", "relu", "relu6", "silu", "gelu", "gelu_tanh", "add", "scale", "requantize"}
        Steps fused behind the product, in order, each at most once. The bias runs along j, as do the float32 factors
        of "scale" (int32 sums to float32) and "requantize" (the last step: to 8 bits); what they compute exactly is in
        `anatune.core.workload.number_formats`.
    input_zero_point, output_zero_point : int
        The stored number that means zero, of an 8-bit A and of a requantised C (ONNX's ``x_zero_point``,
        ``y_zero_point``).

    Raises
    ------
    WorkloadError
        If an argument is outside its range.

    Examples
    --------
    >>> matmul(512, 4096, 1024).extents
    {'i': 512, 'j': 4096, 'k': 1024}
    """
    sizes: dict[str, object] = {"m": m, "n": n, "k": k}
    return _matrix_product(
        "matmul", sizes, dtype, transpose_a, transpose_b, epilogue, input_zero_point, output_zero_point
    )


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
    """Return ``C[b, i, j] = sum_k A[b, i, k] B[b, k, j]``.

    Parameters
    ----------
    b : int, >= 1
        Number of independent products (axis b, the first dimension of all three tensors).
    m, n, k, dtype, transpose_a, transpose_b, epilogue, input_zero_point, output_zero_point
        As in `matmul`, for every product.

    Raises
    ------
    WorkloadError
        If an argument is outside its range.
    """
    sizes: dict[str, object] = {"b": b, "m": m, "n": n, "k": k}
    return _matrix_product(
        "batch_matmul", sizes, dtype, transpose_a, transpose_b, epilogue, input_zero_point, output_zero_point
    )
