"""Knobs of topi's GPU templates as points of the template `cuda`.

All of topi's templates bind an image of the batch to a block. Factors that they do not have are 1: vthreads, and one of
the two register tiles, depending on whether the register loops are inside or outside the innermost reduction loop.
Source: apache/tvm, python/tvm/topi/cuda/{conv2d_direct,depthwise_conv2d,batch_matmul}.py and topi/gpu/dense.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from anatune.adapters.logs.parts import UNROLLED, gpu_schedule
from anatune.core.hardware.spec import HardwareSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.records.traces import WRONG_TILES, Factors, Json, UnfitError

_DOUBLE_BUFFERED = 2

Knobs = Mapping[str, Json]
"""The knobs of one of topi's templates: name -> factors, a choice, or a flag."""


def split(knobs: Knobs, name: str, extent: int) -> Factors:
    """Return the factors of a knob; a first factor of -1 is computed from the extent.

    Raises
    ------
    UnfitError
        The product of the factors is not the extent.
    """
    first, *rest = (int(factor) for factor in knobs[name])
    inner = math.prod(rest)
    if first == -1 and inner > 0:
        first = extent // inner
    if first * inner != extent:
        raise UnfitError(WRONG_TILES)
    return (first, *rest)


def _window(knobs: Knobs, axis: str, extent: int) -> tuple[int, int]:
    """Return the factors of a window's axis; topi applies only the inner one, the others may be those of another axis.

    Raises
    ------
    UnfitError
        The inner factor does not divide the axis.
    """
    inner = min(int(knobs[f"tile_{axis}"][-1]), extent)
    if inner < 1 or extent % inner:
        raise UnfitError(WRONG_TILES)
    return extent // inner, inner


def schedule_direct(workload: Workload, hardware: HardwareSpec, knobs: Knobs) -> Schedule:
    """Return a schedule of conv2d_nchw.cuda, whose register loops are inside all reduction loops."""
    tiles: dict[str, Factors] = {"n": (workload.extents["n"], 1, 1, 1, 1)}
    for axis, extent in workload.extents.items():
        if axis in ("ry", "rx"):
            tiles[axis] = (*_window(knobs, axis, extent), 1)
        elif axis != "n":
            factors = split(knobs, f"tile_{axis}", extent)
            tiles[axis] = (*factors[:3], 1, *factors[3:]) if len(factors) == 4 else (*factors, 1)
    return gpu_schedule(workload, hardware, tiles, knobs["auto_unroll_max_step"], {})


def schedule_depthwise(workload: Workload, hardware: HardwareSpec, knobs: Knobs) -> Schedule:
    """Return a schedule of depthwise_conv2d_nchw.cuda, which stages the window once, inside the register loops."""
    extents = workload.extents
    if extents["f"] > 1:
        raise UnfitError("a depthwise convolution with several results for each channel has another axis in anatune")
    tiles: dict[str, Factors] = {"n": (extents["n"], 1, 1, 1, 1), "f": (1, 1, 1, 1, 1)}
    channels = extents.get("g", 1)
    for axis, knob, extent in (("g", "f", channels), ("y", "y", extents["y"]), ("x", "x", extents["x"])):
        tiles[axis] = (*split(knobs, f"tile_{knob}", extent), 1)
    tiles |= {axis.name: (1, 1, axis.extent) for axis in workload.reduction_axes}
    return gpu_schedule(workload, hardware, tiles, knobs["auto_unroll_max_step"], {})


def schedule_dense(workload: Workload, hardware: HardwareSpec, knobs: Knobs) -> Schedule:
    """Return a schedule of dense_large_batch.gpu, which has two stages for both operands."""
    extents = workload.extents
    tiles: dict[str, Factors] = {}
    for axis, knob in (("i", "tile_x"), ("j", "tile_y")):
        *outer, inner = split(knobs, knob, extents[axis])
        tiles[axis] = (*outer, 1, inner)
    tiles["k"] = split(knobs, "tile_k", extents["k"])
    return gpu_schedule(workload, hardware, tiles, UNROLLED, {}, _DOUBLE_BUFFERED)


def schedule_batch_matmul(workload: Workload, hardware: HardwareSpec, knobs: Knobs) -> Schedule:
    """Return a schedule of batch_matmul.cuda."""
    extents = workload.extents
    tiles: dict[str, Factors] = {"b": (extents["b"], 1, 1, 1, 1)}
    for axis, knob in (("i", "tile_y"), ("j", "tile_x")):
        block, threads, inner = split(knobs, knob, extents[axis])
        tiles[axis] = (block, 1, threads, 1, inner)
    tiles["k"] = (*split(knobs, "tile_k", extents["k"]), 1)
    return gpu_schedule(workload, hardware, tiles, knobs["auto_unroll_max_step"], {})
