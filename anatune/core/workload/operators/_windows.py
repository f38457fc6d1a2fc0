"""Sliding windows: what convolutions and pooling of any number of dimensions share."""

from __future__ import annotations

from typing import NamedTuple

from anatune.arguments import shown
from anatune.core.workload.nest import Axis, Term
from anatune.core.workload.operators._arguments import checked_extent, checked_integer
from anatune.core.workload.orders import CHANNELS_FIRST, CHANNELS_LAST, Order, layout_word, order_named
from anatune.errors import WorkloadError

__all__ = ["Window", "WindowSet", "checked_channels_last", "checked_orders", "checked_windows"]

_AXIS_NAMES = {1: ("x",), 2: ("y", "x"), 3: ("z", "y", "x")}


class Window(NamedTuple):
    """One window dimension: input, kernel, stride, dilation, zeros before and after, output (elements)."""

    axis: str
    size: int
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int
    output: int

    @property
    def terms(self) -> tuple[Term, ...]:
        """Input position, less the padding: ``axis * stride + raxis * dilation``."""
        return (Term(self.axis, self.stride), Term(f"r{self.axis}", self.dilation))


class WindowSet(NamedTuple):
    """All window dimensions of one operator, slowest first, with what its `attributes` record."""

    windows: tuple[Window, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def outer_axes(self) -> tuple[Axis, ...]:
        """The spatial axes over output positions."""
        return tuple(Axis(window.axis, window.output, "spatial") for window in self.windows)

    @property
    def kernel_axes(self) -> tuple[Axis, ...]:
        """The reduction axes over kernel positions."""
        return tuple(Axis(f"r{window.axis}", window.kernel, "reduction") for window in self.windows)


def checked_channels_last(operator: str, layout: object, num_dimensions: int) -> tuple[bool, str]:
    """Return whether channels are the last dimension, and the layout's own word for `num_dimensions`.

    The words NCHW and NHWC are understood for any number of dimensions.

    Raises
    ------
    WorkloadError
        If the layout is unknown.
    """
    order = order_named(layout, num_dimensions)
    if order is None or order.block:
        first, last = (one.word(num_dimensions) for one in (CHANNELS_FIRST, CHANNELS_LAST))
        raise WorkloadError(
            f"{operator}: layout is {shown(layout)}, expected {first} (channels first) or {last} (channels last); "
            "choose one of them"
        )
    return order.is_last, order.word(num_dimensions)


def checked_orders(operator: str, layout: object, num_dimensions: int) -> tuple[Order, Order, str]:
    """Return the orders of data and result, and the layout's own word, for `num_dimensions`.

    Raises
    ------
    WorkloadError
        If the layout is unknown.
    """
    words = layout.split(":") if isinstance(layout, str) else [None]
    orders = [order for word in words if (order := order_named(word, num_dimensions)) is not None]
    if len(orders) < len(words) or len(words) > 2:
        first, last = (one.word(num_dimensions) for one in (CHANNELS_FIRST, CHANNELS_LAST))
        raise WorkloadError(
            f"{operator}: layout is {shown(layout)}, expected {first} (channels first), {last} (channels last) or "
            f"{first}16c (blocks of 16 channels), or data:result ({last}:{first}16c); choose one of them"
        )
    data, result = orders[0], orders[-1]
    return data, result, layout_word(data, result, num_dimensions)


def _per_dimension(operator: str, name: str, value: object, count: int, minimum: int) -> tuple[int, ...]:
    """Return one integer per window dimension from an int or a sequence of `count`."""
    step = f"give one integer or {count}"
    if isinstance(value, (tuple, list)):
        if len(value) != count:
            raise WorkloadError(f"{operator}: {name} is {shown(value)}, expected {count} integers >= {minimum}; {step}")
        return tuple(checked_integer(operator, name, item, minimum, step) for item in value)
    return (checked_integer(operator, name, value, minimum, step),) * count


def _paddings(
    operator: str,
    value: object,
    sizes: tuple[int, ...],
    spans: tuple[int, ...],
    strides: tuple[int, ...],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the zeros before and after each dimension."""
    count = len(sizes)
    if isinstance(value, str):
        word = value.upper()
        if word == "VALID":
            return (0,) * count, (0,) * count
        if word == "SAME":
            totals = tuple(
                max((-(-size // stride) - 1) * stride + span - size, 0)
                for size, span, stride in zip(sizes, spans, strides, strict=True)
            )
            return tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)
        raise WorkloadError(
            f"{operator}: padding is {shown(value)}, expected SAME, VALID or integers >= 0; write for example 1"
        )
    if isinstance(value, (tuple, list)) and len(value) == 2 * count:
        numbers = _per_dimension(operator, "padding", value, 2 * count, 0)
        return numbers[:count], numbers[count:]
    both = _per_dimension(operator, "padding", value, count, 0)
    return both, both


def checked_windows(
    operator: str,
    sizes: dict[str, object],
    kernel: dict[str, object],
    stride: object,
    padding: object,
    dilation: object,
) -> WindowSet:
    """Return the window dimensions with their output sizes.

    Parameters
    ----------
    operator : str
        Name for messages.
    sizes, kernel : dict of str to object
        Input and kernel sizes, elements, by argument name, slowest dimension first.
    stride, dilation : int or sequence of int, >= 1
        Steps between windows and between the elements of one window.
    padding : int, sequence of int >= 0, "SAME" or "VALID"
        Zeros on both sides; a sequence twice as long gives those before, then those after. "SAME" keeps
        ``ceil(size / stride)`` outputs and puts the odd zero after.

    Raises
    ------
    WorkloadError
        If an argument is outside its range, or no window fits.
    """
    inputs = tuple(checked_extent(operator, name, value) for name, value in sizes.items())
    taps = tuple(checked_extent(operator, name, value) for name, value in kernel.items())
    count = len(inputs)
    strides = _per_dimension(operator, "stride", stride, count, 1)
    dilations = _per_dimension(operator, "dilation", dilation, count, 1)
    spans = tuple((tap - 1) * step + 1 for tap, step in zip(taps, dilations, strict=True))
    before, after = _paddings(operator, padding, inputs, spans, strides)
    windows = []
    for place, name in enumerate(sizes):
        room = inputs[place] + before[place] + after[place] - spans[place]
        if room < 0:
            raise WorkloadError(
                f"{operator}: output is empty along {name}: input {inputs[place]} + padding "
                f"{before[place] + after[place]} is below the kernel's span {spans[place]}; "
                f"expected {name} >= {spans[place] - before[place] - after[place]} or more padding"
            )
        windows.append(
            Window(
                _AXIS_NAMES[count][place],
                inputs[place],
                taps[place],
                strides[place],
                dilations[place],
                before[place],
                after[place],
                room // strides[place] + 1,
            )
        )
    return WindowSet(tuple(windows), strides, before if before == after else before + after, dilations)
