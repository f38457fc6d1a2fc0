"""Convolutions of one to three dimensions, grouped and depthwise, from one implementation."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from anatune.core.operators._arguments import (
    accumulated_dtype,
    checked_dtype,
    checked_epilogue,
    checked_extent,
    epilogue_reads,
)
from anatune.core.operators._windows import checked_channels_last, checked_windows
from anatune.core.workload import Access, Axis, Term, Workload
from anatune.errors import WorkloadError

__all__ = ["conv1d", "conv2d", "conv3d", "depthwise_conv2d"]

Padding = int | Sequence[int] | str


def _convolution(
    operator: str,
    *,
    n: object,
    c: object,
    k: object,
    sizes: dict[str, object],
    kernel: dict[str, object],
    stride: object,
    padding: object,
    dilation: object,
    groups: object,
    layout: object,
    dtype: object,
    epilogue: object,
) -> Workload:
    """Build a convolution; `sizes` and `kernel` are input and kernel sizes by argument name, slowest first."""
    batch, channels = checked_extent(operator, "n", n), checked_extent(operator, "c", c)
    filters, parts = checked_extent(operator, "k", k), checked_extent(operator, "groups", groups)
    for name, size in (("c", channels), ("k", filters)):
        if size % parts:
            raise WorkloadError(
                f"{operator}: {name} is {size} with groups {parts}, expected a multiple of groups; "
                f"change {name} or groups"
            )
    shape = checked_windows(operator, sizes, kernel, stride, padding, dilation)
    channels_last, word = checked_channels_last(operator, layout, len(sizes))
    element = checked_dtype(operator, dtype)
    steps = checked_epilogue(operator, epilogue)
    inner, outer = channels // parts, filters // parts
    grouped = parts > 1
    into = (Term("g", inner), Term("rc")) if grouped else (Term("rc"),)
    out = (Term("g", outer), Term("f")) if grouped else (Term("f"),)
    first, lead = (batch, (Term("n"),), 0), (channels, into, 0)
    positions = [(window.size, window.terms, -window.before) for window in shape.windows]
    outputs = [(window.output, (Term(window.axis),), 0) for window in shape.windows]
    taps = [(window.kernel, (Term(f"r{window.axis}"),), 0) for window in shape.windows]
    produced, reduced, made = (filters, out, 0), (inner, (Term("rc"),), 0), accumulated_dtype(element)
    if channels_last:
        data = _access("data", element, [first, *positions, lead])
        weight = _access("weight", element, [*taps, reduced, produced])
        write = _access("output", made, [first, *outputs, produced])
    else:
        data = _access("data", element, [first, lead, *positions])
        weight = _access("weight", element, [produced, reduced, *taps])
        write = _access("output", made, [first, produced, *outputs])
    return Workload(
        operator=operator,
        axes=(
            Axis("n", batch, "spatial"),
            *((Axis("g", parts, "spatial"),) if grouped else ()),
            Axis("f", outer, "spatial"),
            *shape.outer_axes,
            Axis("rc", inner, "reduction"),
            *shape.kernel_axes,
        ),
        reads=(data, weight),
        write=write,
        body="multiply_add",
        flop_per_point=2,
        epilogue=steps,
        epilogue_reads=epilogue_reads(steps, write, channel=len(write.shape) - 1 if channels_last else 1),
        attributes=(
            ("n", batch),
            ("c", channels),
            *((name, window.size) for name, window in zip(sizes, shape.windows, strict=True)),
            ("k", filters),
            *((name, window.kernel) for name, window in zip(kernel, shape.windows, strict=True)),
            ("stride", shape.stride),
            ("padding", shape.padding),
            ("dilation", shape.dilation),
            ("groups", parts),
            ("layout", word),
            ("dtype", element),
            ("epilogue", steps),
        ),
    )


def _access(tensor: str, dtype: str, dimensions: Sequence[tuple[int, tuple[Term, ...], int]]) -> Access:
    """Return an access from one (size, terms, offset) per dimension."""
    shape, indices, offsets = zip(*dimensions, strict=True)
    return Access(tensor, dtype, shape, indices, offsets)


def conv2d(
    n: int,
    c: int,
    h: int,
    w: int,
    k: int,
    r: int,
    s: int,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "NCHW",
    dtype: str = "float32",
    epilogue: Sequence[str] = (),
) -> Workload:
    """Return a two-dimensional convolution with the axes n, f, y, x, rc, ry, rx.

    With more than one group a spatial axis g follows n; f and rc then count channels of one group.

    Parameters
    ----------
    n, c, h, w : int, >= 1
        Images, input channels, input height and width, elements.
    k, r, s : int, >= 1
        Output channels, kernel height and width, elements.
    stride, dilation : int or (y, x), >= 1
        Steps between windows, and between the elements of one window.
    padding : int, (y, x), (top, left, bottom, right), "SAME" or "VALID"
        Zeros around the input. "SAME": ``ceil(size / stride)`` outputs, the odd zero at the bottom and right.
    groups : int, >= 1
        Independent groups of channels; divides `c` and `k`.
    layout : {"NCHW", "NHWC"}
        NCHW: data [n, c, h, w], weight [k, c/groups, r, s], output [n, k, y, x].
        NHWC: data [n, h, w, c], weight [r, s, c/groups, k], output [n, y, x, k].
    dtype : {"float32", "float16", "bfloat16", "int8"}
        Dtype of data and weight; the output has the same, int32 for int8.
    epilogue : sequence of {"bias", "relu", "add"}
        Steps fused behind the sum, in order, each at most once. The bias runs along the output channels.

    Raises
    ------
    WorkloadError
        If an argument is outside its range, or the output would be empty.

    Examples
    --------
    >>> conv2d(n=1, c=64, h=56, w=56, k=64, r=3, s=3, stride=1, padding=1).extents
    {'n': 1, 'f': 64, 'y': 56, 'x': 56, 'rc': 64, 'ry': 3, 'rx': 3}
    """
    return _convolution(
        "conv2d",
        n=n,
        c=c,
        k=k,
        sizes={"h": h, "w": w},
        kernel={"r": r, "s": s},
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        layout=layout,
        dtype=dtype,
        epilogue=epilogue,
    )


def conv1d(
    n: int,
    c: int,
    w: int,
    k: int,
    s: int,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "NCW",
    dtype: str = "float32",
    epilogue: Sequence[str] = (),
) -> Workload:
    """Return a one-dimensional convolution with the axes n, f, x, rc, rx.

    Parameters are those of `conv2d` without the height; `layout` is NCW (data [n, c, w], weight [k, c/groups, s])
    or NWC (data [n, w, c], weight [s, c/groups, k]); the words NCHW and NHWC mean the same two.

    Raises
    ------
    WorkloadError
        If an argument is outside its range, or the output would be empty.
    """
    return _convolution(
        "conv1d",
        n=n,
        c=c,
        k=k,
        sizes={"w": w},
        kernel={"s": s},
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        layout=layout,
        dtype=dtype,
        epilogue=epilogue,
    )


def conv3d(
    n: int,
    c: int,
    d: int,
    h: int,
    w: int,
    k: int,
    t: int,
    r: int,
    s: int,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "NCDHW",
    dtype: str = "float32",
    epilogue: Sequence[str] = (),
) -> Workload:
    """Return a three-dimensional convolution with the axes n, f, z, y, x, rc, rz, ry, rx.

    Parameters are those of `conv2d` with the input depth `d` and the kernel depth `t` in front; `layout` is NCDHW
    (data [n, c, d, h, w], weight [k, c/groups, t, r, s]) or NDHWC (data [n, d, h, w, c], weight
    [t, r, s, c/groups, k]); the words NCHW and NHWC mean the same two.

    Raises
    ------
    WorkloadError
        If an argument is outside its range, or the output would be empty.
    """
    return _convolution(
        "conv3d",
        n=n,
        c=c,
        k=k,
        sizes={"d": d, "h": h, "w": w},
        kernel={"t": t, "r": r, "s": s},
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        layout=layout,
        dtype=dtype,
        epilogue=epilogue,
    )


def depthwise_conv2d(
    n: int,
    c: int,
    h: int,
    w: int,
    r: int,
    s: int,
    multiplier: int = 1,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    layout: str = "NCHW",
    dtype: str = "float32",
    epilogue: Sequence[str] = (),
) -> Workload:
    """Return a convolution of every channel with its own kernels: `conv2d` with ``groups = c``.

    The axes are n, g (channels), f (`multiplier`), y, x, rc (1), ry, rx; without g when `c` is 1.

    Parameters
    ----------
    n, c, h, w, r, s, stride, padding, dilation, layout, dtype, epilogue
        As in `conv2d`; the weight is [c * multiplier, 1, r, s] (NCHW) or [r, s, 1, c * multiplier] (NHWC).
    multiplier : int, >= 1
        Output channels for each input channel.

    Raises
    ------
    WorkloadError
        If an argument is outside its range, or the output would be empty.
    """
    operator = "depthwise_conv2d"
    channels, factor = checked_extent(operator, "c", c), checked_extent(operator, "multiplier", multiplier)
    built = _convolution(
        operator,
        n=n,
        c=channels,
        k=channels * factor,
        sizes={"h": h, "w": w},
        kernel={"r": r, "s": s},
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=channels,
        layout=layout,
        dtype=dtype,
        epilogue=epilogue,
    )
    own = built.attribute
    names = (
        "n",
        "c",
        "h",
        "w",
        "r",
        "s",
        "multiplier",
        "stride",
        "padding",
        "dilation",
        "layout",
        "dtype",
        "epilogue",
    )
    attributes = tuple((name, factor if name == "multiplier" else own[name]) for name in names)
    return msgspec.structs.replace(built, attributes=attributes)
