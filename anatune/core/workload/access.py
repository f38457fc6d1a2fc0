"""Axes and tensor accesses: the parts of a workload's loop nest.

Notation
--------
axis : a loop, spatial (it indexes the output) or reduction (it is summed over).
access : one tensor and, for each of its dimensions, an affine index ``sum(coefficient * axis) + offset``.
tile : axis name -> number of consecutive iterations; a missing axis counts as 1.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from anatune.arguments import quote
from anatune.errors import WorkloadError

FLOAT8_DTYPES = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
"""8-bit floats, by the names that ml_dtypes, PyTorch and TVM use; only operands of products have them. The name
contains the exponent and mantissa bits; fn: no infinities; uz: no negative zero, and an exponent bias larger by one.
Source: [FP8] (the first two), [Graphcore-FP8] (the others, which AMD's gfx942 has)."""

DTYPE_BYTES: dict[str, int] = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "int32": 4,
    **dict.fromkeys(FLOAT8_DTYPES, 1),
}
"""Dtype of a tensor -> bytes of an element. int32 occurs only as the result of 8-bit products, int16 only in copies
that kernels make of 8-bit operands."""

ACCUMULATOR_DTYPE: dict[str, str] = {
    "float32": "float32",
    "float16": "float32",
    "bfloat16": "float32",
    "int8": "int32",
    "uint8": "int32",
    **dict.fromkeys(FLOAT8_DTYPES, "float32"),
}
"""Dtype of a product's first operand -> dtype in which its sums are kept."""

INTEGER_RANGE = {"int8": (-128, 127), "uint8": (0, 255), "int32": (-(2**31), 2**31 - 1)}
"""Lowest and highest value of each integer dtype."""

_MAX_MARKS = 1 << 24
"""Largest dimension whose positions are marked one by one to count strided reads."""


MAX_INTEGER = 2**31 - 1
"""Largest extent, coefficient and offset, because indices of generated code have 32 bits."""


def is_integer(value: object, least: int) -> bool:
    """Return whether `value` is an integer (not a bool) from `least` to `MAX_INTEGER`."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MAX_INTEGER


_WORDS = """
    auto break case char const continue default do double else enum extern float for goto half if inline int long
    register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while
    T acc annotations bool bx chunk extra inside it lane main mi ni range scope smem source_code step thread tx value
    word
"""
_RESERVED = frozenset([*keyword.kwlist, *_WORDS.split()])
"""Words of Python and C, and names that generated programs use."""
_INNER = re.compile(
    "[a-z][0-9]?|[a-z][0-9]?_.*|(frag|next|extent|reg_inner|reg_outer|rolled|stage|vthread|make|anatune)_.*|u?(float|int|short)[0-9]|.*_(argument|copy|sums)"
)
"""Names that generated programs give their loops and buffers."""


def check_name(what: str, name: object, *, is_tensor: bool) -> None:
    """Raise unless `name` can stand for an axis or a tensor in generated programs.

    Raises
    ------
    WorkloadError
        The name is no identifier, or generated programs use it for something else.
    """
    is_identifier = isinstance(name, str) and re.fullmatch("[A-Za-z][A-Za-z0-9_]{0,63}", name)
    if not is_identifier or (is_tensor and (name in _RESERVED or _INNER.fullmatch(str(name)))):
        raise WorkloadError(
            f"{what} is called {quote(name)}, expected a letter, then letters, digits and '_' (at most 64), and no "
            "word that generated code uses; call it for example data or A"
        )


class Axis(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A loop of the nest: its name, extent (iterations, >= 1) and kind."""

    name: str
    extent: int
    kind: Literal["spatial", "reduction"]

    def __post_init__(self) -> None:
        check_name("axis", self.name, is_tensor=False)
        if not is_integer(self.extent, 1):
            raise WorkloadError(
                f"axis {self.name!r}: extent is {quote(self.extent)}, expected an integer from 1 to {MAX_INTEGER}; "
                "give the real size"
            )
        if self.kind not in ("spatial", "reduction"):
            raise WorkloadError(f"axis {self.name!r}: kind is {quote(self.kind)}, expected spatial or reduction")


