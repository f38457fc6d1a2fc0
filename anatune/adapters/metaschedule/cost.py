"""A cost model for MetaSchedule.

::

    tune_tir(mod, target, work_dir, max_trials_global=64, cost_model=metaschedule.cost_model("host"))

Candidates of MetaSchedule's own spaces and anatune's own kernels get predicted times; measured ones correct the next
predictions. TVM is imported by the calls, not by the module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune import api
from anatune.adapters.metaschedule.database import meta_schedule
from anatune.adapters.metaschedule.objects import Candidate, Context, RunnerResult, derived, measurement_of
from anatune.adapters.metaschedule.scores import CandidateScorer, scorer_of
from anatune.core.hardware.spec import HardwareSpec
from anatune.errors import RecordError
from anatune.files import read_file, reason
from anatune.measure.named_hardware import HardwareLike
from anatune.search.learning.kriging import Residuals
from anatune.untyped import ms, tvm

__all__ = ["FORMAT", "AnatuneCostModel", "cost_model"]

Floats = NDArray[np.float64]

FORMAT = "anatune-metaschedule-cost-1"
"""What a saved cost model begins with."""
AUTO = "auto"
NEUTRAL = 0.1
"""Score of a candidate that is not understood while none was: a tenth of the peak."""


def cost_model(
    hw: HardwareLike = "host", *, path: str | Path | None = None, fallback: ms.CostModel | str | None = AUTO
) -> ms.CostModel:
    """Return a ``CostModel`` for ``tune_tir``, ``tune_relax`` and evolutionary search.

    Scores are shares of the device's peak (higher is better): 0 for what the device cannot run; what is not understood
    gets the median of the batch and is counted in ``.unknown`` (reason -> candidates). ``.learned`` counts
    measurements.

    Parameters
    ----------
    hw : str, Path, CpuSpec or GpuSpec
        The device that the target names: a spec, its name, "host" (this CPU), or a file.
    path : str or Path, optional
        What ``save`` wrote: measurements to begin with.
    fallback : CostModel, "auto" or None
        For functions that are not understood at all: MetaSchedule's model of xgboost where that is installed ("auto"),
        or none: then their candidates are all equal. ``save`` leaves out what it learned.

    Raises
    ------
    UnknownNameError, SpecError
        There is no such hardware.
    SpaceError
        From the model, when it is used: the target is no device of the kind of `hw`.
    RecordError
        `path` is no saved cost model.
    MissingDependencyError
        TVM's MetaSchedule cannot be imported; the message has the pip command.
    """
    return derived(AnatuneCostModel, meta_schedule().cost_model.PyCostModel)(api.hardware(hw), fallback, path)


class AnatuneCostModel:
    """The cost model, as MetaSchedule calls it."""

    def __init__(
        self, hardware: HardwareSpec, fallback: ms.CostModel | str | None = None, path: str | Path | None = None
    ) -> None:
        self.hardware = hardware
        self._fallback = fallback
        self.unknown: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.learned = 0
        self._tasks: dict[str, CandidateScorer] = {}
        self._residuals: dict[str, Residuals] = {}
        self._middle: dict[str, float] = {}
        if path is not None:
            self.load(str(path))

    def predict(self, context: Context, candidates: Sequence[Candidate]) -> Floats:
        """Return scores, (num_candidates,) float64 in [0, 1] (or a little more), higher is better."""
        key, task = self._task(context)
        scored = task.score([candidate.sch for candidate in candidates])
        self.unknown.update(task.unknown)
        task.unknown.clear()
        other = self._other(task)
        if other is not None:
            return np.asarray(other.predict(context, candidates), dtype=np.float64)
        times = scored.time_s.copy()
        for kind in set(scored.kinds) - {""}:
            at = [place for place, own in enumerate(scored.kinds) if own == kind]
            residuals = self._residuals.get(f"{key} {kind}")
            if residuals is not None:
                times[at] *= np.exp(residuals.predict(np.array([scored.features[place] for place in at])))
        scores = np.zeros(len(times))
        legal = np.array([not rule for rule in scored.rules], dtype=bool)
        known = np.isfinite(times) & (times > 0) & legal
        self.rejected.update(rule for rule in scored.rules if rule)
        scores[known] = task.floor_s / times[known]
        if known.any():
            self._middle[key] = float(np.median(scores[known]))
        scores[np.isnan(scored.time_s)] = self._middle.get(key, NEUTRAL)
        return scores

    def update(self, context: Context, candidates: Sequence[Candidate], results: Sequence[RunnerResult]) -> None:
        """Learn from measurements; failures are no times."""
        key, task = self._task(context)
        other = self._other(task)
        if other is not None:
            other.update(context, candidates, results)
            return
        measured = [_seconds(result) for result in results]
        places = [place for place, seconds in enumerate(measured) if seconds is not None]
        scored = task.score([candidates[place].sch for place in places])
        task.unknown.clear()  # they were counted when they were predicted
        for kind in set(scored.kinds) - {""}:
            at = [place for place, own in enumerate(scored.kinds) if own == kind and np.isfinite(scored.time_s[place])]
            if not at:
                continue
            values = [float(np.log((measured[places[place]] or np.nan) / scored.time_s[place])) for place in at]
            rows = np.array([scored.features[place] for place in at])
            self._residuals.setdefault(f"{key} {kind}", Residuals()).observe(rows, values)
            self.learned += len(at)

    def save(self, path: str) -> None:
        """Write what was measured.

        Raises
        ------
        RecordError
            The file cannot be written.
        """
        data = {name: residuals.to_builtins() for name, residuals in self._residuals.items()}
        try:
            Path(path).write_bytes(msgspec.json.encode({"format": FORMAT, "tasks": data}))
        except OSError as error:
            raise RecordError(f"{path}: {reason(error)}, expected a file to write") from None

    def load(self, path: str) -> None:
        """Read what `save` wrote, in the place of what was learned.

        Raises
        ------
        RecordError
            The file cannot be read or is something else.
        """
        try:
            data = msgspec.json.decode(read_file(path))
            if not isinstance(data, dict) or data.get("format") != FORMAT:
                raise RecordError(f"{path}: no cost model of anatune's, expected what its save() wrote")
            self._residuals = {name: Residuals.from_builtins(residuals) for name, residuals in data["tasks"].items()}
        except OSError as error:
            raise RecordError(f"{path}: {reason(error)}, expected a saved cost model") from None
        except (msgspec.MsgspecError, KeyError, AttributeError, UnicodeDecodeError):
            raise RecordError(f"{path}: damaged, expected what save() of a cost model wrote") from None
        self.learned = sum(map(len, self._residuals.values()))

    def _other(self, task: CandidateScorer) -> ms.CostModel | None:
        """Return the cost model of a function that is not understood, None where it is, or where there is none."""
        if task.meaning is not None:
            return None
        if self._fallback == AUTO:
            made = None
            if find_spec("xgboost") is not None:
                made = meta_schedule().cost_model.CostModel.create("xgb")
            self._fallback = made
        return self._fallback

    def _task(self, context: Context) -> tuple[str, CandidateScorer]:
        """Return the function of a context, by what it is: MetaSchedule makes new objects of the same."""
        key = f"{_hash(context.mod)} {context.target}"
        if key not in self._tasks:
            self._tasks[key] = scorer_of(context.mod, context.target, self.hardware)
        return key, self._tasks[key]


def _seconds(result: RunnerResult) -> float | None:
    """Return the mean time of a RunnerResult, None where it failed."""
    times = measurement_of(result).times_s
    return sum(times) / len(times) if times else None


def _hash(module: tvm.IRModule) -> str:
    import tvm_ffi

    return f"{tvm_ffi.structural_hash(module, map_free_vars=True) & (1 << 64) - 1:016x}"
