"""Which device a Triton kernel runs on: named, or the present one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Protocol, TypeAlias

from anatune import api
from anatune.core.hardware.files import list_hardware
from anatune.core.hardware.spec import GpuSpec, HardwareSpec
from anatune.errors import AnatuneError, DeviceError, SpaceError
from anatune.requirements import pip_line

__all__ = ["AUTO", "VARIABLE", "GpuLike", "find_gpu", "gpu_of"]

AUTO = "auto"
VARIABLE = "ANATUNE_HW"
"""Environment variable that names the device where a program says "auto"."""

GpuLike: TypeAlias = str | Path | GpuSpec
"""How a GPU is named: what `find_gpu` takes."""


class _Target(Protocol):
    """What Triton compiles for."""

    arch: int
    backend: str


class _Properties(Protocol):
    """What Triton's driver knows of devices."""

    def get_device_properties(self, index: int) -> Mapping[str, int]: ...


class _Driver(Protocol):
    """Triton's driver, as far as it is used here."""

    utils: _Properties

    def get_current_device(self) -> int: ...
    def get_current_target(self) -> _Target: ...


def gpu_of(spec: HardwareSpec, otherwise: str) -> GpuSpec:
    """Return a spec that has to be a GPU's.

    Raises
    ------
    SpaceError
        It is none; `otherwise` is the message.
    """
    if spec.kind == "gpu":
        return spec
    raise SpaceError(otherwise)


def find_gpu(hw: GpuLike) -> GpuSpec:
    """Return the spec of a GPU.

    Parameters
    ----------
    hw
        A spec, a name or a file for `anatune.hardware`, or "auto": what ANATUNE_HW names, else the present device.

    Raises
    ------
    DeviceError
        "auto", and there is no GPU here, or it has no spec.
    SpaceError
        It is no GPU, or nothing of the kind.
    UnknownNameError, SpecError
        As `anatune.hardware`.
    """
    if str(hw) == AUTO:
        named = os.environ.get(VARIABLE)
        return _present() if not named else find_gpu(Path(named) if os.sep in named else named)
    spec = api.hardware(hw)
    return gpu_of(spec, f"hw is {spec.name}, which is no GPU; name one of `anatune hw list`")


def _present() -> GpuSpec:
    """Return the spec of the GPU that Triton would use now."""
    advice = f"name the device, as hw='a100', or in the environment variable {VARIABLE}"
    reason, index = "", 0
    driver = _triton_driver()
    if driver is not None:
        index = int(driver.get_current_device())
    from anatune.measure.cuda.detect import present_gpus

    try:
        specs, reason = present_gpus()
    except AnatuneError as error:
        specs, reason = [], str(error)
    if index < len(specs):
        return specs[index]
    if driver is None:
        raise DeviceError(f"hw='auto': no GPU can be used here ({reason}); {advice}")
    return _like(driver, index, advice)


def _like(driver: _Driver, index: int, advice: str) -> GpuSpec:
    """Return the spec of the architecture and the number of SMs that Triton reports (without the CUDA packages)."""
    arch = f"sm_{driver.get_current_target().arch}"
    num_sms = int(driver.utils.get_device_properties(index)["multiprocessor_count"])
    for spec in list_hardware():
        if spec.arch == arch and (gpu := gpu_of(spec, f"{arch} is no GPU's")).compute.num_sms == num_sms:
            return gpu
    raise DeviceError(
        f"hw='auto': the present device ({arch}, {num_sms} SMs) has no spec; NVIDIA's packages read one "
        f"from it ({pip_line('cuda')}), or {advice}"
    )


def _triton_driver() -> _Driver | None:
    """Return Triton's active driver, None where there is none: no Triton, no GPU, or several drivers."""
    try:
        active: _Driver = import_module("triton.runtime").driver.active
        return active if active.get_current_target().backend == "cuda" else None
    except (ImportError, RuntimeError, AttributeError):
        return None
