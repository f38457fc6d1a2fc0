"""The lookup of hardware specs by name, file, or as this machine."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from anatune.arguments import quote
from anatune.core.hardware.files import hardware as named_spec
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.errors import DeviceError, SpaceError, UnknownNameError

HardwareLike = GpuSpec | CpuSpec | str | Path
"""The types that calls accept for hardware."""


def hardware(name: HardwareLike) -> GpuSpec | CpuSpec:
    """Return the hardware spec of a name, an alias or the path of a TOML file; a spec is returned unchanged.

    "host" is the present machine's CPU, "host_gpu", "host_gpu1" ... are its GPUs: the specs that ``anatune hw detect``
    saved, else what detection finds now.

    Raises
    ------
    UnknownNameError
        No such name; the message lists close ones and says how to write a spec.
    SpecError
        The file is damaged or contradicts itself.
    DeviceError
        The name means a GPU of this machine, but there is none that can be used.
    SpaceError
        The argument has another type.
    """
    if isinstance(name, GpuSpec | CpuSpec):
        return name
    if not isinstance(name, str | Path):
        raise SpaceError(
            f"hw is {quote(name)}, expected the name of a device such as 'rtx3090', the path of a TOML file, or a "
            "result of anatune.hardware()"
        )
    try:
        return named_spec(name)
    except UnknownNameError:
        here = re.fullmatch(r"host(_gpu(\d{0,3}))?", str(name).lower())
        if here is None:
            raise
        if here[1] is not None:
            return _host_gpu(int(here[2] or 0))
    from anatune.measure.cpu.detect import detect_cpu

    return detect_cpu()


def _host_gpu(index: int) -> GpuSpec:
    """Return the spec of a GPU of the present machine as ``anatune hw detect`` would save it."""
    from anatune.measure.cuda.detect import present_gpus

    name = f"host_gpu{index or ''}"
    gpus, reason = present_gpus()
    if index >= len(gpus):
        raise DeviceError(
            f"{name} means GPU {index} of this machine, but it cannot be used: {reason}; run `anatune doctor`, or plan "
            "for another GPU of `anatune hw list`, which needs no GPU"
        )
    return msgspec.structs.replace(gpus[index], name=name, aliases=())
