"""A session's own account: what it told before it began, what its parts took, what it leaves for the next estimate."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from anatune.core.trial import Measurement, Trial
from anatune.measure.devices import protocol_of
from anatune.measure.run.cores import CorePlan, physical_cores, plan_cores
from anatune.measure.run.timing import TimingProtocol
from anatune.tuning.cost import CostEstimate, SessionCost, estimate_session, session_cost
from anatune.tuning.cost_history import CostHistory, machine_key
from anatune.tuning.places.place import Place
from anatune.tuning.settings import TuningSettings
from anatune.tuning.source import Source
from anatune.tuning.target import Target

__all__ = ["SessionCosts"]

_FILE = "tuning_costs"


class SessionCosts:
    """Estimates one session, and times its parts.

    Parameters
    ----------
    folder : Path, optional
        Of what earlier sessions took; None: nothing is known and kept.

    Attributes
    ----------
    told : CostEstimate or None
        The estimate.
    """

    def __init__(self, folder: Path | None) -> None:
        self.told: CostEstimate | None = None
        self._history = CostHistory(_FILE, SessionCost, folder)
        self._key = ""
        self._cores: CorePlan | None = None
        self._protocol = TimingProtocol()
        self._target: Target | None = None
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
        """Return an estimate of what is left to measure after `history`; `left_s` is the rest of the time limit."""
        self._target = target
        self._protocol = protocol_of(target.hardware)
        is_built = target.manifest is not None
        self._cores = plan_cores(target.threads, physical_cores()) if place.is_here else None
        self._key = machine_key(target.hardware, f"{target.threads} threads", *(one.name for one in target.templates))
        wanted = settings.trials if target.manifest is None else min(settings.trials, len(target.manifest.entries))
        self.told = estimate_session(
            max(0, wanted - len(history)),
            target.workload,
            target.hardware,
            source.predicted(source.first),
            source.bound,
            cores=self._cores,
            protocol=self._protocol,
            earlier=[] if is_built else self._history.of(self._key),
            resumed=[trial.measurement for trial in history],
            time_limit_s=settings.time_limit_s if left_s is None else left_s,
            may_end_early=settings.stop_at is not None or settings.patience is not None,
            is_built=is_built,
        )
        return self.told

    def begin(self, part: str, now_s: float) -> None:
        """Note when a part of the session begins: "start", "measure", "compare", "" at the end."""
        self._began[part] = now_s

    def spent_s(self, now_s: float) -> float | None:
        """Return the wall time since the estimate, until the end; None before it."""
        return self._began.get("", now_s) - self._began["start"] if "start" in self._began else None

    def keep(self, measurements: Sequence[Measurement]) -> None:
        """Keep what a session took that came to its end, for later ones: the trials that it made."""
        told, target = self.told, self._target
        if told is None or told.seconds is None or target is None or self._cores is None:
            return
        starts = [self._began[part] for part in ("start", "measure", "compare", "")]
        start_s, measure_s, compare_s = (later - earlier for earlier, later in pairwise(starts))
        cost = session_cost(
            measurements,
            target.workload,
            cores=self._cores,
            protocol=self._protocol,
            start_s=start_s,
            measure_s=measure_s,
            compare_s=compare_s,
            estimated_s=told.start_s + len(measurements) * told.trial_s + told.compare_s,
        )
        if cost is not None:
            self._history.add(self._key, cost)
