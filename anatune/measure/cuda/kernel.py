"""A built GPU kernel in this process, which is called on NumPy arrays in the workload's layouts."""

from __future__ import annotations

import atexit
import functools
import weakref
from collections.abc import Callable, Iterable

import numpy as np

from anatune.codegen.cuda.artifact import GpuArtifact, build_schedule
from anatune.codegen.toolchains import find_toolchain
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.errors import AnatuneError, BuildError, DeviceError, RunError, no_scratch
from anatune.files import temporary_folder
from anatune.measure.cuda.apart import build_apart
from anatune.measure.cuda.dlpack import device_address
from anatune.measure.cuda.driver import BorrowedBuffer, GpuBuffer, GpuDevice, open_device
from anatune.measure.cuda.launching import bound_call, load_kernel
from anatune.measure.run.correctness import Array, array_dtype, check_operands, random_inputs


class GpuKernel:
    """A built GPU schedule: ``kernel(*arrays)`` copies NumPy arrays to the device, runs, and copies the result back.

    ``kernel.launch(*tensors)`` takes tensors that are there already, by DLPack.

    Operands, result and workspace keep their memory on the device for as long as the kernel lives. Not safe to call
    from several threads at once. A kernel that faults leaves the device unusable for this process (`KernelFaultError`).

    Parameters
    ----------
    workload, artifact
        The workload; the built kernel.
    device
        An open device of the artifact's architecture.

    Raises
    ------
    RunError
        The device refuses the kernel.
    """

    def __init__(self, workload: Workload, artifact: GpuArtifact, device: GpuDevice) -> None:
        self.workload, self.artifact = workload, artifact
        self._device = device
        self.operands: tuple[str, ...] = tuple(dict.fromkeys(access.tensor for access in workload.operands))
        written = {access.tensor: access for access in (workload.write, *workload.further)}
        self.written: tuple[str, ...] = tuple(written)
        self._accesses = {name: workload.tensor(name) for name in self.operands} | written
        sizes = {n: a.num_elements * array_dtype(a.dtype).itemsize for n, a in self._accesses.items()}
        self._buffers = {name: device.allocate(size) for name, size in sizes.items()}
        owned = list(self._buffers.values())
        weakref.finalize(self, _free, owned)
        loaded = load_kernel(device, artifact, self._buffers)
        owned += loaded.memory
        self._loaded, self._launch = loaded, loaded.call
        self._outside: tuple[tuple[int, ...], Callable[[], None]] | None = None

    def __call__(self, *arrays: Array) -> Array:
        """Return the result for `arrays`: the workload's reads, then its epilogue's. Raises as `results`."""
        return self.results(*arrays)[self.workload.write.tensor]

    def results(self, *arrays: Array) -> dict[str, Array]:
        """Return all results by tensor: the main one, and others such as the scales of quantized rows.

        Raises
        ------
        RunError
            The number of arrays, a shape or a dtype is wrong; or the kernel failed.
        """
        self._device.activate()
        for name, array in check_operands(self.workload, self.operands, arrays).items():
            self._device.upload(self._buffers[name], array)
        self._launch()
        arrays_by_name = {}
        for name in self.written:
            access = self._accesses[name]
            arrays_by_name[name] = np.empty(access.shape, array_dtype(access.dtype))
            self._device.download(self._buffers[name], arrays_by_name[name])
        return arrays_by_name

    def launch(self, *tensors: object) -> None:
        """Launch the kernel on tensors in device memory, operands then results, and return at once.

        They are of any library that has DLPack (PyTorch, CuPy, JAX), C-contiguous; nothing is copied. The launch is
        queued on CUDA's legacy default stream, behind what computes the tensors there; they have to stay until it ends.

        Raises
        ------
        RunError
            The number of tensors is wrong; a tensor is not on the device, has another shape or dtype, or is not
            contiguous.
        """
        names = (*self.operands, *self.written)
        if len(tensors) != len(names):
            raise RunError(
                f"{self.workload.operator}: got {len(tensors)} tensors, expected {len(names)}: {', '.join(names)}"
            )
        pairs = ((self._accesses[name], tensor) for name, tensor in zip(names, tensors, strict=True))
        addresses = tuple(
            device_address(own.tensor, own.dtype, own.shape, tensor, self._device.index) for own, tensor in pairs
        )
        self._device.activate()
        if self._outside is None or self._outside[0] != addresses:
            buffers: dict[str, GpuBuffer] = {
                name: BorrowedBuffer(address, self._buffers[name].num_bytes)
                for name, address in zip(names, addresses, strict=True)
            }
            if self.artifact.workspace is not None and self._loaded.workspace is not None:
                buffers[self.artifact.workspace.tensor] = self._loaded.workspace
            functions, scratch = self._loaded.functions, self._loaded.scratch
            self._outside = addresses, bound_call(self._device, self.artifact, functions, buffers, scratch)
        self._outside[1]()

    def random_call(self, seed: int = 0) -> Callable[[], None]:
        """Return a function that runs the kernel on random operands in device memory and waits for its end."""
        self._device.activate()
        for name, array in random_inputs(self.workload, seed).items():
            self._device.upload(self._buffers[name], array)

        def call() -> None:
            self._launch()
            self._device.synchronize()

        return call


def build_gpu(schedule: Schedule, device: GpuDevice | None = None) -> GpuKernel:
    """Compile a GPU schedule and load it onto this machine's GPU.

    Parameters
    ----------
    device : GpuDevice, optional
        The device; the first one by default.

    Raises
    ------
    DeviceError
        There is no GPU, or it is of another architecture.
    SpaceError, BuildError, MissingDependencyError
        The schedule cannot be built.
    """
    if schedule.hardware.vendor == "amd":
        raise DeviceError(
            f"the schedule is for {schedule.hardware.name} ({schedule.hardware.arch}), but anatune launches kernels on "
            "NVIDIA GPUs only; `anatune export` writes its machine code with a header and a Python file that launch it"
        )
    try:
        device = device or first_device()
    except DeviceError as error:
        raise DeviceError(
            f"the schedule is for {schedule.hardware.name}, but {error}; `anatune export --target cuda` writes its "
            "CUDA C source"
        ) from None
    if device.arch != schedule.hardware.arch:
        raise DeviceError(
            f"the schedule is for {schedule.hardware.name} ({schedule.hardware.arch}), but the GPU of this machine "
            f"({device.name}) is {device.arch}; run `anatune hw detect` and plan for --hw host_gpu"
        )
    try:
        with temporary_folder() as folder:
            build = build_apart if find_toolchain(schedule.template).APART else build_schedule
            return GpuKernel(schedule.workload, build(schedule, folder), device)
    except OSError as error:
        raise BuildError(no_scratch(error)) from None


@functools.lru_cache(maxsize=1)
def first_device() -> GpuDevice:
    """Return the first device, which is opened once for all kernels of the process."""
    device = open_device()
    atexit.register(device.close)
    return device


def _free(buffers: Iterable[GpuBuffer]) -> None:
    for buffer in buffers:
        try:
            buffer.free()
        except AnatuneError:  # the context was destroyed with its memory
            return
