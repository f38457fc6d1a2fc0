"""Knobs of topi's GPU templates as points of the templates for CUDA cores.

All bind an image of the batch to a block. Factors that a template lacks are 1: of vthreads, of the two register tiles
the one on whose side of the innermost reduction loop its register loops lie.
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
"""Of one of topi's templates: name -> factors, a choice, a flag."""


def split(knobs: Knobs, name: str, extent: int) -> Factors:
    """Return the factors of a knob; a first one of -1 is what remains.

    Raises
    ------
    UnfitError
        They do not multiply to the extent.
    """
    first, *rest = (int(factor) for factor in knobs[name])
    inner = math.prod(rest)
    if first == -1 and inner > 0:
        first = extent // inner
    if first * inner != extent:
        raise UnfitError(WRONG_TILES)
    return (first, *rest)


def _window(knobs: Knobs, axis: str, extent: int) -> tuple[int, int]:
    """Return the factors of a window's axis, of which topi applies the inner one: those of another axis may be there.

    Raises
    ------
    UnfitError
        It does not divide the axis.
    """
    inner = min(int(knobs[f"tile_{axis}"][-1]), extent)
    if inner < 1 or extent % inner:
        raise UnfitError(WRONG_TILES)
    return extent // inner, inner


def direct(workload: Workload, hardware: HardwareSpec, knobs: Knobs) -> Schedule:
    """Return a schedule of conv2d_nchw.cuda: register loops inside all reduction loops."""
    tiles: dict[str, Factors] = {"n": (workload.extents["n"], 1, 1, 1, 1)}
    for axis, extent in workload.extents.items():
        if axis in ("ry", "rx"):
            tiles[axis] = (*_window(knobs, axis, extent), 1)
        elif axis != "n":
            factors = split(knobs, f"tile_{axis}", extent)
            tiles[axis] = (*factors[:3], 1, *factors[3:]) if len(factors) == 4 else (*factors, 1)
    return gpu_schedule(workload, hardware, tiles, knobs["auto_unroll_max_step"], {})


def depthwise(workload: Workload, hardware: HardwareSpec, knobs: Knobs) -> Schedule:
    """Return a schedule of depthwise_conv2d_nchw.cuda: the window is staged once, register loops lie around it."""
    extents = workload.extents
    if extents["f"] > 1:
        raise UnfitError("a depthwise convolution with several results a channel: its channels are two axes here")
    tiles: dict[str, Factors] = {"n": (extents["n"], 1, 1, 1, 1), "f": (1, 1, 1, 1, 1)}
    channels = extents.get("g", 1)
    for axis, knob, extent in (("g", "f", channels), ("y", "y", extents["y"]), ("x", "x", extents["x"])):
        tiles[axis] = (*split(knobs, f"tile_{knob}", extent), 1)
    tiles |= {axis.name: (1, 1, axis.extent) for axis in workload.reduction_axes}
    return gpu_schedule(workload, hardware, tiles, knobs["auto_unroll_max_step"], {})


def dense(workload: Workload, hardware: HardwareSpec, knobs: Knobs) -> Schedule:
    """Return a schedule of dense_large_batch.gpu: both operands are staged through two buffers."""
    extents = workload.extents
    tiles: dict[str, Factors] = {}
    for axis, knob in (("i", "tile_x"), ("j", "tile_y")):
        *outer, inner = split(knobs, knob, extents[axis])
        tiles[axis] = (*outer, 1, inner)
    tiles["k"] = split(knobs, "tile_k", extents["k"])
    return gpu_schedule(workload, hardware, tiles, UNROLLED, {}, _DOUBLE_BUFFERED)


def products(workload: Workload, hardware: HardwareSpec, knobs: Knobs) -> Schedule:
    """Return a schedule of batch_matmul.cuda."""
    extents = workload.extents
    tiles: dict[str, Factors] = {"b": (extents["b"], 1, 1, 1, 1)}
    for axis, knob in (("i", "tile_y"), ("j", "tile_x")):
        block, threads, inner = split(knobs, knob, extents[axis])
        tiles[axis] = (block, 1, threads, 1, inner)
    tiles["k"] = (*split(knobs, "tile_k", extents["k"]), 1)
    return gpu_schedule(workload, hardware, tiles, knobs["auto_unroll_max_step"], {})
