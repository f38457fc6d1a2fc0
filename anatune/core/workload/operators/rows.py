"""What language models do with rows of activations, between their products."""

from __future__ import annotations

from anatune.core.workload.nest import Axis, Term, Workload
from anatune.core.workload.operators._arguments import checked_choice, checked_extent
from anatune.core.workload.operators._product import access_of

__all__ = ["softmax"]

_DTYPES = ("float32", "float16", "bfloat16")


def softmax(rows: int, cols: int, dtype: str = "float32") -> Workload:
    """Return ``output[i, j] = exp(data[i, j] - max_j data[i, j]) / sum_j exp(...)``.

    Parameters
    ----------
    rows, cols : int, >= 1
        Extents of the axes i and j, elements; rows are contiguous.
    dtype : {"float32", "float16", "bfloat16"}
        Dtype of data and output; sums are in float32.

    Raises
    ------
    WorkloadError
        If an argument is outside its range.
    """
    sizes = {"i": checked_extent("softmax", "rows", rows), "j": checked_extent("softmax", "cols", cols)}
    element = checked_choice("softmax", "dtype", dtype, _DTYPES)
    data, output = (
        access_of(name, element, [(size, (Term(axis),), 0) for axis, size in sizes.items()])
        for name in ("data", "output")
    )
    return Workload(
        operator="softmax",
        axes=tuple(Axis(axis, size, "spatial") for axis, size in sizes.items()),
        reads=(data,),
        write=output,
        body="softmax",
        flop_per_point=5,  # largest, difference, power, sum, quotient
        attributes=(("rows", rows), ("cols", cols), ("dtype", element)),
    )
