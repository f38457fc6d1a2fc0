"""Access to one GPU through the installed driver package: memory, machine code, launches and times.

    with open_device() as device:
        function = device.load(cubin, "main_kernel", dynamic_shared_bytes=0)
        buffer = device.allocate(4096)
        device.prepare(function, 128, 256, [buffer])()
        device.synchronize()

Launches and fills return at once; a later call raises their errors. After a `KernelFaultError` or a `LostDeviceError`
every further call fails, and the process has to end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anatune.arguments import quote
from anatune.errors import DeviceError, RunError
from anatune.measure.cuda.drivers.backends import NO_GPU, WITHOUT_GPU, make_backend
from anatune.measure.cuda.drivers.driver_calls import DriverBackend, Handle, KernelFaultError, LostDeviceError
from anatune.measure.run.correctness import Array

__all__ = [
    "BorrowedBuffer",
    "GpuBuffer",
    "GpuDevice",
    "GpuFunction",
    "KernelFaultError",
    "LostDeviceError",
    "open_device",
]

STATIC_SHARED_BYTES = 48 << 10
"""Bytes of shared memory above which a function needs the opt-in attribute. Source: [CUDA-guide]."""

_ATTRIBUTES = (
    "COMPUTE_CAPABILITY_MAJOR",
    "COMPUTE_CAPABILITY_MINOR",
    "MULTIPROCESSOR_COUNT",
    "WARP_SIZE",
    "MAX_THREADS_PER_BLOCK",
    "MAX_THREADS_PER_MULTIPROCESSOR",
    "MAX_REGISTERS_PER_BLOCK",
    "MAX_REGISTERS_PER_MULTIPROCESSOR",
    "MAX_SHARED_MEMORY_PER_BLOCK",
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
    "L2_CACHE_SIZE",
    "CLOCK_RATE",
    "MEMORY_CLOCK_RATE",
    "GLOBAL_MEMORY_BUS_WIDTH",
    "MAX_GRID_DIM_X",
)


class GpuBuffer:
    """Device memory, 256-byte aligned.

    Attributes
    ----------
    address : int
        Address on the device.
    num_bytes : int
        Size in bytes.
    """

    def __init__(self, backend: DriverBackend, num_bytes: int) -> None:
        self._backend = backend
        self._handle, self.address = backend.allocate(max(1, num_bytes))
        self.num_bytes = num_bytes

    def free(self) -> None:
        """Free the memory; may be called twice."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            self._backend.free(handle)


