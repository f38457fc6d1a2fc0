"""A cost model for MetaSchedule.

::

    tune_tir(mod, target, work_dir, max_trials_global=64, cost_model=metaschedule.cost_model("host"))

It predicts the times of candidates in MetaSchedule's own spaces and of anatune's kernels. Measurements correct later
predictions. TVM is imported when these functions are called.
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
from anatune.adapters.metaschedule.objects import Context, MeasureCandidate, RunnerResult, derive_class, measurement_of
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
"""The format name at the beginning of a saved cost model."""
AUTO = "auto"
NEUTRAL = 0.1
"""The score of a candidate without prediction before any was predicted: a tenth of the peak."""


def cost_model(
    hw: HardwareLike = "host", *, path: str | Path | None = None, fallback: ms.CostModel | str | None = AUTO
) -> ms.CostModel:
    """Return a ``CostModel`` for ``tune_tir``, ``tune_relax`` and evolutionary search.

    Scores are shares of the device's peak (higher is better), and 0 for candidates that the device cannot run. A
    candidate that the model cannot judge gets the median of the batch, and ``.unknown`` counts such candidates by
    reason. ``.learned`` counts measurements.

    Parameters
    ----------
    hw : str, Path, CpuSpec or GpuSpec
        The device of the target: a spec, its name, "host" (this CPU), or a TOML file.
    path : str or Path, optional
        A file that ``save`` wrote, with measurements to begin with.
    fallback : CostModel, "auto" or None
        The cost model for functions that anatune does not know. "auto" is MetaSchedule's xgboost model if xgboost is
        installed. With None, all candidates of such functions get equal scores. ``save`` does not save the fallback.

    Raises
    ------
    UnknownNameError, SpecError
        The device is unknown or its file is wrong.
    SpaceError
        Raised when the model is used: the target is not of the kind of `hw` (CPU or GPU).
    RecordError
        `path` is not a saved cost model.
    MissingDependencyError
        TVM's MetaSchedule cannot be imported. The message contains the pip command.
    """
    return derive_class(AnatuneCostModel, meta_schedule().cost_model.PyCostModel)(api.hardware(hw), fallback, path)


class AnatuneCostModel:
    """The class of the cost model that MetaSchedule calls."""

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
        self._median: dict[str, float] = {}
        if path is not None:
            self.load(str(path))

    def predict(self, context: Context, candidates: Sequence[MeasureCandidate]) -> Floats:
        """Return scores, (num_candidates,) float64; about 0 to 1, higher is better."""
        key, task = self._scorer_for(context)
        batch = task.score([candidate.sch for candidate in candidates])
        self.unknown.update(task.unknown)
        task.unknown.clear()
        fallback_model = self._fallback_for(task)
        if fallback_model is not None:
            return np.asarray(fallback_model.predict(context, candidates), dtype=np.float64)
        times = batch.time_s.copy()
        for kind in set(batch.kinds) - {""}:
            group = [index for index, own in enumerate(batch.kinds) if own == kind]
            residuals = self._residuals.get(f"{key} {kind}")
            if residuals is not None:
                times[group] *= np.exp(residuals.predict(np.array([batch.features[index] for index in group])))
        scores = np.zeros(len(times))
        legal = np.array([not rule for rule in batch.rules], dtype=bool)
        judged = np.isfinite(times) & (times > 0) & legal
        self.rejected.update(rule for rule in batch.rules if rule)
        scores[judged] = task.peak_time_s / times[judged]
        if judged.any():
            self._median[key] = float(np.median(scores[judged]))
        scores[np.isnan(batch.time_s)] = self._median.get(key, NEUTRAL)
        return scores

    def update(self, context: Context, candidates: Sequence[MeasureCandidate], results: Sequence[RunnerResult]) -> None:
        """Learn from measurements; failures are ignored."""
        key, task = self._scorer_for(context)
        fallback_model = self._fallback_for(task)
        if fallback_model is not None:
            fallback_model.update(context, candidates, results)
            return
        measured_s = [_seconds(result) for result in results]
        indices = [index for index, seconds in enumerate(measured_s) if seconds is not None]
        batch = task.score([candidates[index].sch for index in indices])
        task.unknown.clear()  # predict() counted them already
        for kind in set(batch.kinds) - {""}:
            group = [index for index, own in enumerate(batch.kinds) if own == kind and np.isfinite(batch.time_s[index])]
            if not group:
                continue
            values = [float(np.log((measured_s[indices[index]] or np.nan) / batch.time_s[index])) for index in group]
            rows = np.array([batch.features[index] for index in group])
            self._residuals.setdefault(f"{key} {kind}", Residuals()).observe(rows, values)
            self.learned += len(group)

    def save(self, path: str) -> None:
        """Write the measurements to a file.

        Raises
        ------
        RecordError
            The file cannot be written.
        """
        data = {name: residuals.to_builtins() for name, residuals in self._residuals.items()}
        try:
            Path(path).write_bytes(msgspec.json.encode({"format": FORMAT, "tasks": data}))
        except OSError as error:
            raise RecordError(f"{path}: the cost model was not written ({reason(error)}); name another file") from None

    def load(self, path: str) -> None:
        """Replace all measurements by those of a file that `save` wrote.

        Raises
        ------
        RecordError
            The file cannot be read or is not a saved cost model.
        """
        try:
            data = msgspec.json.decode(read_file(path))
            if not isinstance(data, dict) or data.get("format") != FORMAT:
                raise RecordError(f"{path} is not a cost model of anatune, expected a file that its save() wrote")
            self._residuals = {name: Residuals.from_builtins(residuals) for name, residuals in data["tasks"].items()}
        except OSError as error:
            raise RecordError(f"{path}: {reason(error)}, expected a file that save() of a cost model wrote") from None
        except (msgspec.MsgspecError, KeyError, AttributeError, UnicodeDecodeError):
            raise RecordError(f"{path} is damaged, expected a file that save() of a cost model wrote") from None
        self.learned = sum(map(len, self._residuals.values()))

    def _fallback_for(self, task: CandidateScorer) -> ms.CostModel | None:
        """Return the fallback model if anatune does not know the function, otherwise None."""
        if task.meaning is not None:
            return None
        if self._fallback == AUTO:
            xgboost_model = None
            if find_spec("xgboost") is not None:
                xgboost_model = meta_schedule().cost_model.CostModel.create("xgb")
            self._fallback = xgboost_model
        return self._fallback

    def _scorer_for(self, context: Context) -> tuple[str, CandidateScorer]:
        """Return key and scorer of a context's function; the key is structural, since MetaSchedule copies functions."""
        key = f"{_hash(context.mod)} {context.target}"
        if key not in self._tasks:
            self._tasks[key] = scorer_of(context.mod, context.target, self.hardware)
        return key, self._tasks[key]


def _seconds(result: RunnerResult) -> float | None:
    """Return the mean time of a RunnerResult, or None for a failure."""
    times = measurement_of(result).times_s
    return sum(times) / len(times) if times else None


def _hash(module: tvm.IRModule) -> str:
    import tvm_ffi

    return f"{tvm_ffi.structural_hash(module, map_free_vars=True) & (1 << 64) - 1:016x}"
