"""The hardware that a caller means: a spec, a name, a file, or the present machine."""

from __future__ import annotations

from pathlib import Path

from anatune.arguments import shown
from anatune.core.hardware.files import hardware as named_spec
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.errors import SpaceError, UnknownNameError

__all__ = ["HardwareLike", "hardware"]

HardwareLike = GpuSpec | CpuSpec | str | Path
"""What calls take for hardware."""


def hardware(name: HardwareLike) -> GpuSpec | CpuSpec:
    """Return the hardware spec of a name, an alias or the path of a TOML file; a spec is returned as it is.

    "host" is the present machine: the spec that ``anatune hw detect`` saved, else what detection finds now.

    Raises
    ------
    UnknownNameError
        No such name; the message lists close ones and says how to write a spec.
    SpecError
        The file is damaged or contradicts itself.
    SpaceError
        It is nothing of the kind.
    """
    if isinstance(name, GpuSpec | CpuSpec):
        return name
    if not isinstance(name, str | Path):
        raise SpaceError(
            f"hw is {shown(name)}, expected a device's name as 'rtx3090', the path of a TOML file, or what "
            "anatune.hardware() returns"
        )
    try:
        return named_spec(name)
    except UnknownNameError:
        if str(name).lower() != "host":
            raise
        from anatune.measure.cpu.detect import detect_cpu

        return detect_cpu()
