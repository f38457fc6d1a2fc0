"""Which place a session's settings name."""

from __future__ import annotations

from anatune.core.hardware.spec import HardwareSpec
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
    if settings.cluster is not None:
        from anatune.tuning.places.cluster import cluster_place

        return cluster_place(settings, host)
    if settings.tracker is not None:
        from anatune.tuning.places.boards import BoardPlace

        return BoardPlace(settings.tracker, settings.key or "")
    return LocalPlace(host)
