"""Run a network of launches on a GPU: load its functions, allocate its memory, and launch it as one graph."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from anatune.errors import DeviceError, RunError
from anatune.measure.cuda.driver import BorrowedBuffer, GpuBuffer, GpuDevice
from anatune.measure.run.correctness import Array, array_dtype
from anatune.network.graph.summary import TensorSummary
from anatune.network.relax.device.program import DeviceLaunch, DeviceProgram, Region

__all__ = ["DeviceRunner"]

_MOST_LAUNCH_SETS = 8
"""Most sets of tensor addresses whose launches are stored; allocators such as PyTorch's reuse few of them."""


class _Launches:
    """Launches on the same memory: one by one the first time, then as one graph if the driver supports graphs.

    A single launch needs no graph. A driver may load code with the first launch, which no graph should capture.
    """

    def __init__(self, device: GpuDevice, calls: Sequence[Callable[[], None]]) -> None:
        self.calls = calls
        self._device, self._times = device, 0
        self._launch, self.free = self._each, _do_nothing

    def _each(self) -> None:
        for call in self.calls:
            call()

    def __call__(self) -> None:
        self._times += 1
        if self._times == 2 and len(self.calls) > 1:
            with contextlib.suppress(RunError, DeviceError):  # without a graph, the launches report the error
                self._launch, self.free = self._device.graph(self._each)
        self._launch()


