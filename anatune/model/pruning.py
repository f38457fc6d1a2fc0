"""The answer of `anatune.prune`: the schedules that deserve a run, and why the others do not."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware import CpuSpec, GpuSpec
from anatune.core.prediction import Prediction
from anatune.core.schedule import Schedule
from anatune.core.workload import Workload
from anatune.errors import SpaceError
from anatune.model.corrected import SHORTLIST, CorrectedModel
from anatune.model.evaluation import Guarantee, Rule
from anatune.model.order import CorrectedOrder, Order, PlainOrder

__all__ = ["CandidateSubset", "SpaceSubset", "Subset", "Verdict", "kept_count"]

MOST_EXACT = 20_000
"""Kept schedules up to which the last one's time is computed; beyond, it is estimated from a sample."""
_MOST_TIMED = 10_000
"""Schedules that a search with a time limit ranks."""
_SAMPLE = 20_000
_BATCH = 64
_POOL = 4
"""Points of the analytical order among which a correction chooses one."""
_OPEN_POOL = 1024
"""First pool where very many are kept: then the correction only orders what is read."""
_NEEDS = {"grid_blocks": ("blocks", 1.0), "local_bytes_per_thread": ("accumulators_per_thread", 4.0)}
"""Rule -> quantity of a prediction that it limits, and its factor, where the names differ."""


class Verdict(msgspec.Struct, frozen=True):
    """Why a schedule (or a configuration of another tuner) is kept or not.

    Attributes
    ----------
    kept : bool
    place : int or None
        In the predicted order, from 1; None where it was not counted.
    rule : str
        Id of the first rule it breaks, "" if it is legal.
    needed, limit : float or None
        What that rule measures, and the device's limit.
    time_s, best_s, cut_s : float
        Predicted seconds: its own, of the best one, of the last one kept.
    factor : float
        time_s / cut_s: above 1 where it is predicted to be slower than every one that is kept.
    bound_by : str
        The largest part of its time.
    text : str
        All of it in one sentence.
    """

    kept: bool
    place: int | None
    rule: str
    needed: float | None
    limit: float | None
    time_s: float
    best_s: float
    cut_s: float
    factor: float
    bound_by: str
    text: str

    def __str__(self) -> str:
        return self.text


def kept_count(keep: float, num_legal: int) -> int:
    """Return how many of `num_legal` are kept; see `anatune.prune` for `keep`.

    Raises
    ------
    SpaceError
        `keep` is neither a share nor a count.
    """
    is_number = isinstance(keep, int | float | np.integer | np.floating) and not isinstance(keep, bool)
    if is_number and isinstance(keep, int | np.integer) and keep >= 1:
        return min(int(keep), num_legal)
    if is_number and 0.0 < keep < 1.0:
        return math.ceil(float(keep) * num_legal)
    raise SpaceError(f"keep is {keep!r:.40}, expected a share above 0 and below 1, or a count (an integer >= 1)")