class BorrowedBuffer(GpuBuffer):
    """Device memory that another object owns, or a part of a buffer; freeing it does nothing."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self._handle = None
        self.address, self.num_bytes = address, num_bytes


Argument = GpuBuffer | np.generic


class GpuFunction(NamedTuple):
    """A kernel in the device's memory.

    Attributes
    ----------
    name : str
        Name in the cubin.
    registers : int
        Registers of a thread.
    local_bytes : int
        Local memory of a thread: stack and spills.
    shared_bytes : int
        Shared memory of a block, with the dynamic part.
    dynamic_shared_bytes : int
        Dynamic shared memory of a launch.
    max_threads : int
        Largest number of threads of a block for this function.
    """

    name: str
    registers: int
    local_bytes: int
    shared_bytes: int
    dynamic_shared_bytes: int
    max_threads: int
    module: Handle
    handle: Handle


class GpuDevice:
    """A GPU with its primary context, which other libraries of the process share; a context manager.

    Not safe to share between threads. Use `open_device`.

    Attributes
    ----------
    index : int
        Number of the device, as CUDA or HIP counts.
    name : str
        Product name.
    arch : str
        "sm_90", "gfx942".
    backend : str
        "pycuda", "cuda-bindings" or "hip-python".
    driver_version : int
        CUDA version that the driver supports: 1000 * major + 10 * minor; HIP's as HIP counts.
    attributes : mapping of str to int
        By the driver's names without ``CU_DEVICE_ATTRIBUTE_``: "MULTIPROCESSOR_COUNT", "L2_CACHE_SIZE" (bytes),
        "CLOCK_RATE" (kHz), ...; without those that the package does not know.
    """

    def __init__(self, backend: DriverBackend, index: int = 0) -> None:
        count = backend.count()
        if not 0 <= index < count:
            raise DeviceError(
                f"GPU {index} does not exist, the driver shows {count}; {WITHOUT_GPU}"
                if not count
                else f"GPU {index} does not exist, expected 0 to {count - 1} (CUDA_VISIBLE_DEVICES hides others)"
            )
        self._backend = backend
        self.index, self.backend = index, backend.name
        self.name = backend.device_name(index)
        self.driver_version = backend.version()
        self.attributes: Mapping[str, int] = _attributes(backend, index)
        self.arch = backend.arch(index)
        self._events: list[Handle] = []
        backend.open(index)
        self._open = True

    def __enter__(self) -> GpuDevice:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the context; may be called twice, and after a fault."""
        if self._open:
            self._open = False
            self._events.clear()
            with contextlib.suppress(RunError, DeviceError):  # the context may be destroyed already
                self._backend.close()

    def activate(self) -> None:
        """Make the context of this device the current one of the thread again."""
        self._backend.activate()

    @property
    def shared_bytes_limit(self) -> int:
        """Largest shared memory of a block, bytes, with the opt-in attribute."""
        plain = self.attributes["MAX_SHARED_MEMORY_PER_BLOCK"]
        return self.attributes.get("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", plain) or plain

    def load(self, image: bytes, name: str, dynamic_shared_bytes: int = 0) -> GpuFunction:
        """Load machine code and return one of its functions.

        Parameters
        ----------
        image : bytes
            Cubin or fatbin for this device's architecture, or PTX; AMD: hsaco.
        name : str
            The ``extern "C"`` function.
        dynamic_shared_bytes : int
            Dynamic shared memory of a launch, besides the function's own arrays.

        Raises
        ------
        RunError
            The image is for another architecture, lacks the function, or needs more shared memory than the device has.
        """
        module = self._backend.load(image)
        handle = self._backend.function(module, name)

        def ask(attribute: str) -> int:
            return self._backend.function_attribute(handle, attribute)

        shared_bytes = ask("SHARED_SIZE_BYTES") + dynamic_shared_bytes
        if shared_bytes > self.shared_bytes_limit:
            self._backend.unload(module)
            raise RunError(
                f"{name} needs {shared_bytes} bytes of shared memory per block, but {self.name} has at most "
                f"{self.shared_bytes_limit}"
            )
        if shared_bytes > STATIC_SHARED_BYTES:
            self._backend.set_dynamic_shared_bytes(handle, dynamic_shared_bytes)
        return GpuFunction(
            name,
            ask("NUM_REGS"),
            ask("LOCAL_SIZE_BYTES"),
            shared_bytes,
            dynamic_shared_bytes,
            ask("MAX_THREADS_PER_BLOCK"),
            module,
            handle,
        )

    def unload(self, function: GpuFunction) -> None:
        """Unload a function."""
        self._backend.unload(function.module)

    def allocate(self, num_bytes: int) -> GpuBuffer:
        """Return `num_bytes` bytes of device memory, uninitialised.

        Raises
        ------
        RunError
            There is not enough memory.
        """
        return GpuBuffer(self._backend, num_bytes)

    def upload(self, buffer: GpuBuffer, array: Array, offset: int = 0) -> None:
        """Copy an array to `offset` bytes into a buffer."""
        source = _bytes(array)
        _check_range(buffer, offset, source.nbytes)
        if source.nbytes:
            self._backend.copy_in(buffer.address + offset, source)

    def download(self, buffer: GpuBuffer, array: Array, offset: int = 0) -> None:
        """Copy from `offset` bytes into a buffer to a contiguous array, after all launches before."""
        if not array.flags.c_contiguous or not array.flags.writeable:
            raise RunError("download: the array must be C-contiguous and writeable; use numpy.empty")
        _check_range(buffer, offset, array.nbytes)
        if array.nbytes:
            self._backend.copy_out(array.reshape(-1).view(np.uint8), buffer.address + offset)

    def fill(self, buffer: GpuBuffer, byte: int = 0, offset: int = 0, num_bytes: int | None = None) -> None:
        """Set bytes of a buffer (all after `offset` by default); returns at once."""
        size = buffer.num_bytes - offset if num_bytes is None else num_bytes
        _check_range(buffer, offset, size)
        if size:
            self._backend.fill(buffer.address + offset, byte, size)

    def prepare(
        self,
        function: GpuFunction,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        arguments: Sequence[Argument],
    ) -> Callable[[], None]:
        """Return a call that launches a function and returns at once.

        Parameters
        ----------
        function
            From `load`.
        grid, block : int or up to three
            Blocks of the grid, threads of a block.
        arguments
            In the order of the function's parameters: buffers, or numpy scalars of the parameters' very types.

        Raises
        ------
        RunError
            The device or the function does not support a size.
        """
        grids, blocks = _size(grid), _size(block)
        threads = blocks[0] * blocks[1] * blocks[2]
        if not 1 <= threads <= function.max_threads:
            raise RunError(
                f"{function.name} cannot be launched with {threads} threads per block: it needs {function.registers} "
                f"registers per thread, so at most {function.max_threads} threads fit on {self.name}"
            )
        if min(grids) < 1 or grids[0] > self.attributes.get("MAX_GRID_DIM_X", 2**31 - 1):
            raise RunError(f"{function.name} cannot be launched with a grid of {grids} blocks")
        values = [
            np.uint64(argument.address) if isinstance(argument, GpuBuffer) else argument for argument in arguments
        ]
        for value in values:
            if not isinstance(value, np.generic):
                raise RunError(f"argument {quote(value)} of {function.name}: expected a buffer or a numpy scalar")
        return self._backend.launcher(function.handle, grids, blocks, function.dynamic_shared_bytes, values)

    def graph(self, call: Callable[[], None]) -> tuple[Callable[[], None], Callable[[], None]]:
        """Return a function that makes all launches of `call` as one graph, and one that frees it."""
        return self._backend.graph(call)

    def synchronize(self) -> None:
        """Wait until all work on the device is done.

        Raises
        ------
        KernelFaultError, LostDeviceError, RunError
            An error of the device since the last call.
        """
        self._backend.synchronize()

    def time_calls(
        self, call: Callable[[], None], *, samples: int = 1, launches: int = 1, before: Callable[[], None] | None = None
    ) -> list[float]:
        """Return the seconds of one launch for each sample, measured by events.

        All launches are queued before the first wait. If the queue is empty, the events also count the host's time for
        the launch, so `before` should keep the device busy for that long.

        Parameters
        ----------
        call
            From `prepare`; one launch.
        samples : int
            Number of samples.
        launches : int
            Number of launches in a row in a sample, whose mean is returned.
        before : callable, optional
            Work that is queued before every sample and not timed: a fill that flushes the L2 cache, or a kernel that
            hides the host's work.
        """
        while len(self._events) < 2 * samples:
            self._events.append(self._backend.event())
        pairs = [(self._events[2 * at], self._events[2 * at + 1]) for at in range(samples)]
        for start, stop in pairs:
            if before is not None:
                before()
            self._backend.record(start)
            for _ in range(launches):
                call()
            self._backend.record(stop)
        return [self._backend.elapsed_s(start, stop) / launches for start, stop in pairs]


