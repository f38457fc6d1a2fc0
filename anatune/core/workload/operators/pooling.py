"""The constructors of pooling (largest or mean value of a window) in one to three dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anatune.core.workload.nest import Axis, Term, Workload
from anatune.core.workload.number_formats import accumulated_dtype
from anatune.core.workload.operators._arguments import check_choice, check_dtype, check_extent, collect_attributes
from anatune.core.workload.operators._product import Dimension, make_access
from anatune.core.workload.operators._windows import check_order, check_windows, order_dimensions
from anatune.errors import WorkloadError

Steps = int | Sequence[int]
Padding = int | Sequence[int] | str


def _make_pooling(operator: str, arguments: Mapping[str, object]) -> Workload:
    """Return the pooling for the unchecked arguments of its constructor."""
    batch, channels = (check_extent(operator, name, arguments[name]) for name in ("n", "c"))
    shape = check_windows(operator, arguments)
    for window in shape.windows:
        if max(window.before, window.after) >= window.span:
            raise WorkloadError(
                f"{operator}: padding along {window.name} is {max(window.before, window.after)} for a window of "
                f"{window.span}, expected less than {window.span}: some windows would hold padding only; reduce the "
                "padding"
            )
        if window.dilation > window.size and window.before + window.after > 0:
            raise WorkloadError(
                f"{operator}: dilation along {window.name} is {window.dilation} for a padded input of "
                f"{window.size}, expected at most {window.size}: some windows would hold padding only; "
                f"reduce the dilation"
            )
    order, word = check_order(operator, arguments["layout"], len(shape.windows))
    element = check_dtype(operator, arguments["dtype"])
    largest = operator.startswith("max")
    images: Dimension = (batch, (Term("n"),), 0)
    planes: list[Dimension] = [(channels, (Term("c"),), 0)]
    result_dtype = element if largest else accumulated_dtype(element)
    return Workload(
        operator=operator,
        axes=(Axis("n", batch, "spatial"), Axis("c", channels, "spatial"), *shape.outer_axes, *shape.kernel_axes),
        reads=(make_access("data", element, [images, *order_dimensions(order, planes, shape.positions)]),),
        write=make_access("output", result_dtype, [images, *order_dimensions(order, planes, shape.outputs)]),
        body="max" if largest else "average",
        flop_per_point=1,
        attributes=collect_attributes(
            arguments, {"n": batch, "c": channels, **shape.attributes, "layout": word, "dtype": element}
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
        Number of images and channels, input height and width.
    r, s : int, >= 1
        Window height and width, in elements.
    kind : {"max", "average"}
        "max": the largest value; padding never wins. "average": the mean; padding counts as zeros and the divisor is
        ``r * s``.
    stride, dilation : int or (y, x), >= 1
        Steps between windows, and between the elements of a window, in elements.
    padding : int, (y, x), (top, left, bottom, right), "SAME" or "VALID"
        Positions around the input; every window must contain at least one element of the input.
    layout : {"NCHW", "NHWC"}
        Order of the dimensions of data and output.
    dtype : {"float32", "float16", "bfloat16", "int8"}
        Dtype of the data; the output has the same dtype, or int32 for the average of int8.

    Raises
    ------
    WorkloadError
        An argument is out of range, or the output would be empty.
    """
    is_largest = check_choice("pool2d", "kind", kind, ("max", "average")) == "max"
    constructor = max_pool2d if is_largest else avg_pool2d
    return constructor(n, c, h, w, r, s, stride, padding, dilation, layout, dtype)


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
        An argument is out of range, or the output would be empty.
    """
    return _make_pooling("max_pool2d", locals())


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
        An argument is out of range, or the output would be empty.
    """
    return _make_pooling("avg_pool2d", locals())


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
    """Return the largest value of each window in one dimension (axes n, c, x, rx); otherwise as `pool2d`.

    Raises
    ------
    WorkloadError
        An argument is out of range, or the output would be empty.
    """
    return _make_pooling("max_pool1d", locals())


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
    """Return the mean of each window in one dimension (axes n, c, x, rx); otherwise as `pool2d`.

    Raises
    ------
    WorkloadError
        An argument is out of range, or the output would be empty.
    """
    return _make_pooling("avg_pool1d", locals())


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
    """Return the largest value of each window in three dimensions (axes n, c, z, y, x, rz, ry, rx); else as `pool2d`.

    Raises
    ------
    WorkloadError
        An argument is out of range, or the output would be empty.
    """
    return _make_pooling("max_pool3d", locals())


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
    """Return the mean of each window in three dimensions (axes n, c, z, y, x, rz, ry, rx); else as `pool2d`.

    Raises
    ------
    WorkloadError
        An argument is out of range, or the output would be empty.
    """
    return _make_pooling("avg_pool3d", locals())
