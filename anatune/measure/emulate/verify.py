"""Whether the CUDA C of a schedule is right, found out on the CPU.

The first run takes the whole grid with ascending threads and is compared with float64. The others start from the
complement of its result and must reproduce it, bit for bit, wherever they write: the order of threads is nothing that
a right kernel depends on. Blocks spread over the grid run with every access traced.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from anatune.codegen.cuda.kernel import CudaKernel
from anatune.core.workload.nest import Workload
from anatune.errors import RunError
from anatune.measure.emulate.emulator import ALL_BLOCKS, Blocks, EmulatedKernel
from anatune.measure.run.correctness import Array, Correctness, Expected, array_dtype, compare, fill_bytes

__all__ = ["check_kernel", "spread_blocks"]

_ORDER_FLOP = 5e8
"""Work of a run in another order than the first, FLOP: 0.2 s."""
_TRACED_FLOP = 5e7
"""Work of the traced run, FLOP: 0.2 s."""
_ORDERS = (1, 2)
"""Descending; random."""


def check_kernel(workload: Workload, kernel: CudaKernel, inputs: Mapping[str, Array], want: Expected) -> Correctness:
    """Run a kernel on the CPU as its blocks, warps and threads would run, and compare with what was expected.

    Parameters
    ----------
    workload
        What it computes.
    kernel : CudaKernel
        CUDA C of a schedule.
    inputs : mapping of str to ndarray
        Operands by tensor.
    want : Expected
        The workload's result for them.

    Raises
    ------
    RunError
        The kernel does not compile, or did what no kernel may: the message says what.
    MissingDependencyError
        There is no C++ compiler.
    """
    limit_s = 60.0 + workload.flop / 1e8
    traced = EmulatedKernel(kernel, traced=True)
    arrays, result = _with_result(kernel, inputs)
    _bytes(result)[...] = fill_bytes(str(result.dtype))[0]
    traced.run(arrays, blocks=spread_blocks(kernel.grid, _TRACED_FLOP / max(1, workload.flop)), limit_s=limit_s)

    program = EmulatedKernel(kernel)
    _bytes(result)[...] = fill_bytes(str(result.dtype))[0]
    program.run(arrays, limit_s=limit_s)
    answer = compare(workload, result, want)
    if not answer.ok:
        return answer
    first = _bytes(result).copy()
    for order in _ORDERS:
        # an integer result can equal its fill: a run with another one over the whole grid tells
        whole = order == 1 and result.dtype.kind == "i"
        blocks = ALL_BLOCKS if whole else spread_blocks(kernel.grid, _ORDER_FLOP / max(1, workload.flop))
        _bytes(result)[...] = ~first
        program.run(arrays, order=order, blocks=blocks, limit_s=limit_s)
        complaint = _difference(kernel, result, first, complete=blocks == ALL_BLOCKS)
        if complaint:
            how = "descending" if order == 1 else "random"
            return Correctness(False, answer.max_rel_error, f"{complaint} when threads run in {how} order")
    return answer


def spread_blocks(grid: int, share: float) -> Blocks:
    """Return about ``share * grid`` blocks, at least one, at equal distances; the last block is among them."""
    count = min(grid, max(1, int(grid * share)))
    if count == grid:
        return ALL_BLOCKS
    stride = grid // count
    return Blocks((grid - 1) % stride, stride)


def _with_result(kernel: CudaKernel, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], Array]:
    """Return the kernel's arrays by tensor, with a new one for the result."""
    arrays: dict[str, Array] = {}
    for buffer in kernel.parameters:
        if buffer.tensor == kernel.result:
            arrays[buffer.tensor] = np.empty(buffer.shape, array_dtype(buffer.dtype))
        elif buffer.tensor in inputs:
            arrays[buffer.tensor] = np.ascontiguousarray(inputs[buffer.tensor])
    if kernel.result not in arrays:
        raise RunError(f"the kernel {kernel.name} does not take its result {kernel.result}")
    return arrays, arrays[kernel.result]


def _bytes(array: Array) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)


def _difference(kernel: CudaKernel, result: Array, first: NDArray[np.uint8], *, complete: bool) -> str:
    """Say which element is neither as in the first run nor, unless the run was complete, untouched; "" if none."""
    size = result.dtype.itemsize
    now, before = _bytes(result).reshape(-1, size), first.reshape(-1, size)
    same = (now == before).all(axis=1)
    if not complete:
        same |= (now == ~before).all(axis=1)
    if same.all():
        return ""
    where = int(np.argmin(same))
    place = ", ".join(str(int(index)) for index in np.unravel_index(where, result.shape))
    value, earlier = result.reshape(-1)[where], first.view(result.dtype)[where]
    return f"{kernel.result}[{place}] is {float(value):.6g} instead of {float(earlier):.6g}"
