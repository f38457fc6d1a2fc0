"""Detection of a 3x3 convolution of stride 1 in a workload: the role of each axis and dimension.

Everything here follows from the accesses, never from the name of the operator.

Notation
--------
n, f, y, x : image, output channel, output row and column. c, ry, rx : input channel, row and column of the window.
pitch : elements from one position of a dimension to the next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from anatune.core.workload.access import INTEGER_RANGE
from anatune.core.workload.nest import Access, Term, Workload
from anatune.core.workload.number_formats import BYTE_DTYPES
from anatune.errors import SpaceError

__all__ = ["WINDOW", "Convolution3x3", "convolution3x3"]

WINDOW = 3
"""Rows and columns of the window."""
_MOST_SUM = 2**31
"""Limit of the sums. Sums of 8-bit operands are computed modulo 2**32, times 4 (see `winograd.minimal_filtering`)."""
_PARTS = ("n", "f", "y", "x", "c", "ry", "rx")


@dataclass(frozen=True)
class Convolution3x3:
    """A convolution ``output[n, f, y, x] += data[n, c, y + ry - top, x + rx - left] * weight[f, c, ry, rx]``.

    Attributes
    ----------
    batch, filters, rows, columns, channels : int
        Extents of n, f, y, x and c.
    height, width : int
        Size of the input, without padding.
    top, left : int
        Rows of zeros above the input, and columns of zeros left of it.
    zero_point : int
        Stored number that means zero in data of 8 bits.
    is_integer : bool
        True if operands have 8 bits.
    data, weight, output : mapping of str to int
        Pitch of each index: "n", "c", "y", "x" of the data; "f", "c", "ry", "rx" of the weight; "n", "f", "y", "x" of
        the output.
    """

    batch: int
    filters: int
    rows: int
    columns: int
    channels: int
    height: int
    width: int
    top: int
    left: int
    zero_point: int
    is_integer: bool
    data: Mapping[str, int]
    weight: Mapping[str, int]
    output: Mapping[str, int]

    @property
    def channels_last(self) -> bool:
        """True if channels are neighbours in the memory of the data (else columns are)."""
        return self.data["c"] == 1

    @property
    def filters_last(self) -> bool:
        """True if output channels are neighbours in the memory of the output (else columns are)."""
        return self.output["f"] == 1

    @property
    def group(self) -> int:
        """Input channels whose products one instruction sums: 2 for transformed integers (16 bits), else 1."""
        return 2 if self.is_integer else 1

    @property
    def transformed(self) -> str:
        """Dtype of transformed data and weights."""
        return "int16" if self.is_integer else "float32"

    @property
    def summed(self) -> str:
        """Dtype of the sums of their products."""
        return "int32" if self.is_integer else "float32"

    def num_tiles(self, size: int) -> int:
        """Return the number of output tiles of `size` x `size` that cover all images, the last ones partly."""
        return self.batch * math.ceil(self.rows / size) * math.ceil(self.columns / size)


@lru_cache(maxsize=64)  # checks of a list of schedules call this for each of them
def convolution3x3(workload: Workload) -> Convolution3x3:
    """Return the convolution that a workload computes.

    Raises
    ------
    SpaceError
        The workload is not a convolution with a 3x3 window, stride 1, dilation 1 and one group, in float32 or 8 bits,
        or its tensors have another layout.
    """
    reads, write, extents = workload.reads, workload.write, workload.extents
    if workload.body != "multiply_add" or len(reads) != 2 or len(workload.axes) != len(_PARTS):
        raise _refusal(workload, f"its nest has {len(workload.axes)} loops and {len(reads)} operands")
    data, weight = reads
    is_integer = data.dtype in BYTE_DTYPES and weight.dtype in BYTE_DTYPES and not weight.zero_point
    if not is_integer and any(access.dtype != "float32" for access in workload.tensors):
        raise _refusal(workload, f"its dtypes are {', '.join(sorted(workload.dtypes))}")
    reduced = {axis.name for axis in workload.reduction_axes}
    windows = [terms for terms in data.indices if len(terms) == 2]
    if len(windows) != 2 or any(
        term.coefficient != 1 for access in workload.tensors for t in access.indices for term in t
    ):
        raise _refusal(workload, "its stride or dilation is not 1")
    if not all(len({term.axis for term in terms} & reduced) == 1 for terms in windows):
        raise _refusal(workload, "its input index is not output index plus tap")
    part: dict[str, str] = {}
    for name, terms in zip("yx", windows, strict=True):
        for term in terms:
            part[term.axis] = f"r{name}" if term.axis in reduced else name
    for axis in extents:
        if axis not in part:
            uses = (data.uses(axis), weight.uses(axis), write.uses(axis))
            part[axis] = {(True, False, True): "n", (False, True, True): "f", (True, True, False): "c"}.get(uses, "")
    if sorted(part.values()) != sorted(_PARTS):
        raise _refusal(workload, "an axis is not an image, channel, position or tap")
    extent = {part[axis]: size for axis, size in extents.items()}
    if (extent["ry"], extent["rx"]) != (WINDOW, WINDOW):
        raise _refusal(workload, f"its window is {extent['ry']}x{extent['rx']}")
    axis_of = {name: axis for axis, name in part.items()}
    row, column = (_dimension(data, axis_of[name]) for name in "yx")
    pitches = [_pitches(access, part) for access in (data, weight, write)]
    convolution = Convolution3x3(
        batch=extent["n"],
        filters=extent["f"],
        rows=extent["y"],
        columns=extent["x"],
        channels=extent["c"],
        height=data.shape[row],
        width=data.shape[column],
        top=-data.offsets[row],
        left=-data.offsets[column],
        zero_point=data.zero_point,
        is_integer=is_integer,
        data=pitches[0],
        weight=pitches[1],
        output=pitches[2],
    )
    if any(any(access.offsets) for access in (weight, write)) or convolution.top < 0 or convolution.left < 0:
        raise _refusal(workload, "it reads or writes parts of tensors")
    if 1 not in (convolution.data["c"], convolution.data["x"]) or 1 not in (
        convolution.output["f"],
        convolution.output["x"],
    ):
        raise _refusal(workload, "neither channels nor columns are neighbours in memory")
    if is_integer:
        if not (convolution.channels_last and convolution.filters_last):
            raise _refusal(workload, "its channels of 8 bits are not neighbours in memory")
        most = [max(abs(end - access.zero_point) for end in INTEGER_RANGE[access.dtype]) for access in reads]
        if 4 * math.prod(most) * WINDOW**2 * convolution.channels >= _MOST_SUM:
            raise _refusal(workload, f"four times its sums over {convolution.channels} channels do not fit int32")
    return convolution


def _dimension(access: Access, axis: str) -> int:
    """Return the dimension that an axis indexes."""
    return next(d for d, terms in enumerate(access.indices) if any(term.axis == axis for term in terms))


def _pitches(access: Access, part: Mapping[str, str]) -> dict[str, int]:
    """Return the pitch of each index of a tensor; taps have the pitch of positions."""
    pitches, pitch = {}, 1
    for terms, size in zip(reversed(access.indices), reversed(access.shape), strict=True):
        pitches.update({part[term.axis]: pitch for term in terms if isinstance(term, Term)})
        pitch *= size
    return pitches


def _refusal(workload: Workload, why: str) -> SpaceError:
    return SpaceError(
        f"{workload.operator}: {why}, expected a convolution of a 3x3 window, stride 1, dilation 1 and one group, "
        "float32 in NCHW or NHWC, or 8 bits in NHWC; leave out the template winograd"
    )
