"""Which place a session's settings name."""

from __future__ import annotations

from anatune.core.hardware.spec import HardwareSpec
from anatune.named import load
from anatune.tuning.places.local import LocalPlace
from anatune.tuning.places.place import Place
from anatune.tuning.settings import TuningSettings

__all__ = ["place_of"]


def place_of(settings: TuningSettings, host: HardwareSpec | None = None) -> Place:
    """Return the place that measures; what places elsewhere need is imported where they are used only.

    Parameters
    ----------
    host : CpuSpec or GpuSpec, optional
        The present machine, or its GPU; detected by default.

    Raises
    ------
    DeviceError
        It cannot be reached.
    MissingDependencyError
        A package that reaching it needs is not installed.
    """
    for name in ("cluster", "tracker"):
        if getattr(settings, name) is not None:
            place: Place = load("places", name, f"--{name}")(settings, host)
            return place
    return LocalPlace(host)
