"""The estimate of a session, its measured times, and the history of earlier sessions on this machine.

The history is a small file in the user's cache folder, which may be deleted at any time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from anatune.core.hardware.spec import HardwareSpec
from anatune.core.trial import Measurement, Trial
from anatune.decoding import convert
from anatune.files import read_file, replace_file
from anatune.measure.run.cores import physical_cores, plan_cores
from anatune.records.environment import environment
from anatune.tuning.cost import CostEstimate, MeasuringSetup, SessionCost, estimate_session, session_cost

if TYPE_CHECKING:
    from anatune.tuning.places.place import Place
    from anatune.tuning.settings import TuningSettings
    from anatune.tuning.target import Source, Target

_FILE = "tuning_costs"
_VERSION = 1
_KEPT = 8
"""Number of latest costs to keep for a key, because load and software of a machine change."""
_MOST_KEYS = 64
_MOST_BYTES = 1 << 20

CostT = TypeVar("CostT", bound=msgspec.Struct)


def machine_key(hardware: HardwareSpec, *words: str) -> str:
    """Return the key under which costs are kept: the processor, its usable cores, the device, and `words`."""
    here = environment()
    return " | ".join((here.cpu, f"{here.cores} cores", hardware.kind, hardware.model, *words))


class CostHistory(Generic[CostT]):
    """A JSON file with the latest few costs for each key.

    A file that is missing, damaged or of another version counts as empty; errors of writing are ignored. If two
    processes write at once, one of them wins.

    Parameters
    ----------
    name : str
        Name of the file.
    cost : type
        Type of the costs.
    folder : Path, optional
        Folder of the file. None: nothing is kept.
    """

    def __init__(self, name: str, cost: type[CostT], folder: Path | None) -> None:
        self._path = None if folder is None else folder / f"{name}.json"
        self._type = dict[str, list[cost]]  # type: ignore[valid-type]

    def of(self, key: str) -> list[CostT]:
        """Return the latest costs of a key, oldest first."""
        return self._read().get(key, [])

    def add(self, key: str, cost: CostT) -> None:
        """Keep one more cost of a key."""
        if self._path is None:
            return
        costs = self._read()
        latest = [*costs.pop(key, []), cost][-_KEPT:]
        kept = dict([*costs.items(), (key, latest)][-_MOST_KEYS:])  # the key that was used last comes last
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, msgspec.json.encode({"version": _VERSION, "costs": kept}))

    def _read(self) -> dict[str, list[CostT]]:
        if self._path is None:
            return {}
        try:
            file = msgspec.json.decode(read_file(self._path, _MOST_BYTES))
            if not isinstance(file, dict) or file.get("version") != _VERSION:
                return {}
            costs: dict[str, list[CostT]] = convert(file["costs"], self._type)
        except (OSError, msgspec.MsgspecError, KeyError, UnicodeDecodeError):
            return {}
        return costs


class SessionCosts:
    """The estimate of one session, and the times of its parts.

    Parameters
    ----------
    folder : Path, optional
        Folder of the history; None: nothing is known and kept.

    Attributes
    ----------
    last_estimate : CostEstimate or None
        The estimate.
    """

    def __init__(self, folder: Path | None) -> None:
        self.last_estimate: CostEstimate | None = None
        self._history = CostHistory(_FILE, SessionCost, folder)
        self._key = ""
        self._measuring: MeasuringSetup | None = None
        self._began: dict[str, float] = {}

    def estimate(
        self,
        target: Target,
        place: Place,
        settings: TuningSettings,
        source: Source,
        history: Sequence[Trial],
        left_s: float | None = None,
    ) -> CostEstimate:
        """Estimate the time that is left after the trials in `history`; `left_s` is the rest of the time limit."""
        from anatune.measure.devices import measurer_of  # late: costs of networks need no measurer

        is_built = target.manifest is not None
        cores = plan_cores(target.threads, physical_cores()) if place.is_here else None
        protocol = measurer_of(target.hardware).usual_protocol
        self._measuring = MeasuringSetup(target.workload, target.hardware, protocol, cores, is_built)
        self._key = machine_key(
            target.hardware, f"{target.threads} threads", *(template.name for template in target.templates)
        )
        wanted = settings.trials if target.manifest is None else min(settings.trials, len(target.manifest.entries))
        self.last_estimate = estimate_session(
            self._measuring,
            max(0, wanted - len(history)),
            source.predicted(source.first),
            source.bound,
            earlier=[] if is_built else self._history.of(self._key),
            resumed=[trial.measurement for trial in history],
            time_limit_s=settings.time_limit_s if left_s is None else left_s,
            may_end_early=settings.stop_at is not None or settings.patience is not None,
        )
        return self.last_estimate

    def begin(self, part: str, now_s: float) -> None:
        """Note when a part of the session begins: "start", "measure", "compare", "" at the end."""
        self._began[part] = now_s

    def spent_s(self, now_s: float) -> float | None:
        """Return the wall time since the estimate, until the end; None before it."""
        return self._began.get("", now_s) - self._began["start"] if "start" in self._began else None

    def keep(self, measurements: Sequence[Measurement]) -> None:
        """Keep the times of a session that has ended, for later estimates; `measurements` are those of its trials."""
        estimate = self.last_estimate
        if estimate is None or estimate.seconds is None or self._measuring is None:
            return
        starts = [self._began[part] for part in ("start", "measure", "compare", "")]
        start_s, measure_s, compare_s = (later - earlier for earlier, later in pairwise(starts))
        estimated_s = estimate.start_s + len(measurements) * estimate.trial_s + estimate.compare_s
        cost = session_cost(
            self._measuring, measurements, start_s=start_s, measure_s=measure_s, compare_s=compare_s,
            estimated_s=estimated_s,
        )  # fmt: skip
        if cost is not None:
            self._history.add(self._key, cost)
