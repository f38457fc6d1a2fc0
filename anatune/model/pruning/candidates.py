"""Subsets of given candidates: the answer of `anatune.prune` for a list of schedules."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.prediction import Prediction
from anatune.core.schedule import Schedule, check_schedule
from anatune.core.workload.nest import Workload
from anatune.model.pruning.diversity import MOST_DIVERSE, beginning_rows, error_quantities
from anatune.model.pruning.order import ChosenPoints
from anatune.model.pruning.subset import Subset, count_kept, describe_likeness
from anatune.templates import get_template
from anatune.templates.base.model import Model, Rule


class CandidateSubset(Subset):
    """The best of given schedules; those with equal times stay in the given order.

    Parameters
    ----------
    workload, hardware, keep
        As in `anatune.prune`; a share is a share of the legal candidates.
    candidates : sequence of Schedule
        Schedules of any templates.
    model_of : callable
        Function ``template -> model``.
    diverse : bool
        Whether few kept schedules are chosen to differ; only if all belong to templates with `diverse`.
    """

    def __init__(
        self,
        workload: Workload,
        hardware: GpuSpec | CpuSpec,
        keep: float,
        candidates: Sequence[Schedule],
        model_of: Callable[[str], Model],
        *,
        diverse: bool = True,
    ) -> None:
        count_kept(keep, 1)
        self.workload, self.hardware, self.keep = workload, hardware, keep
        self.candidates = [check_schedule("candidates", candidate) for candidate in candidates]
        self._models: dict[str, Model] = {}
        self._model_of = model_of
        self.candidates = list(dict.fromkeys(self.candidates))
        self._predictions = self._predict(self.candidates)
        legal = [place for place, prediction in enumerate(self._predictions) if prediction.legal]
        self._sorted = sorted(legal, key=lambda place: self._predictions[place].time_s)
        self._chosen: ChosenPoints | None = None
        if diverse and 0 < self.num_kept <= MOST_DIVERSE and all(get_template(name).diverse for name in self._models):
            self._choose()
        self._places = {self.candidates[at]: place for place, at in reversed(list(enumerate(self._sorted, 1)))}
        self.rules = tuple(rule for model in self._models.values() for rule in model.rules)

    def __repr__(self) -> str:
        return f"Subset(keep {self.keep:g} of {len(self.candidates)} candidates)"

    def _model(self, template: str) -> Model:
        if template not in self._models:
            self._models[template] = self._model_of(template)
        return self._models[template]

    def _predict(self, schedules: Sequence[Schedule]) -> list[Prediction]:
        predictions: dict[int, Prediction] = {}
        for template in dict.fromkeys(schedule.template for schedule in schedules):
            model = self._model(template)
            positions = [place for place, schedule in enumerate(schedules) if schedule.template == template]
            points = np.array([model.space.point_of(schedules[place]) for place in positions], dtype=np.int64)
            predictions |= dict(zip(positions, model.predictions(points), strict=True))
        return [predictions[place] for place in range(len(schedules))]

    def _choose(self) -> None:
        """Move the chosen schedules to the front."""
        times = np.array([self._predictions[at].time_s for at in self._sorted])
        rows = beginning_rows(times, self.num_kept)
        pool, times = [self._sorted[row] for row in rows.tolist()], times[rows]
        self._pool = {self.candidates[at] for at in pool}
        self._chosen = ChosenPoints(times, self._quantities([self.candidates[at] for at in pool]), self.num_kept)
        kept = [pool[row] for row in self._chosen.rows.tolist()]
        self._sorted = kept + [at for at in self._sorted if at not in set(kept)]

    def _quantities(self, schedules: Sequence[Schedule]) -> NDArray[np.float64]:
        model = self._model(schedules[0].template)
        return error_quantities(model, np.array([model.space.point_of(schedule) for schedule in schedules]))

    @property
    def num_legal(self) -> int:
        """Number of candidates that break no rule."""
        return len(self._sorted)

    @property
    def num_kept(self) -> int:
        """Number of candidates that are kept."""
        return count_kept(self.keep, self.num_legal)

    def _batch(self, start: int, stop: int) -> tuple[list[Schedule], list[Prediction]]:
        chosen = self._sorted[start:stop]
        return [self.candidates[at] for at in chosen], [self._predictions[at] for at in chosen]

    def _time_range(self) -> tuple[float, float]:
        if not self._sorted:
            return math.nan, math.nan
        times = [self._predictions[at].time_s for at in (self._sorted[0], self._sorted[self.num_kept - 1])]
        return times[0], times[1]

    def _template_rules(self, schedule: Schedule) -> tuple[Rule, ...]:
        rules: tuple[Rule, ...] = self._model(schedule.template).rules
        return rules

    def _find(self, schedule: Schedule) -> tuple[Prediction, bool, int | None, str]:
        prediction = self._predict([schedule])[0]
        if prediction.rule:
            return prediction, False, None, ""
        position = self._places.get(schedule)
        if position is None:
            return prediction, False, None, "it is not among the candidates"
        if position > self.num_kept and self._chosen is not None:
            remark = ""
            if prediction.time_s <= self._time_range()[1]:
                likeness = self._chosen.likeness(prediction.time_s, self._quantities([schedule]))
                remark = describe_likeness(likeness, schedule in self._pool)
            return prediction, False, None, remark
        if position > self.num_kept and prediction.time_s <= self._time_range()[1]:
            return prediction, False, position, "as fast as the last one kept, but listed after it"
        return prediction, position <= self.num_kept, position, ""

    def to_dict(self) -> dict[str, object]:
        """Return workload, hardware, counts of the candidates, and `keep`."""
        rejected = [prediction.rule for prediction in self._predictions if prediction.rule]
        return {
            "workload": msgspec.to_builtins(self.workload),
            "hardware": {"name": self.hardware.name, "model": self.hardware.model, "arch": self.hardware.arch},
            "candidates": {
                "size": len(self.candidates),
                "legal": self.num_legal,
                "rejected": {rule: rejected.count(rule) for rule in dict.fromkeys(rejected)},
            },
            "keep": self.keep,
            "num_kept": self.num_kept,
        }
