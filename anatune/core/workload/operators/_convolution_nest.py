"""The loop nest behind every convolution, for any number of window dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from anatune.core.workload.nest import Access, Axis, Term, Workload
from anatune.core.workload.operators._arguments import (
    accumulated_dtype,
    checked_dtype,
    checked_epilogue,
    checked_extent,
    epilogue_reads,
)
from anatune.core.workload.operators._windows import checked_channels_last, checked_windows
from anatune.errors import WorkloadError

__all__ = ["convolution"]


def convolution(
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
    """Return the convolution with the given, still unchecked, arguments.

    Parameters
    ----------
    operator : str
        Name of the constructor, for messages and for the workload.
    sizes, kernel : dict of str to object
        Input and kernel sizes, elements, by argument name, slowest dimension first.
    n, c, k, stride, padding, dilation, groups, layout, dtype, epilogue
        As in `anatune.core.workload.operators.convolution.conv2d`.

    Raises
    ------
    WorkloadError
        If an argument is outside its range, or the output would be empty.
    """
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
