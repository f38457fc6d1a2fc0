"""Arrays that describe a loop nest and a CPU to compiled code, and formulas that model and ranking share.

Notation
--------
A, X, C : axes, tensors (operands in order, the result last), cache levels.
tile : (A,) int64, consecutive iterations of each axis.
capacity bytes : the bytes of a cache that a tile occupies. Rows of an unpacked tensor that collide in few sets occupy
more than they hold.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from anatune.numerics._jit import jit_helper, jit_inline
from anatune.numerics.columns import Bools, Floats, Ints

__all__ = [
    "CpuCore",
    "CpuMachine",
    "CpuNest",
    "ceil_div",
    "combine",
    "first_tile",
    "footprint",
    "skips_padding",
    "slowdown",
    "steps_of",
]


class CpuNest(NamedTuple):
    """A loop nest as a tuple of arrays; -1 fills missing entries."""

    extents: Ints
    """(A,) iterations."""
    is_reduction: Ints
    """(A,) 0 or 1."""
    columns: Ints
    """(A, 6) columns of a point: outer, l3, l2, l1, register, calls of the pair; -1 if the axis lacks them."""
    order_columns: Ints
    """(4,) columns of the orders: outer, l3, l2, l1."""
    orders: Ints
    """(4, choices, A) axes from the innermost to the outermost loop, then -1."""
    pack_columns: Ints
    """(X,) column of the pack flag, or -1."""
    pack_ties: Ints
    """(X,) how ties count packing: 1 for a copy in each run, which is better avoided; -1 for a copy before the run,
    which makes tiles contiguous at no cost.
    """
    boxes: Ints
    """(terms, 6 + C) all index terms, tensor by tensor, last dimension first.

    A row is tensor, axis, coefficient, position (0 inside a dimension, 1 at its end, 2 at the end of the tensor) and
    the size of the dimension. At the end of each dimension but the last follow its axis with the largest coefficient
    and, for each cache, the distance of iterations of this axis in the sets of the cache in bytes: gcd(their distance,
    bytes of a way).
    """
    uses: Ints
    """(X, A) 1 if the axis indexes the tensor."""
    tensors: Floats
    """(X, 3 + C) bytes of an element; 1 for the result, else 0; 1 if rows can begin inside a line; and for each cache
    gcd(row pitch, bytes of a way), the least distance between rows in its sets.
    """
    vector_loads: Floats
    """(X,) loads for one vector of the unpacked tensor; 0 if the SIMD axis does not index it (a broadcast)."""
    conversions: Floats
    """(X,) vector instructions on a loaded vector, or a broadcast element, before it is multiplied."""
    copy_bytes: Floats
    """(X,) bytes that packing moves before the nest runs."""
    copy_rate: Floats
    """(X,) most bytes of the copy in a cycle."""
    simd: Ints
    """SIMD axis, lanes, column of parallel, 1 if there is a reduction."""
    padding: Ints
    """(P, 3) padded dimensions: tensor, spatial axis, window axis; axis -1 if taps outside cannot be skipped."""
    inside_share: Floats
    """(P,) share of the taps of a padded dimension that are inside the tensor."""
    pad_cycles: Floats
    """(X,) core cycles of the padded copy that an unpacked tensor needs, 0 without padding."""
    group: Ints
    """(3,) for a dot instruction: the reduction axis, the elements of a group, the rows; else -1, 1, 1.

    On AMX tiles one step is a product of two tiles, and all that else counts vectors counts tiles.
    """
    sums_wait: float
    """Cycles in which a call waits for partial sums from beyond L2; see `pack._sums_wait`."""
    result_row: int
    """Axis along which the result is contiguous if that is not the SIMD axis, else -1. Stores are then transposed."""


class CpuCore(NamedTuple):
    """Numbers of a CPU, and the constants of `cpu.model.pack`."""

    fma_per_cycle: float
    product_ops: float
    """Vector instructions of one multiply-add."""
    product_registers: float
    """Vector registers between the instructions of one multiply-add."""
    vector_ops: float
    """Vector instructions of any kind in a cycle."""
    fma_latency: float
    """Cycles between dependent multiply-adds."""
    registers: float
    """Vector registers."""
    loads: float
    """Vectors loaded in a cycle."""
    broadcasts: float
    """Elements loaded into all lanes of a vector in a cycle."""
    stores: float
    issue_width: float
    clock_hz: float
    num_cores: float
    usable_cores: float
    """Number of cores whose work all cores together do, because cores share units."""
    reachable: float
    """Share of the peak that is reachable."""
    line_bytes: float
    dram_core_bytes_s: float
    dram_socket_bytes_s: float
    broadcasts_held: float
    """Most broadcast elements that are in registers at the same time."""
    folds_broadcasts: float
    """1 if a multiply-add can read an element from memory for all lanes, else 0."""
    call_cycles: float
    loop_instructions: float
    held_share: float
    exposed_share: float
    start_s: float
    register_limit: float
    """Most registers of a microkernel, relative to the registers of the CPU."""
    multiply_add_limit: float


class CpuMachine(NamedTuple):
    """A CPU as a tuple of numbers and arrays."""

    core: CpuCore
    size_bytes: Floats
    """(C,) usable bytes of each data cache, one way left for streams. Source: [BLIS-model] Sec. 4.1."""
    shared_by: Floats
    """(C,) cores that share one such cache."""
    fill_bytes_per_cycle: Floats
    """(C,) bandwidth from the next level into this one; unused for the last (DRAM)."""


@jit_inline
def ceil_div(count: int, unit: int) -> int:
    """Return ceil(count / unit) of integers below 2^50 by floats: integer division takes seven times as long."""
    return int(np.ceil(count / unit))


@jit_inline
def steps_of(inner: float, kernel: float, group: float) -> float:
    """Return the steps of `inner` elements of a reduction unrolled by `kernel`; the last group can be partly used."""
    return inner / kernel * math.ceil(kernel / group)


@jit_inline
def first_tile(inner: int, calls: int, kernel: int, lanes: int, is_simd: bool) -> int:
    """Return the elements of the larger microkernel along an axis: `kernel`, or those of the larger one of a pair."""
    if kernel > 0:
        return kernel
    if is_simd:
        return min(ceil_div(ceil_div(inner, lanes), calls) * lanes, inner)
    return ceil_div(inner, calls)


@jit_inline
def skips_padding(
    axis_inner: float,
    axis_extent: float,
    axis_kernel: float,
    window_inner: float,
    window_extent: float,
    window_kernel: float,
) -> bool:
    """Return whether a microkernel skips the taps of a dimension outside the tensor (see `cpu.program.padding`).

    Either the window is unrolled and its axis is whole inside the l1 loops, so that border tiles have code of their
    own. Or the window is a loop of the microkernel, and its tile is one element wide along the axis.
    """  # fmt: skip
    is_static = window_kernel == window_extent and axis_inner == axis_extent
    moves = window_inner == window_extent and window_kernel == 1.0 and axis_kernel == 1.0 and window_extent > 1.0
    return is_static or moves


@jit_helper
def footprint(
    boxes: Ints, tensors: Floats, tile: Ints, packed: Bools, line: float, capacity: Floats
) -> tuple[float, float]:
    """Return the bytes that a tile fetches and those it writes back; write its capacity bytes to `capacity`.

    Parameters
    ----------
    boxes, tensors
        As in `CpuNest`.
    tile : (A,) int64
    packed : (X,) bool
    line : float
        Bytes of a cache line: rows of an unpacked tensor are whole lines.
    capacity : (C,) float64
        Overwritten.
    """
    total = 0.0
    written = 0.0
    num_levels = capacity.shape[0]
    for c in range(num_levels):
        capacity[c] = 0.0
    rows = 1.0
    run = 1.0  # contiguous elements: the last dimension, and those before it while the later ones are whole
    span = 1
    touched = 1
    stride = 1
    strided = 0
    dims = 0
    # bytes that iterations of one dimension occupy of each cache, given their distance in its sets
    colliding_0 = 0.0
    colliding_1 = 0.0
    colliding_2 = 0.0
    is_open = True
    is_short = False  # the tile covers the last dimension in part, so rows are apart
    for t in range(boxes.shape[0]):
        trips = tile[boxes[t, 1]]
        scale = boxes[t, 2]
        span += scale * (trips - 1)
        if scale > 0:
            touched *= trips
        if scale > stride:
            stride = scale
            strided = scale * (trips - 1)
        end = boxes[t, 3]
        if end > 0:
            if dims == 0:  # includes the gap after a strided element, so that tiles sum to at least their union
                run = float(span + max(0, stride - (span - strided)))
                is_open = span >= boxes[t, 4]
            elif is_open:
                run *= min(span, touched)
                is_open = span >= boxes[t, 4]
            else:
                rows *= min(span, touched)
            dims += 1
            if dims == 1:
                is_short = not is_open
            else:
                trips = tile[boxes[t, 5]]
                colliding_0 = max(colliding_0, float(trips * boxes[t, 6]))
                colliding_1 = max(colliding_1, float(trips * boxes[t, 7]) if num_levels > 1 else 0.0)
                colliding_2 = max(colliding_2, float(trips * boxes[t, 8]) if num_levels > 2 else 0.0)
            span = 1
            touched = 1
            stride = 1
            strided = 0
        if end == 2:
            x = boxes[t, 0]
            segment = run * tensors[x, 0]
            if packed[x] or rows == 1.0:
                held = rows * segment
                total += held
                written += held * tensors[x, 1]
                for c in range(num_levels):
                    capacity[c] += held
            else:
                over = (segment - tensors[x, 0]) / line + 1.0  # average lines of a run that can begin inside a line
                segment = (over if tensors[x, 2] > 0.0 else np.ceil(segment / line)) * line
                total += rows * segment
                written += rows * segment * tensors[x, 1]
                for c in range(num_levels):
                    spread = max(rows * tensors[x, 3 + c], colliding_0 if c == 0 else (
                        colliding_1 if c == 1 else colliding_2))  # fmt: skip
                    capacity[c] += max(rows * segment, spread if is_short else 0.0)
            rows = 1.0
            run = 1.0
            dims = 0
            colliding_0 = 0.0
            colliding_1 = 0.0
            colliding_2 = 0.0
            is_open = True
    return total, written


@jit_inline
def slowdown(cpu: CpuCore, threads: float) -> float:
    """Return the factor by which threads slow each other down: 1 while each has the units of a whole core."""
    return max(1.0, threads / cpu.usable_cores)


@jit_inline
def combine(core_s: float, memory_s: float, exposed: float) -> float:
    """Return the time of core work and transfers that overlap, except for a share of the shorter one."""
    return max(core_s, memory_s) + exposed * min(core_s, memory_s)
