"""Pooling (largest or mean value of a window) of one to three dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from anatune.core.workload.nest import Access, Axis, Term, Workload
from anatune.core.workload.operators._arguments import accumulated_dtype, checked_choice, checked_dtype, checked_extent
from anatune.core.workload.operators._windows import checked_channels_last, checked_windows
from anatune.errors import WorkloadError

__all__ = ["avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool1d", "max_pool2d", "max_pool3d", "pool2d"]

Steps = int | Sequence[int]
Padding = int | Sequence[int] | str


def _pooling(
    operator: str,
    n: object,
    c: object,
    sizes: dict[str, object],
    kernel: dict[str, object],
    stride: object,
    padding: object,
    dilation: object,
    layout: object,
    dtype: object,
) -> Workload:
    """Build a pooling; `sizes` and `kernel` are input and window sizes by argument name, slowest first."""
    batch, channels = checked_extent(operator, "n", n), checked_extent(operator, "c", c)
    shape = checked_windows(operator, sizes, kernel, stride, padding, dilation)
    for name, window in zip(sizes, shape.windows, strict=True):
        span = (window.kernel - 1) * window.dilation + 1
        if max(window.before, window.after) >= span:
            raise WorkloadError(
                f"{operator}: padding along {name} is {max(window.before, window.after)} for a window of "
                f"{span}, expected less than {span}: some windows would hold padding only; reduce the padding"
            )
        if window.dilation > window.size and window.before + window.after > 0:
            raise WorkloadError(
                f"{operator}: dilation along {name} is {window.dilation} for a padded input of "
                f"{window.size}, expected at most {window.size}: some windows would hold padding only; "
                f"reduce the dilation"
            )
    channels_last, word = checked_channels_last(operator, layout, len(sizes))
    element = checked_dtype(operator, dtype)
    largest = operator.startswith("max")

    def access(tensor: str, element: str, dimensions: list[tuple[int, tuple[Term, ...], int]]) -> Access:
        first, lead = (batch, (Term("n"),), 0), (channels, (Term("c"),), 0)
        ordered = [first, *dimensions, lead] if channels_last else [first, lead, *dimensions]
        extents, indices, offsets = zip(*ordered, strict=True)
        return Access(tensor, element, extents, indices, offsets)

    return Workload(
        operator=operator,
        axes=(
            Axis("n", batch, "spatial"),
            Axis("c", channels, "spatial"),
            *shape.outer_axes,
            *shape.kernel_axes,
        ),
        reads=(access("data", element, [(part.size, part.terms, -part.before) for part in shape.windows]),),
        write=access(
            "output",
            element if largest else accumulated_dtype(element),
            [(part.output, (Term(part.axis),), 0) for part in shape.windows],
        ),
        body="max" if largest else "average",
        flop_per_point=1,
        attributes=(
            ("n", batch),
            ("c", channels),
            *((name, part.size) for name, part in zip(sizes, shape.windows, strict=True)),
            *((name, part.kernel) for name, part in zip(kernel, shape.windows, strict=True)),
            ("stride", shape.stride),
            ("padding", shape.padding),
            ("dilation", shape.dilation),
            ("layout", word),
            ("dtype", element),
        ),
    )


def pool2d(
    n: int,
    c: int,
    h: int,
    w: int,
    r: int,
    s: int,
    kind: str = "max",
    stride: Steps = 1,
    padding: Padding = 0,
    dilation: Steps = 1,
    layout: str = "NCHW",
    dtype: str = "float32",
) -> Workload:
    """Return a two-dimensional pooling (max_pool2d or avg_pool2d) with the axes n, c, y, x, ry, rx.

    Parameters
    ----------
    n, c, h, w : int, >= 1
        Images, channels, input height and width, elements.
    r, s : int, >= 1
        Window height and width, elements.
    kind : {"max", "average"}
        Largest value (padding never wins) or mean of the window (padding counts as zeros, the divisor
        is ``r * s``).
    stride, dilation : int or (y, x), >= 1
        Steps between windows, and between the elements of one window.
    padding : int, (y, x), (top, left, bottom, right), "SAME" or "VALID"
        Positions around the input; every window must hold at least one element of the input's own.
    layout : {"NCHW", "NHWC"}
        Order of data and output.
    dtype : {"float32", "float16", "bfloat16", "int8"}
        Dtype of data; the output has the same, int32 for the average of int8.

    Raises
    ------
    WorkloadError
        If an argument is outside its range, or the output would be empty.
    """
    short = {"max": "max", "average": "avg"}[checked_choice("pool2d", "kind", kind, ("max", "average"))]
    return _pooling(
        f"{short}_pool2d", n, c, {"h": h, "w": w}, {"r": r, "s": s}, stride, padding, dilation, layout, dtype
    )


def max_pool2d(
    n: int,
    c: int,
    h: int,
    w: int,
    r: int,
    s: int,
    stride: Steps = 1,
    padding: Padding = 0,
    dilation: Steps = 1,
    layout: str = "NCHW",
    dtype: str = "float32",
) -> Workload:
    """Return the largest value of each window; parameters and errors as in `pool2d`.

    Raises
    ------
    WorkloadError
        If an argument is outside its range, or the output would be empty.
    """
    return _pooling("max_pool2d", n, c, {"h": h, "w": w}, {"r": r, "s": s}, stride, padding, dilation, layout, dtype)


def avg_pool2d(
    n: int,
    c: int,
    h: int,
    w: int,
    r: int,
    s: int,
    stride: Steps = 1,
    padding: Padding = 0,
    dilation: Steps = 1,
    layout: str = "NCHW",
    dtype: str = "float32",
) -> Workload:
    """Return the mean of each window; parameters and errors as in `pool2d`.

    Raises
    ------
    WorkloadError
        If an argument is outside its range, or the output would be empty.
    """
    return _pooling("avg_pool2d", n, c, {"h": h, "w": w}, {"r": r, "s": s}, stride, padding, dilation, layout, dtype)


def max_pool1d(
    n: int,
    c: int,
    w: int,
    s: int,
    stride: Steps = 1,
    padding: Padding = 0,
    dilation: Steps = 1,
    layout: str = "NCW",
    dtype: str = "float32",
) -> Workload:
    """Return the largest value of each window of a row (axes n, c, x, rx); otherwise as `pool2d`.

    Raises
    ------
    WorkloadError
        If an argument is outside its range, or the output would be empty.
    """
    return _pooling("max_pool1d", n, c, {"w": w}, {"s": s}, stride, padding, dilation, layout, dtype)


def avg_pool1d(
    n: int,
    c: int,
    w: int,
    s: int,
    stride: Steps = 1,
    padding: Padding = 0,
    dilation: Steps = 1,
    layout: str = "NCW",
    dtype: str = "float32",
) -> Workload:
    """Return the mean of each window of a row (axes n, c, x, rx); otherwise as `pool2d`.

    Raises
    ------
    WorkloadError
        If an argument is outside its range, or the output would be empty.
    """
    return _pooling("avg_pool1d", n, c, {"w": w}, {"s": s}, stride, padding, dilation, layout, dtype)


def max_pool3d(
    n: int,
    c: int,
    d: int,
    h: int,
    w: int,
    t: int,
    r: int,
    s: int,
    stride: Steps = 1,
    padding: Padding = 0,
    dilation: Steps = 1,
    layout: str = "NCDHW",
    dtype: str = "float32",
) -> Workload:
    """Return the largest value of each box (axes n, c, z, y, x, rz, ry, rx); otherwise as `pool2d`.

    Raises
    ------
    WorkloadError
        If an argument is outside its range, or the output would be empty.
    """
    sizes: dict[str, object] = {"d": d, "h": h, "w": w}
    return _pooling("max_pool3d", n, c, sizes, {"t": t, "r": r, "s": s}, stride, padding, dilation, layout, dtype)


def avg_pool3d(
    n: int,
    c: int,
    d: int,
    h: int,
    w: int,
    t: int,
    r: int,
    s: int,
    stride: Steps = 1,
    padding: Padding = 0,
    dilation: Steps = 1,
    layout: str = "NCDHW",
    dtype: str = "float32",
) -> Workload:
    """Return the mean of each box (axes n, c, z, y, x, rz, ry, rx); otherwise as `pool2d`.

    Raises
    ------
    WorkloadError
        If an argument is outside its range, or the output would be empty.
    """
    sizes: dict[str, object] = {"d": d, "h": h, "w": w}
    return _pooling("avg_pool3d", n, c, sizes, {"t": t, "r": r, "s": s}, stride, padding, dilation, layout, dtype)
