"""Sizes of a tiled product: blocks, tiles, parts of sums, programs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from anatune.core.schedule import Schedule
from anatune.core.workload.access import Access
from anatune.core.workload.implicit_gemm import ImplicitGemm, strides_of
from anatune.templates.gpu.rules import gpu_of

__all__ = ["PARTS_BLOCK", "TileSizes", "sizes_of"]

PARTS_BLOCK = 1024
"""Results of a program that adds up parts: 8 a thread of 4 warps, loads of 16 bytes."""

_NARROW = 2**31


class TileSizes(NamedTuple):
    """What a schedule says in numbers.

    Attributes
    ----------
    extents, blocks, tiles : dict of str to int
        "m", "n", "k" -> iterations, iterations of a tile, tiles.
    batch : int
        Products.
    group, split : int
        Rows of tiles that are walked together; parts of k.
    steps : int
        Of k, of each part but perhaps the last ones.
    programs : int
        Tiles of all products and parts.
    grid : int
        Programs that are launched.
    persistent : bool
        Whether one takes several tiles.
    wide : bool
        Whether elements of a tensor are counted in 64 bits.
    results : int
        Elements of the result.
    """

    extents: dict[str, int]
    blocks: dict[str, int]
    tiles: dict[str, int]
    batch: int
    group: int
    split: int
    steps: int
    programs: int
    grid: int
    persistent: bool
    wide: bool
    results: int

    @property
    def ragged(self) -> bool:
        """Whether some part has fewer steps than the others."""
        return self.steps * self.split > self.tiles["k"]

    def constants(self, blocks: Mapping[str, int]) -> dict[str, int]:
        """Return the constants of a module."""
        found = {axis.upper(): self.extents[axis] for axis in blocks}
        found |= {f"BLOCK_{axis.upper()}": block for axis, block in blocks.items()}
        found |= {f"TILES_{axis.upper()}": self.tiles[axis] for axis in "mn"}
        found |= {"GROUP_M": self.group, "TILES": self.tiles["m"] * self.tiles["n"], "BATCH": self.batch}
        found |= {"PROGRAMS": self.programs, "SPLIT_K": self.split, "PART_K": self.steps * self.blocks["k"]}
        return found | {"RESULTS": self.results, "BLOCK": PARTS_BLOCK}


def sizes_of(schedule: Schedule, gemm: ImplicitGemm) -> TileSizes:
    """Return the sizes of a schedule's kernel."""
    hardware, options, workload = gpu_of(schedule), schedule.options, schedule.workload
    group, split = (int(options[name]) for name in ("group_m", "split_k"))  # type: ignore[arg-type]
    blocks = {index: schedule.tiles[index][-1] for index in "mnk"}
    tiles = {index: -(-gemm.extents[index] // blocks[index]) for index in "mnk"}
    batch = gemm.extents["batch"]
    programs = tiles["m"] * tiles["n"] * batch * split
    persistent = bool(options.get("persistent")) and programs > hardware.compute.num_sms
    reach = max(_reach(access, gemm, blocks) for access in workload.tensors)
    if split > 1:
        reach = max(reach, split * workload.write.num_elements)
    return TileSizes(
        extents={index: gemm.extents[index] for index in "mnk"},
        blocks=blocks,
        tiles=tiles,
        batch=batch,
        group=group,
        split=split,
        steps=-(-tiles["k"] // split),
        programs=programs,
        grid=hardware.compute.num_sms if persistent else programs,
        persistent=persistent,
        wide=reach >= _NARROW,
        results=math.prod(workload.write.shape),
    )


def _reach(access: Access, gemm: ImplicitGemm, blocks: Mapping[str, int]) -> int:
    """Return a bound on the number of any element that a tile asks for, also where it is masked."""
    strides = strides_of(access)
    beyond = (
        (-gemm.extents[index] % block) * max((strides.get(axis, 0) for axis in gemm.axes(index)), default=0)
        for index, block in blocks.items()
    )
    return access.num_elements + sum(beyond)
