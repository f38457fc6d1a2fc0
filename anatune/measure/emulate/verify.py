"""Checking the CUDA C of a schedule on the CPU.

The first run executes the whole grid with ascending threads and is compared with float64. The other runs start from the
complement of its result and must reproduce it bit for bit where they write, because a correct kernel does not depend on
the order of its threads. Blocks spread over the grid run with every access traced. If several launches make the result,
each is checked separately.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anatune.core.workload.nest import Workload
from anatune.errors import RunError
from anatune.measure.emulate.emulator import ALL_BLOCKS, Blocks, EmulatedKernel, find_written_tensors
from anatune.measure.run.correctness import Array, Correctness, Expected, array_dtype, compare, fill_bytes
from anatune.templates.gpu.kernel import CudaKernel

_ORDER_FLOP = 5e8
"""Work of a run with another order of the threads, FLOP: 0.2 s."""
_TRACED_FLOP = 5e7
"""Work of the traced run, FLOP: 0.2 s."""
_ORDERS = (1, 2)
"""Orders of the threads: descending, random."""


def check_kernel(workload: Workload, kernel: CudaKernel, inputs: Mapping[str, Array], want: Expected) -> Correctness:
    """Run a kernel on the CPU with its blocks, warps and threads, and compare its result with the expected one.

    Parameters
    ----------
    workload
        The workload.
    kernel : CudaKernel
        CUDA C of a schedule.
    inputs : mapping of str to ndarray
        Operands by tensor.
    want : Expected
        The expected result.

    Raises
    ------
    RunError
        The kernel does not compile, or made an error, which the message names.
    MissingDependencyError
        There is no C++ compiler.
    """
    limit_s = 60.0 + workload.flop / 1e8
    flop = max(1, workload.flop)
    traced = EmulatedKernel(kernel, traced=True)
    program: EmulatedKernel | None = None
    arrays, result = _with_result(kernel, inputs)
    _bytes(result)[...] = fill_bytes(str(result.dtype))[0]
    changes: list[dict[str, _Change]] = []
    for number in range(len(kernel.launches)):
        before = {tensor: arrays[tensor].copy() for tensor in find_written_tensors(kernel, number)}
        blocks = spread_blocks(kernel.launches[number].grid, _TRACED_FLOP / flop)
        traced.run(
            {**arrays, **{t: a.copy() for t, a in before.items()}}, launch=number, blocks=blocks, limit_s=limit_s
        )
        program = program or EmulatedKernel(kernel)
        program.run(arrays, launch=number, limit_s=limit_s)
        changes.append({tensor: _Change(array, arrays[tensor].copy()) for tensor, array in before.items()})
    assert program is not None
    answer = compare(workload, result, want)
    if not answer.ok:
        return answer
    for order in _ORDERS:
        if order == 1 and result.dtype.kind == "i":
            # An integer result can equal its fill, so another run uses another fill.
            first = result.copy()
            _bytes(result)[...] = ~_bytes(first)
            program.run(arrays, order=order, limit_s=limit_s)
            complaint = _difference(kernel.result, result, _Change(first, first), partly=False, adds=True)
        else:
            complaint = _run_reordered(program, arrays, changes, order, _ORDER_FLOP / flop, limit_s)
        if complaint:
            how = "descending" if order == 1 else "random"
            return Correctness(False, answer.max_rel_error, f"{complaint} when threads run in {how} order")
    return answer


class _Change(NamedTuple):
    """An array before and after a launch."""

    before: Array
    after: Array


def _run_reordered(
    program: EmulatedKernel,
    arrays: Mapping[str, Array],
    changes: Sequence[Mapping[str, _Change]],
    order: int,
    share: float,
    limit_s: float,
) -> str:
    """Run each launch separately in another order of its threads, from the state before the first run.

    A launch starts from the complement of its first result and must write the same result. A launch that adds to
    existing values starts from these and runs the whole grid.
    """
    kernel = program.kernel
    for number, changed in enumerate(changes):
        adds = number > 0 and number == len(kernel.before)
        blocks = ALL_BLOCKS if adds else spread_blocks(kernel.launches[number].grid, share)
        now = {tensor: found.before.copy() for tensor, found in changed.items()}
        if not adds:
            for tensor, change in changed.items():
                _bytes(now[tensor])[...] = ~_bytes(change.after)
        program.run({**arrays, **now}, order=order, blocks=blocks, launch=number, limit_s=limit_s)
        for tensor, change in changed.items():
            complaint = _difference(tensor, now[tensor], change, partly=blocks != ALL_BLOCKS, adds=adds)
            if complaint:
                return complaint
    return ""


def spread_blocks(grid: int, share: float) -> Blocks:
    """Return about ``share * grid`` blocks, at least one, at equal distances; the last block is among them."""
    count = min(grid, max(1, int(grid * share)))
    if count == grid:
        return ALL_BLOCKS
    stride = grid // count
    return Blocks((grid - 1) % stride, stride)


def _with_result(kernel: CudaKernel, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], Array]:
    """Return the kernel's arrays by tensor, with new ones for the result and the workspace."""
    arrays: dict[str, Array] = {}
    workspaces = () if kernel.workspace is None else (kernel.workspace,)
    for buffer in (*kernel.tensors.values(), *workspaces):
        if buffer.tensor == kernel.result or buffer in workspaces:
            arrays[buffer.tensor] = np.empty(buffer.shape, array_dtype(buffer.dtype))
            _bytes(arrays[buffer.tensor])[...] = 0xFF
        elif buffer.tensor in inputs:
            arrays[buffer.tensor] = np.ascontiguousarray(inputs[buffer.tensor])
    if kernel.result not in arrays:
        raise RunError(f"the kernel {kernel.name} does not take its result {kernel.result}")
    return arrays, arrays[kernel.result]


def _bytes(array: Array) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)


def _difference(tensor: str, now: Array, wanted: _Change, *, partly: bool, adds: bool) -> str:
    """Return the first element that differs from the first run; "" if there is none.

    Unless the launch adds to existing values, all elements began as the complement of the first result. Elements that
    no block wrote (`partly`: only some blocks ran), or that the first run did not change, may still have that value.
    """
    size = now.dtype.itemsize
    after = _bytes(wanted.after).reshape(-1, size)
    same = (_bytes(now).reshape(-1, size) == after).all(axis=1)
    if not adds:
        kept = (_bytes(now).reshape(-1, size) == ~after).all(axis=1)
        same |= kept if partly else kept & (_bytes(wanted.before).reshape(-1, size) == after).all(axis=1)
    if same.all():
        return ""
    where = int(np.argmin(same))
    index_text = ", ".join(str(int(index)) for index in np.unravel_index(where, now.shape))
    value, earlier = now.reshape(-1)[where], wanted.after.reshape(-1)[where]
    return f"{tensor}[{index_text}] is {float(value):.6g} instead of {float(earlier):.6g}"
