"""Sizes of a tiled product: blocks, tiles, parts of sums, programs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from anatune.core.schedule import Schedule
from anatune.core.workload.access import Access
from anatune.core.workload.implicit_gemm import ImplicitGemm, strides_of
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.gpu.ranged import Growth, Ranged
from anatune.templates.gpu.rules import gpu_of

__all__ = ["PARTS_BLOCK", "TileSizes", "find_index", "sizes_of"]

PARTS_BLOCK = 1024
"""Results of a program that adds up parts: 8 per thread of 4 warps, in loads of 16 bytes."""

_NARROW = 2**31


class TileSizes(NamedTuple):
    """The numbers of a schedule's kernel.

    Attributes
    ----------
    extents, blocks, tiles : dict of str to int
        "m", "n", "k" -> iterations, iterations of a tile, tiles.
    batch : int
        Number of products.
    group, split : int
        Rows of tiles that run together; parts of k.
    steps : int
        Steps of k in each part, except perhaps the last parts.
    programs : int
        Tiles of all products and parts.
    grid : int
        Number of programs that are launched.
    persistent : bool
        Whether a program computes several tiles.
    wide : bool
        Whether elements of a tensor are counted in 64 bits.
    results : int
        Elements of the result.
    mixes_products : bool
        Whether programs with consecutive numbers compute the same tile of all products, which share sectors of memory.
    ranged : Ranged or None
        The axis whose extent is an argument of the kernels. All sizes are those of the largest extent.
    varies : str
        The fused index whose outermost axis is the ranged axis: "m", "n" or "batch".
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
    mixes_products: bool = False
    ranged: Ranged | None = None
    varies: str = ""

    @property
    def is_ragged(self) -> bool:
        """True if some part has fewer steps than the others."""
        return self.steps * self.split > self.tiles["k"]

    def constants(self, blocks: Mapping[str, int]) -> dict[str, int]:
        """Return the constants of a module."""
        constants = {axis.upper(): self.extents[axis] for axis in blocks}
        constants |= {f"BLOCK_{axis.upper()}": block for axis, block in blocks.items()}
        constants |= {f"TILES_{axis.upper()}": self.tiles[axis] for axis in "mn"}
        constants |= {"GROUP_M": self.group, "TILES": self.tiles["m"] * self.tiles["n"], "BATCH": self.batch}
        constants |= {"PROGRAMS": self.programs, "SPLIT_K": self.split, "PART_K": self.steps * self.blocks["k"]}
        constants |= {"RESULTS": self.results, "BLOCK": PARTS_BLOCK}
        return {name: number for name, number in constants.items() if name not in self.varying}

    def divisor(self, index: str) -> int:
        """Return a number that divides the iterations of an index ("results": the results) at every extent."""
        number = {**self.extents, "results": self.results}[index]
        if self.ranged is None or index not in (self.varies, "results"):
            return number
        return number // self.ranged.most * self.ranged.multiple

    @property
    def varying(self) -> dict[str, str]:
        """Constants that kernels for a range compute from the extent: name -> expression of names before it."""
        if self.ranged is None:
            return {}
        name, argument, most = self.varies.upper(), self.ranged.parameter, self.ranged.most
        each = (self.batch if self.varies == "batch" else self.extents[self.varies]) // most
        values = {name: argument if each == 1 else f"{argument} * {each}"}
        if self.varies != "batch":
            values |= {f"TILES_{name}": f"tl.cdiv({name}, BLOCK_{name})", "TILES": "TILES_M * TILES_N"}
        values["PROGRAMS"] = "TILES * BATCH" if self.batch > 1 else "TILES"
        return values | {"RESULTS": f"{argument}{'.to(tl.int64)' if self.wide else ''} * {self.results // most}"}

    def growth(self, blocks: int, index: str) -> Growth | None:
        """Return how a grid of `blocks` blocks at the largest extent grows if it consists of tiles of an index."""
        if self.ranged is None:
            return None
        whole = {**self.extents, "batch": self.batch, "results": self.results}[index]
        tile = {**self.blocks, "batch": 1, "results": PARTS_BLOCK}[index]
        return Growth(blocks // -(-whole // tile), tile, whole // self.ranged.most)


def find_index(workload: Workload, gemm: ImplicitGemm, axis: str) -> str:
    """Return the fused index whose outermost axis is `axis`.

    Raises
    ------
    SpaceError
        There is no such index, or addresses depend on the extent of the axis.
    """
    inner = any(term.axis == axis for one in workload.tensors for terms in one.indices[1:] for term in terms)
    indices = [index for index in ("batch", "m", "n") if gemm.axes(index)[:1] == (axis,)]
    if inner or not indices:
        raise SpaceError(f"template triton: addresses of {workload.operator} depend on the extent of {axis}")
    return indices[0]


def sizes_of(schedule: Schedule, gemm: ImplicitGemm, ranged: Ranged | None = None) -> TileSizes:
    """Return the sizes of a schedule's kernel. SpaceError: see `find_index`."""
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
        mixes_products=batch > 1 and _mixes_products(workload.write, gemm),
        ranged=ranged,
        varies="" if ranged is None else find_index(workload, gemm, ranged.axis),
    )


def _mixes_products(write: Access, gemm: ImplicitGemm) -> bool:
    """Return whether results of several products lie between rows of one, as channels of groups do in a pixel."""
    strides = strides_of(write)
    batch, rows = ([strides[axis] for axis in gemm.axes(index) if strides.get(axis)] for index in ("batch", "m"))
    return min(batch, default=0) < min(rows, default=0)


def _reach(access: Access, gemm: ImplicitGemm, blocks: Mapping[str, int]) -> int:
    """Return a bound on the number of any element that a tile accesses, including masked elements."""
    strides = strides_of(access)
    beyond = (
        (-gemm.extents[index] % block) * max((strides.get(axis, 0) for axis in gemm.axes(index)), default=0)
        for index, block in blocks.items()
    )
    return access.num_elements + sum(beyond)