class Term(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A term of an affine index: ``coefficient * axis`` with a coefficient >= 1."""

    axis: str
    coefficient: int = 1

    def __post_init__(self) -> None:
        if not is_integer(self.coefficient, 1):
            raise WorkloadError(
                f"index term of axis {quote(self.axis)}: coefficient is {quote(self.coefficient)}, expected an integer "
                f"from 1 to {MAX_INTEGER}; leave out terms that do not move the index"
            )


class Access(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A tensor as the nest reads or writes it.

    ``shape`` is row-major (the last dimension is contiguous), in elements. ``indices`` holds the terms of each
    dimension, ``offsets`` the constant of each dimension (negative for padding). Reads outside ``shape`` give the
    neutral element of the body: zero for sums, the lowest value for "max".

    ``zero_point`` is the stored number that means zero (int8 and uint8 only): an element stands for
    ``stored - zero_point``, and reads outside ``shape`` give `zero_point`. JSON omits it if it is 0.
    """

    tensor: str
    dtype: str
    shape: tuple[int, ...]
    indices: tuple[tuple[Term, ...], ...]
    offsets: tuple[int, ...]
    zero_point: int = 0

    def __post_init__(self) -> None:
        check_name("tensor", self.tensor, is_tensor=True)
        label = f"tensor {self.tensor!r}"
        if self.dtype not in DTYPE_BYTES:
            raise WorkloadError(f"{label} has dtype {quote(self.dtype)}, expected one of {', '.join(DTYPE_BYTES)}")
        parts = (self.shape, self.indices, self.offsets, *(self.indices if isinstance(self.indices, tuple) else ()))
        if not all(isinstance(part, tuple) for part in parts):
            raise WorkloadError(
                f"{label}: shape, indices, each index and offsets are tuples; got {quote(self.indices)}"
            )
        if not len(self.shape) == len(self.indices) == len(self.offsets):
            raise WorkloadError(f"{label} has shape {self.shape}, expected one index and one offset per dimension")
        if not all(is_integer(extent, 1) for extent in self.shape) or self.num_elements >= 2**63:
            raise WorkloadError(
                f"{label} has shape {self.shape}, expected extents >= 1 (at most {MAX_INTEGER}, and fewer than 2**63 "
                "elements); give the real sizes"
            )
        if not all(is_integer(offset, -MAX_INTEGER) for offset in self.offsets):
            raise WorkloadError(f"{label} has offsets {quote(self.offsets)}, expected integers of up to {MAX_INTEGER}")
        if not all(isinstance(term, Term) for terms in self.indices for term in terms):
            raise WorkloadError(f"{label} has indices {quote(self.indices)}, expected a Term for each axis that moves")
        low, high = INTEGER_RANGE[self.dtype] if self.dtype in ("int8", "uint8") else (0, 0)
        if not is_integer(self.zero_point, low) or self.zero_point > high:
            raise WorkloadError(
                f"{label} of {self.dtype} has zero point {quote(self.zero_point)}, expected an integer from {low} to "
                f"{high}; leave it out for 0"
            )
        for terms in self.indices:
            axes = [term.axis for term in terms]
            if len(set(axes)) < len(axes):
                raise WorkloadError(f"{label}: one index has an axis of {axes} twice, expected one term for each")

    @property
    def num_elements(self) -> int:
        """Number of elements of the whole tensor."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.num_elements * DTYPE_BYTES[self.dtype]

    def uses(self, axis: str) -> bool:
        """Return whether any index of the access depends on `axis`."""
        for terms in self.indices:  # called a million times; generators would take three times as long
            for term in terms:
                if term.axis == axis:
                    return True
        return False

    def footprint(self, tile: Mapping[str, int]) -> int:
        """Return the number of elements of the bounding box that `tile` touches, padding included.

        Parameters
        ----------
        tile : mapping of str to int
            Axis -> consecutive iterations (>= 1); missing axes count as 1.
        """
        return math.prod(
            1 + sum(term.coefficient * (tile.get(term.axis, 1) - 1) for term in terms) for terms in self.indices
        )

    def touched_elements(self, extents: Mapping[str, int]) -> int:
        """Return the number of distinct elements of the tensor that the whole nest touches, without padding.

        A 1x1 convolution of stride 2, for example, touches a quarter of its data. The count is exact if no axis is in
        two dimensions and a strided dimension has at most 2**24 positions; otherwise it may be too low.

        Parameters
        ----------
        extents : mapping of str to int
            Axis -> iterations of the whole nest.
        """
        return math.prod(
            _touched_positions(size, [(term.coefficient, extents[term.axis]) for term in terms], offset)
            for size, terms, offset in zip(self.shape, self.indices, self.offsets, strict=True)
        )


def _touched_positions(size: int, terms: list[tuple[int, int]], offset: int) -> int:
    """Return how many positions in [0, size) equal ``offset + sum(coefficient * i)`` with i in [0, extent)."""
    moving = sorted((coefficient, extent) for coefficient, extent in terms if extent > 1)
    last = 0  # last position that is reached without a gap from 0
    for coefficient, extent in moving:
        if coefficient > last + 1:
            break
        last += coefficient * (extent - 1)
    else:
        return max(0, min(size - 1, offset + last) - max(0, offset) + 1)
    if len(moving) == 1 or size - offset > _MAX_MARKS:
        # The positions of one term alone are a lower bound.
        coefficient, extent = max(moving, key=lambda term: term[1])
        first = max(0, -(offset // coefficient)) if offset < 0 else 0
        final = min(extent - 1, (size - 1 - offset) // coefficient)
        return max(0, final - first + 1)
    marks = 1
    window = (1 << (size - offset)) - 1
    for coefficient, extent in moving:
        reached, done = marks, 1
        while done < extent and done * coefficient < size - offset:
            step = min(done, extent - done)
            reached |= (reached << (step * coefficient)) & window
            done += step
        marks = reached & window
    return (marks >> -offset if offset < 0 else marks << offset).bit_count()
