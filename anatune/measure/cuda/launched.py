"""A model that is launches of kernels, on an NVIDIA GPU: everything allocated once, inputs copied there and back."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from anatune.codegen.relax.device.program import DeviceProgram, Region
from anatune.errors import DeviceError, RunError
from anatune.graph.summary import TensorSummary
from anatune.measure.cuda.driver import BorrowedBuffer, GpuBuffer, GpuDevice
from anatune.measure.run.correctness import Array, array_dtype

__all__ = ["DeviceRunner"]


class DeviceRunner:
    """Runs the launches of a model.

    Parameters
    ----------
    program : DeviceProgram
    weights : ndarray
        (num_bytes,) uint8, copied once.
    inputs, outputs : sequence of TensorSummary
    device : GpuDevice
        Open, and of the architecture that the kernels are for.

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
        }
        device.activate()
        owned: list[GpuBuffer] = []
        weakref.finalize(self, _free, device, owned)
        self._memory: dict[str, list[GpuBuffer]] = {}
        for role, own in sizes.items():
            self._memory[role] = [device.allocate(size) for size in own]
            owned += self._memory[role]
        device.upload(self._memory["weight"][0], weights)
        functions = [
            device.load(program.image[one.first : one.first + one.num_bytes], one.function, one.dynamic_shared_bytes)
            for one in program.kernels
        ]
        null = np.uint64(0)
        self._calls: list[Callable[[], None]] = []
        for launch in program.launches:
            kernel = program.kernels[launch.kernel]
            scratch = null if launch.scratch is None else self._at(launch.scratch)
            arguments = [*(self._at(region) for region in launch.regions), scratch, null]
            self._calls.append(device.prepare(functions[launch.kernel], kernel.grid, kernel.block, arguments))
        self._names = [launch.name for launch in program.launches]

    def _at(self, region: Region) -> GpuBuffer:
        base = self._memory[region.role][region.place]
        return BorrowedBuffer(base.address + region.offset, region.num_bytes)

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return what the model makes of its inputs."""
        self._device.activate()  # another thread may call
        for buffer, array in zip(self._memory["input"], arrays, strict=True):
            self._device.upload(buffer, array)
        self.launch()
        found: list[Array] = []
        for buffer, (shape, dtype) in zip(self._memory["output"], self._outputs, strict=True):
            found.append(np.empty(shape, dtype))
            self._device.download(buffer, found[-1])
        return found

    def launch(self) -> None:
        """Launch everything once, on the inputs of the last run; returns at once."""
        for call in self._calls:
            call()

    def times(self, samples: int) -> dict[str, float]:
        """Return the least seconds of each kernel's launches in a run, by events around each launch."""
        self._device.activate()
        found: dict[str, float] = {}
        for name, call in zip(self._names, self._calls, strict=True):
            found[name] = found.get(name, 0.0) + min(self._device.time_calls(call, samples=samples))
        return found


def _bytes_of(one: TensorSummary) -> int:
    return int(np.prod([int(size) for size in one.shape], dtype=np.int64)) * array_dtype(one.dtype).itemsize


def _free(device: GpuDevice, buffers: Iterable[GpuBuffer]) -> None:
    with contextlib.suppress(RunError, DeviceError):  # it may be gone
        device.activate()
        for buffer in buffers:
            buffer.free()
        device.close()
