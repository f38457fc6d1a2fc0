"""The GPU that a Triton kernel runs on: one that is named, or the GPU of this machine."""

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
"""The environment variable that names the device for ``hw="auto"``."""

GpuLike: TypeAlias = str | Path | GpuSpec
"""The name, TOML file or spec of a GPU, as `find_gpu` takes it."""


class _Target(Protocol):
    """The target that Triton compiles for."""

    arch: int
    backend: str


class _Properties(Protocol):
    """The device properties that Triton's driver reports."""

    def get_device_properties(self, index: int) -> Mapping[str, int]: ...


class _Driver(Protocol):
    """The methods of Triton's driver that are used here."""

    utils: _Properties

    def get_current_device(self) -> int: ...
    def get_current_target(self) -> _Target: ...


def gpu_of(spec: HardwareSpec, otherwise: str) -> GpuSpec:
    """Return the spec if it is that of a GPU.

    Raises
    ------
    SpaceError
        It is not; the message is `otherwise`.
    """
    if spec.kind == "gpu":
        return spec
    raise SpaceError(otherwise)


def find_gpu(hw: GpuLike) -> GpuSpec:
    """Return the spec of a GPU.

    Parameters
    ----------
    hw
        A spec, or a name or TOML file as in `anatune.hardware`, or "auto": the device that the environment variable
        ANATUNE_HW names, otherwise the GPU of this machine.

    Raises
    ------
    DeviceError
        `hw` is "auto", and this machine has no GPU, or none with a spec.
    SpaceError
        The device is not a GPU.
    UnknownNameError, SpecError
        The device is unknown or its file is wrong, as in `anatune.hardware`.
    """
    if str(hw) == AUTO:
        named = os.environ.get(VARIABLE)
        return _detect_gpu() if not named else find_gpu(Path(named) if os.sep in named else named)
    spec = api.hardware(hw)
    return gpu_of(spec, f"hw is {spec.name}, which is not a GPU; name a GPU of `anatune hw list`")


def _detect_gpu() -> GpuSpec:
    """Return the spec of the GPU that Triton would use now."""
    advice = f"name the device, for example hw='a100', or set the environment variable {VARIABLE}"
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
        raise DeviceError(f"hw='auto': this machine has no usable GPU ({reason}); {advice}")
    return _find_matching_spec(driver, index, advice)


def _find_matching_spec(driver: _Driver, index: int, advice: str) -> GpuSpec:
    """Return the spec with the architecture and number of SMs that Triton reports; needs no CUDA packages."""
    arch = f"sm_{driver.get_current_target().arch}"
    num_sms = int(driver.utils.get_device_properties(index)["multiprocessor_count"])
    for spec in list_hardware():
        if spec.arch == arch and (gpu := gpu_of(spec, f"{arch} is not a GPU")).compute.num_sms == num_sms:
            return gpu
    raise DeviceError(
        f"hw='auto': no spec matches this machine's GPU ({arch}, {num_sms} SMs); install NVIDIA's packages, which read "
        f"a spec from the GPU ({pip_line('cuda')}), or {advice}"
    )


def _triton_driver() -> _Driver | None:
    """Return Triton's active driver, or None without Triton, without a GPU, or with several drivers."""
    try:
        active: _Driver = import_module("triton.runtime").driver.active
        return active if active.get_current_target().backend == "cuda" else None
    except (ImportError, RuntimeError, AttributeError):
        return None
