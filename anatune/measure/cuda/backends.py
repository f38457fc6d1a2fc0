"""NVIDIA's driver calls that anatune needs, through either of two packages: cuda-bindings (NVIDIA's own) or pycuda.

A backend knows no more than handles, addresses and bytes; `anatune.measure.cuda.driver` makes devices and functions of
that. Every failed call is an error of this package: which kind decides what happens to the process it occurred in.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from anatune.errors import DeviceError, MissingDependencyError, RunError
from anatune.named import resolve

__all__ = [
    "BACKENDS",
    "Backend",
    "CudaBindings",
    "KernelFaultError",
    "LostDeviceError",
    "failure",
    "make_backend",
    "name_of_text",
]

NO_GPU = "no GPU can be used here: "
WITHOUT_GPU = "plan, inspect, verify and export work without a GPU"

Bytes = NDArray[np.uint8]
Size = tuple[int, int, int]


class KernelFaultError(RunError):
    """A kernel did something that its CUDA context does not survive: the process is of no use any more."""


class LostDeviceError(DeviceError):
    """The GPU, or this process's access to it, is gone; a new process may find it again."""


_FAULTS = {
    "ILLEGAL_ADDRESS": "an illegal memory access was encountered",
    "LAUNCH_TIMEOUT": "the launch timed out and was terminated",
    "ASSERT": "device-side assert triggered",
    "HARDWARE_STACK_ERROR": "hardware stack error",
    "ILLEGAL_INSTRUCTION": "an illegal instruction was encountered",
    "MISALIGNED_ADDRESS": "misaligned address",
    "INVALID_ADDRESS_SPACE": "operation not supported on global/shared address space",
    "INVALID_PC": "invalid program counter",
    "LAUNCH_FAILED": "unspecified launch failure",
}
"""Names of results after which a context is dead by the kernel's doing, and the driver's text for them."""

_LOSSES = {
    "DEINITIALIZED": "driver shutting down",
    "DEVICE_UNAVAILABLE": "CUDA-capable device(s) is/are busy or unavailable",
    "NO_DEVICE": "no CUDA-capable device is detected",
    "INVALID_DEVICE": "invalid device ordinal",
    "ECC_UNCORRECTABLE": "uncorrectable ECC error encountered",
    "NVLINK_UNCORRECTABLE": "uncorrectable NVLink error detected during the execution",
    "OPERATING_SYSTEM": "OS call failed or operation not supported on this OS",
    "CONTEXT_IS_DESTROYED": "context is destroyed",
    "CONTAINED": "Invalid access of peer GPU memory over nvlink or a hardware error",
    "EXTERNAL_DEVICE": "external device error",
    "SYSTEM_NOT_READY": "system not yet initialized",
    "UNKNOWN": "unknown error",
}
"""Likewise: what says that the device is gone."""


class Backend(Protocol):
    """Driver calls on one device at a time; handles are whatever the package uses. Not safe to share between threads.

    All calls raise KernelFaultError, LostDeviceError or RunError, also for what an earlier launch did: launches return
    at once.
    """

    name: str

    def version(self) -> int:
        """Return the CUDA version that the driver supports: 1000 * major + 10 * minor."""
        ...

    def count(self) -> int:
        """Return the number of devices."""
        ...

    def device_name(self, index: int) -> str:
        """Return the product name of a device."""
        ...

    def attribute(self, index: int, name: str) -> int:
        """Return ``CU_DEVICE_ATTRIBUTE_<name>``; raise DeviceError if the package does not know it."""
        ...

    def open(self, index: int) -> None:
        """Make the device's primary context the present one."""
        ...

    def activate(self) -> None:
        """Make the context the present one again: another library may have set its own."""
        ...

    def close(self) -> None:
        """Let the context go."""
        ...

    def load(self, image: bytes) -> Any:
        """Return the module of a cubin."""
        ...

    def unload(self, module: Any) -> None:
        """Let a module go."""
        ...

    def function(self, module: Any, name: str) -> Any:
        """Return a function of a module."""
        ...

    def function_attribute(self, function: Any, name: str) -> int:
        """Return ``CU_FUNC_ATTRIBUTE_<name>``."""
        ...

    def set_dynamic_shared_bytes(self, function: Any, num_bytes: int) -> None:
        """Allow launches of the function to ask for so much."""
        ...

    def allocate(self, num_bytes: int) -> tuple[Any, int]:
        """Return a handle and the address of device memory."""
        ...

    def free(self, handle: Any) -> None:
        """Let memory go."""
        ...

    def copy_in(self, address: int, source: Bytes) -> None:
        """Copy host to device; done when it returns."""
        ...

    def copy_out(self, target: Bytes, address: int) -> None:
        """Copy device to host; done when it returns, after all launches before it."""
        ...

    def fill(self, address: int, byte: int, num_bytes: int) -> None:
        """Set bytes; returns at once."""
        ...

    def launcher(
        self, function: Any, grid: Size, block: Size, shared_bytes: int, arguments: Sequence[np.generic]
    ) -> Callable[[], None]:
        """Return a call that launches the function; the call returns at once."""
        ...

    def event(self) -> Any:
        """Return a new event."""
        ...

    def record(self, event: Any) -> None:
        """Note the time when the device gets here."""
        ...

    def elapsed_s(self, start: Any, stop: Any) -> float:
        """Wait for `stop` and return the seconds between two events."""
        ...

    def synchronize(self) -> None:
        """Wait until everything is done."""
        ...


