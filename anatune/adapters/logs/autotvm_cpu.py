"""Knobs of topi's CPU templates as points of the template `cpu`, as far as it can express them.

It can express a schedule if vectors run along the axis that the template `cpu` vectorises (columns of a product, output
channels of a convolution), accumulators stay in registers over the whole reduction, and factors divide their extents.
The order of the reduction's loops is ignored. Weights are packed before the run, as AutoTVM measures. conv2d_NCHWc also
takes blocked data, which counts as packed in advance.
Source: apache/tvm, python/tvm/topi: x86/{dense,conv2d_avx_common,conv2d_avx_1x1}.py, arm_cpu/conv2d_spatial_pack.py.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec
import numpy as np

from anatune.adapters.logs.autotvm_gpu import Knobs, split
from anatune.core.hardware.spec import CpuSpec, HardwareSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.records.traces import Factors, UnfitError
from anatune.templates.cpu.space import CpuSpace


@lru_cache(maxsize=64)
def _make_space(workload: Workload, hardware: CpuSpec) -> CpuSpace:
    return CpuSpace(workload, hardware, lambda points: np.ones(len(points), dtype=np.bool_))


def _space_along(workload: Workload, hardware: HardwareSpec, axis: str) -> CpuSpace:
    """Return the space of a workload whose vectors run along `axis`.

    Raises
    ------
    UnfitError
        The device is a GPU, or the template `cpu` vectorises another axis.
    """
    if hardware.kind != "cpu":
        raise UnfitError(f"it is a CPU schedule, but {hardware.name} is a GPU")
    space = _make_space(workload, hardware)
    if space.simd_axis != axis:
        raise UnfitError(f"it vectorises axis {axis}, but the template cpu vectorises {space.simd_axis}")
    return space


def schedule_dense_pack(workload: Workload, hardware: HardwareSpec, knobs: Knobs) -> Schedule:
    """Return a schedule of dense_pack.x86."""
    space, extents = _space_along(workload, hardware, "j"), workload.extents
    rows, columns = split(knobs, "tile_y", extents["i"]), split(knobs, "tile_x", extents["j"])
    steps, unrolled = split(knobs, "tile_k", extents["k"])
    if "tile_inner" in knobs and 1 < int(knobs["tile_inner"][-1]) < rows[2]:
        raise UnfitError("the register tile is split (tile_inner), so that accumulators do not stay in registers")
    tiles = {
        "i": (rows[0], 1, 1, rows[1], rows[2]), "j": (columns[0], 1, 1, columns[1], columns[2]),
        "k": (1, 1, steps, unrolled),
    }  # fmt: skip
    return space.schedule(tiles, keep={"outer": "B", "l1": "A"}, parallel=rows[0] * columns[0] > 1)


def schedule_blocked(workload: Workload, hardware: HardwareSpec, knobs: Knobs) -> Schedule:
    """Return a schedule of conv2d_NCHWc.x86, which spreads images, blocks of channels and rows over the cores."""
    space, extents = _space_along(workload, hardware, "f"), workload.extents
    if "tile_ic" in knobs:
        split(knobs, "tile_ic", extents["rc"])
    channels, columns = split(knobs, "tile_oc", extents["f"]), split(knobs, "tile_ow", extents["x"])
    rows = int(knobs.get("tile_oh", 1))
    if extents["y"] % rows:
        raise UnfitError("tile_oh does not divide the number of rows")
    tiles = {
        "n": (extents["n"], 1, 1, 1, 1), "f": (channels[0], 1, 1, 1, channels[-1]),
        "y": (extents["y"] // rows, 1, 1, 1, rows), "x": (1, columns[0], 1, 1, columns[-1]),
        **_reduction(workload, {"rx"} if knobs.get("unroll_kw") else set()),
    }  # fmt: skip
    packed = space.packable
    schedule = space.schedule(
        tiles, keep={"outer": "weight"}, packed=packed, parallel=extents["n"] * channels[0] * tiles["y"][0] > 1
    )
    return msgspec.structs.replace(schedule, options={**schedule.options, "packed_ahead": packed})


def schedule_spatial_pack(workload: Workload, hardware: HardwareSpec, knobs: Knobs) -> Schedule:
    """Return a schedule of conv2d_nchw_spatial_pack.arm_cpu, which spreads blocks of channels over the cores."""
    order, notes = knobs["reorder_0"], knobs["ann_spatial"]
    if list(order[-3:]) != [7, 8, 9]:
        raise UnfitError("it vectorises columns (reorder_0), but the template cpu vectorises output channels")
    if notes[-1] != "vec":
        raise UnfitError("it is not vectorised (ann_spatial), but the template cpu always is")
    space, extents = _space_along(workload, hardware, "f"), workload.extents
    channels = split(knobs, "tile_co", extents["f"])
    rows, columns = split(knobs, "tile_oh", extents["y"]), split(knobs, "tile_ow", extents["x"])
    unrolled = {axis for axis, note in zip(("ry", "rx"), knobs["ann_reduce"], strict=True) if note == "unroll"}
    tiles = {
        "n": (1, extents["n"], 1, 1, 1), "f": (channels[0], 1, 1, 1, channels[1]), "y": (1, rows[0], 1, 1, rows[1]),
        "x": (1, columns[0], 1, 1, columns[1]), **_reduction(workload, unrolled),
    }  # fmt: skip
    return space.schedule(tiles, packed=space.packable, parallel=channels[0] > 1)


def _reduction(workload: Workload, unrolled: set[str]) -> dict[str, Factors]:
    """Return the tiles of a convolution's reduction, which is not split; some window axes are unrolled."""
    extents = workload.extents
    windows = {axis: (1, 1, extents[axis]) if axis in unrolled else (1, extents[axis], 1) for axis in ("ry", "rx")}
    return {"rc": (1, 1, extents["rc"], 1), **windows}
