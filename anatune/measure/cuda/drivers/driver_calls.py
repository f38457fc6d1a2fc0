"""Driver calls that anatune needs, by NVIDIA's names, and what their failures mean.

A backend knows no more than handles, addresses and bytes; `anatune.measure.cuda.driver` makes devices and functions of
that. Every failed call is an error of this package: which kind decides what happens to the process it occurred in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from anatune.errors import DeviceError, RunError

Bytes = NDArray[np.uint8]
Size = tuple[int, int, int]
Handle = Any
"""The object of a driver's package for a module, a function, memory or an event."""


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
"""Names of errors after which the device is lost, with their meanings."""


class DriverBackend(Protocol):
    """Driver calls on one device at a time; handles are objects of the package. Not safe to share between threads.

    All calls raise KernelFaultError, LostDeviceError or RunError, also for what an earlier launch did: launches return
    at once.
    """

    name: str

    def version(self) -> int:
        """Return the CUDA version that the driver supports: 1000 * major + 10 * minor; HIP's as HIP counts."""

    def count(self) -> int:
        """Return the number of devices."""

    def device_name(self, index: int) -> str:
        """Return the product name of a device."""

    def attribute(self, index: int, name: str) -> int:
        """Return ``CU_DEVICE_ATTRIBUTE_<name>``; raise DeviceError if the package does not know it."""

    def arch(self, index: int) -> str:
        """Return the architecture of a device: "sm_90", "gfx942"."""

    def open(self, index: int) -> None:
        """Make the device's primary context the present one."""

    def activate(self) -> None:
        """Make the context the present one again: another library may have set its own."""

    def close(self) -> None:
        """Let the context go."""

    def load(self, image: bytes) -> Handle:
        """Return the module of a cubin."""

    def unload(self, module: Handle) -> None:
        """Let a module go."""

    def function(self, module: Handle, name: str) -> Handle:
        """Return a function of a module."""

    def function_attribute(self, function: Handle, name: str) -> int:
        """Return ``CU_FUNC_ATTRIBUTE_<name>``."""

    def set_dynamic_shared_bytes(self, function: Handle, num_bytes: int) -> None:
        """Allow launches of the function with this many bytes of dynamic shared memory."""

    def allocate(self, num_bytes: int) -> tuple[Handle, int]:
        """Return a handle and the address of device memory."""

    def free(self, handle: Handle) -> None:
        """Let memory go."""

    def copy_in(self, address: int, source: Bytes) -> None:
        """Copy host to device; done when it returns."""

    def copy_out(self, target: Bytes, address: int) -> None:
        """Copy device to host; done when it returns, after all launches before it."""

    def fill(self, address: int, byte: int, num_bytes: int) -> None:
        """Set bytes; returns at once."""

    def launcher(
        self, function: Handle, grid: Size, block: Size, shared_bytes: int, arguments: Sequence[np.generic]
    ) -> Callable[[], None]:
        """Return a call that launches the function; the call returns at once."""

    def graph(self, call: Callable[[], None]) -> tuple[Callable[[], None], Callable[[], None]]:
        """Return a call that makes at once, in order, all launches that `call` makes, and one that forgets them.

        `call` is made once, launches nothing, and may do nothing else. RunError or DeviceError where the driver or the
        package has no such thing.
        """

    def event(self) -> Handle:
        """Return a new event."""

    def record(self, event: Handle) -> None:
        """Note the time when the device gets here."""

    def elapsed_s(self, start: Handle, stop: Handle) -> float:
        """Wait for `stop` and return the seconds between two events."""

    def synchronize(self) -> None:
        """Wait until everything is done."""


def arch_of_capability(backend: DriverBackend, index: int) -> str:
    """Return the architecture of an NVIDIA GPU."""
    major, minor = (backend.attribute(index, f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
    return f"sm_{major}{minor}"


def failure(name: str, function: str, text: str) -> RunError | DeviceError:
    """Return the error for a driver call that did not succeed.

    Parameters
    ----------
    name : str
        Of the result, as NVIDIA's without ``CUDA_ERROR_``.
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
    return RunError(f"the GPU's driver refused a call: {said}")


def name_of_text(text: str) -> str | None:
    """Return the name of the result that the driver describes so, None for those that end no process."""
    return next((name for name, words in {**_FAULTS, **_LOSSES}.items() if text.startswith(words)), None)
