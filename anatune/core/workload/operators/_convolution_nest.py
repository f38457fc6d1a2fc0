"""The loop nest behind every convolution, for any number of window dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from anatune.core.workload.nest import Access, Axis, Term, Workload
from anatune.core.workload.number_formats import format_word
from anatune.core.workload.operators._arguments import (
    checked_epilogue,
    checked_extent,
    checked_formats,
    epilogue_reads,
    zero_points,
)
from anatune.core.workload.operators._channels import Channels, Dimension
from anatune.core.workload.operators._windows import checked_orders, checked_windows
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
    input_zero_point: object,
    output_zero_point: object,
) -> Workload:
    """Return the convolution with the given, still unchecked, arguments.

    Parameters
    ----------
    operator : str
        Name of the constructor, for messages and for the workload.
    sizes, kernel : dict of str to object
        Input and kernel sizes, elements, by argument name, slowest dimension first.
    n, c, k, stride, padding, dilation, groups, layout, dtype, epilogue, input_zero_point, output_zero_point
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
    source, target, word = checked_orders(operator, layout, len(sizes))
    steps = checked_epilogue(operator, epilogue)
    formats = checked_formats(operator, dtype, steps)
    zeros = zero_points(operator, formats, steps, input_zero_point, output_zero_point)
    split = Channels(parts, channels // parts, filters // parts, source, target)
    split.check(operator, word)
    positions: list[Dimension] = [(window.size, window.terms, -window.before) for window in shape.windows]
    outputs: list[Dimension] = [(window.output, (Term(window.axis),), 0) for window in shape.windows]
    taps: list[Dimension] = [(window.kernel, (Term(f"r{window.axis}"),), 0) for window in shape.windows]
    first: Dimension = (batch, (Term("n"),), 0)
    data = _access("data", formats.left, [first, *split.of_data(positions)], zeros.get("input_zero_point", 0))
    weight = _access("weight", formats.right, split.of_weight(taps))
    write = _access("output", formats.result, [first, *split.of_result(outputs)], zeros.get("output_zero_point", 0))
    own = split.places_in_result(len(write.shape))
    return Workload(
        operator=operator,
        axes=(
            Axis("n", batch, "spatial"),
            *(split.axes("g", "spatial") if parts > 1 else ()),
            *split.axes("f", "spatial"),
            *shape.outer_axes,
            *split.axes("rc", "reduction"),
            *shape.kernel_axes,
        ),
        reads=(data, weight),
        write=write,
        body="multiply_add",
        flop_per_point=2,
        epilogue=steps,
        epilogue_reads=epilogue_reads(steps, formats.left, write, own),
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
            ("dtype", format_word(formats[:2], formats.result, steps)),
            ("epilogue", steps),
            *zeros.items(),
        ),
    )


def _access(tensor: str, dtype: str, dimensions: Sequence[Dimension], zero_point: int = 0) -> Access:
    """Return an access from one (size, terms, offset) per dimension."""
    shape, indices, offsets = zip(*dimensions, strict=True)
    return Access(tensor, dtype, shape, indices, offsets, zero_point)