class Subset(ABC):
    """Schedules that deserve a run: an iterable in predicted order, computed as it is read.

    Guarantees: deterministic; iterating twice gives the same schedules, the second time without computing.

    Attributes
    ----------
    workload, hardware, keep
        As asked.
    rules : tuple of Rule
        What the device limits.
    """

    workload: Workload
    hardware: GpuSpec | CpuSpec
    keep: float
    rules: tuple[Rule, ...]

    @property
    @abstractmethod
    def num_legal(self) -> int:
        """Schedules that break no rule; where a time limit ended the count, an estimate."""

    @property
    @abstractmethod
    def num_kept(self) -> int:
        """Schedules that are kept, at most."""

    @abstractmethod
    def _batch(self, start: int, stop: int) -> tuple[list[Schedule], list[Prediction]]:
        """Return what comes at some places of the order (from 0), and the predictions."""

    @abstractmethod
    def _cut(self) -> tuple[float, float]:
        """Return the predicted seconds of the best one and of the last one kept."""

    @abstractmethod
    def _find(self, schedule: Schedule) -> tuple[Prediction, bool, int | None, str]:
        """Return the prediction of a legal or illegal schedule, whether it is kept, its place, and a remark."""

    def entries(self) -> Iterator[tuple[Schedule, Prediction]]:
        """Yield the kept schedules with their predictions, best first."""
        done = 0
        while done < self.num_kept:
            schedules, predictions = self._batch(done, min(self.num_kept, max(_BATCH, 2 * done)))
            if not schedules:
                return
            yield from zip(schedules, predictions, strict=True)
            done += len(schedules)

    def __iter__(self) -> Iterator[Schedule]:
        return (schedule for schedule, _ in self.entries())

    def keeps(self, schedule: Schedule) -> bool:
        """Return whether a schedule is among those kept; see `explain` for errors."""
        return self.explain(schedule).kept

    def explain(self, schedule: Schedule) -> Verdict:
        """Return whether a schedule is kept, else the rule it breaks or how much slower it is predicted to be.

        Raises
        ------
        SpaceError
            It is no Schedule, or one of another workload or template.
        """
        if not isinstance(schedule, Schedule):
            raise SpaceError(f"explain: got {schedule!r:.60}, expected a Schedule; build one with space.schedule(...)")
        prediction, kept, place, remark = self._find(schedule)
        best_s, cut_s = self._cut()
        time_s = prediction.time_s
        facts = {"time_s": time_s, "best_s": best_s, "cut_s": cut_s, "factor": time_s / cut_s}
        if prediction.rule:
            needed, limit, text = _broken(prediction, self._rules_of(schedule))
            return Verdict(
                False, None, prediction.rule, needed, limit, **facts, bound_by=prediction.bound_by, text=text
            )
        said = f"{_shown(time_s)}, {time_s / best_s:.3g} times the best, bound by {prediction.bound_by}"
        if kept:
            where = f"place {place} of {self.num_kept}" if place else f"among the first {self.num_kept}"
            text = f"kept: {where}, predicted {said}"
        else:
            slower = f"{time_s / cut_s:.3g} times the last one kept ({_shown(cut_s)})"
            text = f"left out: predicted {said}; {remark or slower}"
        return Verdict(kept, place, "", None, None, **facts, bound_by=prediction.bound_by, text=text)

    @abstractmethod
    def _rules_of(self, schedule: Schedule) -> tuple[Rule, ...]:
        """Return what limits schedules of its template."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return everything but the schedules as plain dictionaries and lists."""


