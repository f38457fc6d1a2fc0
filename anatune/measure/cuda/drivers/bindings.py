"""Driver calls through packages with the names of the C functions, which NVIDIA's and AMD's packages share."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import ClassVar

import numpy as np

from anatune.errors import DeviceError, MissingDependencyError, RunError
from anatune.measure.cuda.drivers.driver_calls import Bytes, Handle, LostDeviceError, Size, failure

_NON_BLOCKING = 1
"""Flag of a stream that does not wait for the legacy default stream, so that it can be captured."""


class Bindings(ABC):
    """Driver calls through a module.

    Parameters
    ----------
    driver : module, optional
        A replacement of the package's module; imported by default.

    Raises
    ------
    MissingDependencyError
        The package is not installed.
    DeviceError
        There is no driver.
    """

    name: str
    _vendor: ClassVar[str]
    _library: ClassVar[str]
    _prefix: ClassVar[str]
    """Prefix of the function names."""
    _attributes: ClassVar[tuple[str, str]]
    """The enumeration of a function's attributes, and the prefix of its members."""
    _modes: ClassVar[tuple[str, str]]
    """The enumeration of capture modes, and the one to use."""
    _others: ClassVar[Mapping[str, str]] = {}
    """NVIDIA's name of a function -> its name in the package if it differs, both without the prefix."""

    def __init__(self, driver: ModuleType | None = None) -> None:
        if driver is None:
            try:
                driver = self._import_package()
            except (ImportError, AttributeError):
                raise MissingDependencyError(
                    f"{self._vendor}'s Python package is not installed: pip install {self.name}"
                ) from None
        self._driver = driver
        self._stream: Handle = 0
        """The stream of launches: the legacy default stream, except during a capture."""
        try:
            self._call("Init", 0)
        except RunError as error:
            raise DeviceError(str(error)) from None

    @staticmethod
    @abstractmethod
    def _import_package() -> ModuleType:
        """Import and return the package's module."""

    def _call(self, function: str, *arguments: object) -> Handle:
        """Call the driver and return its one result (None for a bare status)."""
        named = self._prefix + self._others.get(function, function)
        try:
            status, *results = getattr(self._driver, named)(*arguments)
        except (RuntimeError, OSError, AttributeError, ValueError) as error:
            # The library is missing (RuntimeError), the package is too old, or it cannot name the status.
            line = (str(error).splitlines() or [type(error).__name__])[0].strip().rstrip(".")
            if function == "Init" and isinstance(error, RuntimeError):
                line = f"the library {self._library} cannot be loaded; is the driver installed?"
            raise LostDeviceError(f"{self._vendor}'s driver cannot be used: {line} ({named})") from None
        if int(status) != 0:
            raise failure(self._result(str(getattr(status, "name", status))), named, self._text(status))
        return results[0] if results else None

    @staticmethod
    @abstractmethod
    def _result(name: str) -> str:
        """Return a result's name as `driver_calls.failure` takes it."""

    def _text(self, status: object) -> str:
        try:
            _, text = getattr(self._driver, f"{self._prefix}GetErrorString")(status)
        except (RuntimeError, AttributeError, TypeError, ValueError):
            return ""
        return words_of(text)

    def version(self) -> int:  # noqa: D102  documented by the protocol, as all that follow
        return int(self._call("DriverGetVersion"))

    def count(self) -> int:  # noqa: D102
        return int(self._call("DeviceGetCount"))

    def device_name(self, index: int) -> str:  # noqa: D102
        return words_of(self._call("DeviceGetName", 256, self._call("DeviceGet", index)))

    def load(self, image: bytes) -> Handle:  # noqa: D102
        return self._call("ModuleLoadData", image)

    def unload(self, module: Handle) -> None:  # noqa: D102
        self._call("ModuleUnload", module)

    def function(self, module: Handle, name: str) -> Handle:  # noqa: D102
        return self._call("ModuleGetFunction", module, name.encode())

    def function_attribute(self, function: Handle, name: str) -> int:  # noqa: D102
        return int(self._call("FuncGetAttribute", self._function_attribute(name), function))

    def _function_attribute(self, name: str) -> Handle:
        enumeration, prefix = self._attributes
        return getattr(getattr(self._driver, enumeration), prefix + name)

    def allocate(self, num_bytes: int) -> tuple[Handle, int]:  # noqa: D102
        pointer = self._call("MemAlloc", num_bytes)
        return pointer, int(pointer)

    def free(self, handle: Handle) -> None:  # noqa: D102
        self._call("MemFree", handle)

    def copy_in(self, address: int, source: Bytes) -> None:  # noqa: D102
        self._call("MemcpyHtoD", address, source.ctypes.data, source.nbytes)

    def copy_out(self, target: Bytes, address: int) -> None:  # noqa: D102
        self._call("MemcpyDtoH", target.ctypes.data, address, target.nbytes)

    def fill(self, address: int, byte: int, num_bytes: int) -> None:  # noqa: D102
        self._call("MemsetD8Async", address, byte, num_bytes, 0)

    def launcher(  # noqa: D102
        self, function: Handle, grid: Size, block: Size, shared_bytes: int, arguments: Sequence[np.generic]
    ) -> Callable[[], None]:
        cells = [np.array([value]) for value in arguments]
        pointers = (ctypes.c_void_p * max(1, len(cells)))(*(cell.ctypes.data for cell in cells))
        address = ctypes.addressof(pointers)

        def launch(_kept: object = (cells, pointers)) -> None:
            self._call("LaunchKernel", function, *grid, *block, shared_bytes, self._stream, address, 0)

        return launch

    def graph(self, call: Callable[[], None]) -> tuple[Callable[[], None], Callable[[], None]]:  # noqa: D102
        enumeration, mode = self._modes
        graph: Handle = None
        stream = self._call("StreamCreate", _NON_BLOCKING)
        try:
            self._call("StreamBeginCapture", stream, getattr(getattr(self._driver, enumeration), mode))
            try:
                self._stream = stream
                call()
            finally:
                self._stream = 0
                graph = self._call("StreamEndCapture", stream)
            instance = self._call("GraphInstantiate", graph, 0)
        finally:
            if graph is not None:
                self._call("GraphDestroy", graph)
            self._call("StreamDestroy", stream)

        def launch() -> None:
            self._call("GraphLaunch", instance, 0)

        def free() -> None:
            self._call("GraphExecDestroy", instance)

        return launch, free

    def event(self) -> Handle:  # noqa: D102
        return self._call("EventCreate", 0)

    def record(self, event: Handle) -> None:  # noqa: D102
        self._call("EventRecord", event, 0)

    def elapsed_s(self, start: Handle, stop: Handle) -> float:  # noqa: D102
        self._call("EventSynchronize", stop)
        return float(self._call("EventElapsedTime", start, stop)) / 1e3

    def synchronize(self) -> None:  # noqa: D102
        self._call("CtxSynchronize")


def words_of(text: object) -> str:
    """Return a text of C's as a package gives it: str, bytes, or an object with a buffer; "" for None."""
    if text is None or isinstance(text, str):
        return (text or "").strip("\0 ")
    return bytes(memoryview(text)).decode("utf-8", "replace").strip("\0 ")  # type: ignore[arg-type]
