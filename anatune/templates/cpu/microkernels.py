"""Rules for CPU microkernels: which axis is vectorised, which operands are constant, how calls cover one dimension.

Everything here follows from access maps and extents, never from the name of the operator.

SIMD axis
    Each axis gets a penalty, and the axis with the smallest one is vectorised (ties: the later axis). For every tensor
    that uses the axis, the penalty is

    - 0 for unit stride,
    - 0.5 for unit stride inside a window (``x + rx``: unaligned loads),
    - 1.5 for a stride of 2 or more inside the last dimension,
    - for another dimension: 0 for a constant operand that is packed ahead; at most 1 for a constant operand that is
      packed in every run, namely the share of the run that this takes; 0.3 for the result (transposed once per
      reduction); 1 for an operand that some spatial axis reuses (packing pays); 2 otherwise.

    A reduction axis adds 1.5 (several accumulators and a horizontal sum). Unused lanes of the last vector add their
    share. The rule chooses j for matmul, f for dense convolutions, x for depthwise NCHW and g for depthwise NHWC, x for
    pooling NCHW, and the reduction for row sums.

Constant operand
    The last operand of two or more is a parameter that can be packed ahead of time if it is called "weight", or if no
    axis indexes every tensor (a batch axis makes both operands activations).

Calls of a segment
    A segment of ``s`` rows (or vectors) is covered by ``n`` calls of the microkernel. If n divides s they are equal.
    Otherwise there is a pair of microkernels: ``s % n`` calls of ``s // n + 1`` and all others of ``s // n`` (17 = 8 +
    9, 34 = 2*11 + 12 = 2*8 + 2*9). Source: [TACO22] Sec. 4.2 (lambda_seq). Of all pairs with n calls, the balanced one
    has the largest smaller kernel.

    Deviates: [TACO22] pairs any two kernels of a class, such as 34 = 8 + 2*13. If all kernels between a smallest and a
    largest number of rows are good, the balanced pair of as many calls has no worse ones. For 8 to 136 rows no other
    pair is predicted to gain more than 0.2 % (five CPUs). On images of 34x34 and 17x17 no other pair was measured
    faster than the best balanced one (`bench.experiments.structured_space`). Schedules can have any pair; points of the
    space have balanced ones.
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
"""Cycles for packing one element. Source: `cpu.model.pack.PACK_BYTES_PER_CYCLE`."""


def simd_lanes(workload: Workload, simd_bits: int) -> int:
    """Return the elements of one vector register, in the dtype of the sums."""
    accumulator = ACCUMULATOR_DTYPE.get(workload.dtype, workload.dtype)
    return max(1, simd_bits // (8 * DTYPE_BYTES[accumulator]))


def constant_tensors(workload: Workload) -> tuple[str, ...]:
    """Return the operands whose values are fixed before the run (see the rule in the module docstring)."""
    if len(workload.reads) < 2 or not workload.reduction_axes:
        return ()
    last = workload.reads[-1]
    batched = any(
        axis.extent > 1 and all(access.uses(axis.name) for access in (*workload.reads, workload.write))
        for axis in workload.spatial_axes
    )
    return (last.tensor,) if last.tensor == "weight" or not batched else ()


@lru_cache(maxsize=64)  # checks of a list of schedules call this for each of them
def window_axes(workload: Workload) -> tuple[str, ...]:
    """Return the reduction axes that slide a window: they share an index with a spatial axis."""
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
    """Return the stride of consecutive iterations of `axis` in elements: 0 unused, 1 contiguous, -1 other dimension."""
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
    """Return the axis that the microkernel vectorises (see the module docstring).

    `constants` are the operands packed ahead; without it, they follow from the rule in the module docstring.
    """
    constant_names = constant_tensors(workload) if constants is None else constants
    names = [axis.name for axis in workload.axes]
    return min(reversed(names), key=lambda name: _penalty(workload, name, lanes, constant_names))


def is_streamed(access: Access, workload: Workload) -> bool:
    """Return whether a matrix is read once from end to end: it uses every spatial axis of more than one iteration."""
    moves = all(access.uses(axis.name) or axis.extent == 1 for axis in workload.spatial_axes)
    return moves and len(access.shape) > 1


@lru_cache(maxsize=64)
def packable_tensors(workload: Workload, axis: str) -> tuple[str, ...]:
    """Return the tensors that a schedule may pack: operands with reuse or strided along the SIMD axis, and constants.

    A constant that is read once is packed so that it is read in one run through memory. A tile of the unpacked tensor
    jumps from row to row and from page to page.

    A result that is strided along the SIMD axis is transposed in the registers of the microkernel and never packed.
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
    """Return the call counts for which a pair of microkernels (or a masked vector) covers `segment`, ascending.

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
        One count for each size of the larger kernel, ``ceil(units / size)``, if a single kernel does not fit.
    """
    units = -(-segment // unit)
    counts = {-(-units // size) for size in range(1, largest + 1)}
    return tuple(sorted(n for n in counts if n > 1 and (segment % unit or units % n)))


def segment_shape(segment: int, unit: int, calls: int) -> tuple[int, int, int, int]:
    """Return (calls of the smaller kernel, its units, calls of the larger kernel, its units)."""
    units = -(-segment // unit)
    larger = units % calls
    return calls - larger, units // calls, larger, units // calls + (1 if larger else 0)
