"""What workers run: bytes in, bytes out, whatever happens in between.

Nothing but bytes travels, and no exception, which would travel as a pickle: what a worker cannot do is in its answer.
"""

from __future__ import annotations

from anatune.errors import AnatuneError
from anatune.fleet.cluster.fleet import Kind
from anatune.fleet.cluster.messages import (
    Answer,
    BuildRequest,
    Built,
    DamagedError,
    MeasureRequest,
    SessionSetting,
    decode,
    encode,
    line_of,
)
from anatune.fleet.cluster.station import Station

PLUGIN = "anatune"
"""Name of the plugin of a Dask worker that holds its station."""


class Desk:
    """Takes requests to a station, as bytes, and answers."""

    def __init__(self, station: Station) -> None:
        self._station = station

    def answer(self, kind: Kind, request: bytes, *parts: bytes) -> bytes:
        """Answer a request: to a build with a `Built`, to a lease and a measurement with an `Answer`.

        Parameters
        ----------
        kind : {"build", "lease", "measure"}
        request : bytes
            A `BuildRequest`; a `SessionSetting`; a `MeasureRequest`.
        parts : bytes
            Of a lease the `Built` of the reference kernel; of a measurement the `Answer` to the lease, then the `Built`
            of each schedule.
        """
        session, number = "", 0
        try:
            if kind == "build":
                return encode(self._station.build(decode(request, BuildRequest)))
            if kind == "lease":
                setting = decode(request, SessionSetting)
                session = setting.session
                return encode(self._leased(setting, *parts))
            asked = decode(request, MeasureRequest)
            session, number = asked.session, asked.number
            return encode(self._measured(asked, *parts))
        except DamagedError as error:
            return encode(Answer(session, number, trouble=str(error), whose="builder", part=error.part))
        except Exception as error:  # noqa: BLE001  see the module
            trouble = line_of(error) if isinstance(error, AnatuneError) else f"{type(error).__name__}: {line_of(error)}"
            return encode(Built(trouble=trouble) if kind == "build" else Answer(session, number, trouble=trouble))

    def _leased(self, setting: SessionSetting, reference: bytes) -> Answer:
        built = decode(reference, Built)
        if built.packed is None:
            trouble = built.trouble or (built.failure.message if built.failure else "nothing was built")
            raise DamagedError(f"the reference kernel: {trouble}")
        self._station.open(setting, built.packed)
        return Answer(setting.session, 0)

    def _measured(self, asked: MeasureRequest, leased: bytes, *built: bytes) -> Answer:
        lease = decode(leased, Answer)
        if lease.trouble:
            return Answer(asked.session, asked.number, trouble=lease.trouble, whose="lease")
        kernels = [decode(part, Built) for part in built]
        for place, kernel in enumerate(kernels):
            if kernel.trouble:
                raise DamagedError(kernel.trouble, place)
        if len(kernels) == 1 and (failure := kernels[0].failure) is not None:
            return Answer(asked.session, asked.number, (failure,), failed_build=True)
        return Answer(asked.session, asked.number, tuple(self._station.measure(asked, kernels)))


def answer(kind: Kind, request: bytes, *parts: bytes) -> bytes:
    """Answer for the worker that this process is; what Dask calls. While a lease is held, it knows the session."""
    from distributed import get_worker

    desk: Desk = vars(get_worker().plugins[PLUGIN])["desk"]
    return desk.answer(kind, request, *parts)