class DeviceRunner:
    """Runs the launches of a model.

    Parameters
    ----------
    program : DeviceProgram
    weights : ndarray
        (num_bytes,) uint8, copied once.
    inputs, outputs : sequence of TensorSummary
    device : GpuDevice
        The open device, of the architecture that the kernels were compiled for.

    Raises
    ------
    RunError
        The device refuses a kernel, or has too little memory.
    """

    def __init__(
        self,
        program: DeviceProgram,
        weights: Array,
        inputs: Sequence[TensorSummary],
        outputs: Sequence[TensorSummary],
        device: GpuDevice,
    ) -> None:
        self._device = device
        self._outputs = [(tuple(map(int, one.shape)), array_dtype(one.dtype)) for one in outputs]
        sizes = {
            "weight": [weights.nbytes],
            "arena": [program.arena_bytes],
            "input": [_bytes_of(one) for one in inputs],
            "output": [_bytes_of(one) for one in outputs],
            "state": [one.num_bytes for one in program.state],
        }
        device.activate()
        buffers: list[GpuBuffer] = []
        self._launches: dict[tuple[int, ...], _Launches] = {}
        """Launches by the addresses of their tensors, the latest last; () has the runner's own memory."""
        weakref.finalize(self, _release, device, buffers, self._launches)
        self._memory: dict[str, list[GpuBuffer]] = {}
        for role, role_sizes in sizes.items():
            self._memory[role] = [device.allocate(size) for size in role_sizes]
            buffers += self._memory[role]
        device.upload(self._memory["weight"][0], weights)
        self._program = program
        self._functions = [
            device.load(program.image[one.first : one.first + one.num_bytes], one.function, one.dynamic_shared_bytes)
            for one in program.kernels
        ]
        self._owned = _Launches(device, [self._bind(launch, self._memory) for launch in program.launches])
        self._launches[()] = self._owned
        self._names = [launch.name for launch in program.launches]

    def _bind(self, launch: DeviceLaunch, memory: Mapping[str, Sequence[GpuBuffer]]) -> Callable[[], None]:
        """Return a function that launches a kernel on the given memory."""

        def borrow(region: Region) -> GpuBuffer:
            return BorrowedBuffer(memory[region.role][region.place].address + region.offset, region.num_bytes)

        kernel, null = self._program.kernels[launch.kernel], np.uint64(0)
        scratch = null if launch.scratch is None else borrow(launch.scratch)
        arguments = [*map(borrow, launch.regions), scratch, null]
        return self._device.prepare(self._functions[launch.kernel], kernel.grid, kernel.block, arguments)

    def run_on(self, tensors: Sequence[int], copied_inputs: Sequence[Array]) -> None:
        """Launch everything once on tensors that lie on the device, and return at once.

        Parameters
        ----------
        tensors : sequence of int
            Addresses of the inputs, followed by those of the outputs.
        copied_inputs : sequence of ndarray
            The last inputs, which are copied to the device.
        """
        self._device.activate()
        input_buffers = self._memory["input"]
        count = len(input_buffers) - len(copied_inputs)
        for buffer, array in zip(input_buffers[count:], copied_inputs, strict=True):
            self._device.upload(buffer, array)
        launches = self._launches.pop(tuple(tensors), None) or self._bind_tensors(tensors, count)
        self._launches[tuple(tensors)] = launches
        if len(self._launches) > _MOST_LAUNCH_SETS:
            self._launches.pop(next(key for key in self._launches if key)).free()
        launches()

    def _bind_tensors(self, tensors: Sequence[int], count: int) -> _Launches:
        """Return the launches on tensors of the caller; the first `count` of them are inputs."""
        buffers: list[GpuBuffer] = [BorrowedBuffer(address, 0) for address in tensors]
        memory = dict(self._memory)
        memory["input"], memory["output"] = ([*buffers[:count], *self._memory["input"][count:]], buffers[count:])
        calls = []
        for launch, call in zip(self._program.launches, self._owned.calls, strict=True):
            is_outside = any(region.role in ("input", "output") for region in launch.regions)
            calls.append(self._bind(launch, memory) if is_outside else call)
        return _Launches(self._device, calls)

    @property
    def index(self) -> int:
        """Number of the device."""
        return self._device.index

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs of the model for arrays."""
        self._device.activate()  # another thread may call
        for buffer, array in zip(self._memory["input"], arrays, strict=True):
            self._device.upload(buffer, array)
        self.launch()
        outputs: list[Array] = []
        for buffer, (shape, dtype) in zip(self._memory["output"], self._outputs, strict=True):
            outputs.append(np.empty(shape, dtype))
            self._device.download(buffer, outputs[-1])
        return outputs

    def read_state(self) -> list[Array]:
        """Return the state of the model, (num_bytes,) uint8 each."""
        self._device.activate()
        arrays: list[Array] = []
        for buffer in self._memory["state"]:
            arrays.append(np.empty(buffer.num_bytes, np.uint8))
            self._device.download(buffer, arrays[-1])
        return arrays

    def write_state(self, state: Sequence[Array]) -> None:
        """Write the state of the model."""
        self._device.activate()
        for buffer, array in zip(self._memory["state"], state, strict=True):
            self._device.upload(buffer, array)

    def launch(self) -> None:
        """Launch everything once on the inputs of the last run, and return at once."""
        self._owned()

    def times(self, samples: int) -> dict[str, float]:
        """Return the least seconds of each kernel's launches in a run, by events around each launch."""
        self._device.activate()
        seconds: dict[str, float] = {}
        for name, call in zip(self._names, self._owned.calls, strict=True):
            seconds[name] = seconds.get(name, 0.0) + min(self._device.time_calls(call, samples=samples))
        return seconds


def _bytes_of(tensor: TensorSummary) -> int:
    return int(np.prod([int(size) for size in tensor.shape], dtype=np.int64)) * array_dtype(tensor.dtype).itemsize


def _do_nothing() -> None:
    """Stand in for the function that frees a graph."""


def _release(device: GpuDevice, buffers: Iterable[GpuBuffer], launches: Mapping[tuple[int, ...], _Launches]) -> None:
    with contextlib.suppress(RunError, DeviceError):  # the device may be closed
        device.activate()
        for kept_launches in launches.values():
            kept_launches.free()
        for buffer in buffers:
            buffer.free()
        device.close()
