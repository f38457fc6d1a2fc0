"""What workers run: bytes in, bytes out, whatever happens in between.

Nothing but bytes travels, and no exception, which would travel as a pickle: what a worker cannot do is in its answer.
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
from anatune.measure.cluster.packing import DamagedError
from anatune.measure.cluster.station import Station

__all__ = ["PLUGIN", "Desk", "build", "compare", "lease", "measure"]

PLUGIN = "anatune"
"""Name of the plugin of a Dask worker that holds its station."""


class Desk:
    """Takes requests to a station, as bytes, and answers."""

    def __init__(self, station: Station) -> None:
        self._station = station

    def build(self, request: bytes) -> bytes:
        """Build what a `BuildRequest` asks for; returns a `Built`."""
        try:
            return encode(self._station.build(decode(request, BuildRequest)))
        except Exception as error:  # noqa: BLE001  see the module
            return encode(Built(trouble=_line(error)))

    def lease(self, setting: bytes, reference: bytes) -> bytes:
        """Get ready for a session; returns an `Answer` without measurements."""
        session = ""
        try:
            asked = decode(setting, SessionSetting)
            session = asked.session
            built = decode(reference, Built)
            if built.packed is None:
                trouble = built.trouble or (built.failure.message if built.failure else "nothing was built")
                return encode(Answer(session, 0, trouble=f"the reference kernel: {trouble}", whose="builder"))
            self._station.open(asked, built.packed)
            return encode(Answer(session, 0))
        except DamagedError as error:
            return encode(Answer(session, 0, trouble=_line(error), whose="builder"))
        except Exception as error:  # noqa: BLE001  see the module
            return encode(Answer(session, 0, trouble=_line(error)))

    def measure(self, request: bytes, built: bytes, leased: bytes) -> bytes:
        """Check and time what was built; returns an `Answer`."""

        def call(asked: MeasureRequest, parts: Sequence[Built]) -> Sequence[Measurement]:
            return [self._station.measure(asked, parts[0])]

        return _answered(request, MeasureRequest, [built], leased, call)

    def compare(self, request: bytes, built: Sequence[bytes], leased: bytes) -> bytes:
        """Time what was built in turn; returns an `Answer`."""

        def call(asked: CompareRequest, parts: Sequence[Built]) -> Sequence[Measurement]:
            return self._station.compare(asked, parts)

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
            return encode(Answer(session, number, trouble=opened.trouble, whose="lease"))
        parts = [decode(one, Built) for one in built]
        for place, one in enumerate(parts):
            if one.trouble:
                return encode(Answer(session, number, trouble=one.trouble, whose="builder", part=place))
        if len(parts) == 1 and (failure := parts[0].failure) is not None:
            return encode(Answer(session, number, (failure,), failed_build=True))
        return encode(Answer(session, number, tuple(call(asked, parts))))
    except DamagedError as error:
        return encode(Answer(session, number, trouble=_line(error), whose="builder", part=error.part))
    except Exception as error:  # noqa: BLE001  see the module
        return encode(Answer(session, number, trouble=_line(error)))


def _line(error: Exception) -> str:
    """Return an error in one line; of a defect with its class."""
    text = " ".join(str(error).split())
    return text if isinstance(error, AnatuneError) else f"{type(error).__name__}: {text}"


# ---- what Dask calls on a worker, by the names of these functions ---------------------------------------------------


def _desk() -> Desk:
    from distributed import get_worker

    plugin: Any = get_worker().plugins[PLUGIN]
    desk: Desk = plugin.desk
    return desk


def build(request: bytes) -> bytes:
    """Build; see `Desk.build`."""
    return _desk().build(request)


def lease(setting: bytes, reference: bytes) -> bytes:
    """Get ready; see `Desk.lease`. While the result is held, the worker knows the session."""
    return _desk().lease(setting, reference)


def measure(request: bytes, built: bytes, leased: bytes) -> bytes:
    """Measure; see `Desk.measure`."""
    return _desk().measure(request, built, leased)


def compare(request: bytes, built: Sequence[bytes], leased: bytes) -> bytes:
    """Compare; see `Desk.compare`."""
    return _desk().compare(request, built, leased)
