"""The loops of a schedule for CUDA cores and its staged tiles in shared memory, as numbers.

Notation
--------
level : one factor of an axis. Spatial levels: block, vthread, thread, reg_outer, reg_inner. Reduction levels: k0, k1,
    k2.
stride of a level : iterations of the axis that one iteration of the level covers.
tile : the box of a tensor that a block needs for one staging step (iteration of the k0 loops). It is stored row-major
    with rows `pitch` elements apart.
covered : iterations of all loops of an axis, the product of its factors. A guarded axis has more than its extent: its
    last block, or last step, passes its end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

import msgspec

from anatune.core.schedule import Schedule
from anatune.core.workload.nest import DTYPE_BYTES, Access
from anatune.errors import AnatuneError, BuildError, SpaceError
from anatune.templates.cuda.guards import covered_extents
from anatune.templates.cuda.program.fetch import Level, StagedTile, fetch_width, guards_of, sides_of
from anatune.templates.cuda.rules import ASYNC_SINCE, MAX_FETCH_BYTES, REDUCTION_LEVELS, SPATIAL_LEVELS, pipeline_of
from anatune.templates.gpu.layout import KernelLayout
from anatune.templates.gpu.ranged import Count, Growth, Ranged, check_ranged, product

__all__ = ["CudaNest", "program_key"]

_LIVE_REGISTERS = 18
"""Registers beside accumulators and fragments; the same as `cuda.times.tile.LIVE_REGISTERS`."""
_MOST_HELD = 32
"""Most elements that a thread holds in registers between global and shared memory. More would lower the occupancy."""


class CudaNest(KernelLayout):
    """The loops of one checked schedule, for the code generation. Immutable.

    The parameters and errors are those of `KernelLayout`. In addition there is a SpaceError if no kernel can have such
    a range, and a BuildError if the device lacks the arithmetic of the dtype or asynchronous copies for so many
    buffers.
    """

    templates = ("cuda", "pipelined")
    has_ranges = True

    def __init__(self, schedule: Schedule, ranged: Ranged | None = None) -> None:
        super().__init__(schedule, ranged)
        self._capability = self.hardware.compute_capability or 0.0
        self.spatial = tuple(axis.name for axis in self.workload.spatial_axes)
        self.reduction = tuple(axis.name for axis in self.workload.reduction_axes)
        stages, self.pad = pipeline_of(schedule.options)
        self._check_dtype()
        if ranged is not None:
            check_ranged(self.workload, ranged)
            self._check_ranged_split()
        # buffers beyond the number of steps would never be filled
        self.stages = min(stages, self.num_steps if self.split.whole else self.split.steps(self.num_steps))
        self.tiles = self._tiles() if self.workload.reduction_axes else ()
        if self.stages > 2 and not self.is_async:
            raise BuildError(
                f"option stages is {self.stages}, but without cp.async (sm_80 and later, copies of 4, 8 or 16 bytes, "
                "padding with zeros) at most 2 buffers are useful; choose 1 or 2"
            )

    def _check_ranged_split(self) -> None:
        least = self.steps.least
        if self.split.whole:
            raise SpaceError(
                f"option whole is {self.split.whole}, but a kernel for a range has a varying number of tiles; choose 0"
            )
        if self.split.split > least:
            raise SpaceError(
                f"option split is {self.split.split}, but the smallest extent of the range has {least} steps; choose "
                f"{least} or less"
            )

    def _check_dtype(self) -> None:
        needed = self.hardware.needed_capability(self.workload.dtypes)
        if needed is not None and self._capability < needed:
            raise BuildError(
                f"{self.hardware.name} has {self.hardware.arch}, which lacks arithmetic for "
                f"{', '.join(sorted(self.workload.dtypes))} (sm_{10 * needed:.0f} and later have it); "
                "use float16 or float32"
            )

    # -- loops -------------------------------------------------------------------------------------------------

    def extent(self, axis: str, level: str) -> int:
        """Return the iterations of a level."""
        levels = SPATIAL_LEVELS if axis in self.spatial else REDUCTION_LEVELS
        return self.schedule.tiles[axis][levels.index(level)]

    @cached_property
    def last(self) -> str:
        """The reduction axis of the innermost loop: the last one with more than one iteration in a staging step.

        The kernel axes of a 1x1 convolution are not innermost: it reads along its channels, as a matmul does.
        """
        return [axis for axis in self.reduction if self.tile_extent(axis) > 1 or axis == self.reduction[0]][-1]

    def stride(self, axis: str, level: str) -> int:
        """Return how many iterations of `axis` one iteration of `level` covers."""
        levels = SPATIAL_LEVELS if axis in self.spatial else REDUCTION_LEVELS
        return math.prod(self.schedule.tiles[axis][levels.index(level) + 1 :])

    def tile_extent(self, axis: str) -> int:
        """Return the iterations of `axis` in a block and a staging step."""
        return math.prod(self.schedule.tiles[axis][1:])

    @cached_property
    def total_extents(self) -> Mapping[str, int]:
        """Axis -> iterations of all its loops. At some extent of a range, a guarded axis has more than its extent."""
        extents, ranged = covered_extents(self.schedule.tiles), self.ranged
        if ranged is not None and ranged.multiple % self.tile_extent(ranged.axis):
            extents[ranged.axis] = max(extents[ranged.axis], ranged.most + 1)
        return extents

    @cached_property
    def guarded_axes(self) -> tuple[str, ...]:
        """The axes whose loops pass their ends."""
        return tuple(axis for axis, extent in self.workload.extents.items() if self.total_extents[axis] > extent)

    # -- at any extent of a range -----------------------------------------------------------------------------

    def is_varying(self, axis: str) -> bool:
        """Return whether the extent of an axis is known at run time only."""
        return self.ranged is not None and self.ranged.axis == axis

    def end(self, axis: str) -> int | str:
        """Return the extent of an axis: a number, or an expression if it varies."""
        return (
            self.ranged.parameter if self.ranged is not None and self.is_varying(axis) else self.workload.extents[axis]
        )

    def loop_extent(self, axis: str, level: str) -> int | str:
        """Return the iterations of a level: a number, or an expression if they vary."""
        if self.ranged is not None and self.is_varying(axis) and level in (SPATIAL_LEVELS[0], REDUCTION_LEVELS[0]):
            return Growth(1, self.tile_extent(axis)).text(self.ranged.parameter)
        return self.extent(axis, level)

    def dimensions(self, access: Access) -> tuple[int | None, ...]:
        """Return the length of each dimension of a tensor, None if it varies."""
        return tuple(
            None if any(self.is_varying(term.axis) for term in terms) else length
            for terms, length in zip(access.indices, access.shape, strict=True)
        )

    def shape(self, access: Access) -> tuple[int | str, ...]:
        """Return the shape of a tensor, with expressions for the dimensions that vary."""
        varying = "" if self.ranged is None else self.ranged.parameter
        return tuple(varying if length is None else length for length in self.dimensions(access))

    @property
    def num_terms(self) -> int | str:
        """Terms of the sum of a result: a number, or an expression if it varies."""
        return product(*map(self.end, self.reduction))

    def limit_alignment(self, access: Access) -> Access:
        """Return a tensor whose lengths have only those divisors that they have at every extent."""
        multiple = 1 if self.ranged is None else self.ranged.multiple
        shape = tuple(multiple if length is None else length for length in self.dimensions(access))
        return access if shape == access.shape else msgspec.structs.replace(access, shape=shape)

    def multiple_of(self, axis: str) -> int:
        """Return a number that divides the extent of an axis at every extent of the range."""
        return (
            self.ranged.multiple if self.ranged is not None and self.is_varying(axis) else self.workload.extents[axis]
        )

    @cached_property
    def growth(self) -> Growth | None:
        """Dependence of the number of tiles on the extent. None: it does not vary."""
        ranged = self.ranged
        if ranged is None or ranged.axis not in self.spatial:
            return None
        others = tuple(axis for axis in self.spatial if axis != ranged.axis)
        return Growth(self._product(others, "block"), self.tile_extent(ranged.axis))

    @cached_property
    def steps(self) -> Count:
        """Staging steps of a tile."""
        ranged, steps = self.ranged, self.num_steps
        if ranged is None or ranged.axis not in self.reduction:
            return Count.of(steps)
        others = tuple(axis for axis in self.reduction if axis != ranged.axis)
        growth = Growth(self._product(others, "k0"), self.tile_extent(ranged.axis))
        return Count(f"({growth.text(ranged.parameter)})", growth.grid(ranged.least), growth.grid(ranged.most))

    def _product(self, axes: tuple[str, ...], *levels: str) -> int:
        return math.prod(self.extent(axis, level) for axis in axes for level in levels)

    @cached_property
    def num_tiles(self) -> int:
        """Tiles of the result. Without a split this is the number of blocks."""
        return self._product(self.spatial, "block")

    @cached_property
    def num_threads(self) -> int:
        """Threads of a block."""
        return self._product(self.spatial, "thread")

    @cached_property
    def num_steps(self) -> int:
        """Staging steps of a tile: iterations of all k0 loops."""
        return self._product(self.reduction, "k0")

    @cached_property
    def num_accumulators(self) -> int:
        """Results of a thread."""
        return self._product(self.spatial, "vthread", "reg_outer", "reg_inner")

    @cached_property
    def limit(self) -> int:
        """Most statements of a loop body that is unrolled; see `cuda.times.micro.is_dynamic_one`."""
        return max(self.schedule.unroll, self.hardware.compiler.unroll_statements)

    @cached_property
    def unrolled_levels(self) -> frozenset[str]:
        """Levels whose loops are unrolled: from the inside, as long as the body stays within the limit."""
        body = self._product(self.spatial, "vthread", "reg_inner")
        levels = {"vthread", "reg_inner"} if body <= self.limit else set()
        body *= self._product(self.reduction, "k2")
        if body <= self.limit:
            levels.add("k2")
        body *= self._product(self.spatial, "reg_outer")
        if body <= self.limit:
            levels.add("reg_outer")
        body *= self._product(self.reduction, "k1")
        # the innermost loop around the register tile: only the schedule decides, not the compiler's own limit
        if body <= max(self.schedule.unroll, 1):
            levels.add("k1")
        return frozenset(levels)

    @cached_property
    def is_static(self) -> bool:
        """True if the register tile is indexed by constants only."""
        return {"vthread", "reg_inner"} <= self.unrolled_levels

    @cached_property
    def is_fused(self) -> bool:
        """True if the k1 and k2 loops of `last` are one loop: there is no register loop between them."""
        return self.is_static and self._product(self.spatial, "reg_outer") == 1

    @cached_property
    def run(self) -> int:
        """Iterations of the innermost reduction loop, along `last`."""
        return self.tile_extent(self.last) if self.is_fused else self.extent(self.last, "k2")

    @cached_property
    def vector_steps(self) -> int:
        """Iterations of the reduction whose elements are read at once from tiles that lie along the reduction."""
        return max((tile.load for tile in self.tiles if tile.along_reduction), default=1)

    @cached_property
    def body_steps(self) -> int:
        """Unrolled iterations of the innermost reduction loop: a multiple of `vector_steps` that divides `run`."""
        if not self.is_fused:
            return self.run if "k2" in self.unrolled_levels else self.vector_steps
        unrolled_steps = self.extent(self.last, "k2") if "k2" in self.unrolled_levels else 1
        most = max(self.schedule.unroll // self.num_accumulators, unrolled_steps, self.vector_steps)
        steps = [n for n in range(self.vector_steps, min(most, self.run) + 1, self.vector_steps) if self.run % n == 0]
        return max(steps, default=self.vector_steps)

    def register_extent(self, access: Access) -> int:
        """Return the elements of `access` that a thread needs for one reduction iteration and one reg_outer tile."""
        return self._product(tuple(a for a in self.spatial if access.uses(a)), "vthread", "reg_inner")

    # -- tiles -------------------------------------------------------------------------------------------------

    @cached_property
    def shared_elements(self) -> int:
        """Elements of shared memory of one buffer."""
        return sum(tile.size for tile in self.tiles)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block."""
        return self.stages * self.shared_elements * self.element_bytes

    @cached_property
    def copies_through_registers(self) -> bool:
        """True if all tiles are loaded into registers before any is stored to shared memory, without cp.async.

        Otherwise each tile would be waited for: conditions on threads lie between the copies of two tiles, and a
        compiler moves no load across them. The registers must hold all elements beside the accumulators. With two
        buffers there is no other way.
        """
        if self.is_async:
            return False
        if self.stages > 1:
            return True
        held = sum(tile.walk.copies * tile.fetch for tile in self.tiles)
        needed = held + self.num_accumulators + _LIVE_REGISTERS
        return self.element_bytes == 4 and held <= _MOST_HELD and needed <= self.register_cap

    @cached_property
    def register_cap(self) -> int:
        """Most registers of a thread in a block of this size."""
        registers = self.hardware.registers
        warps = -(-self.num_threads // self.hardware.compute.warp_size)
        return min(registers.per_thread, registers.per_sm // (warps * self.hardware.compute.warp_size))

    @cached_property
    def is_async(self) -> bool:
        """True if the staging pipeline uses cp.async."""
        takes_largest = self.workload.body == "max"  # the neutral element of a maximum is not 0
        return (
            self.stages > 1
            and self._capability >= ASYNC_SINCE
            and all(
                tile.fetch * self.element_bytes in (4, 8, 16) and not (takes_largest and any(map(any, tile.padding)))
                for tile in self.tiles
            )
        )

    def _tiles(self) -> tuple[StagedTile, ...]:
        tiles = [self._tile(access) for access in self.workload.reads]
        # the tile with the strictest alignment comes first: its size is a multiple of that, so all bases are aligned
        order = sorted(range(len(tiles)), key=lambda at: -max(tiles[at].fetch, tiles[at].load))
        base = 0
        for number in order:
            tiles[number] = tiles[number]._replace(base=base)
            base += tiles[number].size
        widest = [max(tile.fetch, tile.load) for tile in tiles]
        if self.stages > 1 and any(base % width for width in widest):  # later buffers begin where this one ends
            tiles = [_narrow_vectors(tile, base) for tile in tiles]
        return tuple(tiles)

    def _tile(self, access: Access) -> StagedTile:
        spans = tuple(
            1 + sum(term.coefficient * (self.tile_extent(term.axis) - 1) for term in terms) for terms in access.indices
        )
        pitches = [1] * len(spans)
        for d in range(len(spans) - 2, -1, -1):
            pitches[d] = pitches[d + 1] * spans[d + 1] + (self.pad if d == len(spans) - 2 else 0)
        size = 1 + sum((span - 1) * pitch for span, pitch in zip(spans, pitches, strict=True))
        guards = guards_of(access, self.total_extents)
        guarded = [any(guard) for guard in guards]
        # no tile covers the whole of a dimension whose length varies
        apart = [flag or length is None for flag, length in zip(guarded, self.dimensions(access), strict=True)]
        sides = tuple(sides_of(access, spans, pitches, apart))
        requested = self.schedule.vector.get(access.tensor, 1)
        fetch = fetch_width(requested, self.limit_alignment(access), sides, self._fetch_steps(access), guarded)
        tile = StagedTile(
            access=access,
            spans=spans,
            pitches=tuple(pitches),
            base=0,
            size=size,
            sides=sides,
            fetch=fetch,
            threads=self.num_threads,
            padding=guards_of(access, self.workload.extents),
            guards=guards,
            load=1,
            load_level=None,
        )
        load, level = self._shared_vector(tile)
        return tile._replace(load=load, load_level=level)

    def _fetch_steps(self, access: Access) -> list[int]:
        """Return for each dimension a divisor of the positions at which tiles begin, without its offset."""
        steps = []
        for terms in access.indices:
            moving = [term for term in terms if self.total_extents[term.axis] > self.tile_extent(term.axis)]
            steps.append(math.gcd(*(term.coefficient * self.tile_extent(term.axis) for term in moving)))
        return steps

    def _shared_vector(self, tile: StagedTile) -> tuple[int, Level | None]:
        """Return how many elements a thread can read at once from the tile, and along which loop."""
        if not self.is_static:
            return 1, None
        widest = MAX_FETCH_BYTES // DTYPE_BYTES[tile.access.dtype]
        levels: list[tuple[str, str, int, int]] = []
        for axis in (*self.spatial, *self.reduction):
            step = tile.stride(axis)
            names = ("vthread", "thread", "reg_outer", "reg_inner") if axis in self.spatial else ("k1", "k2")
            if step:
                levels += [(axis, n, self.extent(axis, n), step * self.stride(axis, n)) for n in names]
        last = self.last
        if self.is_fused and tile.stride(last):
            levels = [entry for entry in levels if entry[0] != last] + [(last, "k2", self.run, tile.stride(last))]
        levels = [entry for entry in levels if entry[2] > 1]
        for axis, level, extent, step in levels:
            # along the reduction only if one of its loops is unrolled and the registers hold several iterations
            along_reduction = level == "k2" and axis == last and (self.is_fused or "k2" in self.unrolled_levels)
            if step != 1 or not (level == "reg_inner" or along_reduction):
                continue
            width = min(widest, extent & -extent)
            for other_axis, other_level, _, other_step in levels:
                if (other_axis, other_level) != (axis, level):
                    width = math.gcd(width, other_step)
            if along_reduction and self._is_crowded(tile.access, width):
                continue
            if width > 1:
                return width, (axis, level)
        return 1, None

    def _is_crowded(self, access: Access, width: int) -> bool:
        """Return whether the registers cannot hold the elements of `width` iterations; see `cuda.times.micro`."""
        needed = self.num_accumulators + self.register_extent(access) * width + _LIVE_REGISTERS
        return needed > self.register_cap


def _narrow_vectors(tile: StagedTile, base: int) -> StagedTile:
    """Return the tile with vectors that stay aligned if it is moved by `base` elements."""
    load = math.gcd(tile.load, base)
    return tile._replace(fetch=math.gcd(tile.fetch, base), load=load, load_level=tile.load_level if load > 1 else None)


def program_key(schedule: Schedule) -> str:
    """Return a key that two schedules for CUDA cores share if they become the same program: loops, widths, tiles.

    A schedule that cannot become a program has its own key.
    """
    try:
        nest = CudaNest(schedule)
    except AnatuneError:
        return schedule.key
    tiles = [(tile.pitches, tile.base, tile.fetch, tile.load, tile.load_level) for tile in nest.tiles]
    return repr((schedule.tiles, sorted(nest.unrolled_levels), nest.stages, tiles, nest.split))
