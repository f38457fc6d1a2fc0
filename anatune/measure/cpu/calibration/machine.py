"""The probes of a CPU calibration: the functions that are run to sample each quantity of this machine."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anatune.codegen.compat import set_pool_threads
from anatune.codegen.cpu.artifact import CpuArtifact
from anatune.codegen.cpu.machine_probes import (
    TILE_COUNTS,
    chase_probe,
    clock_probe,
    start_probe,
    tile_unit_probe,
    walk_probe,
)
from anatune.codegen.cpu.probes import (
    Probe,
    ProbeModule,
    broadcast_probe,
    build_probes,
    compile_probe,
    fma_probe,
    tile_probe,
)
from anatune.core.hardware.cpu_groups import CacheLevel
from anatune.core.hardware.dot import dot_instructions, tile_features
from anatune.core.hardware.spec import CpuSpec
from anatune.errors import RunError
from anatune.measure.cpu.blocks import ArgumentBlock, tensor_of
from anatune.measure.cpu.calibration.samples import ProbeTimes, Quantity
from anatune.measure.cpu.calibration.tiles import RegisterTile, tile_depth
from anatune.measure.cpu.calibration.together import Together, measure_together
from anatune.measure.cpu.features import allow_tiles
from anatune.measure.cpu.kernel import KernelLibrary
from anatune.measure.run.cores import physical_cores, plan_cores
from anatune.measure.run.timing import Timed, make_sampler
from anatune.untyped import tvm

__all__ = ["CALL_DEPTHS", "CALL_TILE", "FOOTPRINT", "Machine", "beside_pool", "one_core", "own_call", "pointer_chain"]

_SAMPLE_S = 0.1e-3
"""Length of most samples."""
_MOST_ARENA_BYTES = 1 << 30
CALL_TILE = (6, 2)
CALL_DEPTHS = (16, 112)
"""Iterations of two tiles from whose difference the time of a call follows."""
_STARTS, _CALLS = 50, 200
"""Number of parallel starts, and of calls, in one sample."""
_BATCH = 40
"""Number of probes that are compiled together."""
FOOTPRINT = "footprint"
"""Prefix of the names of walks through parts of memory, ``footprint<bytes>_load``."""
_FOOTPRINT_STEP = math.sqrt(2.0)


@contextmanager
def one_core() -> Iterator[None]:
    """Pin this thread to the core that times kernels during a block."""
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    runner = plan_cores(1, physical_cores()).runner
    if before is None or not runner:
        yield
        return
    os.sched_setaffinity(0, set(runner[:1]))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def beside_pool() -> Iterator[None]:
    """Keep this thread off the cores to which threads of TVM's pool are bound during a block."""
    if not hasattr(os, "sched_setaffinity") or not os.path.isdir("/proc/self/task"):
        yield
        return
    before = os.sched_getaffinity(0)
    bound: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        with suppress(OSError):  # it may have ended
            allowed = os.sched_getaffinity(int(task))
            bound |= allowed if len(allowed) == 1 and int(task) != threading.get_native_id() else set()
    os.sched_setaffinity(0, (before - bound) or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Machine:
    """The probes of this machine, which are built and run in this process.

    Attributes
    ----------
    work : dict of str to int
        Quantity -> work of one sample: FLOP, bytes, iterations.
    spill_ops : dict of RegisterTile to int
    left_out : list of str
        Lines about quantities that are not measured, and why.
    """

    alone: Callable[[], AbstractContextManager[None]] = staticmethod(one_core)
    """The context in which probes of one core are built and run."""
    beside: Callable[[], AbstractContextManager[None]] = staticmethod(beside_pool)
    """The context in which probes of all cores are run."""

    def __init__(self, hardware: CpuSpec, folder: Path) -> None:
        self.hardware, self._folder = hardware, folder
        self.work: dict[str, int] = {}
        self.spill_ops: dict[RegisterTile, int] = {}
        self.left_out: list[str] = []
        self._modules: list[ProbeModule] = []
        self._take_threads(hardware.compute.num_cores)  # before anything else makes the pool smaller

    def start(self) -> None:
        """Allocate the memory and build the standard probes."""
        hardware = self.hardware
        self._places, total = _places_in(hardware, self._free_bytes())
        self._take_memory(total)
        standard = []
        for kind in ("fma", "gemm"):
            artifact = compile_probe(kind, hardware, self._folder)
            standard.append(self._standard(artifact))
            self.work[kind] = artifact.facts["flop"]
        self._fma, self._gemm = standard

    def probes(self) -> ProbeTimes:
        """Run the two standard probes; the operands of the tile are in the L2 cache."""
        self._gemm(1)
        return ProbeTimes(self._fma(1), self._gemm(1))

    # -- one core ------------------------------------------------------------------------------------------------

    def core_quantities(self) -> list[Quantity]:
        """Return the clock, arithmetic, ports, caches, memory and calls of one core."""
        spec = self.hardware
        lanes = spec.fp32_lanes
        probes = [clock_probe(spec, "clock", seconds=_SAMPLE_S), fma_probe(spec, "fma_latency", chains=1)]
        if lanes >= 16:
            probes.append(fma_probe(spec, "fma_half", lanes=lanes // 2))
        tile = RegisterTile(*CALL_TILE)
        probes += [tile_probe(spec, f"call_{depth}", tile, depth=depth, seconds=_SAMPLE_S) for depth in CALL_DEPTHS]
        for level, (_, size, cache) in self._places.items():
            rate = spec.dram.core_bandwidth_bytes_per_s
            latency_s = spec.dram.latency_s
            if cache is not None:
                rate = cache.bandwidth_bytes_per_cycle * spec.compute.clock_hz
                latency_s = cache.latency_cycles / spec.compute.clock_hz
            passes = max(1, round(_SAMPLE_S * rate / size)) if cache is not None else 1
            probes.append(walk_probe(spec, f"{level}_load", "load", size, passes=passes))
            probes.append(chase_probe(f"{level}_chase", size, max(64, round(4 * _SAMPLE_S / latency_s))))
        for size in self._footprints():
            probes.append(walk_probe(spec, f"{FOOTPRINT}{size}_load", "load", size))
        for name in dot_instructions(spec):
            probes.append(fma_probe(spec, name, seconds=_SAMPLE_S, instruction=name))
            probes.append(fma_probe(spec, f"{name}_latency", chains=1, instruction=name))
        if spec.amx and self._has_tiles():
            probes += [tile_unit_probe(spec, number, seconds=_SAMPLE_S) for number in TILE_COUNTS]
        size = self._places["l1"][1]
        passes = max(1, round(_SAMPLE_S * spec.compute.clock_hz * 32 / size))
        probes.append(walk_probe(spec, "l1_store", "store", size, passes=passes))
        probes.append(broadcast_probe(spec, "broadcast", seconds=_SAMPLE_S))
        probes.append(start_probe("nothing", 1))
        calls = self._build(probes)
        self.work["nothing"] = _CALLS
        walks = {name: call for name, call in calls.items() if name.endswith("_load")}
        quantities = []
        for probe in probes:
            call = calls[probe.name]
            level = probe.name.partition("_")[0]
            chases = probe.name.endswith("_chase")
            warm = None if level == "dram" else walks[f"{level}_load"] if chases else call  # no cache holds DRAM's part
            quantities.append(
                Quantity(probe.name, _sample(call, warm, self.work["nothing"] if level == "nothing" else 1))
            )
        return quantities

    def _footprints(self) -> list[int]:
        """Return the ascending sizes, bytes, of walks that show this machine's share of the last cache."""
        if self.hardware.l3 is None:
            return []
        most = min(self.hardware.l3.size_bytes, self._places["dram"][1])
        count = math.floor(math.log(max(1.0, most / self._places["l3"][1]), _FOOTPRINT_STEP))
        sizes = [self._places["l3"][1] * _FOOTPRINT_STEP**step for step in range(1, count + 1)]
        return [int(size) // 65536 * 65536 for size in sizes]

    def tile_quantities(self, tiles: Sequence[RegisterTile], progress: Callable[[float], None]) -> list[Quantity]:
        """Return one quantity for each register tile, named by its `repr`; report the share that is built."""
        quantities = []
        for start in range(0, len(tiles), _BATCH):
            batch = tiles[start : start + _BATCH]
            probes = {
                tile: tile_probe(
                    self.hardware, tile.name, tile, depth=tile_depth(tile, self.hardware), seconds=0.5 * _SAMPLE_S
                )
                for tile in batch
            }
            calls = self._build(list(probes.values()))
            for tile, probe in probes.items():
                quantities.append(Quantity(probe.name, _sample(calls[probe.name], calls[probe.name])))
                self.spill_ops[tile] = self._modules[-1].spill_ops(probe.name)
            progress((start + len(batch)) / len(tiles))
        return quantities

    # -- all cores -----------------------------------------------------------------------------------------------

    def all_core_quantities(self) -> list[Quantity]:
        """Return memory bandwidth, peak and the start of a parallel loop with all cores; empty with one core."""
        threads = self.hardware.compute.num_cores
        if threads < 2:
            return []
        self._take_threads(threads)
        _, size, _ = self._places["dram"]
        probes = [
            walk_probe(self.hardware, "all_load", "load", size // threads, threads=threads),
            fma_probe(self.hardware, "all_fma", seconds=5 * _SAMPLE_S, threads=threads),
            start_probe("start", threads),
        ]
        calls = self._build(probes, threads=threads)
        self.work["start"] = _STARTS
        return [
            Quantity(name, _sample(call, None if name == "all_load" else call, _STARTS if name == "start" else 1))
            for name, call in calls.items()
        ]

    def together(self, budget_s: float) -> Together | None:
        """Return the combined speed of all cores, see `measure_together`."""

        def make_call() -> Callable[[], object]:
            probe = fma_probe(self.hardware, "together_fma", seconds=20 * _SAMPLE_S)
            call = self._build([probe])[probe.name]
            return lambda: call(1)

        return measure_together(make_call, budget_s=budget_s)

    # -- memory --------------------------------------------------------------------------------------------------

    def _build(self, probes: Sequence[Probe], threads: int = 1) -> dict[str, Timed]:
        """Compile probes and bind them to memory: parts of the arena, or separate memory."""
        module = build_probes(probes, self.hardware, threads=threads)
        self._modules.append(module)
        self.work.update({probe.name: probe.work for probe in probes})
        return self._bind(module, probes)

    def _start_of(self, probe: Probe) -> int | None:
        """Return the offset of a probe's first buffer in the arena; None if it has separate memory."""
        level, _, what = probe.name.partition("_")
        if what not in ("load", "chase"):
            return None
        return self._places[level if level in self._places else "dram"][0]

    # -- where probes run ----------------------------------------------------------------------------------------

    def _free_bytes(self) -> int | None:
        """Return the free bytes of memory; None if the system does not report them."""
        if hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
            return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return None

    def _has_tiles(self) -> bool:
        """Return whether probes may use AMX tiles; note the reason if not."""
        try:
            allow_tiles(tile_features(self.hardware))
        except RunError as error:
            self.left_out.append(f"not measured: {error}")
            return False
        return True

    def _take_memory(self, total: int) -> None:
        """Allocate the arena in one piece, so that it gets large pages and address translation matters little."""
        self._arena: NDArray[np.uint8] = ArgumentBlock("int8", (total,)).array.view(np.uint8)
        for first, size, _ in self._places.values():
            self._arena[first : first + size].view(np.int64)[...] = pointer_chain(size, self.hardware.l1.line_bytes)

    def _take_threads(self, threads: int) -> None:
        set_pool_threads(threads)

    def _standard(self, artifact: CpuArtifact) -> Timed:
        """Return a standard probe with its own memory."""
        return own_call(KernelLibrary(artifact).main, [buffer.shape[0] for buffer in artifact.arguments])

    def _bind(self, module: ProbeModule, probes: Sequence[Probe]) -> dict[str, Timed]:
        calls = {}
        for probe in probes:
            start, function = self._start_of(probe), module.functions[probe.name]
            if start is None:
                calls[probe.name] = own_call(function, probe.sizes)
                continue
            blocks = _random_blocks(probe.sizes[1:])
            blocks[-1].array[...] = 0.0  # pointers start at the first line
            first = tensor_of(self._arena[start : start + 4 * probe.sizes[0]].view(np.float32))
            calls[probe.name] = _time_function(function, [first, *(block.tensor for block in blocks)])
        return calls


Places = dict[str, tuple[int, int, CacheLevel | None]]
"""Level of memory -> offset in the arena, bytes, cache."""


def _places_in(hardware: CpuSpec, free_bytes: int | None) -> tuple[Places, int]:
    """Return the parts of the arena by level, and its size.

    A part is a half of its cache; for L3, up to four times L2. DRAM's is four times L3.
    """
    last = hardware.l3 or hardware.l2
    free = _MOST_ARENA_BYTES if free_bytes is None else min(_MOST_ARENA_BYTES, free_bytes // 4)
    sizes: dict[str, tuple[int, CacheLevel | None]] = {
        "dram": (max(1 << 22, min(free, max(1 << 26, 4 * last.size_bytes))), None)
    }
    if hardware.l3 is not None:
        sizes["l3"] = (min(4 * hardware.l2.size_bytes, hardware.l3.size_bytes // 2), hardware.l3)
    sizes["l2"] = (hardware.l2.size_bytes // max(1, hardware.l2.shared_by_cores) // 2, hardware.l2)
    sizes["l1"] = (hardware.l1.size_bytes // 2, hardware.l1)
    places: Places = {}
    start = 0
    for level, (size, cache) in sizes.items():
        size = size // 65536 * 65536 or size // 4096 * 4096
        places[level] = (start, size, cache)
        start += size
    return places, start


def pointer_chain(size: int, line_bytes: int) -> NDArray[np.int64]:
    """Return `size` bytes in which the first word of every line is the offset of the next line, in random order."""
    chain = np.zeros(size // 8, np.int64)
    order = np.random.default_rng(0).permutation(size // line_bytes)
    chain[order * (line_bytes // 8)] = np.roll(order, -1) * line_bytes
    return chain


def own_call(function: Callable[..., object], sizes: Sequence[int]) -> Timed:
    """Return a function that times a probe on its own float32 buffers of the given sizes."""
    return _time_function(function, [block.tensor for block in _random_blocks(sizes)])


def _random_blocks(sizes: Sequence[int]) -> list[ArgumentBlock]:
    rng = np.random.default_rng(0)
    blocks = [ArgumentBlock("float32", (size,)) for size in sizes]
    for block in blocks:
        block.array[...] = rng.random(block.shape) - 0.5
    return blocks


def _time_function(function: Callable[..., object], tensors: Sequence[tvm.runtime.Tensor]) -> Timed:
    return make_sampler(lambda: function(*tensors))


def _sample(call: Timed, warm: Timed | None, runs: int = 1) -> Callable[[], float]:
    def run() -> float:
        if warm is not None:
            warm(1)
        return call(runs)

    return run