class SpaceSubset(Subset):
    """The first schedules of a whole space.

    Parameters
    ----------
    model
        An analytical model, or a `CorrectedModel`.
    keep
        A share or a count; see `anatune.prune`.
    time_limit_s : float, optional
        Of the search: the order then ends after at most 10,000 schedules.
    distinct : bool
        Keep one schedule of each predicted time; for a count only.
    """

    def __init__(self, model: Any, keep: float, *, time_limit_s: float | None = None, distinct: bool = False) -> None:
        kept_count(keep, 1)
        if distinct and isinstance(keep, float):
            raise SpaceError(f"keep is {keep}, expected a count (an integer) of distinct schedules, as keep=100")
        self.workload, self.hardware = model.workload, model.hardware
        self.keep, self.rules = keep, model.rules
        self.space = model.space
        self._model, self._time_limit_s, self._distinct = model, time_limit_s, distinct

    def __repr__(self) -> str:
        return f"Subset(keep {self.keep:g} of {self.space!r})"

    @cached_property
    def _plain(self) -> PlainOrder:
        most = _MOST_TIMED if isinstance(self.keep, float) else min(_POOL * int(self.keep), _MOST_TIMED)
        return PlainOrder(self._analytical, self._time_limit_s, max(SHORTLIST, most), distinct=self._distinct)

    @cached_property
    def _order(self) -> Order:
        if not isinstance(self._model, CorrectedModel):
            return self._plain
        pool = _POOL * self.num_kept if self.num_kept <= MOST_EXACT else _OPEN_POOL
        return CorrectedOrder(self._model, self._plain, max(SHORTLIST, pool))

    @property
    def _analytical(self) -> Any:
        return self._model.model if isinstance(self._model, CorrectedModel) else self._model

    @property
    def guarantee(self) -> Guarantee:
        """How sure the order is, before a correction."""
        return self._plain.ranking.guarantee

    @cached_property
    def num_legal(self) -> int:
        """Points that break no rule; where a time limit ended the count, an estimate."""
        counted = self._plain.ranking.num_legal
        if counted is not None:
            return int(counted)
        drawn = self.space.sample_points(_SAMPLE, 0, legal=False)
        return round(int(self.space.size) * float((self._model.check(drawn) == 0).mean()))

    @cached_property
    def num_kept(self) -> int:
        """Schedules that are kept, at most."""
        wanted = kept_count(self.keep, self.num_legal)
        return min(wanted, len(self._plain.ranking.points)) if self._time_limit_s is not None else wanted

    def _batch(self, start: int, stop: int) -> tuple[list[Schedule], list[Prediction]]:
        points = self._order.first(stop)[start:]
        if not len(points):
            return [], []
        return [self.space.schedule_of(point) for point in points], self._model.predictions(points)

    @cached_property
    def _places(self) -> dict[Hashable, int] | None:
        """Program -> place of those kept; None where they are too many."""
        if self.num_kept > MOST_EXACT:
            return None
        key = self._key
        return {key(point): place for place, point in reversed(list(enumerate(self._order.first(self.num_kept), 1)))}

    @cached_property
    def _key(self) -> Callable[[NDArray[np.int64]], Hashable]:
        if self.space.template != "cpu":
            return lambda point: np.asarray(point, dtype=np.int64).tobytes()
        from anatune.model.cpu_order import loop_nest  # of points that describe the same loop nest one is listed

        return lambda point: loop_nest(self.space, point)

    def _cut(self) -> tuple[float, float]:
        return self._limits

    @cached_property
    def _limits(self) -> tuple[float, float]:
        if self.num_kept == 0:
            return math.nan, math.nan
        if self._places is not None:
            times = self._model.times(self._order.first(self.num_kept))[0]
            return float(times.min()), float(times.max())
        best_s = float(self._analytical.times(self._plain.first(1))[0][0])
        times = self._analytical.times(self.space.sample_points(_SAMPLE, 0))[0]
        return best_s, float(np.quantile(times, self.num_kept / self.num_legal))

    def _rules_of(self, schedule: Schedule) -> tuple[Rule, ...]:
        return self.rules

    def _find(self, schedule: Schedule) -> tuple[Prediction, bool, int | None, str]:
        point = self.space.point_of(schedule)
        model = self._model if self._places is not None else self._analytical
        prediction = model.predictions(point[None, :])[0]
        if prediction.rule:
            return prediction, False, None, ""
        _, cut_s = self._cut()
        if self._places is None:
            return prediction, prediction.time_s <= cut_s, None, f"slower than about {_shown(cut_s)} (from a sample)"
        place = self._places.get(self._key(point))
        if place is not None:
            return prediction, True, place, ""
        if prediction.time_s > cut_s:
            return prediction, False, None, ""
        if not self._is_listed(point):
            return prediction, True, None, ""
        if isinstance(self._model, CorrectedModel):
            return prediction, False, None, "too far behind in the analytical order for the correction to choose it"
        if self._distinct:
            return prediction, False, None, "as fast as one that is kept"
        return prediction, False, None, "as fast as the last one kept, behind it in the order of ties"

    def _is_listed(self, point: NDArray[np.int64]) -> bool:
        """Return whether the space lists a point: one can build others, with an unroll depth of one's own, say."""
        if self.space.template == "cpu":  # it lists what can be built
            return True
        try:
            self.space.encode(point)
        except SpaceError:
            return False
        return True

    def to_dict(self) -> dict[str, Any]:
        """Return workload, hardware, space, keep, guarantee."""
        ranking = self._plain.ranking
        tree: dict[str, Any] = {
            "workload": msgspec.to_builtins(self.workload),
            "hardware": {"name": self.hardware.name, "model": self.hardware.model, "arch": self.hardware.arch},
            "template": self.space.template,
            "space": {"size": self.space.size, "legal": ranking.num_legal, "rejected": ranking.rejected},
            "keep": self.keep,
            "num_kept": self.num_kept,
            "guarantee": msgspec.to_builtins(self.guarantee) | {"text": self.guarantee.describe()},
        }
        return tree | ({"corrected": True} if isinstance(self._model, CorrectedModel) else {})


