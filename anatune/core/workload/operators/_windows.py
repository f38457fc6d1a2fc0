"""Sliding windows: the common part of convolutions and pooling in any number of dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from anatune.arguments import quote
from anatune.core.workload.nest import Axis, Term
from anatune.core.workload.operators._arguments import check_extent, check_integer
from anatune.core.workload.operators._product import Dimension
from anatune.core.workload.orders import CHANNELS_FIRST, CHANNELS_LAST, Order, layout_word, parse_order
from anatune.errors import WorkloadError

INPUT_NAMES = {1: ("w",), 2: ("h", "w"), 3: ("d", "h", "w")}
KERNEL_NAMES = {1: ("s",), 2: ("r", "s"), 3: ("t", "r", "s")}
"""Number of window dimensions -> names of the constructors' arguments, slowest dimension first."""
_AXIS_NAMES = {"d": "z", "h": "y", "w": "x"}


class Window(NamedTuple):
    """A window dimension: sizes of input, kernel, stride, dilation, padding before and after, and output, elements."""

    name: str
    size: int
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int
    output: int

    @property
    def axis(self) -> str:
        """Name of the loop over output positions; the loop over the window has an r before it."""
        return _AXIS_NAMES[self.name]

    @property
    def span(self) -> int:
        """Number of elements from the window's first to its last."""
        return (self.kernel - 1) * self.dilation + 1


class WindowSet(NamedTuple):
    """All window dimensions of an operator, slowest first, and the arguments that its `attributes` store."""

    windows: tuple[Window, ...]
    attributes: dict[str, int | tuple[int, ...]]

    @property
    def outer_axes(self) -> tuple[Axis, ...]:
        """The spatial axes over output positions."""
        return tuple(Axis(window.axis, window.output, "spatial") for window in self.windows)

    @property
    def kernel_axes(self) -> tuple[Axis, ...]:
        """The reduction axes over kernel positions."""
        return tuple(Axis(f"r{window.axis}", window.kernel, "reduction") for window in self.windows)

    @property
    def positions(self) -> list[Dimension]:
        """The input's dimensions: ``axis * stride + raxis * dilation``, less the padding."""
        return [
            (window.size, (Term(window.axis, window.stride), Term(f"r{window.axis}", window.dilation)), -window.before)
            for window in self.windows
        ]

    @property
    def taps(self) -> list[Dimension]:
        """The weight's dimensions."""
        return [(window.kernel, (Term(f"r{window.axis}"),), 0) for window in self.windows]

    @property
    def outputs(self) -> list[Dimension]:
        """The result's dimensions."""
        return [(window.output, (Term(window.axis),), 0) for window in self.windows]


def order_dimensions(order: Order, channels: Sequence[Dimension], positions: Sequence[Dimension]) -> list[Dimension]:
    """Return the dimensions in memory order: channels after or before the positions, or (in blocks) on both sides."""
    if order.is_last:
        return [*positions, *channels]
    return [channels[0], *positions, *channels[1:]]


def check_order(operator: str, layout: object, num_dimensions: int) -> tuple[Order, str]:
    """Return the common order of data and result, without blocks, and its name for `num_dimensions`.

    The words NCHW and NHWC are accepted for any number of dimensions.

    Raises
    ------
    WorkloadError
        The layout is unknown.
    """
    order = parse_order(layout, num_dimensions)
    if order is None or order.block:
        first, last = (known.word(num_dimensions) for known in (CHANNELS_FIRST, CHANNELS_LAST))
        raise WorkloadError(
            f"{operator}: layout is {quote(layout)}, expected {first} (channels first) or {last} (channels last); "
            "choose one of them"
        )
    return order, order.word(num_dimensions)


