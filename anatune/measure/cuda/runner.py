"""The runner session of a GPU: operands in device memory, checking, timing by CUDA events.

A sample is as many launches as fill `TimingProtocol.sample_s`. With "flush", twice the size of the L2 cache is
overwritten before each launch, and each launch has its own pair of events. With "warm", launches follow each other in
short batches, so that operands stay in the caches. In both cases other work (the overwriting, the reference kernel)
occupies the device while the host queues the launches, so that the events measure the time on the device only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from anatune.arguments import check_choice
from anatune.codegen.cuda.artifact import GpuArtifact, read_image
from anatune.core.workload.nest import Workload
from anatune.errors import AnatuneError
from anatune.measure.cuda.driver import BorrowedBuffer, GpuBuffer, GpuDevice, open_device
from anatune.measure.cuda.launching import LoadedKernel, load_kernel
from anatune.measure.energy import EnergyCounter
from anatune.measure.run.correctness import (
    GUARD_BYTES,
    GUARD_FILL,
    Array,
    Correctness,
    array_dtype,
    check_runs,
    same_bytes,
)
from anatune.measure.run.runner import Setting
from anatune.measure.run.timing import Clock, Timed, TimingProtocol, beside

L2_MODES = ("flush", "warm")
DEFAULT_L2 = "flush"

GPU_PROTOCOL = TimingProtocol(sample_s=0.003, reference_s=0.0006, budget_s=0.15)
"""A sample of a kernel of 10 us is 300 launches; with flushing it takes 15 to 20 ms of wall time."""

_BATCH = 16
"""Launches in a warm batch, which the host queues in less time than the reference kernel takes."""
_MOST_PAIRS = 64
"""Largest number of event pairs that are queued before waiting."""
_FLUSHED_CACHES = 2
_REFERENCE_ROUNDS = 256
"""Rounds of the reference kernel: 65 us on an H200 (128 multiply-adds of 512 threads per SM and round)."""
_REFERENCE_MULTIPLY_ADDS = 128
"""Multiply-adds of a thread in a round of the kernel of `codegen.cuda.artifact.build_reference`."""
_FIRST_WARM_UP_S, _WARM_UP_S = 0.3, 0.02
"""Seconds that the reference kernel runs before the first and every later kernel, so that clocks settle."""


def check_l2(mode: str) -> str:
    """Return `mode` if it is valid.

    Raises
    ------
    SpaceError
        The mode is unknown.
    """
    return check_choice("l2", mode, L2_MODES)


class Operands:
    """A workload's tensors in device memory, each between guard zones.

    Parameters
    ----------
    device
        The device.
    workload
        The workload with its tensors.
    inputs : mapping of str to ndarray
        Operands by tensor, C-contiguous.
    """

    def __init__(self, device: GpuDevice, workload: Workload, inputs: Mapping[str, Array]) -> None:
        self._device, self._inputs = device, inputs
        written = (workload.write, *workload.further)
        self.results = {access.tensor: np.empty(access.shape, array_dtype(access.dtype)) for access in written}
        sizes = {name: array.nbytes for name, array in (*inputs.items(), *self.results.items())}
        self._sizes = sizes
        self._blocks = {name: device.allocate(size + 2 * GUARD_BYTES) for name, size in sizes.items()}
        self.buffers = {
            name: BorrowedBuffer(block.address + GUARD_BYTES, sizes[name]) for name, block in self._blocks.items()
        }
        for name in sizes:
            self._restore(name)

    def _restore(self, name: str) -> None:
        self._device.fill(self._blocks[name], GUARD_FILL)
        if name in self._inputs:
            self._device.upload(self._blocks[name], self._inputs[name], GUARD_BYTES)

    def run(self, call: Callable[[], None], byte: int) -> dict[str, Array]:
        """Fill the results with a byte, run a kernel and return them; the next run reuses the arrays."""
        for name in self.results:
            self._device.fill(self._blocks[name], byte, GUARD_BYTES, self._sizes[name])
        call()
        for name, array in self.results.items():
            self._device.download(self._blocks[name], array, GUARD_BYTES)
        return self.results

    def find_change(self) -> str:
        """Return which operand or guard zone a kernel changed, and restore it; "" if none."""
        complaint = ""
        for name, size in self._sizes.items():
            guards = np.empty((2, GUARD_BYTES), np.uint8)
            self._device.download(self._blocks[name], guards[0])
            self._device.download(self._blocks[name], guards[1], GUARD_BYTES + size)
            wrong = "" if (guards == GUARD_FILL).all() else f"the kernel wrote outside of {name}"
            if name in self._inputs and not wrong:
                now = np.empty_like(self._inputs[name])
                self._device.download(self._blocks[name], now, GUARD_BYTES)
                wrong = "" if same_bytes(now, self._inputs[name]) else f"the kernel changed its operand {name}"
            if wrong:
                self._restore(name)
                complaint = complaint or wrong
        return complaint

    def free(self) -> None:
        """Free the memory."""
        for block in self._blocks.values():
            block.free()


class GpuSession:
    """A setting with its device, operands, expected result and reference kernel; a `RunSession`.

    Parameters
    ----------
    setting
        The data that all kernels share.
    l2 : str
        "flush" or "warm".
    device : int
        Number of the device.
    backend : str or None
        The backend, as for `open_device`.
    """

    counter: EnergyCounter | None = None
    """No energy is counted, because samples also contain the work that flushes the cache or occupies the device."""

    def __init__(self, setting: Setting, *, l2: str, device: int = 0, backend: str | None = None) -> None:
        self.setting = setting
        self._clock: Clock = time.perf_counter
        self._device = opened = open_device(device, backend)
        self._want = setting.want()
        inputs = {name: np.ascontiguousarray(array) for name, array in setting.inputs().items()}
        self._operands = Operands(opened, setting.workload, inputs)
        self._reference_call = _reference_call(opened, setting.reference)
        self._flush: GpuBuffer | None = None
        if l2 == "flush":
            self._flush = opened.allocate(_FLUSHED_CACHES * max(1 << 20, opened.attributes.get("L2_CACHE_SIZE", 0)))
        self._loaded: list[LoadedKernel] = []
        self._warm_up(_FIRST_WARM_UP_S)
        self.reference = beside(self._time_calls(self._reference_call, None), setting.protocol.reference_s)

    def begin(self) -> None:
        """Unload earlier kernels and let the clock rise."""
        while self._loaded:
            self._loaded.pop().unload(self._device)
        self._warm_up(_WARM_UP_S)

    def prepare(self, artifact: GpuArtifact) -> tuple[Timed, Correctness]:
        """Load a kernel and check its result; operands and guard zones must not change."""
        operands = self._operands
        loaded = load_kernel(self._device, artifact, operands.buffers)
        self._loaded.append(loaded)

        def run(byte: int) -> dict[str, Array]:
            if loaded.workspace is not None:  # a kernel must not use what an earlier run left there
                self._device.fill(loaded.workspace, GUARD_FILL)
            return operands.run(loaded.call, byte)

        answer = check_runs(self.setting.workload, self._want.allowing(artifact.error), run, operands.find_change)
        return self._time_calls(loaded.call, self._flush), answer

    def _time_calls(self, call: Callable[[], None], flush: GpuBuffer | None) -> Timed:
        return timed_launches(self._device, call, flush=flush, busy=self._reference_call)

    def _warm_up(self, seconds: float) -> None:
        until = self._clock() + seconds
        while self._clock() < until:
            for _ in range(_BATCH):
                self._reference_call()
            self._device.synchronize()


def reference_flop(artifact: GpuArtifact) -> float:
    """Return the work of one launch of the reference kernel, FLOP."""
    return 2.0 * _REFERENCE_MULTIPLY_ADDS * _REFERENCE_ROUNDS * artifact.grid * artifact.block


def timed_launches(
    device: GpuDevice, call: Callable[[], None], *, flush: GpuBuffer | None, busy: Callable[[], None]
) -> Timed:
    """Return a function that samples a kernel: number of launches -> their total seconds on the device.

    Parameters
    ----------
    device, call
        The device; one launch.
    flush : GpuBuffer, optional
        A buffer that is overwritten before each launch; without it launches follow each other.
    busy : callable
        Launches a kernel that occupies the device while the host queues a batch.
    """

    def cold(count: int) -> float:
        assert flush is not None
        total = 0.0
        for first in range(0, count, _MOST_PAIRS):
            samples = min(_MOST_PAIRS, count - first)
            total += sum(device.time_calls(call, samples=samples, before=lambda: device.fill(flush)))
        return total

    def warm(count: int) -> float:
        batches, rest = divmod(count, _BATCH)
        total = 0.0
        for first in range(0, batches, _MOST_PAIRS):
            samples = min(_MOST_PAIRS, batches - first)
            total += _BATCH * sum(device.time_calls(call, samples=samples, launches=_BATCH, before=busy))
        return total + (rest * device.time_calls(call, launches=rest, before=busy)[0] if rest else 0.0)

    return warm if flush is None else cold


def _reference_call(device: GpuDevice, artifact: GpuArtifact) -> Callable[[], None]:
    """Return a function that launches the reference kernel on its own operands."""
    function = device.load(read_image(artifact), artifact.name, artifact.dynamic_shared_bytes)
    rng = np.random.default_rng(0)
    arguments = []
    for buffer in artifact.parameters:
        array = np.zeros(buffer.shape, buffer.dtype)
        if buffer.tensor == "rounds":
            array[...] = _REFERENCE_ROUNDS
        elif buffer.tensor == "input":
            array[...] = rng.random(buffer.shape) - 0.5
        arguments.append(device.allocate(array.nbytes))
        device.upload(arguments[-1], array)
    try:
        call = device.prepare(function, artifact.grid, artifact.block, arguments)
        call()
        device.synchronize()
    except AnatuneError as error:
        raise type(error)(f"the reference kernel does not run: {error}") from None
    return call
