"""AMD's HIP calls through hip-python, AMD's own package."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import ClassVar

import numpy as np

from anatune.errors import DeviceError, RunError
from anatune.measure.cuda.drivers.bindings import Bindings, words_of
from anatune.measure.cuda.drivers.driver_calls import Handle, Size

_MOST_THREADS = 1 << 32
"""A launch has fewer, in each dimension. Source: HIP's reference, ``hipModuleLaunchKernel``."""
_ATTRIBUTES = {
    "MAX_THREADS_PER_MULTIPROCESSOR": "MaxThreadsPerMultiProcessor",
    "GLOBAL_MEMORY_BUS_WIDTH": "MemoryBusWidth",
}
"""Attributes of devices that are not called as NVIDIA's are."""
_RESULTS = {
    "LaunchFailure": "LAUNCH_FAILED",
    "LaunchTimeOut": "LAUNCH_TIMEOUT",
    "ECCNotCorrectable": "ECC_UNCORRECTABLE",
}
"""HIP's names of the errors that `driver_calls.failure` looks for, with CUDA's names."""


class HipPython(Bindings):
    """HIP's calls through AMD's hip-python, 6.2 or later (``from hip import hip``)."""

    name = "hip-python"
    _vendor, _library, _prefix = "AMD", "libamdhip64", "hip"
    _attributes = ("hipFunction_attribute", "HIP_FUNC_ATTRIBUTE_")
    _modes = ("hipStreamCaptureMode", "hipStreamCaptureModeRelaxed")
    _others: ClassVar = {
        "CtxSynchronize": "DeviceSynchronize", "DeviceGetCount": "GetDeviceCount",
        "EventCreate": "EventCreateWithFlags", "GraphInstantiate": "GraphInstantiateWithFlags",
        "LaunchKernel": "ModuleLaunchKernel", "MemAlloc": "Malloc", "MemFree": "Free",
        "StreamCreate": "StreamCreateWithFlags",
    }  # fmt: skip
    _index = 0

    @staticmethod
    def _import_package() -> ModuleType:
        module: ModuleType = importlib.import_module("hip").hip  # in newer ones a module of another package
        return module

    @staticmethod
    def _result(name: str) -> str:
        short_name = name.removeprefix("hipError")
        return _RESULTS.get(short_name) or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", short_name).upper()

    def attribute(self, index: int, name: str) -> int:  # noqa: D102  documented by the protocol, as all that follow
        hip_name = _ATTRIBUTES.get(name) or "".join(word.capitalize() for word in name.split("_"))
        attribute = getattr(self._driver.hipDeviceAttribute_t, f"hipDeviceAttribute{hip_name}", None)
        if attribute is None:
            raise DeviceError(f"hip-python does not know the device attribute {name}")
        return int(self._call("DeviceGetAttribute", attribute, index))

    def arch(self, index: int) -> str:  # noqa: D102
        try:
            properties = self._driver.hipDeviceProp_t()
            self._call("GetDeviceProperties", properties, index)
        except TypeError:  # newer ones return them
            properties = self._call("GetDeviceProperties", index)
        return words_of(properties.gcnArchName).partition(":")[0]  # "gfx942:sramecc+:xnack-"

    def open(self, index: int) -> None:  # noqa: D102
        self._index = index
        self.activate()

    def activate(self) -> None:  # noqa: D102
        self._call("SetDevice", self._index)

    def close(self) -> None:  # noqa: D102  the device's one context is the process's
        return

    def load(self, image: bytes) -> Handle:  # noqa: D102  HIP keeps no copy: the image has to stay
        return super().load(image), image

    def unload(self, module: Handle) -> None:  # noqa: D102
        super().unload(module[0])

    def function(self, module: Handle, name: str) -> Handle:  # noqa: D102
        return super().function(module[0], name)

    def set_dynamic_shared_bytes(self, function: Handle, num_bytes: int) -> None:  # noqa: D102  all is allowed
        return

    def launcher(  # noqa: D102
        self, function: Handle, grid: Size, block: Size, shared_bytes: int, arguments: Sequence[np.generic]
    ) -> Callable[[], None]:
        if max(blocks * threads for blocks, threads in zip(grid, block, strict=True)) >= _MOST_THREADS:
            raise RunError(f"{grid} blocks of {block} threads: HIP launches fewer than 2**32 threads in a dimension")
        return super().launcher(function, grid, block, shared_bytes, arguments)
