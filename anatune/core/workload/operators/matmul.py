"""Matrix products, single and batched."""

from __future__ import annotations

from collections.abc import Sequence

from anatune.core.workload.nest import Access, Axis, Term, Workload
from anatune.core.workload.operators._arguments import (
    accumulated_dtype,
    checked_dtype,
    checked_epilogue,
    checked_extent,
    checked_flag,
    epilogue_reads,
)

__all__ = ["batch_matmul", "matmul"]


def _matrix_product(
    operator: str,
    sizes: dict[str, object],
    dtype: object,
    transpose_a: object,
    transpose_b: object,
    epilogue: object,
) -> Workload:
    """Build C = A B from the sizes ``[b,] m, n, k`` by name."""
    extents = {name: checked_extent(operator, name, size) for name, size in sizes.items()}
    element = checked_dtype(operator, dtype)
    flip_a = checked_flag(operator, "transpose_a", transpose_a)
    flip_b = checked_flag(operator, "transpose_b", transpose_b)
    steps = checked_epilogue(operator, epilogue)
    axis_extents = {"i": extents["m"], "j": extents["n"], "k": extents["k"]}
    batch: tuple[str, ...] = ()
    if "b" in extents:
        axis_extents = {"b": extents["b"], **axis_extents}
        batch = ("b",)

    def access(tensor: str, names: tuple[str, ...], element: str) -> Access:
        dimensions = batch + names
        shape = tuple(axis_extents[name] for name in dimensions)
        return Access(tensor, element, shape, tuple((Term(name),) for name in dimensions), (0,) * len(shape))

    write = access("C", ("i", "j"), accumulated_dtype(element))
    return Workload(
        operator=operator,
        axes=tuple(
            Axis(name, extent, "reduction" if name == "k" else "spatial") for name, extent in axis_extents.items()
        ),
        reads=(
            access("A", ("k", "i") if flip_a else ("i", "k"), element),
            access("B", ("j", "k") if flip_b else ("k", "j"), element),
        ),
        write=write,
        body="multiply_add",
        flop_per_point=2,
        epilogue=steps,
        epilogue_reads=epilogue_reads(steps, write, channel=len(write.shape) - 1),
        attributes=(
            *extents.items(),
            ("dtype", element),
            ("transpose_a", flip_a),
            ("transpose_b", flip_b),
            ("epilogue", steps),
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
) -> Workload:
    """Return ``C[i, j] = sum_k A[i, k] B[k, j]``.

    Parameters
    ----------
    m, n, k : int, >= 1
        Extents of the axes i (rows of C), j (columns of C) and k (summed over), elements.
    dtype : {"float32", "float16", "bfloat16", "int8"}
        Dtype of A and B; C has the same, int32 for int8.
    transpose_a, transpose_b : bool
        A is stored as [k, m] instead of [m, k], B as [n, k] instead of [k, n].
    epilogue : sequence of {"bias", "relu", "add"}
        Steps fused behind the product, in order, each at most once. The bias runs along j.

    Raises
    ------
    WorkloadError
        If an argument is outside its range.

    Examples
    --------
    >>> matmul(512, 4096, 1024).extents
    {'i': 512, 'j': 4096, 'k': 1024}
    """
    return _matrix_product("matmul", {"m": m, "n": n, "k": k}, dtype, transpose_a, transpose_b, epilogue)


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
) -> Workload:
    """Return ``C[b, i, j] = sum_k A[b, i, k] B[b, k, j]``.

    Parameters
    ----------
    b : int, >= 1
        Number of independent products (axis b, the first dimension of all three tensors).
    m, n, k, dtype, transpose_a, transpose_b, epilogue
        As in `matmul`, for every product.

    Raises
    ------
    WorkloadError
        If an argument is outside its range.
    """
    sizes: dict[str, object] = {"b": b, "m": m, "n": n, "k": k}
    return _matrix_product("batch_matmul", sizes, dtype, transpose_a, transpose_b, epilogue)
