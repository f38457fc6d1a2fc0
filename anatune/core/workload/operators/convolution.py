"""Constructors of convolutions in one to three dimensions, grouped and depthwise.

If channels lie in blocks, two axes count them: ``g``, ``f`` and ``rc`` count the blocks, ``gi``, ``fi`` and ``rci`` the
channels of a block. The blocks of a depthwise convolution are blocks of groups, those of others are blocks of the
channels of one group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from anatune.core.workload.nest import Axis, Term, Workload
from anatune.core.workload.operators._arguments import check_extent
from anatune.core.workload.operators._product import Dimension, make_product
from anatune.core.workload.operators._windows import check_orders, check_windows, order_dimensions
from anatune.core.workload.orders import Order
from anatune.errors import WorkloadError


class Channels(NamedTuple):
    """The channels of a convolution, and their order in memory.

    Attributes
    ----------
    groups, inner, outer : int
        Number of groups, and of input and output channels in each.
    data, result : Order
        Orders of the data and the result.
    """

    groups: int
    inner: int
    outer: int
    data: Order
    result: Order

    def check(self, operator: str, layout: str) -> None:
        """Raise unless the blocks divide the channels.

        Raises
        ------
        WorkloadError
            A block does not divide its channels, or data and result have different blocks where one axis serves both.
        """
        if self._is_depthwise:
            blocks = {order.block for order in (self.data, self.result) if order.block}
            problem = len(blocks) > 1 or any(self.groups % block for block in blocks)
        else:
            pairs = ((self.inner, self.data.block), (self.outer, self.result.block))
            problem = any(block and size % block for size, block in pairs)
        if problem:
            raise WorkloadError(
                f"{operator}: layout {layout} with {self.inner} input and {self.outer} output channels in each of "
                f"{self.groups} group(s), expected blocks that divide the channels; choose another block"
            )

    @property
    def _is_depthwise(self) -> bool:
        return self.groups > 1 and self.inner == self.outer == 1

    @property
    def _group_block(self) -> int:
        return max(self.data.block, self.result.block) if self._is_depthwise else 0

    def axes(self, name: str, kind: Literal["spatial", "reduction"]) -> tuple[Axis, ...]:
        """Return the axis "g", "f" or "rc", followed by the axis inside its blocks if it has some."""
        extent, block = {
            "g": (self.groups, self._group_block),
            "f": (self.outer, 0 if self._is_depthwise else self.result.block),
            "rc": (self.inner, 0 if self._is_depthwise else self.data.block),
        }[name]
        if not block:
            return (Axis(name, extent, kind),)
        return Axis(name, extent // block, kind), Axis(f"{name}i", block, kind)

    def data_dimensions(self, positions: Sequence[Dimension]) -> list[Dimension]:
        """Return the data's dimensions after the batch."""
        return order_dimensions(self.data, self._dimensions("rc", self.inner, self.data), positions)

    def result_dimensions(self, positions: Sequence[Dimension]) -> list[Dimension]:
        """Return the result's dimensions after the batch."""
        return order_dimensions(self.result, self._dimensions("f", self.outer, self.result), positions)

    def channel_positions(self, rank: int) -> tuple[int, ...]:
        """Return the numbers of the channel dimensions of a result with `rank` dimensions."""
        if self.result.is_last:
            return (rank - 1,)
        return (1, rank - 1) if self.result.block else (1,)

    def weight_dimensions(self, taps: Sequence[Dimension]) -> list[Dimension]:
        """Return the weight's dimensions in the result's order, with blocks of the result's channels innermost.

        NCHW: [k, c, ...]; NHWC: [..., c, k]; NCHW16c: [k / 16, c / 16, ..., 16, 16] (TVM's OIHW16i16o).
        """
        produced = self._dimensions("f", self.outer, self.result)
        if self._is_depthwise:
            reduced: list[Dimension] = [(1, (Term("rc"),), 0)]
        else:
            reduced = _blocks("rc", self.inner, self.data.block)
        if self.result.is_last:
            return [*taps, *reduced, *produced]
        return [produced[0], reduced[0], *taps, *reduced[1:], *produced[1:]]

    def _dimensions(self, name: str, each: int, order: Order) -> list[Dimension]:
        """Return the dimension of the channels `name`, `each` in a group, or two dimensions if they have blocks."""
        if self.groups == 1:
            return _blocks(name, each, order.block)
        if not self._is_depthwise:
            (size, terms, offset), *inside = _blocks(name, each, order.block)
            return [(self.groups * size, (Term("g", size), *terms), offset), *inside]
        block = self._group_block
        if not block:
            return [(self.groups, (Term("g"), Term(name)), 0)]
        if not order.block:
            return [(self.groups, (Term("g", block), Term("gi"), Term(name)), 0)]
        return [(self.groups // block, (Term("g"),), 0), (block, (Term("gi"), Term(name)), 0)]


def _blocks(name: str, size: int, block: int) -> list[Dimension]:
    if not block:
        return [(size, (Term(name),), 0)]
    return [(size // block, (Term(name),), 0), (block, (Term(f"{name}i"),), 0)]


Padding = int | Sequence[int] | str


def _make_convolution(operator: str, arguments: Mapping[str, object]) -> Workload:
    """Return the convolution for the unchecked arguments of its constructor."""
    sizes = {
        name: check_extent(operator, name, arguments[name])
        for name in ("n", "c", "k", "groups", "multiplier")
        if name in arguments
    }
    channels = sizes["c"]
    filters = sizes["k"] if "k" in sizes else channels * sizes["multiplier"]
    groups = sizes.get("groups", channels)
    for name, size in (("c", channels), ("k", filters)):
        if size % groups:
            raise WorkloadError(
                f"{operator}: {name} is {size} with groups {groups}, expected a multiple of groups; "
                f"change {name} or groups"
            )
    shape = check_windows(operator, arguments)
    source, target, layout = check_orders(operator, arguments["layout"], len(shape.windows))
    channel_set = Channels(groups, channels // groups, filters // groups, source, target)
    channel_set.check(operator, layout)
    images: Dimension = (sizes["n"], (Term("n"),), 0)
    axes = (
        Axis("n", sizes["n"], "spatial"),
        *(channel_set.axes("g", "spatial") if groups > 1 else ()),
        *channel_set.axes("f", "spatial"),
        *shape.outer_axes,
        *channel_set.axes("rc", "reduction"),
        *shape.kernel_axes,
    )
    tensors = {
        "data": [images, *channel_set.data_dimensions(shape.positions)],
        "weight": channel_set.weight_dimensions(shape.taps),
        "output": [images, *channel_set.result_dimensions(shape.outputs)],
    }
    along = channel_set.channel_positions(len(tensors["output"]))
    return make_product(operator, arguments, axes, tensors, along, {**sizes, **shape.attributes, "layout": layout})


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
    input_zero_point: int = 0,
    output_zero_point: int = 0,
) -> Workload:
    """Return a two-dimensional convolution with the axes n, f, y, x, rc, ry, rx.

    With more than one group a spatial axis g follows n; f and rc then count the channels of one group.

    Parameters
    ----------
    n, c, h, w : int, >= 1
        Number of images, number of input channels, input height and width.
    k, r, s : int, >= 1
        Number of output channels, kernel height and width.
    stride, dilation : int or (y, x), >= 1
        Steps between windows, and between the elements of a window, in elements.
    padding : int, (y, x), (top, left, bottom, right), "SAME" or "VALID"
        Zeros around the input. "SAME" gives ``ceil(size / stride)`` outputs and puts an odd zero at the bottom and
        right.
    groups : int, >= 1
        Number of independent groups of channels; it divides `c` and `k`.
    layout : {"NCHW", "NHWC", "NCHW16c", ...}, or two of them for data and result ("NHWC:NCHW16c")
        NCHW: data [n, c, h, w], weight [k, c/groups, r, s], output [n, k, y, x].
        NHWC: data [n, h, w, c], weight [r, s, c/groups, k], output [n, y, x, k].
        NCHW16c, with blocks of any length: data [n, c/16, h, w, 16], weight [k/16, c/groups/16, r, s, 16, 16], output
        [n, k/16, y, x, 16]; the axes fi and rci (depthwise: gi) count the channels of a block.
    dtype : {"float32", "float16", "bfloat16", "int8", "float8_e4m3fn", "uint8xint8", "bfloat16xint8", ...}
        Dtype of data and weight, or of data x weight. By default the output has the data's dtype, int32 for 8-bit
        integers, bfloat16 for 8-bit floats; another dtype follows a colon, as in `matmul`.
    epilogue : sequence of {"bias", "relu", "relu6", "silu", "gelu", "gelu_tanh", "add", "scale", "requantize"}
        Steps that are fused behind the sum, in order, each at most once. The bias and the float32 factors of "scale"
        (for 8-bit operands) and "requantize" (the last step: to 8 bits) have one element for each output channel;
        `anatune.core.workload.number_formats` defines all steps.
    input_zero_point, output_zero_point : int
        The stored number that means zero, for 8-bit data (also used in the padding) and for a requantised output
        (ONNX's ``x_zero_point``, ``y_zero_point``).

    Raises
    ------
    WorkloadError
        An argument is out of range, or the output would be empty.

    Examples
    --------
    >>> conv2d(n=1, c=64, h=56, w=56, k=64, r=3, s=3, stride=1, padding=1).extents
    {'n': 1, 'f': 64, 'y': 56, 'x': 56, 'rc': 64, 'ry': 3, 'rx': 3}
    """
    return _make_convolution("conv2d", locals())


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
    input_zero_point: int = 0,
    output_zero_point: int = 0,
) -> Workload:
    """Return a one-dimensional convolution with the axes n, f, x, rc, rx.

    Parameters are those of `conv2d` without the height; `layout` is NCW (data [n, c, w], weight [k, c/groups, s]) or
    NWC (data [n, w, c], weight [s, c/groups, k]). NCHW and NHWC are accepted as other names of these two; blocks are
    written NCW16c.

    Raises
    ------
    WorkloadError
        An argument is out of range, or the output would be empty.
    """
    return _make_convolution("conv1d", locals())


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
    input_zero_point: int = 0,
    output_zero_point: int = 0,
) -> Workload:
    """Return a three-dimensional convolution with the axes n, f, z, y, x, rc, rz, ry, rx.

    Parameters are those of `conv2d`, with the input depth `d` and the kernel depth `t` in front; `layout` is NCDHW
    (data [n, c, d, h, w], weight [k, c/groups, t, r, s]) or NDHWC (data [n, d, h, w, c], weight [t, r, s, c/groups,
    k]). NCHW and NHWC are accepted as other names of these two; blocks are written NCDHW16c.

    Raises
    ------
    WorkloadError
        An argument is out of range, or the output would be empty.
    """
    return _make_convolution("conv3d", locals())


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
    input_zero_point: int = 0,
    output_zero_point: int = 0,
) -> Workload:
    """Return a convolution of every channel with its own kernels: `conv2d` with ``groups = c``.

    The axes are n, g (channels), f (`multiplier`), y, x, rc (1), ry, rx; without g when `c` is 1.

    Parameters
    ----------
    n, c, h, w, r, s, stride, padding, dilation, layout, dtype, epilogue, input_zero_point, output_zero_point
        As in `conv2d`; the weight is [c * multiplier, 1, r, s] (NCHW) or [r, s, 1, c * multiplier] (NHWC).
    multiplier : int, >= 1
        Number of output channels for each input channel.

    Raises
    ------
    WorkloadError
        An argument is out of range, or the output would be empty.
    """
    return _make_convolution("depthwise_conv2d", locals())
