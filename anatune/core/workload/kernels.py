"""Bodies of several statements: operators of language models between and around their products.

Axes and accesses say what is read and written where, as for any nest. The computation itself is known only by its name;
only templates that know the name have code for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from anatune.core.workload.access import FLOAT8_DTYPES, Access, Term
from anatune.core.workload.visible import attention_iterations, attention_read_bytes
from anatune.errors import WorkloadError

_FLOATS = ("float32", "float16", "bfloat16")
EPSILON = 1e-5
"""Number that normalisations add to a mean of squares. Source: PyTorch's LayerNorm and Llama's RMSNorm."""
LARGEST = {
    "int8": 127.0,
    "float8_e4m3fn": 448.0,
    "float8_e5m2": 57344.0,
    "float8_e4m3fnuz": 240.0,
    "float8_e5m2fnuz": 57344.0,
}
"""Dtype that results are quantised to -> its largest number. Source: Micikevicius et al., FP8 Formats for Deep
Learning, 2022; AMD CDNA 3 ISA (fnuz); int8 is used symmetrically."""
_HALVES = ("float16", "bfloat16")
_SMALL = (*_HALVES, *FLOAT8_DTYPES)
_STORED = (*_SMALL, "int8", "uint8")
_SCALE = ("float32", *_STORED, "int32")


class KernelBody(NamedTuple):
    """A body of several statements.

    Attributes
    ----------
    reduces : bool
        Whether the body has reduction axes.
    operands : tuple of tuple of str
        Allowed dtypes of each operand, in order; operands from number `least` on may be missing.
    least : int
        Smallest number of operands.
    results : tuple of str
        Allowed dtypes of the result.
    iterations : callable, optional
        ``(extents, attributes) -> int``: number of iterations that are computed, if they are fewer than the nest's.
    read_bytes : callable, optional
        ``(reads, extents, attributes) -> int``: bytes of operands that have to be read once, if accesses do not tell.
    further : callable, optional
        ``(write, extents) -> accesses``: results in addition to the nest's own.
    multiplies : bool
        Whether matrix units, if the device has them, multiply its operands.
    exact : bool
        Whether operands of 8 and fewer bits are multiplied without rounding.
    """

    reduces: bool
    operands: tuple[tuple[str, ...], ...]
    least: int
    results: tuple[str, ...]
    iterations: Callable[[Mapping[str, int], Mapping[str, object]], int] | None = None
    read_bytes: Callable[[Sequence[Access], Mapping[str, int], Mapping[str, object]], int] | None = None
    further: Callable[[Access, Mapping[str, int]], tuple[Access, ...]] | None = None
    multiplies: bool = False
    exact: bool = False

    @property
    def forms(self) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        """Least and largest number of operands (with a reduction, without one); None: there is no such form."""
        count = (self.least, len(self.operands))
        return (count, None) if self.reduces else (None, count)


def _results(extents: Mapping[str, int], attributes: Mapping[str, object]) -> int:
    """Return the iterations of a body that makes one result from two elements."""
    return math.prod(extents.values()) // 2


def _scales(write: Access, extents: Mapping[str, int]) -> tuple[Access, ...]:
    """Return the access of the scales of a quantised result, one for each row or group along the last axis."""
    *_, (last, run) = extents.items()
    shape, indices = [], []
    for size, terms in zip(write.shape, write.indices, strict=True):
        moves = any(term.axis == last for term in terms)
        kept = tuple(Term(t.axis, t.coefficient // run if moves else t.coefficient) for t in terms if t.axis != last)
        if kept:
            shape.append(size // run if moves else size)
            indices.append(kept)
    return (Access("scales", "float32", tuple(shape), tuple(indices), (0,) * len(shape)),)


def _sum(write: Access, extents: Mapping[str, int]) -> tuple[Access, ...]:
    """Return the access of the sum of a row and its residual, which is the residual of the next layer."""
    return (msgspec.structs.replace(write, tensor="sum"),)


def _experts_bytes(reads: Sequence[Access], extents: Mapping[str, int], attributes: Mapping[str, object]) -> int:
    """Return the bytes of the operands, with the weights of only those experts that have rows."""
    from anatune.core.workload.routing import parse_routing

    sizes = [attributes[name] for name in ("tokens", "experts", "top_k")]
    active = parse_routing(attributes["routing"], *sizes).num_active  # type: ignore[arg-type]
    share = active / attributes["experts"]  # type: ignore[operator]
    return sum(
        math.floor(read.num_bytes * (share if read.tensor.startswith("weight") else 1.0) + 0.5) for read in reads
    )


def _all_bytes(reads: Sequence[Access], extents: Mapping[str, int], attributes: Mapping[str, object]) -> int:
    """Return the bytes of all operands."""
    return sum(read.num_bytes for read in reads)


KERNELS: dict[str, KernelBody] = {
    "softmax": KernelBody(False, (_FLOATS,), 1, _FLOATS),
    "layer_norm": KernelBody(False, (_FLOATS,) * 3, 3, _FLOATS),
    "rms_norm": KernelBody(False, (_FLOATS,) * 2, 2, _FLOATS),
    "add_rms_norm": KernelBody(False, (_FLOATS,) * 3, 3, _FLOATS, further=_sum),
    "silu_multiply": KernelBody(True, (_FLOATS,), 1, _FLOATS, iterations=_results),
    "rotary": KernelBody(True, (_FLOATS,) * 3, 3, _FLOATS, iterations=_results),
    "quantise_tensor": KernelBody(False, (_FLOATS, ("float32",)), 2, tuple(LARGEST)),
    "quantise_rows": KernelBody(False, (_FLOATS,), 1, tuple(LARGEST), further=_scales),
    "attention": KernelBody(
        True,
        (_SMALL, _SMALL, _SMALL, ("int32",), ("int32",)),
        3,
        _HALVES,
        attention_iterations,
        attention_read_bytes,
        multiplies=True,
    ),
    "scaled_matmul": KernelBody(
        True,
        (("float32", *_STORED), _STORED, *(_SCALE,) * 3),
        3,
        ("float32", *_HALVES),
        read_bytes=_all_bytes,
        multiplies=True,
        exact=True,
    ),
    "grouped_matmul": KernelBody(
        True, (_STORED, _STORED, *(_SCALE,) * 5), 4, _HALVES, read_bytes=_experts_bytes, multiplies=True, exact=True
    ),
}
"""Body -> its operands and results. Bodies over the last axis: "softmax", exp(x - largest) over their sum; "layer_norm"
and "rms_norm" with their weights (and bias); "add_rms_norm" of the sum with a residual; "quantise_rows", x over scales
= largest |x| over the largest number of the result's dtype; "quantise_tensor", the same with a given scale. Bodies over
a reduction axis of 2: "silu_multiply", silu of the first element times the second; "rotary", the pair rotated by an
angle.
"attention": see `operators.attention`; queries, keys, values and perhaps a block table. "scaled_matmul" and
"grouped_matmul": see `operators.scaled`; data, weights, their scales, and for experts the order of rows."""


def check_kernel_dtypes(operator: str, body: str, reads: Sequence[Access], write: Access) -> None:
    """Raise unless operands and result have dtypes that a body of `KERNELS` takes.

    Raises
    ------
    WorkloadError
        A tensor has another dtype, or a zero point; the message names the tensor.
    """
    kernel = KERNELS[body]
    for access, dtypes in (*zip(reads, kernel.operands, strict=False), (write, kernel.results)):
        if access.dtype not in dtypes:
            raise WorkloadError(
                f"{operator}: {access.tensor!r} is {access.dtype}, expected one of {', '.join(dtypes)} for {body}"
            )
        if access.zero_point:
            raise WorkloadError(f"{operator}: {access.tensor!r} has a zero point, expected none; leave it out")
