"""Compiling, checking and sampling the GPU probes on a device.

A sample is one launch of about `SAMPLE_S`, timed by events. A spinning kernel runs before it, so that the host's work
is done when the first event passes. Every block also reads its SM's clock and the nanosecond timer at both ends, which
gives the real clock of the launch. Probes are sampled in turn, so that a drift of the clock affects all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from anatune.codegen.cuda import memory_probes as gpu_memory_probes
from anatune.codegen.cuda import probes as gpu_probes
from anatune.codegen.cuda.memory_probes import CHASE_UNROLL, LINE_BYTES
from anatune.codegen.cuda.probes import GpuProbe
from anatune.errors import BuildError, RunError
from anatune.measure.cuda.calibration.probe_checks import chain, check_result, probe_input
from anatune.measure.cuda.calibration.probe_set import PlannedProbe, probe_set
from anatune.measure.cuda.driver import GpuBuffer, GpuDevice, KernelFaultError
from anatune.measure.run.correctness import Array

LAUNCH = "launch"
"""Name of the samples of empty kernels."""
SAMPLE_S = 3e-3
WARM_UP_S = 0.3
"""Seconds of multiply-adds before the first sample, so that clocks rise and settle."""
_CHECKED_ROUNDS = 3
_MOST_ROUNDS = 1 << 24
_HIDING_US = 200
_LAUNCHES = 400
"""Number of empty kernels in a row; fewer than the 1024 launches that drivers queue."""
_LAUNCH_HIDING_US = 30_000
_FLUSHING = "dram_read"


class _CubinLike(Protocol):
    """The interface of a cubin such as `codegen.cuda.nvrtc.Cubin`."""

    @property
    def image(self) -> bytes:
        """The image that the driver loads."""
        ...


Compile = Callable[[GpuProbe], _CubinLike]


class Sample(NamedTuple):
    """A sample: seconds of a launch by events, cycles and seconds of the median block, and the work.

    Attributes
    ----------
    seconds, cycles, block_s : float
    work : float
        Work of all blocks; number of launches for `LAUNCH`.
    block_work : float
        Work of one block.
    """

    seconds: float
    cycles: float
    block_s: float
    work: float
    block_work: float

    @property
    def rate(self) -> float:
        """Work of the device per second."""
        return self.work / self.seconds

    @property
    def cycle_rate(self) -> float:
        """Work of a block per cycle."""
        return self.block_work / self.cycles if self.cycles > 0 else 0.0

    @property
    def clock_hz(self) -> float:
        """Clock of the SMs during the launch; 0 if the timer did not advance."""
        return self.cycles / self.block_s if self.block_s > 0 else 0.0


class _Loaded:
    """A probe in device memory, with buffers for its parameters."""

    def __init__(self, device: GpuDevice, probe: GpuProbe, image: bytes, there: Mapping[str, GpuBuffer]) -> None:
        self.probe, self._device = probe, device
        kernel = probe.kernel
        self.function = device.load(image, kernel.name)
        self.buffers = {
            buffer.tensor: there.get(buffer.tensor)
            or device.allocate(np.dtype(buffer.dtype).itemsize * buffer.shape[0])
            for buffer in kernel.parameters
        }
        self.call = device.prepare(self.function, kernel.grid, kernel.block, list(self.buffers.values()))
        self.rounds = 0

    def set_rounds(self, rounds: int, before: int = 0) -> None:
        """Set the number of iterations of the loop; `before` is the number of untimed loads of a chase."""
        self.rounds = rounds
        self._device.upload(self.buffers["rounds"], np.array([rounds, before, 0, 0], dtype=np.int32))

    def read(self, tensor: str) -> Array:
        """Return the contents of a buffer."""
        buffer = next(each for each in self.probe.kernel.parameters if each.tensor == tensor)
        array = np.empty(buffer.shape, dtype=buffer.dtype)
        self._device.download(self.buffers[tensor], array)
        return array


class GpuMachine:
    """The probes of one device, ready to be sampled.

    Parameters
    ----------
    device
        An open device.
    compiler
        Returns the cubin of a probe.
    progress
        Called with the share of the probes that is ready.

    Attributes
    ----------
    refused : dict of str to str
        Probes that cannot be used -> reason: a wrong result, a compile error, or too little memory.

    Raises
    ------
    KernelFaultError, LostDeviceError
        The device failed.
    BuildError, MissingDependencyError, RunError
        Not even a spinning kernel can be built or run.
    """

    def __init__(self, device: GpuDevice, compiler: Compile, progress: Callable[[float], None] | None = None) -> None:
        self._device, self._compiler = device, compiler
        self._rng = np.random.default_rng(0)
        ask = device.attributes
        self.num_sms = ask["MULTIPROCESSOR_COUNT"]
        planned = probe_set(
            device.arch, self.num_sms, ask["MAX_THREADS_PER_MULTIPROCESSOR"], ask.get("L2_CACHE_SIZE", 0) or 1 << 22
        )
        self._spins = [self._load_spinner(us) for us in (_HIDING_US, _LAUNCH_HIDING_US)]
        self._empty = self._load(gpu_probes.make_empty(device.arch, 256, self.num_sms))
        self._loaded: dict[str, _Loaded] = {}
        self._cold: set[str] = set()
        self.refused: dict[str, str] = {}
        for number, (name, plan) in enumerate(planned.items()):
            try:
                problem = self._prepare(name, plan)
            except KernelFaultError:
                raise
            except (BuildError, RunError) as error:
                problem = str(error)
            if problem is not None:
                self.refused[name] = problem
                unusable = self._loaded.pop(name, None)
                if unusable is not None and not plan.reads:
                    for buffer in unusable.buffers.values():
                        buffer.free()
            if progress is not None:
                progress((number + 1) / len(planned))

    def close(self) -> None:
        """Free the device memory."""
        for loaded in (*self._spins, self._empty, *self._loaded.values()):
            for buffer in loaded.buffers.values():
                buffer.free()
        self._loaded.clear()

    @property
    def names(self) -> list[str]:
        """Names of the probes that can be sampled."""
        return [*self._loaded, LAUNCH]

    def _load(self, probe: GpuProbe, **there: GpuBuffer) -> _Loaded:
        return _Loaded(self._device, probe, self._compiler(probe).image, there)

    def _load_spinner(self, microseconds: int) -> _Loaded:
        loaded = self._load(gpu_probes.spin(self._device.arch))
        loaded.set_rounds(microseconds)
        return loaded

    def _prepare(self, name: str, plan: PlannedProbe) -> str | None:
        """Load, fill and check a probe and find the rounds of a sample; return the error of its result, or None."""
        probe, device = plan.probe, self._device
        before = 0 if plan.is_cold else plan.visited
        if plan.is_cold and _FLUSHING not in self._loaded:
            return f"it needs the probe {_FLUSHING}, which cannot be used, to flush the caches"
        if plan.visited:
            given = chain(probe.kernel.parameters[0].shape[0] * 8 // LINE_BYTES, plan.visited, self._rng)
            loaded = self._load(probe, input=self._link(probe, given))
        elif plan.reads:
            if plan.reads not in self._loaded:
                return f"it reads the data of the probe {plan.reads}, which cannot be used"
            loaded = self._load(probe, input=self._loaded[plan.reads].buffers["input"])
            given = loaded.read("input")
        else:
            loaded = self._load(probe)
            given = probe_input(probe, self._rng, checked=True)
            device.upload(loaded.buffers["input"], given)
        self._loaded[name] = loaded
        device.fill(loaded.buffers["result"], 0xA5)
        loaded.set_rounds(_CHECKED_ROUNDS, before)
        loaded.call()
        device.synchronize()
        problem = check_result(probe, given, _CHECKED_ROUNDS, loaded.read("result"), before=before)
        if problem is not None:
            return problem
        if probe.kind in ("multiply_add", "matrix_unit"):
            device.upload(loaded.buffers["input"], probe_input(probe, self._rng, checked=False))
        if plan.is_cold:
            self._cold.add(name)
            loaded.set_rounds(plan.visited // CHASE_UNROLL)
            return None
        while loaded.rounds < _MOST_ROUNDS:
            seconds = self.sample(name).seconds
            if seconds > SAMPLE_S / 2:
                break
            longer = min(64.0, max(2.0, SAMPLE_S / max(seconds, 1e-9)))
            loaded.set_rounds(min(_MOST_ROUNDS, int(loaded.rounds * longer)), before)
        return None

    def _link(self, probe: GpuProbe, offsets: NDArray[np.uint64]) -> GpuBuffer:
        """Return device memory with the chain, converted to addresses in that memory."""
        device = self._device
        linker = self._load(gpu_memory_probes.link(device.arch, offsets.size * 8 // LINE_BYTES))
        device.upload(linker.buffers["input"], offsets)
        linker.call()
        device.synchronize()
        linker.buffers["input"].free()
        return linker.buffers["result"]

    # ---- sampling -------------------------------------------------------------------------------------------------

    def sample(self, name: str) -> Sample:
        """Run a probe once."""
        if name == LAUNCH:
            (seconds,) = self._device.time_calls(self._empty.call, launches=_LAUNCHES, before=self._spins[1].call)
            return Sample(seconds, 0.0, 0.0, 1.0, 1.0)
        loaded = self._loaded[name]
        before = self._flush if name in self._cold else self._spins[0].call
        (seconds,) = self._device.time_calls(loaded.call, before=before)
        cycles, nanoseconds = np.median(loaded.read("times").reshape(-1, 2), axis=0)
        work = loaded.probe.work * loaded.rounds
        return Sample(seconds, float(cycles), float(nanoseconds) * 1e-9, work * loaded.probe.kernel.grid, work)

    def _flush(self) -> None:
        """Read memory until the caches hold nothing else."""
        self._loaded[_FLUSHING].call()

    def warm_up(self, name: str, seconds: float = WARM_UP_S) -> float:
        """Keep the device busy with one probe; return the clock of the last launch, Hz."""
        clock = 0.0
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            for _ in range(8):
                self._loaded[name].call()
            clock = self.sample(name).clock_hz or clock
        return clock

    def sample_all(
        self,
        *,
        budget_s: float,
        least_rounds: int = 5,
        enough: int = 15,
        progress: Callable[[float], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> dict[str, list[Sample]]:
        """Sample all probes in turn until each has `enough` samples or, after `least_rounds`, the budget is spent."""
        taken: dict[str, list[Sample]] = {name: [] for name in self.names}
        started = clock()
        for turn in range(enough):
            if turn >= least_rounds and clock() - started > budget_s:
                break
            for name in _rotate(self.names, turn):
                taken[name].append(self.sample(name))
            if progress is not None:
                progress(max((turn + 1) / enough, min(1.0, (clock() - started) / max(budget_s, 1e-9))))
        return taken


def _rotate(names: Sequence[str], turn: int) -> Iterator[str]:
    start = turn % max(1, len(names))
    yield from names[start:]
    yield from names[:start]
