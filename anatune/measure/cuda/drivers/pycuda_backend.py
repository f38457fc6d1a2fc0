"""NVIDIA's driver calls through pycuda; see `anatune.measure.cuda.drivers.driver_calls`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import ModuleType

import numpy as np

from anatune.errors import DeviceError, MissingDependencyError, RunError
from anatune.measure.cuda.drivers.driver_calls import Bytes, Handle, Size, arch_of_capability, failure, name_of_text


class PyCuda:
    """Driver calls through pycuda, 2020.1 or later (``pycuda.driver``).

    Parameters
    ----------
    driver : module, optional
        Something that behaves like ``pycuda.driver``; imported by default.

    Raises
    ------
    MissingDependencyError
        The package is not installed, or cannot be imported (it needs libcuda for that).
    DeviceError
        There is no driver.
    """

    name = "pycuda"

    def __init__(self, driver: ModuleType | None = None) -> None:
        if driver is None:
            try:
                driver = importlib.import_module("pycuda.driver")
            except ImportError as error:
                raise MissingDependencyError(f"pycuda cannot be imported ({error}): pip install pycuda") from None
        self._driver = driver
        self._context: Handle = None
        try:
            self._call(driver.init)
        except RunError as error:
            raise DeviceError(str(error)) from None

    def _call(self, function: Callable[..., Handle], *arguments: object, **more: object) -> Handle:
        """Call pycuda; its exceptions say what happened in words only: "cuMemAlloc failed: out of memory"."""
        try:
            return function(*arguments, **more)
        except (self._driver.Error, MemoryError) as error:
            where, _, text = (str(error).splitlines() or [""])[0].partition(" failed: ")
            text = text.split(" - ")[0].strip()
            raise failure(name_of_text(text) or type(error).__name__, where, text) from None

    def version(self) -> int:  # noqa: D102
        return int(self._call(self._driver.get_driver_version))

    def count(self) -> int:  # noqa: D102
        return int(self._call(self._driver.Device.count))

    def device_name(self, index: int) -> str:  # noqa: D102
        return str(self._call(self._call(self._driver.Device, index).name)).strip("\0 ")

    def attribute(self, index: int, name: str) -> int:  # noqa: D102
        attribute = getattr(self._driver.device_attribute, name, None)
        if attribute is None:
            raise DeviceError(f"pycuda does not know the device attribute {name}; install cuda-bindings")
        return int(self._call(self._call(self._driver.Device, index).get_attribute, attribute))

    def arch(self, index: int) -> str:  # noqa: D102
        return arch_of_capability(self, index)

    def open(self, index: int) -> None:  # noqa: D102
        device = self._call(self._driver.Device, index)
        self._context = self._call(device.retain_primary_context)
        self._call(self._context.push)

    def activate(self) -> None:  # noqa: D102
        if self._driver.Context.get_current() != self._context:
            self._call(self._context.push)

    def close(self) -> None:  # noqa: D102
        if self._context is not None:
            context, self._context = self._context, None
            self._call(self._driver.Context.pop)
            self._call(context.detach)

    def load(self, image: bytes) -> Handle:  # noqa: D102
        return self._call(self._driver.module_from_buffer, image)

    def unload(self, module: Handle) -> None:  # noqa: D102  pycuda unloads what nobody refers to
        del module

    def function(self, module: Handle, name: str) -> Handle:  # noqa: D102
        return self._call(module.get_function, name)

    def function_attribute(self, function: Handle, name: str) -> int:  # noqa: D102
        return int(self._call(function.get_attribute, getattr(self._driver.function_attribute, name)))

    def set_dynamic_shared_bytes(self, function: Handle, num_bytes: int) -> None:  # noqa: D102
        attribute = self._driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._call(function.set_attribute, attribute, num_bytes)

    def allocate(self, num_bytes: int) -> tuple[Handle, int]:  # noqa: D102
        allocation = self._call(self._driver.mem_alloc, num_bytes)
        return allocation, int(allocation)

    def free(self, handle: Handle) -> None:  # noqa: D102
        self._call(handle.free)

    def copy_in(self, address: int, source: Bytes) -> None:  # noqa: D102
        self._call(self._driver.memcpy_htod, address, source)

    def copy_out(self, target: Bytes, address: int) -> None:  # noqa: D102
        self._call(self._driver.memcpy_dtoh, target, address)

    def fill(self, address: int, byte: int, num_bytes: int) -> None:  # noqa: D102
        self._call(self._driver.memset_d8, address, byte, num_bytes)

    def launcher(  # noqa: D102
        self, function: Handle, grid: Size, block: Size, shared_bytes: int, arguments: Sequence[np.generic]
    ) -> Callable[[], None]:
        def launch() -> None:
            self._call(function, *arguments, grid=grid, block=block, shared=shared_bytes)

        return launch

    def graph(self, call: Callable[[], None]) -> tuple[Callable[[], None], Callable[[], None]]:  # noqa: D102
        raise RunError("pycuda has no graphs of launches")

    def event(self) -> Handle:  # noqa: D102
        return self._call(self._driver.Event)

    def record(self, event: Handle) -> None:  # noqa: D102
        self._call(event.record)

    def elapsed_s(self, start: Handle, stop: Handle) -> float:  # noqa: D102
        self._call(stop.synchronize)
        return float(self._call(stop.time_since, start)) / 1e3

    def synchronize(self) -> None:  # noqa: D102
        self._call(self._driver.Context.synchronize)
