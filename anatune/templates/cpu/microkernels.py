"""What a CPU microkernel vectorises, and how many calls cover one dimension.

Everything here follows from access maps and extents, never from the operator's name.

SIMD axis
    Each axis gets a penalty, the smallest one wins (ties: the later axis). For every tensor that uses the axis:
    unit stride 0; unit stride inside a window (``x + rx``: unaligned loads) 0.5; strided by 2 or more inside the last
    dimension 1.5; another dimension: 0 for a constant operand (packed ahead; where it is packed in every run, the share
    of the run that this takes, at most 1), 0.3 for the result (transposed once per reduction), 1 for an operand that
    some spatial axis reuses (packing pays), 2 otherwise. Reduction axes pay 1.5 (several
    accumulators and a horizontal sum); unused lanes of the last vector pay their share.
    So: matmul j, dense convolutions f, depthwise NCHW x and NHWC g, pooling NCHW x, row sums the reduction.

Constant operand
    The last operand of two or more is a parameter that can be packed ahead of time if it is called "weight", or if
    no axis indexes every tensor (a batch axis makes both operands activations).

Calls of a segment
    A segment of ``s`` rows (or vectors) is covered by ``n`` calls of the microkernel. If n divides s they are equal,
    otherwise it is a pair of microkernels, ``s % n`` calls of ``s // n + 1`` and the rest of ``s // n`` (17 = 8 + 9,
    34 = 2*11 + 12 = 2*8 + 2*9). Source: [TACO22] Sec. 4.2 (lambda_seq); the balanced pair has the largest smallest
    kernel.

    Deviates: [TACO22] pairs any two kernels of a class, 34 = 8 + 2*13, too. Where good kernels have all rows from a
    least to a most number, the balanced pair of as many calls has no worse ones. Of 8 to 136 rows no other pair is
    predicted to gain more than 0.2 % (five CPUs); measured on images of 34x34 and 17x17 no other one is faster than
    the best balanced one (`bench.experiments.structured_space`). Schedules may have any pair, points of the space have
    balanced ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from anatune.core.workload.nest import ACCUMULATOR_DTYPE, DTYPE_BYTES, Access, Workload

__all__ = [
    "constant_tensors",
    "is_streamed",
    "packable_tensors",
    "pair_calls",
    "segment_shape",
    "simd_axis",
    "simd_lanes",
    "vector_stride",
    "window_axes",
]


_PACK_CYCLES = 2.0
"""Cycles that packing an element takes. Source: `cpu.model.pack.PACK_BYTES_PER_CYCLE`."""


def simd_lanes(workload: Workload, simd_bits: int) -> int:
    """Return the elements of one vector register, in the dtype that sums are kept in."""
    accumulator = ACCUMULATOR_DTYPE.get(workload.dtype, workload.dtype)
    return max(1, simd_bits // (8 * DTYPE_BYTES[accumulator]))


def constant_tensors(workload: Workload) -> tuple[str, ...]:
    """Return the operands that are known before the run (see the module's rule)."""
    if len(workload.reads) < 2 or not workload.reduction_axes:
        return ()
    last = workload.reads[-1]
    batched = any(
        axis.extent > 1 and all(access.uses(axis.name) for access in (*workload.reads, workload.write))
        for axis in workload.spatial_axes
    )
    return (last.tensor,) if last.tensor == "weight" or not batched else ()


@lru_cache(maxsize=64)  # a list of schedules is checked one by one
def window_axes(workload: Workload) -> tuple[str, ...]:
    """Return the reduction axes that only slide a window: they share an index with a spatial axis."""
    spatial = {axis.name for axis in workload.spatial_axes}
    return tuple(
        axis.name
        for axis in workload.reduction_axes
        if any(
            any(term.axis == axis.name for term in terms) and any(term.axis in spatial for term in terms)
            for access in workload.reads
            for terms in access.indices
        )
    )


def vector_stride(access: Access, axis: str) -> int:
    """Return the stride of consecutive iterations of `axis`, elements: 0 unused, 1 contiguous, -1 other dimensions."""
    if not access.uses(axis):
        return 0
    if any(term.axis == axis for terms in access.indices[:-1] for term in terms):
        return -1
    return sum(term.coefficient for term in access.indices[-1] if term.axis == axis)


def _penalty(workload: Workload, name: str, lanes: int, constants: Sequence[str]) -> float:
    extent = workload.extents[name]
    total = 1.0 - extent / (-(-extent // lanes) * lanes)
    if all(axis.name != name for axis in workload.spatial_axes):
        total += 1.5
    for access in (*workload.reads, workload.write):
        stride = vector_stride(access, name)
        if stride == 0:
            continue
        if stride == 1:
            total += 0.5 if len(access.indices[-1]) > 1 else 0.0
        elif access.tensor in constants:
            total += 0.0
        elif access.tensor in constant_tensors(workload):
            total += min(1.0, _PACK_CYCLES * access.num_elements * lanes / workload.num_points)
        elif access.tensor == workload.write.tensor:
            total += 0.3
        elif stride > 1:
            total += 1.5
        else:
            reused = any(not access.uses(axis.name) and axis.extent > 1 for axis in workload.spatial_axes)
            total += 1.0 if reused else 2.0
    return total


def simd_axis(workload: Workload, lanes: int, constants: Sequence[str] | None = None) -> str:
    """Return the axis that the microkernel vectorises (see the module's rule); `constants` by its rule if left out."""
    known = constant_tensors(workload) if constants is None else constants
    names = [axis.name for axis in workload.axes]
    return min(reversed(names), key=lambda name: _penalty(workload, name, lanes, known))


def is_streamed(access: Access, workload: Workload) -> bool:
    """Whether a matrix is read once from end to end: every spatial axis of more than one iteration moves in it."""
    moves = all(access.uses(axis.name) or axis.extent == 1 for axis in workload.spatial_axes)
    return moves and len(access.shape) > 1


@lru_cache(maxsize=64)
def packable_tensors(workload: Workload, axis: str) -> tuple[str, ...]:
    """Return the tensors that a schedule may pack: operands with reuse, or strided along the SIMD axis, and constants.

    A constant that is read once is packed for the order of its lines: one run through memory, where a tile of the
    unpacked tensor jumps from row to row and from page to page.

    A result that is strided along the SIMD axis is transposed in the microkernel's registers, and never packed.
    """
    names = []
    constants = constant_tensors(workload)
    for access in workload.reads:
        streamed = access.tensor in constants and is_streamed(access, workload)
        reused = any(not access.uses(other.name) and other.extent > 1 for other in workload.spatial_axes)
        if ((reused or streamed) and workload.reduction_axes) or vector_stride(access, axis) < 0:
            names.append(access.tensor)
    return tuple(names)


def pair_calls(segment: int, unit: int, largest: int) -> tuple[int, ...]:
    """Return the call counts that need a pair of microkernels (or a masked vector) to cover `segment`, ascending.

    Parameters
    ----------
    segment : int
        Elements to cover.
    unit : int
        Elements of one step of the microkernel: 1 for rows, the lanes for vectors.
    largest : int
        Largest microkernel in units.

    Returns
    -------
    tuple of int
        One count for each size of the larger kernel, ``ceil(units / size)``, where a single kernel does not fit.
    """
    units = -(-segment // unit)
    counts = {-(-units // size) for size in range(1, largest + 1)}
    return tuple(sorted(n for n in counts if n > 1 and (segment % unit or units % n)))


def segment_shape(segment: int, unit: int, calls: int) -> tuple[int, int, int, int]:
    """Return (calls of the smaller kernel, its units, calls of the larger kernel, its units)."""
    units = -(-segment // unit)
    larger = units % calls
    return calls - larger, units // calls, larger, units // calls + (1 if larger else 0)