def open_device(index: int = 0, backend: str | DriverBackend | None = None, *, arch: str = "") -> GpuDevice:
    """Open a GPU of this machine.

    Parameters
    ----------
    index : int
        The CUDA or HIP device number.
    backend : str or Backend, optional
        "pycuda" or "cuda-bindings"; by default pycuda if it works, else cuda-bindings. Also ``module:function`` that
        makes a `Backend`.
    arch : str
        "gfx..." opens an AMD GPU with hip-python, others an NVIDIA GPU; the architecture is not checked.

    Raises
    ------
    DeviceError
        There is no package, no driver or no such device; the message names it, and what works without a GPU.
    """
    chosen = make_backend(backend, arch) if backend is None or isinstance(backend, str) else backend
    try:
        return GpuDevice(chosen, index)
    except RunError as error:
        raise DeviceError(f"{NO_GPU}{error}; {WITHOUT_GPU}") from None


def _attributes(backend: DriverBackend, index: int) -> dict[str, int]:
    values = {}
    for name in _ATTRIBUTES:
        try:
            values[name] = backend.attribute(index, name)
        except LostDeviceError:
            raise
        except (DeviceError, RunError):  # the package or driver is too old for this attribute
            continue
    return values


def _size(given: int | Sequence[int]) -> tuple[int, int, int]:
    values = [int(given)] if isinstance(given, int | np.integer) else [int(number) for number in given]
    x, y, z = [*values, 1, 1, 1][:3]
    return x, y, z


def _bytes(array: Array) -> NDArray[np.uint8]:
    """Return the bytes of an array in C order, because other packages do not support bfloat16 buffers."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _check_range(buffer: GpuBuffer, offset: int, num_bytes: int) -> None:
    if offset < 0 or offset + num_bytes > buffer.num_bytes:
        raise RunError(f"{num_bytes} bytes at {offset} do not fit a device buffer of {buffer.num_bytes} bytes")
