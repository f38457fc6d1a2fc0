"""The quantities of the GPU model in plain Python, one point at a time; small workloads and devices for its tests.

Written from the descriptions in `anatune.numerics`, not from its code: footprints, runs, lanes and bank conflicts by
enumeration, register limits by trying every number of registers. Approximations are those the model documents, and
its calibrated constants are imported.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

import anatune
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import DTYPE_BYTES, Access, Workload
from anatune.templates.cuda.guards import guardable_axes
from anatune.templates.cuda.model.model import CudaModel
from anatune.templates.cuda.times.tile import BASE_REGISTERS, LIVE_REGISTERS, SPILL_SLOPE

DEVICES = ("rtx3090", "k80", "mi50", "p100", "tx2", "a100_sxm", "h100_sxm", "rtx4090")

WORKLOADS: dict[str, Workload] = {
    "matmul": anatune.matmul(48, 36, 40),
    "matmul_tn": anatune.matmul(24, 60, 18, transpose_a=True),
    "matmul_nt": anatune.matmul(30, 16, 64, transpose_b=True, epilogue=("bias", "relu")),
    "matmul_tt": anatune.matmul(32, 28, 12, transpose_a=True, transpose_b=True),
    "matmul_half": anatune.matmul(64, 48, 32, dtype="float16"),
    "matmul_int8": anatune.matmul(64, 32, 48, dtype="int8"),
    "matmul_primes": anatune.matmul(17, 13, 7),
    "batch_matmul": anatune.batch_matmul(6, 12, 20, 16),
    "conv2d": anatune.conv2d(2, 6, 14, 16, 12, 3, 3, padding=1),
    "conv2d_stride": anatune.conv2d(1, 8, 15, 17, 12, 3, 3, stride=2, padding=1, epilogue=("add",)),
    "conv2d_dilation": anatune.conv2d(1, 4, 18, 20, 8, 3, 3, dilation=2),
    "conv2d_groups": anatune.conv2d(1, 8, 10, 10, 12, 3, 3, groups=2),
    "conv2d_nhwc": anatune.conv2d(2, 8, 12, 12, 6, 3, 3, stride=2, padding=1, layout="NHWC"),
    "conv2d_1x1": anatune.conv2d(1, 12, 14, 14, 16, 1, 1, stride=2),
    "conv3d": anatune.conv3d(1, 2, 6, 6, 8, 4, 3, 3, 3),
    "depthwise": anatune.depthwise_conv2d(1, 16, 14, 14, 3, 3, padding=1),
    "max_pool": anatune.max_pool2d(2, 6, 12, 12, 2, 2, stride=2),
    "max_pool_overlap": anatune.max_pool2d(1, 4, 17, 17, 3, 3, stride=2),
    "row_sum": anatune.reduction((24, 90), axes=(1,)),
    "column_sum": anatune.reduction((90, 24), axes=(0,)),
    "sum": anatune.reduction((360,)),
    "elementwise": anatune.elementwise((24, 90)),
    "elementwise_half": anatune.elementwise((7, 64), dtype="float16"),
    "einsum": anatune.einsum("abc,cd->adb", {"a": 3, "b": 8, "c": 10, "d": 12}),
}


def gpu(name: str) -> GpuSpec:
    """Return the packaged GPU spec called `name`."""
    spec = anatune.hardware(name)
    assert isinstance(spec, GpuSpec)
    return spec


def random_points(model: CudaModel, count: int, seed: int, *, legal: bool = False) -> NDArray[np.int64]:
    """Draw points uniformly, legal or not."""
    return model.space.sample_points(count, seed, legal=legal)


def all_points(model: CudaModel) -> NDArray[np.int64]:
    """Enumerate the whole space axis by axis with itertools (no use of the space's own tables)."""
    choices: list[list[tuple[int, ...]]] = []
    for axis in model.workload.axes:
        parts = 5 if axis.kind == "spatial" else 3
        choices.append(tilings(axis.extent, parts) + guarded_tilings(model.workload, axis.name, parts))
    choices.append([(depth,) for depth in (0, 16, 64, 512, 1024)])
    widths = [(2**e,) for e in range(5) if 2**e * DTYPE_BYTES[model.workload.dtype] <= 16]
    if model.workload.reduction_axes:
        choices += [widths] * len(model.workload.reads)
    if len(splits := listed_splits(model.workload, model.hardware)) > 1:
        choices.append(splits)
    tables = [np.array(choice, dtype=np.int64) for choice in choices]
    grid = np.indices([len(table) for table in tables]).reshape(len(tables), -1)
    return np.concatenate([table[index] for table, index in zip(tables, grid, strict=True)], axis=1)


def tilings(extent: int, parts: int) -> list[tuple[int, ...]]:
    """Every ordered way to write `extent` as a product of `parts` factors."""
    if parts == 1:
        return [(extent,)]
    return [
        (first, *rest)
        for first in range(1, extent + 1)
        if extent % first == 0
        for rest in tilings(extent // first, parts - 1)
    ]


def guarded_tilings(workload: Workload, axis: str, parts: int) -> list[tuple[int, ...]]:
    """Every tiling that covers an axis without dividing it, as `anatune.templates.cuda.guard_space` describes them."""
    extent = workload.extents[axis]
    powers = [power for power in (8, 16, 32, 64, 128, 256) if power <= min(extent, 256 if parts == 5 else 128)]
    whole = [size for size in range(1, extent + 1) if extent % size == 0]
    if axis not in guardable_axes(workload) or all(
        any((4 if power == 8 else power / 1.5) <= size <= 1.5 * power for size in whole) for power in powers
    ):
        return []
    fitting = []
    for size in range(2, 257 if parts == 5 else 129):
        rest, halves = size, 0
        while rest % 2 == 0:
            rest, halves = rest // 2, halves + 1
        listed = halves > 0 and rest in (1, 3)
        if parts == 5:
            listed = size % (2 if size < 16 else 4 if size < 128 else 8) == 0 and all(
                rest % prime for prime in range(11, rest + 1)
            )
        covered = math.ceil(extent / size) * size
        if listed and extent % size and covered <= 1.125 * extent:
            fitting.append((covered, -largest_power(size), size))
    if extent < 256:  # one between two powers of two
        fitting = [
            min(one for one in fitting if low <= one[2] < 2 * low)
            for low in (2, 4, 8, 16, 32, 64, 128, 256)
            if any(low <= one[2] < 2 * low for one in fitting)
        ]
    return [(covered // size, *inner) for covered, _, size in fitting for inner in tilings(size, parts - 1)]


def listed_splits(workload: Workload, spec: GpuSpec) -> list[tuple[int, ...]]:
    """Every deterministic split that a space lists, as `anatune.templates.gpu.split_space` describes them."""
    depth = math.prod(axis.extent for axis in workload.reduction_axes)
    results = math.prod(axis.extent for axis in workload.spatial_axes)
    device = spec.compute.num_sms * 64 * 64
    found = [(1, 0, 0)]
    if not workload.reduction_axes:
        return found
    parts = [2, 4, 8, 16, 32, 64, 128, 256]
    found += [(n, 0, 0) for n in parts if n * 32 <= depth and n < 2 * device / results + 1]
    if device // 4 <= results <= 24 * device:
        found += [(n, 1, 0) for n in (2, 4, 8) if n * 32 <= depth]
    return found


def has_rounds(model: CudaModel, point: Sequence[int]) -> bool:
    """Whether leftovers, where a point asks for them, are behind at least one tile a multiprocessor."""
    value = dict(zip(model.space.columns, point, strict=True))
    tiles = math.prod(value[f"{axis.name}.block"] for axis in model.workload.spatial_axes)
    return not value.get("whole") or tiles > model.hardware.compute.num_sms


def tiles_axis(factors: Sequence[int], extent: int) -> bool:
    """Whether factors multiply to an extent, or cover it with as few tiles as can be."""
    return math.prod(factors) == extent or factors[0] == math.ceil(extent / math.prod(factors[1:]))


def ranking_key(columns: tuple[str, ...], point: tuple[int, ...], time_s: float) -> tuple[object, ...]:
    """Documented order: time, unroll depth (512, 1024, 64, 16, 0), reg_outer, k2, lexicographic."""
    value = dict(zip(columns, point, strict=True))
    unroll = {512: 0, 1024: 1, 64: 2, 16: 3, 0: 4}[value["unroll"]]
    outer = math.prod(v for name, v in value.items() if name.endswith(".reg_outer"))
    k2 = math.prod(v for name, v in value.items() if name.endswith(".k2"))
    return time_s, unroll, outer, k2, point


# --- occupancy -------------------------------------------------------------------------------------------------------


def round_up(value: int, unit: int) -> int:
    return (value + unit - 1) // unit * unit


def resident_blocks(spec: GpuSpec, threads: int, registers: int, shared_bytes: int) -> int:
    """Count blocks by placing them one after the other until a limit of the SM is hit (NVIDIA's calculator's rules)."""
    compute, file, shared = spec.compute, spec.registers, spec.shared_memory
    warps = round_up(threads, compute.warp_size) // compute.warp_size
    warp_registers = round_up(registers * compute.warp_size, file.allocation_unit)
    launch_warps = round_up(warps, max(4, file.num_sub_partitions))
    if (
        threads > compute.max_threads_per_block
        or shared_bytes > shared.per_block_bytes
        or registers > min(file.per_thread, spec.compiler.registers_per_thread)
        or launch_warps * warp_registers > file.per_block
    ):
        return 0
    partition = file.per_sm // file.num_sub_partitions
    warp_places = compute.max_warps_per_sm
    if warp_registers:
        warp_places = min(warp_places, partition // warp_registers * file.num_sub_partitions)
    block_bytes = round_up(shared_bytes + shared.reserved_per_block_bytes, shared.granularity_bytes)
    blocks = 0
    while (
        blocks < compute.max_blocks_per_sm
        and (blocks + 1) * warps <= warp_places
        and (blocks + 1) * block_bytes <= shared.per_sm_bytes
    ):
        blocks += 1
    return blocks


def register_cap(spec: GpuSpec, threads: int) -> int:
    """Most registers a thread can have: the largest number with which a block can be launched."""
    return max(count for count in range(1, 257) if resident_blocks(spec, threads, count, 0) > 0)


# --- one point -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Point:
    """A schedule as nested loops."""

    workload: Workload
    spec: GpuSpec
    schedule: Schedule
    l2_bytes: float | None = None
    """Instead of the device's."""

    def __post_init__(self) -> None:
        tiles = self.schedule.tiles
        self.spatial = [axis.name for axis in self.workload.spatial_axes]
        self.reduction = [axis.name for axis in self.workload.reduction_axes]
        self.grid = {a: tiles[a][0] for a in self.spatial}
        self.thread = {a: tiles[a][2] for a in self.spatial}
        self.inner = {a: tiles[a][3] * tiles[a][4] for a in self.spatial}
        self.reg = {a: tiles[a][1] * self.inner[a] for a in self.spatial}
        self.tile = {a: math.prod(tiles[a][1:]) for a in (*self.spatial, *self.reduction)}
        self.stages = math.prod(tiles[a][0] for a in self.reduction)
        self.steps = math.prod(self.tile[a] for a in self.reduction)
        self.accumulators = math.prod(self.reg.values())
        self.threads = math.prod(self.thread.values())
        self.num_tiles = math.prod(self.grid.values())
        self.parts, whole = (
            int(self.schedule.options.get(name, least)) for name, least in (("split", 1), ("whole", 0))
        )
        self.num_split = self.num_tiles - whole if self.parts > 1 else 0
        self.blocks = whole + self.num_split * self.parts if self.num_split else self.num_tiles
        self.warp = self.spec.compute.warp_size
        self.warps = math.ceil(self.threads / self.warp)
        self.element = DTYPE_BYTES[self.workload.dtype]
        self.is_staged = bool(self.reduction)
        self.lanes = self._lanes()

    def _lanes(self) -> dict[str, int]:
        """Distinct thread indices along each axis among the threads of the first warp."""
        shape = [self.thread[a] for a in self.spatial]
        ids = range(min(self.warp, self.threads))
        places = list(zip(*(np.unravel_index(t, shape) for t in ids), strict=True)) if shape else []
        return {a: len({int(values) for values in place}) for a, place in zip(self.spatial, places, strict=True)}

    def spans(self, access: Access) -> list[int]:
        """Extent of the tile's bounding box along each dimension, from the positions of all its iterations."""
        return [
            max(places) - min(places) + 1
            for places in (positions([(t.coefficient, self.tile[t.axis]) for t in terms]) for terms in access.indices)
        ]

    def footprint(self, access: Access) -> int:
        return math.prod(self.spans(access))

    def run(self, access: Access) -> int:
        """Elements from the tile's first one on that follow each other in the tensor's memory."""
        box = [range(min(span, size)) for span, size in zip(self.spans(access), access.shape, strict=True)]
        addresses = {0} if not box else {int(a) for a in flat(box, access.shape)}
        length = 0
        while length in addresses:
            length += 1
        return length

    def pitch(self, access: Access) -> int:
        """Elements between the first two runs of the tile in the tensor's memory; 0 where there is one run only."""
        rows = list(zip(self.spans(access), access.shape, strict=True))
        partial = [d for d, (span, size) in enumerate(rows) if span < size]
        return math.prod(access.shape[partial[-1] :]) if partial and partial[-1] > 0 else 0

    def fetched(self, access: Access) -> float:
        """Share of the tiles, over all blocks and steps, that is not behind the end of an axis."""
        shares = []
        for terms in access.indices:
            full = 1 + sum(term.coefficient * (self.tile[term.axis] - 1) for term in terms)
            spans = []
            for counts in itertools.product(*(self.iterations(term.axis) for term in terms)):
                steps = (term.coefficient * (count - 1) for term, count in zip(terms, counts, strict=True))
                spans.append(0 if 0 in counts else 1 + sum(steps))
            shares.append(sum(spans) / len(spans) / full)
        return math.prod(shares)

    def iterations(self, axis: str) -> list[int]:
        """Return the iterations of each tile of an axis that are not behind its end."""
        extent, tile = self.workload.extents[axis], self.tile[axis]
        return [min(tile, max(0, extent - first)) for first in range(0, self.schedule.tiles[axis][0] * tile, tile)]

    def guarded(self) -> float:
        """Share of the fetches at an edge: all but those in the inside of every axis whose last tile is cut."""
        tiles, extents = self.schedule.tiles, self.workload.extents
        cut = [a for a in extents if math.prod(tiles[a]) != extents[a]]
        return 1.0 - math.prod(1.0 - 1.0 / tiles[a][0] for a in cut)

    def sector_bytes(self, access: Access) -> float:
        footprint, row = self.footprint(access), self.run(access) * self.element
        rows = footprint * self.element / row
        row_elements = access.shape[-1] if access.shape else 8
        offset = access.offsets[-1] if access.offsets else 0
        misaligned = offset != 0 or row_elements * self.element % 32 != 0
        if misaligned or (row > 32 and row % 32):
            return rows * (row + 32 - self.element)
        return rows * max(32, row)

    def fragment(self, access: Access) -> int:
        """Register-tile indices a thread needs of the operand for one reduction step."""
        used = [range(self.reg[a]) for a in self.spatial if access.uses(a)]
        return math.prod(len(indices) for indices in used)

    def is_dynamic(self) -> bool:
        """Unroll the loops of the register tile from the innermost on, as far as the statement limit allows."""
        tiles = self.schedule.tiles
        limit = max(self.schedule.unroll, self.spec.compiler.unroll_statements)
        statements = math.prod(tiles[a][1] for a in self.spatial)
        loops = [(tiles[a][4], True) for a in self.spatial]
        loops += [(tiles[a][2], False) for a in self.reduction]
        loops += [(tiles[a][3], True) for a in self.spatial]
        for extent, indexes_accumulators in loops:
            statements *= extent
            if extent > 1 and indexes_accumulators and statements > limit:
                return True
        return False

    def macro(self) -> dict[str, float]:
        """Quantities that follow from block, thread and stage sizes."""
        reads = self.workload.reads
        fragments = sum(self.fragment(access) for access in reads)
        shared = sum(self.footprint(access) * self.element for access in reads) if self.is_staged else 0
        held = min(self.threads, self.spec.compute.max_threads_per_block)
        cap = register_cap(self.spec, held)
        registers = min(max(32, self.accumulators + fragments + BASE_REGISTERS), cap)
        excess = self.accumulators + LIVE_REGISTERS + fragments // 2 - cap
        if self.threads > self.spec.compute.max_threads_per_block:
            rule = 1
        elif shared > self.spec.shared_memory.per_block_bytes:
            rule = 2
        elif self.blocks > 2**31 - 1:
            rule = 3
        elif 4 * self.accumulators > 512 * 1024:
            rule = 4
        else:
            rule = 5 if self.parts > 1 and not self._all_parts_have_steps() else 0
        resident = max(1, resident_blocks(self.spec, held, registers, shared))
        lines = sum(self.footprint(a) / min(self.run(a), 32) for a in reads) if self.is_staged else 0.0
        return {
            "STAGES": self.stages,
            "RULE": rule,
            "THREADS": self.threads,
            "WARPS": self.warps,
            "BLOCKS": self.blocks,
            "ACCUMULATORS": self.accumulators,
            "STEPS": self.steps,
            "SHARED_BYTES": shared,
            "FRAGMENTS": fragments,
            "REGISTERS": registers,
            "REGISTER_CAP": cap,
            "SPILLED": self.accumulators if self.is_dynamic() else min(self.accumulators, SPILL_SLOPE * max(0, excess)),
            "RESIDENT": resident,
            "TILE_BYTES": shared,
            "SECTOR_BYTES": sum(self.fetched(access) * self.sector_bytes(access) for access in reads)
            if self.is_staged
            else 0.0,
            "FETCH_LINES": lines,
            "GUARDED": self.guarded(),
            "SPLIT_TILES": self.num_split,
            "DRAM_BYTES": self._dram_bytes(resident),
        }

    def _all_parts_have_steps(self) -> bool:
        """Deal the steps of a split tile out, so many a part, until there are none left."""
        most = math.ceil(self.stages / self.parts)
        return self.num_split > 0 and len(range(0, self.stages, most)) == self.parts

    def _dram_bytes(self, resident: int) -> float:
        """Operands below half the L2 are read once; others once a window of concurrent blocks, each distinct tile."""
        extents = self.workload.extents
        result = self.workload.write
        l2_bytes = self.l2_bytes or self.spec.l2.size_bytes
        total = float(result.touched_elements(extents) * DTYPE_BYTES[result.dtype])
        total += sum(access.num_bytes for access in self.workload.epilogue_reads)
        at_once = min(self.blocks, self.spec.compute.num_sms * resident)
        for access in self.workload.reads:
            whole = access.touched_elements(extents) * self.element
            if not self.is_staged or whole < 0.5 * l2_bytes:
                total += whole
                continue
            left, distinct = float(at_once), 1.0
            if self.num_split == self.num_tiles:  # parts of a tile follow one another and read different elements
                distinct = min(float(self.parts), left)
                left = max(1.0, left / self.parts)
            for axis in reversed(self.spatial):
                if access.uses(axis):
                    distinct *= min(self.grid[axis], left)
                left = max(1.0, left / self.grid[axis])
            block = (
                self.footprint(access)
                * self.fetched(access)
                * self.element
                * self.stages
                * self.num_tiles
                / self.blocks
            )
            everything = block * self.blocks
            windows = self.blocks / at_once
            total += max(min(block * distinct * windows, everything), min(whole, everything))
        return total

    def micro(self, cap: int) -> dict[str, float]:
        """Quantities that depend on the order of the register tile, k1/k2, unrolling and fetch widths."""
        tiles = self.schedule.tiles
        in_inner_tile = math.prod(tiles[a][1] * tiles[a][4] for a in self.spatial)
        k2 = math.prod(tiles[a][2] for a in self.reduction)
        reuse = math.sqrt(k2) if in_inner_tile + LIVE_REGISTERS <= cap else 1.0
        loads = wavefronts = fetches = fetches_block = 0.0
        conflict = 1
        for access in self.workload.reads:
            fragment = self.fragment(access)
            if self.is_staged:
                vector = self._shared_vector(access, cap)
                degree = self._conflict_degree(access, vector)
                distinct = math.prod(self.lanes[t.axis] for ts in access.indices for t in ts if t.axis in self.lanes)
                cycles = math.ceil(distinct * vector * self.element / self.spec.shared_memory.bytes_per_cycle_per_sm)
                phases = math.ceil(distinct / (32 // max(1, vector * self.element // 4)))
                loads += fragment / vector * self.steps
                wavefronts += fragment / vector * self.steps * max(cycles, phases * degree)
                conflict = max(conflict, degree)
                each, block = self._fetches(access)
                fetches += each
                fetches_block += block
            else:
                fetches += fragment
                fetches_block += fragment * self.warps
                wavefronts += fragment * self._warp_sectors(access, self.element) / 4
        result = self.workload.write
        return {
            "DYNAMIC": float(self.is_dynamic()),
            "REUSE": reuse,
            "LOADS": loads,
            "WAVEFRONTS": wavefronts,
            "CONFLICT": conflict,
            "FETCHES": fetches,
            "FETCHES_BLOCK": fetches_block,
            "STORE_SECTORS": self._warp_sectors(result, DTYPE_BYTES[result.dtype]),
        }

    def _shared_vector(self, access: Access, cap: int) -> int:
        """Elements of one shared load: a power of two that divides the thread's run and where the rows start."""
        run, in_reduction_run, row, row_start = 1, 1, 1, 0
        only_reduction, is_open = True, True
        for terms in reversed(access.indices):
            places = positions([(t.coefficient, self.tile[t.axis]) for t in terms])
            own = positions(
                [(t.coefficient, self.inner[t.axis] if t.axis in self.inner else self.tile[t.axis]) for t in terms]
            )
            span, own_span = max(places) + 1, max(own) + 1
            strided = any(t.axis in self.inner and t.coefficient != 1 and self.inner[t.axis] > 1 for t in terms)
            moved_by_k_alone = all(t.axis not in self.inner for t in terms)
            row *= span
            if is_open and not strided:
                run *= own_span
                if only_reduction and moved_by_k_alone:
                    in_reduction_run *= own_span
            if is_open and (strided or own_span < span):
                row_start, is_open = row, False
            if not moved_by_k_alone and own_span > 1:
                only_reduction = False
        widest = 16 // self.element
        vector = widest
        while vector > 1 and (run % vector or row_start % vector):
            vector //= 2
        needs_steps_in_registers = in_reduction_run > 1
        fits = self.accumulators + self.fragment(access) * vector + LIVE_REGISTERS <= cap
        return vector if fits or not needs_steps_in_registers else 1

    def _conflict_degree(self, access: Access, vector: int) -> int:
        """Words of the busiest bank among the threads of one phase, along the two innermost axes of the warp."""
        row, moving, others = 1, [], 1
        for terms, span in zip(reversed(access.indices), reversed(self.spans(access)), strict=True):
            for term in terms:
                count = self.lanes.get(term.axis, 1)
                if count == 1:
                    continue
                apart = row * term.coefficient * self.inner[term.axis] * self.element
                if apart < 4:  # several threads read one word
                    count, apart = math.ceil(count * apart / 4), 4
                if len(moving) < 2 and count > 1:
                    moving.append((apart // 4, count))
                elif len(moving) == 2:
                    others *= math.ceil(count * min(32, largest_power(apart // 4)) / 32)
            row *= span
        moving += [(0, 1)] * (2 - len(moving))
        phase = 32 // max(1, vector * self.element // 4)
        (first, count_1), (second, count_2) = moving
        count_1 = min(count_1, phase)
        count_2 = min(count_2, max(1, phase // count_1))
        return others * busiest_bank((i * first + j * second) for i in range(count_1) for j in range(count_2))

    def _fetches(self, access: Access) -> tuple[int, float]:
        """Loads of one thread and of all warps: threads take turns in fetching `width` elements."""
        width = self.schedule.vector[access.tensor]
        if self.run(access) % width or self.pitch(access) % width or width & (width - 1) or width * self.element > 16:
            width = 1
        footprint = self.footprint(access)
        each = math.ceil(footprint / (self.threads * width))
        whole = math.ceil(footprint / (min(self.warp, self.threads) * width))
        return each, min(each * self.warps, whole + 0.25 * self.warps)

    def _warp_sectors(self, access: Access, element: int) -> float:
        """Sectors of a warp-wide access: `lanes` neighbours along the innermost dimension, each with its elements."""
        inner, lanes, apart = 1, 1, element
        for term in access.indices[-1] if access.indices else ():
            if term.axis in self.lanes:
                inner, lanes, apart = self.inner[term.axis], self.lanes[term.axis], term.coefficient * element
        dense = max(1.0, lanes * inner * apart / 32)
        return min(self.warp, self.warp / lanes * (dense if inner == 1 else min(lanes, dense)))


def positions(terms: Iterable[tuple[int, int]]) -> set[int]:
    """All values of ``sum(coefficient * index)``, index in [0, extent)."""
    found = {0}
    for coefficient, extent in terms:
        found = {place + coefficient * index for place in found for index in range(extent)}
    return found


def flat(box: list[range], shape: tuple[int, ...]) -> Iterable[int]:
    return (int(np.ravel_multi_index(place, shape)) for place in itertools.product(*box))


def largest_power(value: int) -> int:
    """Largest power of two that divides `value`."""
    power = 1
    while value % (2 * power) == 0:
        power *= 2
    return power


def busiest_bank(words: Iterable[int], num_banks: int = 32) -> int:
    counts: dict[int, int] = {}
    for word in words:
        counts[word % num_banks] = counts.get(word % num_banks, 0) + 1
    return max(counts.values())


# --- hypothesis ------------------------------------------------------------------------------------------------------


@st.composite
def small_workloads(draw: st.DrawFn, largest: int = 24) -> Workload:
    """Random workloads of every kind, extents up to about `largest` (primes among them)."""
    size = st.sampled_from([n for n in (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 16, 17, 20, 23, 24) if n <= largest])
    dtype = draw(st.sampled_from(["float32", "float32", "float16", "int8"]))
    epilogue = draw(st.sampled_from([(), (), ("bias",), ("add", "relu")]))
    flag = st.booleans()
    kinds = ("matmul", "matmul", "batch", "conv", "conv", "depthwise", "pool", "reduction", "elementwise")
    kind = draw(st.sampled_from(kinds))
    if kind == "matmul":
        flips = {"transpose_a": draw(flag), "transpose_b": draw(flag)}
        return anatune.matmul(draw(size), draw(size), draw(size), dtype=dtype, epilogue=epilogue, **flips)
    if kind == "batch":
        return anatune.batch_matmul(draw(st.integers(1, 4)), draw(size), draw(size), draw(size), dtype=dtype)
    small = st.integers(1, 3)
    plane = st.integers(5, min(largest, 12))
    if kind in ("conv", "depthwise"):
        kernel = (draw(small), draw(small))
        options = {"stride": draw(small), "padding": draw(st.integers(0, min(kernel) - 1)), "dtype": dtype}
        options |= {"layout": draw(st.sampled_from(["NCHW", "NHWC"])), "epilogue": epilogue}
        if kind == "depthwise":
            return anatune.depthwise_conv2d(1, draw(size), draw(plane), draw(plane), *kernel, **options)
        groups = draw(st.sampled_from([1, 1, 2]))
        channels, filters = groups * draw(small), groups * draw(st.integers(1, 4))
        options["dilation"] = draw(st.integers(1, 2))
        return anatune.conv2d(
            draw(small), channels, draw(plane), draw(plane), filters, *kernel, groups=groups, **options
        )
    if kind == "pool":
        return anatune.max_pool2d(1, draw(size), draw(plane), draw(plane), draw(small), draw(small), stride=draw(small))
    shape = (draw(size), draw(size), draw(small))
    if kind == "reduction":
        return anatune.reduction(shape, axes=draw(st.sampled_from([(0,), (1,), (2,), (0, 2), (0, 1, 2)])))
    return anatune.elementwise(shape, dtype="float32" if dtype == "int8" else dtype)


def with_limits(
    spec: GpuSpec, *, compute: Mapping[str, float] | None = None, shared: Mapping[str, int] | None = None
) -> GpuSpec:
    """Return a copy of `spec` with other numbers in two of its groups."""
    return msgspec.structs.replace(
        spec,
        compute=msgspec.structs.replace(spec.compute, **(compute or {})),
        shared_memory=msgspec.structs.replace(spec.shared_memory, **(shared or {})),
    )
