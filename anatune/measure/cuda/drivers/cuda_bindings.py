"""NVIDIA's driver calls through cuda-bindings, NVIDIA's own package."""

from __future__ import annotations

import importlib
from types import ModuleType

from anatune.errors import DeviceError
from anatune.measure.cuda.drivers.bindings import Bindings
from anatune.measure.cuda.drivers.driver_calls import Handle, arch_of_capability


class CudaBindings(Bindings):
    """Driver calls through NVIDIA's cuda-bindings, 12.x or 13.x (``cuda.bindings.driver``)."""

    name = "cuda-bindings"
    _vendor, _library, _prefix = "NVIDIA", "libcuda", "cu"
    _attributes = ("CUfunction_attribute", "CU_FUNC_ATTRIBUTE_")
    _modes = ("CUstreamCaptureMode", "CU_STREAM_CAPTURE_MODE_RELAXED")
    _device: Handle = None
    _context: Handle = None

    @staticmethod
    def _import_package() -> ModuleType:
        return importlib.import_module("cuda.bindings.driver")

    @staticmethod
    def _result(name: str) -> str:
        return name.removeprefix("CUDA_ERROR_")

    def attribute(self, index: int, name: str) -> int:  # noqa: D102  documented by the protocol, as all that follow
        attribute = getattr(self._driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}", None)
        if attribute is None:
            raise DeviceError(f"cuda-bindings does not know the device attribute {name}; install a newer one")
        return int(self._call("DeviceGetAttribute", attribute, self._call("DeviceGet", index)))

    def arch(self, index: int) -> str:  # noqa: D102
        return arch_of_capability(self, index)

    def open(self, index: int) -> None:  # noqa: D102
        self._device = self._call("DeviceGet", index)
        self._context = self._call("DevicePrimaryCtxRetain", self._device)
        self._call("CtxSetCurrent", self._context)

    def activate(self) -> None:  # noqa: D102
        self._call("CtxSetCurrent", self._context)

    def close(self) -> None:  # noqa: D102
        if self._context is not None:
            self._context = None
            self._call("DevicePrimaryCtxRelease", self._device)

    def set_dynamic_shared_bytes(self, function: Handle, num_bytes: int) -> None:  # noqa: D102
        attribute = self._function_attribute("MAX_DYNAMIC_SHARED_SIZE_BYTES")
        self._call("FuncSetAttribute", function, attribute, num_bytes)
