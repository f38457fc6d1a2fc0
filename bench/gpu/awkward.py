"""Awkward shapes, and random schedules whose tiles do not divide them: primes, ones, one more or less than a tile."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import msgspec

from anatune import batch_matmul, conv2d, matmul
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import DTYPE_BYTES, Axis, Workload
from anatune.core.workload.operators import (
    avg_pool2d,
    conv1d,
    conv3d,
    depthwise_conv2d,
    einsum,
    elementwise,
    max_pool2d,
    reduction,
)
from anatune.errors import SpaceError
from anatune.templates.cuda.guards import guardable_axes
from anatune.templates.cuda.rules import is_for_pipelined, pads, stage_counts, staged_tensors
from anatune.templates.gpu.split import atomic_limit, num_steps, num_tiles, splits_of

__all__ = ["awkward_workloads", "covering_schedule", "split_schedule"]

_MOST_THREADS = 256
_MOST_ACCUMULATORS = 128
_MOST_SHARED_BYTES = 16384
"""Of a stage: three of them fit every device."""
_MOST_PARTS = 8
_MOST_TRIES = 1000


def awkward_workloads() -> Iterator[tuple[str, Workload]]:
    """Yield small workloads, by name, most of whose extents have no divisors."""
    yield "matmul", matmul(37, 29, 31)
    yield "matmul one above, one below", matmul(65, 63, 17, epilogue=("bias", "add", "relu"))
    yield "matmul ones", matmul(1, 1, 1)
    yield "matmul row", matmul(1, 67, 33, transpose_b=True)
    yield "matmul column", matmul(67, 1, 33)
    yield "matmul vectors", matmul(33, 68, 36, transpose_a=True, epilogue=("bias",))
    yield "matmul transposed B", matmul(31, 47, 44, transpose_b=True, epilogue=("relu",))
    yield "matmul float16", matmul(31, 34, 62, dtype="float16", epilogue=("bias", "add"))
    yield "matmul bfloat16", matmul(33, 40, 31, dtype="bfloat16")
    yield "matmul int8", matmul(31, 44, 68, dtype="int8", epilogue=("bias", "relu"))
    yield "batch_matmul", batch_matmul(3, 17, 19, 23)
    yield "batch_matmul transposed", batch_matmul(5, 12, 20, 18, transpose_b=True, epilogue=("relu",))
    yield "conv2d", conv2d(1, 7, 13, 13, 11, 3, 3, padding=1)
    yield "conv2d 1x1", conv2d(3, 13, 7, 7, 17, 1, 1, epilogue=("bias", "relu"))
    yield "conv2d stride", conv2d(1, 5, 17, 17, 13, 3, 3, stride=2, padding=1, epilogue=("bias",))
    yield "conv2d dilation", conv2d(1, 6, 13, 11, 7, 3, 3, dilation=2, padding=2)
    yield "conv2d groups", conv2d(2, 15, 9, 7, 21, 3, 3, groups=3, padding=1, epilogue=("bias",))
    yield "conv2d NHWC", conv2d(1, 11, 9, 9, 13, 3, 3, padding=1, layout="NHWC")
    yield "conv2d NHWC vectors", conv2d(1, 12, 7, 7, 20, 3, 3, stride=2, layout="NHWC", epilogue=("bias", "add"))
    yield "depthwise", depthwise_conv2d(1, 23, 13, 13, 3, 3, padding=1, epilogue=("relu",))
    yield "conv1d", conv1d(2, 7, 41, 13, 5, stride=2, padding=2)
    yield "conv3d", conv3d(1, 3, 5, 7, 6, 5, 3, 3, 3, padding=1)
    yield "max_pool2d", max_pool2d(1, 5, 15, 15, 3, 3, stride=2, padding=1)
    yield "avg_pool2d", avg_pool2d(1, 7, 13, 13, 3, 3, stride=1, padding=1)
    yield "reduction", reduction((47, 101))
    yield "reduction rows", reduction((61, 97), axes=0)
    yield "reduction max", reduction((13, 11, 67), axes=(1, 2), kind="max")
    yield "reduction max rows", reduction((53, 36), axes=0, kind="max")
    yield "einsum", einsum("bij,bkj->bik", [(3, 21, 17), (3, 23, 17)])
    yield "elementwise", elementwise((31, 67))
    yield "elementwise vectors", elementwise((5, 36), op="add")
    yield "thin vector", matmul(1, 523, 131, transpose_b=True, epilogue=("bias",))
    yield "thin rows", matmul(3, 139, 509)
    yield "thin float16", matmul(7, 257, 514, dtype="float16")


def split_schedule(schedule: Schedule, draw: random.Random) -> Schedule:
    """Return a schedule with its reduction split into a few parts, or as it is where its rules refuse that."""
    split = draw.randrange(2, _MOST_PARTS)
    atomic = not atomic_limit(schedule.workload) and draw.random() < 0.3
    try:
        options = {**schedule.options, "split": split, **({"atomic": 1} if atomic else {})}
        return msgspec.structs.replace(schedule, options=options).check()
    except SpaceError:
        return schedule


def covering_schedule(workload: Workload, hardware: GpuSpec, draw: random.Random) -> Schedule:
    """Return a random schedule of a template for CUDA cores, most of its axes' tiles drawn without a look at extents.

    Blocks, shared memory and registers are small enough for every device; half of the schedules are pipelined, and
    some split their reduction.
    """
    for _ in range(_MOST_TRIES):
        tiles = {axis.name: _tiles(axis, axis.name in guardable_axes(workload), draw) for axis in workload.axes}
        if _fits(workload, tiles):
            break
    else:
        raise AssertionError("tiles of one element fit every device")
    names = staged_tensors(workload)
    vector = {name: draw.choice((1, 2, 4)) for name in names}
    unroll, options = draw.choice((0, 16, 64, 512)), _split(workload, tiles, draw)
    if not is_for_pipelined(workload, hardware) or draw.random() < 0.5:
        return Schedule(workload, hardware, "cuda", tiles, unroll, vector, options).check()
    options |= {"stages": draw.choice(stage_counts(workload, hardware)), "pad": draw.choice(pads(workload))}
    return Schedule(workload, hardware, "pipelined", tiles, unroll, vector, options).check()


def _split(workload: Workload, tiles: dict[str, tuple[int, ...]], draw: random.Random) -> dict[str, int]:
    """Return the options of a split reduction, or of none."""
    if not workload.reduction_axes or draw.random() < 0.6:
        return {}
    split = draw.choice(splits_of(num_steps(tiles, workload), _MOST_PARTS))
    if split == 1:
        return {}
    if not atomic_limit(workload) and draw.random() < 0.3:
        return {"split": split, "atomic": 1}
    return {"split": split, "whole": draw.randrange(num_tiles(tiles, workload))}


def _tiles(axis: Axis, is_guardable: bool, draw: random.Random) -> tuple[int, ...]:
    """Return a tiling of an axis: a covering one, now and then or where there is no other one a perfect one."""
    count = 4 if axis.kind == "spatial" else 2
    inner: list[int] = []
    if is_guardable and draw.random() < 0.75:
        inner = [draw.choice((1, 1, 1, 2, 2, 3, 4, 5, 8)) for _ in range(count)]
        return (-(-axis.extent // math.prod(inner)), *inner)
    left = axis.extent
    for _ in range(count):
        inner.append(draw.choice([n for n in range(1, left + 1) if left % n == 0]))
        left //= inner[-1]
    draw.shuffle(inner)
    return (left, *inner)


def _fits(workload: Workload, tiles: dict[str, tuple[int, ...]]) -> bool:
    spatial = [tiles[axis.name] for axis in workload.spatial_axes]
    steps = {axis: math.prod(factors[1:]) for axis, factors in tiles.items()}
    size = sum(access.footprint(steps) * DTYPE_BYTES[access.dtype] for access in workload.reads)
    return (
        math.prod(factors[2] for factors in spatial) <= _MOST_THREADS
        and math.prod(factors[1] * factors[3] * factors[4] for factors in spatial) <= _MOST_ACCUMULATORS
        and size <= _MOST_SHARED_BYTES
    )
