"""The tasks that workers run. Their arguments and results are bytes.

Exceptions are never sent, because Dask would pickle them: an answer contains the error of a worker.
"""

from __future__ import annotations

from anatune.errors import AnatuneError
from anatune.fleet.cluster.fleet import Kind
from anatune.fleet.cluster.messages import (
    BuildRequest,
    BuildResult,
    DamagedError,
    MeasureRequest,
    SessionSetting,
    WorkerAnswer,
    decode,
    encode,
    line_of,
)
from anatune.fleet.cluster.station import Station

PLUGIN = "anatune"
"""The name of a Dask worker's plugin that has its station."""


class RequestHandler:
    """Decodes requests to a station and encodes its answers."""

    def __init__(self, station: Station) -> None:
        self._station = station

    def answer(self, kind: Kind, request: bytes, *parts: bytes) -> bytes:
        """Answer a build with a `BuildResult`, and a lease or a measurement with a `WorkerAnswer`.

        Parameters
        ----------
        kind : {"build", "lease", "measure"}
            The kind of request.
        request : bytes
            A `BuildRequest`, a `SessionSetting` or a `MeasureRequest`.
        parts : bytes
            For a lease, the `BuildResult` of the reference kernel. For a measurement, the `WorkerAnswer` to the lease,
            then the `BuildResult` of each schedule.
        """
        session, number = "", 0
        try:
            if kind == "build":
                return encode(self._station.build(decode(request, BuildRequest)))
            if kind == "lease":
                setting = decode(request, SessionSetting)
                session = setting.session
                return encode(self._open_lease(setting, *parts))
            measure_request = decode(request, MeasureRequest)
            session, number = measure_request.session, measure_request.number
            return encode(self._run_measurement(measure_request, *parts))
        except DamagedError as error:
            return encode(WorkerAnswer(session, number, trouble=str(error), whose="builder", part=error.part))
        except Exception as error:  # noqa: BLE001  see the docstring of the module
            trouble = line_of(error) if isinstance(error, AnatuneError) else f"{type(error).__name__}: {line_of(error)}"
            return encode(
                BuildResult(trouble=trouble) if kind == "build" else WorkerAnswer(session, number, trouble=trouble)
            )

    def _open_lease(self, setting: SessionSetting, reference: bytes) -> WorkerAnswer:
        built = decode(reference, BuildResult)
        if built.packed is None:
            trouble = built.trouble or (built.failure.message if built.failure else "nothing was built")
            raise DamagedError(f"the reference kernel cannot be used: {trouble}")
        self._station.open(setting, built.packed)
        return WorkerAnswer(setting.session, 0)

    def _run_measurement(self, request: MeasureRequest, leased: bytes, *built: bytes) -> WorkerAnswer:
        lease = decode(leased, WorkerAnswer)
        if lease.trouble:
            return WorkerAnswer(request.session, request.number, trouble=lease.trouble, whose="lease")
        kernels = [decode(part, BuildResult) for part in built]
        for index, kernel in enumerate(kernels):
            if kernel.trouble:
                raise DamagedError(kernel.trouble, index)
        if len(kernels) == 1 and (failure := kernels[0].failure) is not None:
            return WorkerAnswer(request.session, request.number, (failure,), failed_build=True)
        return WorkerAnswer(request.session, request.number, tuple(self._station.measure(request, kernels)))


def answer(kind: Kind, request: bytes, *parts: bytes) -> bytes:
    """Answer a request for the Dask worker of this process; Dask calls this."""
    from distributed import get_worker

    desk: RequestHandler = vars(get_worker().plugins[PLUGIN])["desk"]
    return desk.answer(kind, request, *parts)
