"""Conversion of a 3x3 convolution and its transforms to the numbers that `winograd.times` takes."""

from __future__ import annotations

import math

import numpy as np

from anatune.core.workload.nest import DTYPE_BYTES, Workload
from anatune.templates.cpu.dot import DotGroup
from anatune.templates.cpu.times.nest import CpuCore
from anatune.templates.winograd.convolution3x3 import Convolution3x3
from anatune.templates.winograd.minimal_filtering import Filtering, filtering
from anatune.templates.winograd.rules import INSTRUCTION, OUTPUT_TILES
from anatune.templates.winograd.times.columns import WinogradTiling

__all__ = ["pack_tiling", "product_group"]

INTEGER_OPERATIONS = 12.0
"""Operations on a vector of integer sums: shift, bias, conversion to float32 and back, multiplier, bounds, rounding,
zero point, and three that pack bytes. Counted in code for AVX2.
"""


def _inside(extent: int, size: int, padding: int, filters: Filtering) -> int:
    """Return the number of tiles along a dimension whose inputs are all inside the image."""
    starts = np.arange(math.ceil(extent / filters.outputs)) * filters.outputs - padding
    return int(((starts >= 0) & (starts + filters.inputs <= size)).sum())


def _border_share(convolution: Convolution3x3, transform: Filtering) -> float:
    """Return the share of the tiles that exceed the edge of the image."""
    num_inside = _inside(convolution.rows, convolution.height, convolution.top, transform)
    num_inside *= _inside(convolution.columns, convolution.width, convolution.left, transform)
    return 1.0 - convolution.batch * num_inside / convolution.num_tiles(transform.outputs)


def product_group(workload: Workload, convolution: Convolution3x3) -> DotGroup | None:
    """Return the instruction that sums products of transformed integers; None for floats."""
    data, weight = (access.tensor for access in workload.reads)
    return DotGroup(INSTRUCTION, "c", convolution.group, weight, data, ()) if convolution.is_integer else None


def pack_tiling(workload: Workload, convolution: Convolution3x3, core: CpuCore, lanes: int) -> WinogradTiling:
    """Return the convolution with every output tile size of the template, as numbers."""
    transforms = [filtering(size) for size in OUTPUT_TILES]
    return WinogradTiling(
        output_tiles=np.array(OUTPUT_TILES, dtype=np.float64),
        num_tiles=np.array([convolution.num_tiles(size) for size in OUTPUT_TILES], dtype=np.float64),
        frequencies=np.array([transform.frequencies for transform in transforms], dtype=np.float64),
        data_operations=np.array([transform.data_operations for transform in transforms], dtype=np.float64),
        result_operations=np.array([transform.result_operations for transform in transforms], dtype=np.float64),
        border_share=np.array([_border_share(convolution, transform) for transform in transforms]),
        filters=float(convolution.filters),
        channels=float(convolution.channels),
        lanes=float(lanes),
        group=float(convolution.group),
        operand_bytes=float(DTYPE_BYTES[convolution.transformed]),
        operations=core.vector_ops if convolution.is_integer else core.fma_per_cycle,
        finish_operations=INTEGER_OPERATIONS if convolution.is_integer else 0.0,
        channels_last=float(convolution.channels_last),
        filters_last=float(convolution.filters_last),
        data_bytes=float(workload.reads[0].num_bytes),
        result_bytes=float(workload.write.num_bytes),
        epilogue_bytes=float(sum(access.num_bytes for access in workload.epilogue_reads)),
        epilogue_loads=float(sum(step == "add" for step in workload.epilogue)),
    )