def check_orders(operator: str, layout: object, num_dimensions: int) -> tuple[Order, Order, str]:
    """Return the orders of data and result, and the name of the layout for `num_dimensions`.

    Raises
    ------
    WorkloadError
        The layout is unknown.
    """
    words = layout.split(":") if isinstance(layout, str) else [None]
    orders = [order for word in words if (order := parse_order(word, num_dimensions)) is not None]
    if len(orders) < len(words) or len(words) > 2:
        first, last = (known.word(num_dimensions) for known in (CHANNELS_FIRST, CHANNELS_LAST))
        raise WorkloadError(
            f"{operator}: layout is {quote(layout)}, expected {first} (channels first), {last} (channels last) or "
            f"{first}16c (blocks of 16 channels), or data:result ({last}:{first}16c); choose one of them"
        )
    data, result = orders[0], orders[-1]
    return data, result, layout_word(data, result, num_dimensions)


def _per_dimension(operator: str, name: str, value: object, count: int, minimum: int) -> tuple[int, ...]:
    """Return one integer for each window dimension, from an int or a sequence of `count`."""
    step = f"give one integer or {count}"
    if isinstance(value, (tuple, list)):
        if len(value) != count:
            raise WorkloadError(f"{operator}: {name} is {quote(value)}, expected {count} integers >= {minimum}; {step}")
        return tuple(check_integer(operator, name, item, minimum, step) for item in value)
    return (check_integer(operator, name, value, minimum, step),) * count


def _paddings(
    operator: str, value: object, sizes: tuple[int, ...], spans: tuple[int, ...], strides: tuple[int, ...]
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
            f"{operator}: padding is {quote(value)}, expected SAME, VALID or integers >= 0; write for example 1"
        )
    if isinstance(value, (tuple, list)) and len(value) == 2 * count:
        numbers = _per_dimension(operator, "padding", value, 2 * count, 0)
        return numbers[:count], numbers[count:]
    both = _per_dimension(operator, "padding", value, count, 0)
    return both, both


def check_windows(operator: str, arguments: Mapping[str, object]) -> WindowSet:
    """Return the window dimensions with their output sizes.

    Parameters
    ----------
    operator : str
        Name for messages.
    arguments : mapping of str to object
        Arguments of the constructor; read here are the input and kernel sizes in elements (`INPUT_NAMES`,
        `KERNEL_NAMES`); stride and dilation, the steps (>= 1) between windows and between the elements of one window,
        an int or one for each dimension; and padding, the zeros on both sides: an int >= 0, one for each dimension, a
        sequence of twice that length (all before, then all after), "VALID" (none), or "SAME", which keeps
        ``ceil(size / stride)`` outputs and puts an odd zero after.

    Raises
    ------
    WorkloadError
        An argument is out of range, or no window fits.
    """
    names = [name for name in _AXIS_NAMES if name in arguments]
    count = len(names)
    inputs = tuple(check_extent(operator, name, arguments[name]) for name in names)
    taps = tuple(check_extent(operator, name, arguments[name]) for name in KERNEL_NAMES[count])
    strides = _per_dimension(operator, "stride", arguments["stride"], count, 1)
    dilations = _per_dimension(operator, "dilation", arguments["dilation"], count, 1)
    spans = tuple((tap - 1) * step + 1 for tap, step in zip(taps, dilations, strict=True))
    before, after = _paddings(operator, arguments["padding"], inputs, spans, strides)
    windows = []
    for index, name in enumerate(names):
        space = inputs[index] + before[index] + after[index] - spans[index]
        if space < 0:
            raise WorkloadError(
                f"{operator}: output is empty along {name}: input {inputs[index]} + padding "
                f"{before[index] + after[index]} is below the kernel's span {spans[index]}; "
                f"expected {name} >= {spans[index] - before[index] - after[index]} or more padding"
            )
        output = space // strides[index] + 1
        sizes = (inputs[index], taps[index], strides[index], dilations[index], before[index], after[index], output)
        windows.append(Window(name, *sizes))
    return WindowSet(
        tuple(windows),
        {
            **dict(zip((*names, *KERNEL_NAMES[count]), (*inputs, *taps), strict=True)),
            "stride": strides,
            "padding": before if before == after else before + after,
            "dilation": dilations,
        },
    )