class CandidateSubset(Subset):
    """The first of schedules that somebody else lists; times equal, in the order given.

    Parameters
    ----------
    workload, hardware, keep
        As `anatune.prune`; a share is one of the legal candidates.
    candidates : sequence of Schedule
        Of any templates.
    model_of : callable
        Template -> the model to use.
    """

    def __init__(
        self,
        workload: Workload,
        hardware: GpuSpec | CpuSpec,
        keep: float,
        candidates: Sequence[Schedule],
        model_of: Callable[[str], Any],
    ) -> None:
        kept_count(keep, 1)
        self.workload, self.hardware, self.keep = workload, hardware, keep
        self.candidates = list(candidates)
        self._models: dict[str, Any] = {}
        self._model_of = model_of
        for candidate in self.candidates:
            if not isinstance(candidate, Schedule):
                raise SpaceError(f"candidates: got {candidate!r:.60}, expected a Schedule")
        self._predictions = self._predict(self.candidates)
        legal = [place for place, prediction in enumerate(self._predictions) if prediction.legal]
        self._sorted = sorted(legal, key=lambda place: self._predictions[place].time_s)
        self._places = {self.candidates[at]: place for place, at in reversed(list(enumerate(self._sorted, 1)))}
        self.rules = tuple(rule for model in self._models.values() for rule in model.rules)

    def __repr__(self) -> str:
        return f"Subset(keep {self.keep:g} of {len(self.candidates)} candidates)"

    def _model(self, template: str) -> Any:
        if template not in self._models:
            self._models[template] = self._model_of(template)
        return self._models[template]

    def _predict(self, schedules: Sequence[Schedule]) -> list[Prediction]:
        found: dict[int, Prediction] = {}
        for template in dict.fromkeys(schedule.template for schedule in schedules):
            model = self._model(template)
            places = [place for place, schedule in enumerate(schedules) if schedule.template == template]
            points = np.array([model.space.point_of(schedules[place]) for place in places], dtype=np.int64)
            found |= dict(zip(places, model.predictions(points), strict=True))
        return [found[place] for place in range(len(schedules))]

    @property
    def num_legal(self) -> int:
        """Candidates that break no rule."""
        return len(self._sorted)

    @property
    def num_kept(self) -> int:
        """Candidates that are kept."""
        return kept_count(self.keep, self.num_legal)

    def _batch(self, start: int, stop: int) -> tuple[list[Schedule], list[Prediction]]:
        chosen = self._sorted[start:stop]
        return [self.candidates[at] for at in chosen], [self._predictions[at] for at in chosen]

    def _cut(self) -> tuple[float, float]:
        if not self._sorted:
            return math.nan, math.nan
        times = [self._predictions[at].time_s for at in (self._sorted[0], self._sorted[self.num_kept - 1])]
        return times[0], times[1]

    def _rules_of(self, schedule: Schedule) -> tuple[Rule, ...]:
        rules: tuple[Rule, ...] = self._model(schedule.template).rules
        return rules

    def _find(self, schedule: Schedule) -> tuple[Prediction, bool, int | None, str]:
        prediction = self._predict([schedule])[0]
        if prediction.rule:
            return prediction, False, None, ""
        place = self._places.get(schedule)
        if place is None:
            return prediction, False, None, "it is none of the candidates"
        if place > self.num_kept and prediction.time_s <= self._cut()[1]:
            return prediction, False, place, "as fast as the last one kept, behind it in the order given"
        return prediction, place <= self.num_kept, place, ""

    def to_dict(self) -> dict[str, Any]:
        """Return workload, hardware, counts of the candidates, keep."""
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


def _broken(prediction: Prediction, rules: Sequence[Rule]) -> tuple[float | None, float | None, str]:
    """Return what the first broken rule measures, its limit, and both in words."""
    rule = next(rule for rule in rules if rule.id == prediction.rule)
    quantity, factor = _NEEDS.get(rule.id, (rule.id, 1.0))
    value = prediction.resources.get(quantity)
    needed = None if value is None else value * factor
    got = "" if needed is None else f"{needed:.10g}, "
    return needed, rule.limit, f"left out: {rule.id}: {rule.text}: {got}at most {rule.limit:.10g}"


def _shown(seconds: float) -> str:
    return f"{seconds * 1e6:.4g} us" if seconds < 1e-3 else f"{seconds * 1e3:.4g} ms"
