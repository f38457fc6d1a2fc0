"""The rules of kernels on rows: workloads and devices that the template takes, and legal schedules.

A block of warps computes a tile of rows x columns. Some bodies need a whole row before they write the first result.
They hold the row in one tile, or loop over it in steps, once for each pass.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.base.values import check_count, check_cover, check_names
from anatune.templates.gpu.rules import gpu_of

__all__ = ["BODIES", "LEVELS", "MOST_TILE", "OPTIONS", "Body", "RowShape", "check_rows", "check_supported", "rows_of"]

LEVELS: dict[str, tuple[str, ...]] = {"rows": ("block", "tile"), "cols": ("block", "tile")}
"""Levels of each fused index in ``Schedule.tiles``. For bodies that need whole rows, the first of "cols" are steps."""
OPTIONS: dict[str, tuple[int, int]] = {"num_warps": (1, 32)}
MOST_TILE = 1 << 20
"""Most elements of a tile. Source: Triton 3.9, ``TRITON_MAX_TENSOR_NUMEL``."""
_LEAST_CAPABILITY = 7.5
_FP8_CAPABILITY = 8.9
"""Least compute capability for float8e4nv. Source: Triton 3.9, ``backends/nvidia/compiler.py``."""
_FNUZ = ("float8_e4m3fnuz", "float8_e5m2fnuz")


class Body(NamedTuple):
    """The work of a kernel on a row.

    Attributes
    ----------
    passes : int
        How often a row is read if it does not fit in a tile. 1: results do not depend on the rest of the row.
    reductions : int
        Reductions over the row, one after the other, if the whole row is in a tile.
    sums : int
        Numbers that a lane keeps of earlier elements, if a row takes several steps.
    arithmetic : float
        float32 instructions per element without conversions, counted in the programs.
    functions : float
        Results of special function units per element: powers, reciprocals.
    """

    passes: int
    reductions: int
    sums: int
    arithmetic: float
    functions: float


BODIES: dict[str, Body] = {
    "softmax": Body(2, 2, 2, 5.0, 1.0),
    "layer_norm": Body(3, 2, 1, 6.0, 0.0),
    "rms_norm": Body(2, 1, 1, 3.0, 0.0),
    "add_rms_norm": Body(2, 1, 1, 4.0, 0.0),
    "silu_multiply": Body(1, 0, 0, 5.0, 2.0),
    "rotary": Body(1, 0, 0, 4.0, 0.0),
    "quantise_tensor": Body(1, 0, 0, 3.0, 0.0),
    "quantise_rows": Body(2, 1, 1, 5.0, 0.0),
}
"""Body of a workload (`core.workload.kernels`) -> its work. An element of rotary is a pair."""


class RowShape(NamedTuple):
    """The rows of elements of a workload.

    Attributes
    ----------
    rows, cols : int
        Number of rows, and elements of a row (for rotary: pairs).
    body : Body
    """

    rows: int
    cols: int
    body: Body

    @property
    def is_whole(self) -> bool:
        """True if results need the whole row."""
        return self.body.passes > 1


def rows_of(workload: Workload) -> RowShape:
    """Return the rows of a workload."""
    *outer, last = workload.spatial_axes
    if workload.body == "rotary":
        outer = [axis for axis in outer if axis.name != "s"]
    return RowShape(math.prod(axis.extent for axis in outer), last.extent, BODIES[workload.body])


def check_supported(workload: Workload, hardware: GpuSpec) -> RowShape:
    """Return the rows of a workload. Raise SpaceError unless Triton compiles its kernel for a device.

    Raises
    ------
    SpaceError
        The device is too old for Triton, or has no conversion to the result's dtype.
    """
    capability, narrow = hardware.compute_capability, workload.write.dtype
    is_amd = hardware.vendor == "amd"
    if not is_amd and (capability is None or capability < _LEAST_CAPABILITY):
        raise SpaceError(
            f"{workload.operator}: Triton does not compile for {hardware.name} ({hardware.arch}), expected sm_75 or "
            "later, or an AMD GPU; choose another device"
        )
    if (narrow in _FNUZ and not is_amd) or (
        narrow == "float8_e4m3fn" and capability is not None and capability < _FP8_CAPABILITY
    ):
        raise SpaceError(
            f"{workload.operator}: {hardware.name} ({hardware.arch}) has no conversion to {narrow}, expected "
            f"{'an AMD GPU' if narrow in _FNUZ else 'sm_89 or later'}; choose float8_e5m2 or int8"
        )
    return rows_of(workload)


def check_rows(schedule: Schedule) -> None:
    """Raise SpaceError unless the schedule is one of kernels on rows."""
    rows, options = check_supported(schedule.workload, gpu_of(schedule)), schedule.options
    check_names("options", options, OPTIONS, "option")
    for name in OPTIONS:
        check_count(f"option {name}", options.get(name), *OPTIONS[name])
    check_count("unroll", schedule.unroll, 0, 0)
    check_names("vector", schedule.vector, (), "tensor")
    check_names("tiles", schedule.tiles, LEVELS, "index")
    sizes = [options["num_warps"]]
    for index, extent in (("rows", rows.rows), ("cols", rows.cols)):
        check_cover(index, schedule.tiles.get(index), LEVELS[index], extent)
        sizes.append(schedule.tiles[index][-1])
    for name, size in zip(("option num_warps", "tile of rows", "tile of cols"), sizes, strict=True):
        if isinstance(size, int) and size & (size - 1):
            raise SpaceError(f"{name} is {size}, expected a power of two")
    if schedule.tiles["rows"][-1] * schedule.tiles["cols"][-1] > MOST_TILE:
        raise SpaceError(f"the tile has more than {MOST_TILE} elements, the most in Triton; choose smaller tiles")
