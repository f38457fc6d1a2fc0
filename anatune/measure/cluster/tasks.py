"""What Dask runs on a worker: bytes in, bytes out, whatever happens in between.

The functions find their worker's station in its plugin. Nothing but bytes travels, and no exception: what a worker
cannot do is in its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from anatune.core.trial import Measurement
from anatune.errors import AnatuneError
from anatune.measure.cluster.messages import (
    Answer,
    BuildRequest,
    Built,
    CompareRequest,
    MeasureRequest,
    SessionSetting,
    decode,
    encode,
)
from anatune.measure.cluster.station import Station

__all__ = ["PLUGIN", "build", "compare", "lease", "measure"]

PLUGIN = "anatune"
"""Name of the plugin that holds a worker's station."""


def _station() -> Station:
    from distributed import get_worker

    plugin: Any = get_worker().plugins[PLUGIN]
    station: Station = plugin.station
    return station


def build(request: bytes) -> bytes:
    """Build what a `BuildRequest` asks for; returns a `Built`."""
    try:
        return encode(_station().build(decode(request, BuildRequest)))
    except Exception as error:  # noqa: BLE001  an exception would travel as a pickle
        return encode(Built(trouble=_line(error)))


def lease(setting: bytes, reference: bytes) -> bytes:
    """Get ready for a session; returns an `Answer` without measurements. While it is held, the session is known."""
    session = ""
    try:
        asked = decode(setting, SessionSetting)
        session = asked.session
        built = decode(reference, Built)
        if built.packed is None:
            trouble = built.trouble or (built.failure.message if built.failure else "nothing was built")
            return encode(Answer(session, 0, trouble=f"the reference kernel: {trouble}", building=True))
        _station().open(asked, built.packed)
        return encode(Answer(session, 0))
    except Exception as error:  # noqa: BLE001  as above
        return encode(Answer(session, 0, trouble=_line(error)))


def measure(request: bytes, built: bytes, leased: bytes) -> bytes:
    """Check and time what was built; returns an `Answer`."""

    def call(asked: MeasureRequest, parts: Sequence[Built]) -> Sequence[Measurement]:
        return [_station().measure(asked, parts[0])]

    return _answered(request, MeasureRequest, [built], leased, call)


def compare(request: bytes, built: list[bytes], leased: bytes) -> bytes:
    """Time what was built in turn; returns an `Answer`."""

    def call(asked: CompareRequest, parts: Sequence[Built]) -> Sequence[Measurement]:
        return _station().compare(asked, parts)

    return _answered(request, CompareRequest, built, leased, call)


def _answered(
    request: bytes, kind: type[Any], built: Sequence[bytes], leased: bytes, call: Callable[[Any, Any], Any]
) -> bytes:
    session, number = "", 0
    try:
        asked = decode(request, kind)
        session, number = asked.session, asked.number
        opened = decode(leased, Answer)
        if opened.trouble:
            return encode(Answer(session, number, trouble=opened.trouble, building=opened.building))
        parts = [decode(one, Built) for one in built]
        trouble = next((one.trouble for one in parts if one.trouble), "")
        if trouble:
            return encode(Answer(session, number, trouble=trouble, building=True))
        if len(parts) == 1 and (failure := parts[0].failure) is not None:
            return encode(Answer(session, number, (failure,), failed_build=True))
        return encode(Answer(session, number, tuple(call(asked, parts))))
    except Exception as error:  # noqa: BLE001  as above
        return encode(Answer(session, number, trouble=_line(error)))


def _line(error: Exception) -> str:
    """Return an error in one line; of a defect with its class."""
    text = " ".join(str(error).split())
    return text if isinstance(error, AnatuneError) else f"{type(error).__name__}: {text}"
