"""Conversion of a workload and a GPU to the named tuples of numbers that `gpu.times` and `cuda.times` take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.nest import DTYPE_BYTES, Access, Workload
from anatune.templates.gpu.times.columns import Chunk, Gpu, NestArrays, new_chunk
from anatune.templates.gpu.times.occupancy import register_limit, resident_blocks

__all__ = ["address_instructions", "pack_chunk", "pack_gpu", "pack_nest", "rows_are_loose"]

SECTOR_BYTES = 32
_AXIS_INSTRUCTIONS = 4
"""Instructions to compute one axis of a fused index along k, for each axis that moves. Assumed."""
_GUARD_INSTRUCTIONS = 3
"""Instructions to test whether one dimension lies in the padding. Assumed."""


def pack_gpu(spec: GpuSpec, dtype: str) -> Gpu:
    """Return the numbers of `spec` for arithmetic in `dtype`. Bandwidths are in bytes per core cycle."""
    compute, registers, shared = spec.compute, spec.registers, spec.shared_memory
    rate = spec.arithmetic_rate(dtype)
    clock = float(compute.clock_hz)
    gpu = Gpu(
        num_sms=compute.num_sms,
        warp_size=compute.warp_size,
        max_threads_block=compute.max_threads_per_block,
        max_warps_sm=compute.max_warps_per_sm,
        max_blocks_sm=compute.max_blocks_per_sm,
        registers_sm=registers.per_sm,
        registers_block=registers.per_block,
        registers_thread=min(registers.per_thread, spec.compiler.registers_per_thread),
        register_unit=registers.allocation_unit,
        sub_partitions=registers.num_sub_partitions,
        shared_sm_bytes=shared.per_sm_bytes,
        shared_block_bytes=shared.per_block_bytes,
        shared_reserved_bytes=shared.reserved_per_block_bytes,
        shared_unit_bytes=shared.granularity_bytes,
        unroll_statements=spec.compiler.unroll_statements,
        clock_hz=clock,
        fma_per_cycle=float(compute.fp32_lanes_per_sm * compute.reachable_fraction * rate),
        issue_per_cycle=float(compute.issue_per_cycle_per_sm),
        packing=max(1.0, float(rate)),
        fma_latency=float(compute.fma_latency_cycles),
        shared_bytes_cycle=float(shared.bytes_per_cycle_per_sm),
        shared_latency=float(shared.latency_cycles),
        l1_bytes=float(spec.l1.size_bytes),
        l1_latency=float(spec.l1.latency_cycles),
        l2_bytes=float(spec.l2.size_bytes),
        l2_bytes_cycle=float(spec.l2.bandwidth_bytes_per_s) / clock,
        l2_latency=float(spec.l2.latency_cycles),
        dram_bytes_cycle=float(spec.dram.bandwidth_bytes_per_s * spec.dram.reachable_fraction) / clock,
        dram_latency=float(spec.dram.latency_cycles),
        launch_s=float(spec.launch.overhead_s),
        register_cap=np.zeros(0, dtype=np.int64),
        resident_by_registers=np.zeros((0, 0), dtype=np.int64),
    )
    most_warps = -(-compute.max_threads_per_block // compute.warp_size)
    warps, counts = np.arange(1, most_warps + 1), np.arange(gpu.registers_thread + 1)
    threads = np.minimum(warps * gpu.warp_size, gpu.max_threads_block)
    resident, _ = resident_blocks(threads[:, None], counts, np.zeros_like(counts), gpu)
    return gpu._replace(
        register_cap=np.append(0, register_limit(warps, gpu)),
        resident_by_registers=np.vstack([np.zeros_like(counts), resident]),
    )


def pack_nest(workload: Workload, *, staged: bool, stages: int = 1, pad: int = 0, splits: bool = False) -> NestArrays:
    """Return the loops and accesses of `workload` as arrays, and the options that its schedules share; see Nest."""
    axes = [*workload.spatial_axes, *workload.reduction_axes]
    number = {axis.name: index for index, axis in enumerate(axes)}
    tensors = [*workload.reads, workload.write]
    dim_start, term_start = [0], [0]
    term_axis: list[int] = []
    coefficient: list[int] = []
    dim_size: list[int] = []
    for access in tensors:
        for terms, size in zip(access.indices, access.shape, strict=True):
            term_axis += [number[term.axis] for term in terms]
            coefficient += [term.coefficient for term in terms]
            term_start.append(len(term_axis))
            dim_size.append(size)
        dim_start.append(len(dim_size))
    inner = [_inner_axis(access, number, len(workload.spatial_axes)) for access in tensors]

    def ints(values: object) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        return np.array(values, dtype=np.int64)

    return NestArrays(
        num_spatial=len(workload.spatial_axes),
        num_reduction=len(workload.reduction_axes),
        num_operands=len(workload.reads),
        staged=int(staged),
        element_bytes=DTYPE_BYTES[workload.dtype],
        result_bytes=DTYPE_BYTES[workload.write.dtype],
        epilogue_bytes=float(sum(access.num_bytes for access in workload.epilogue_reads)),
        dim_start=ints(dim_start),
        term_start=ints(term_start),
        term_axis=ints(term_axis),
        term_coefficient=ints(coefficient),
        dim_size=ints(dim_size),
        extent=ints([axis.extent for axis in axes]),
        uses=ints([[int(access.uses(axis.name)) for axis in axes] for access in tensors]),
        inner_axis=ints([axis for axis, _ in inner]),
        inner_coefficient=ints([factor for _, factor in inner]),
        misaligned=ints([_is_misaligned(access) for access in tensors]),
        tensor_bytes=np.array(
            [access.touched_elements(workload.extents) * DTYPE_BYTES[access.dtype] for access in tensors],
            dtype=np.float64,
        ),
        stages=stages,
        pad=pad,
        splits=int(splits),
    )


def pack_chunk(nest: NestArrays) -> Chunk:
    """Allocate the columns that the compiled functions need for `nest`. Each thread needs its own."""
    return new_chunk(nest.num_spatial, nest.num_spatial + nest.num_reduction, nest.num_operands)


def address_instructions(k: Sequence[str], guarded: Sequence[bool], workload: Workload) -> int:
    """Return the instructions of an address along the fused index k and of its tests against padding.

    The rest of the address is computed once.

    Parameters
    ----------
    k : sequence of str
        Axes of the fused index.
    guarded : sequence of bool
        Whether positions of a dimension may lie outside the tensor.
    """
    moving = sum(workload.extents[axis] > 1 for axis in k)
    return _AXIS_INSTRUCTIONS * max(0, moving - 1) + _GUARD_INSTRUCTIONS * sum(guarded)


def rows_are_loose(width: int, run: int, element_bytes: int) -> int:
    """Return 1 if rows of a tile may start inside a sector, else 0. They have `run` elements, aligned for `width`."""
    return int(width * element_bytes < SECTOR_BYTES // 2 or run * element_bytes % SECTOR_BYTES != 0)


def _inner_axis(access: Access, number: dict[str, int], num_spatial: int) -> tuple[int, int]:
    """Return (spatial axis, coefficient) of the innermost dimension, or (-1, 1) if no spatial axis moves along it."""
    if access.indices:
        for term in reversed(access.indices[-1]):
            if number[term.axis] < num_spatial:
                return number[term.axis], term.coefficient
    return -1, 1


def _is_misaligned(access: Access) -> int:
    """Return 1 if rows of the tensor may start inside a sector: for an offset (padding) or a row of odd length."""
    if not access.shape:
        return 0
    return int(access.offsets[-1] != 0 or access.shape[-1] * DTYPE_BYTES[access.dtype] % SECTOR_BYTES != 0)