def failure(name: str, function: str, text: str) -> RunError | DeviceError:
    """Return the error for a driver call that did not succeed.

    Parameters
    ----------
    name : str
        Of the result, without ``CUDA_ERROR_``.
    function : str
        Driver call.
    text : str
        The driver's words.
    """
    said = f"{name} ({text}) from {function}" if text else f"{name} from {function}"
    if name in _FAULTS:
        return KernelFaultError(f"the kernel failed on the GPU: {said}")
    if name in _LOSSES:
        return LostDeviceError(f"the GPU is gone or cannot be used: {said}")
    return RunError(f"the GPU's driver refused: {said}")


def name_of_text(text: str) -> str | None:
    """Return the name of the result that the driver describes so, None for those that end no process."""
    return next((name for name, words in {**_FAULTS, **_LOSSES}.items() if text.startswith(words)), None)


class CudaBindings:
    """Driver calls through NVIDIA's cuda-bindings, 12.x or 13.x (``cuda.bindings.driver``).

    Parameters
    ----------
    driver : module, optional
        Something that behaves like ``cuda.bindings.driver``; imported by default.

    Raises
    ------
    MissingDependencyError
        The package is not installed.
    DeviceError
        There is no driver.
    """

    name = "cuda-bindings"

    def __init__(self, driver: Any = None) -> None:
        if driver is None:
            try:
                driver = importlib.import_module("cuda.bindings.driver")
            except ImportError:
                raise MissingDependencyError(
                    "NVIDIA's Python package is not installed: pip install cuda-bindings"
                ) from None
        self._driver = driver
        self._device: Any = None
        self._context: Any = None
        try:
            self._call("cuInit", 0)
        except RunError as error:
            raise DeviceError(str(error)) from None

    def _call(self, function: str, *arguments: Any) -> Any:
        """Call the driver and return its one result (None for a bare status)."""
        try:
            status, *results = getattr(self._driver, function)(*arguments)
        except (RuntimeError, OSError, AttributeError, ValueError) as error:
            # No libcuda (a RuntimeError), too old a package (no such function), a status that the package cannot name.
            line = (str(error).splitlines() or [type(error).__name__])[0].strip().rstrip(".")
            if function == "cuInit" and isinstance(error, RuntimeError):
                line = "the library libcuda cannot be loaded, is the driver installed?"
            raise LostDeviceError(f"NVIDIA's driver cannot be used: {line} ({function})") from None
        if int(status) != 0:
            name = str(getattr(status, "name", status)).removeprefix("CUDA_ERROR_")
            raise failure(name, function, self._text(status))
        return results[0] if results else None

    def _text(self, status: Any) -> str:
        try:
            _, text = self._driver.cuGetErrorString(status)
        except (RuntimeError, AttributeError, TypeError, ValueError):
            return ""
        return text.decode(errors="replace") if isinstance(text, bytes) else ""

    def version(self) -> int:  # noqa: D102  documented by the protocol, as all that follow
        return int(self._call("cuDriverGetVersion"))

    def count(self) -> int:  # noqa: D102
        return int(self._call("cuDeviceGetCount"))

    def device_name(self, index: int) -> str:  # noqa: D102
        raw = self._call("cuDeviceGetName", 256, self._call("cuDeviceGet", index))
        return (raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)).strip("\0 ")

    def attribute(self, index: int, name: str) -> int:  # noqa: D102
        attribute = getattr(self._driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}", None)
        if attribute is None:
            raise DeviceError(f"cuda-bindings does not know the device attribute {name}; install a newer one")
        return int(self._call("cuDeviceGetAttribute", attribute, self._call("cuDeviceGet", index)))

    def open(self, index: int) -> None:  # noqa: D102
        self._device = self._call("cuDeviceGet", index)
        self._context = self._call("cuDevicePrimaryCtxRetain", self._device)
        self._call("cuCtxSetCurrent", self._context)

    def activate(self) -> None:  # noqa: D102
        self._call("cuCtxSetCurrent", self._context)

    def close(self) -> None:  # noqa: D102
        if self._context is not None:
            self._context = None
            self._call("cuDevicePrimaryCtxRelease", self._device)

    def load(self, image: bytes) -> Any:  # noqa: D102
        return self._call("cuModuleLoadData", image)

    def unload(self, module: Any) -> None:  # noqa: D102
        self._call("cuModuleUnload", module)

    def function(self, module: Any, name: str) -> Any:  # noqa: D102
        return self._call("cuModuleGetFunction", module, name.encode())

    def function_attribute(self, function: Any, name: str) -> int:  # noqa: D102
        return int(self._call("cuFuncGetAttribute", self._function_attribute(name), function))

    def set_dynamic_shared_bytes(self, function: Any, num_bytes: int) -> None:  # noqa: D102
        attribute = self._function_attribute("MAX_DYNAMIC_SHARED_SIZE_BYTES")
        self._call("cuFuncSetAttribute", function, attribute, num_bytes)

    def _function_attribute(self, name: str) -> Any:
        return getattr(self._driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")

    def allocate(self, num_bytes: int) -> tuple[Any, int]:  # noqa: D102
        pointer = self._call("cuMemAlloc", num_bytes)
        return pointer, int(pointer)

    def free(self, handle: Any) -> None:  # noqa: D102
        self._call("cuMemFree", handle)

    def copy_in(self, address: int, source: Bytes) -> None:  # noqa: D102
        self._call("cuMemcpyHtoD", address, source.ctypes.data, source.nbytes)

    def copy_out(self, target: Bytes, address: int) -> None:  # noqa: D102
        self._call("cuMemcpyDtoH", target.ctypes.data, address, target.nbytes)

    def fill(self, address: int, byte: int, num_bytes: int) -> None:  # noqa: D102
        self._call("cuMemsetD8Async", address, byte, num_bytes, 0)

    def launcher(  # noqa: D102
        self, function: Any, grid: Size, block: Size, shared_bytes: int, arguments: Sequence[np.generic]
    ) -> Callable[[], None]:
        cells = [np.array([value]) for value in arguments]
        pointers = (ctypes.c_void_p * max(1, len(cells)))(*(cell.ctypes.data for cell in cells))
        address = ctypes.addressof(pointers)

        def launch(_kept: object = (cells, pointers)) -> None:
            self._call("cuLaunchKernel", function, *grid, *block, shared_bytes, 0, address, 0)

        return launch

    def event(self) -> Any:  # noqa: D102
        return self._call("cuEventCreate", 0)

    def record(self, event: Any) -> None:  # noqa: D102
        self._call("cuEventRecord", event, 0)

    def elapsed_s(self, start: Any, stop: Any) -> float:  # noqa: D102
        self._call("cuEventSynchronize", stop)
        return float(self._call("cuEventElapsedTime", start, stop)) / 1e3

    def synchronize(self) -> None:  # noqa: D102
        self._call("cuCtxSynchronize")


def _pycuda() -> Backend:
    from anatune.measure.cuda.pycuda_backend import PyCuda

    return PyCuda()


BACKENDS: dict[str, Callable[[], Backend]] = {"pycuda": _pycuda, "cuda-bindings": CudaBindings}
"""In the order in which they are tried."""


def make_backend(name: str | None = None) -> Backend:
    """Return the backend called `name`, by default the first one that works; or what ``module:function`` makes.

    Raises
    ------
    DeviceError
        None works here; the message says why and what works without.
    """
    if name is not None and ":" in name:
        made: Backend = resolve(name)()
        return made
    if name is not None and name not in BACKENDS:
        raise DeviceError(f"unknown GPU backend {name!r}, expected one of {', '.join(BACKENDS)}")
    why = f"neither {' nor '.join(BACKENDS)} is installed: pip install cuda-bindings"
    for each in [name] if name is not None else BACKENDS:
        try:
            return BACKENDS[each]()
        except MissingDependencyError as error:
            why = str(error) if name is not None else why
        except DeviceError as error:
            why = str(error)  # says more than that the other package is missing
    raise DeviceError(f"{NO_GPU}{why}; {WITHOUT_GPU}")
