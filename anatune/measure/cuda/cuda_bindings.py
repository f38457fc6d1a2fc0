"""NVIDIA's driver calls through cuda-bindings, NVIDIA's own package."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Sequence
from types import ModuleType

import numpy as np

from anatune.errors import DeviceError, MissingDependencyError, RunError
from anatune.measure.cuda.driver_calls import Bytes, Handle, LostDeviceError, Size, failure

__all__ = ["CudaBindings"]


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

    def __init__(self, driver: ModuleType | None = None) -> None:
        if driver is None:
            try:
                driver = importlib.import_module("cuda.bindings.driver")
            except ImportError:
                raise MissingDependencyError(
                    "NVIDIA's Python package is not installed: pip install cuda-bindings"
                ) from None
        self._driver = driver
        self._device: Handle = None
        self._context: Handle = None
        try:
            self._call("cuInit", 0)
        except RunError as error:
            raise DeviceError(str(error)) from None

    def _call(self, function: str, *arguments: object) -> Handle:
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

    def _text(self, status: object) -> str:
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

    def load(self, image: bytes) -> Handle:  # noqa: D102
        return self._call("cuModuleLoadData", image)

    def unload(self, module: Handle) -> None:  # noqa: D102
        self._call("cuModuleUnload", module)

    def function(self, module: Handle, name: str) -> Handle:  # noqa: D102
        return self._call("cuModuleGetFunction", module, name.encode())

    def function_attribute(self, function: Handle, name: str) -> int:  # noqa: D102
        return int(self._call("cuFuncGetAttribute", self._function_attribute(name), function))

    def set_dynamic_shared_bytes(self, function: Handle, num_bytes: int) -> None:  # noqa: D102
        attribute = self._function_attribute("MAX_DYNAMIC_SHARED_SIZE_BYTES")
        self._call("cuFuncSetAttribute", function, attribute, num_bytes)

    def _function_attribute(self, name: str) -> Handle:
        return getattr(self._driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")

    def allocate(self, num_bytes: int) -> tuple[Handle, int]:  # noqa: D102
        pointer = self._call("cuMemAlloc", num_bytes)
        return pointer, int(pointer)

    def free(self, handle: Handle) -> None:  # noqa: D102
        self._call("cuMemFree", handle)

    def copy_in(self, address: int, source: Bytes) -> None:  # noqa: D102
        self._call("cuMemcpyHtoD", address, source.ctypes.data, source.nbytes)

    def copy_out(self, target: Bytes, address: int) -> None:  # noqa: D102
        self._call("cuMemcpyDtoH", target.ctypes.data, address, target.nbytes)

    def fill(self, address: int, byte: int, num_bytes: int) -> None:  # noqa: D102
        self._call("cuMemsetD8Async", address, byte, num_bytes, 0)

    def launcher(  # noqa: D102
        self, function: Handle, grid: Size, block: Size, shared_bytes: int, arguments: Sequence[np.generic]
    ) -> Callable[[], None]:
        cells = [np.array([value]) for value in arguments]
        pointers = (ctypes.c_void_p * max(1, len(cells)))(*(cell.ctypes.data for cell in cells))
        address = ctypes.addressof(pointers)

        def launch(_kept: object = (cells, pointers)) -> None:
            self._call("cuLaunchKernel", function, *grid, *block, shared_bytes, 0, address, 0)

        return launch

    def event(self) -> Handle:  # noqa: D102
        return self._call("cuEventCreate", 0)

    def record(self, event: Handle) -> None:  # noqa: D102
        self._call("cuEventRecord", event, 0)

    def elapsed_s(self, start: Handle, stop: Handle) -> float:  # noqa: D102
        self._call("cuEventSynchronize", stop)
        return float(self._call("cuEventElapsedTime", start, stop)) / 1e3

    def synchronize(self) -> None:  # noqa: D102
        self._call("cuCtxSynchronize")
