"""Which place a session's settings name."""

from __future__ import annotations

from anatune.core.hardware.spec import HardwareSpec
from anatune.named import resolve
from anatune.tuning.places.local import LocalPlace
from anatune.tuning.places.place import Place
from anatune.tuning.settings import TuningSettings

__all__ = ["place_of"]


def place_of(settings: TuningSettings, host: HardwareSpec | None = None) -> Place:
    """Return the place that measures.

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
    # By name: what the other places need is imported where they are used only.
    if settings.cluster is not None:
        return _made("anatune.tuning.places.cluster:cluster_place", settings, host)
    if settings.tracker is not None:
        return _made("anatune.tuning.places.boards:board_place", settings, host)
    return LocalPlace(host)


def _made(name: str, settings: TuningSettings, host: HardwareSpec | None) -> Place:
    made: Place = resolve(name)(settings, host)
    return made
