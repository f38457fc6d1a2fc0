"""Subsets: the schedules that `anatune.prune` keeps, and why it leaves out the others."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from functools import cached_property

import msgspec
import numpy as np

from anatune.arguments import quote
from anatune.core.accuracy import STANDARD
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.prediction import Prediction
from anatune.core.schedule import Schedule, check_schedule
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.model.learned.corrected import SHORTLIST
from anatune.model.pruning.diversity import MOST_DIVERSE
from anatune.model.pruning.order import AnalyticalOrder, ChosenOrder, CorrectedOrder, Likeness, PointOrder
from anatune.templates import get_template
from anatune.templates.base.model import Guarantee, Model, Progress, Ranking, Rule
from anatune.templates.base.space import Space

MOST_EXACT = 20_000
"""Number of kept schedules up to which the last one's time is computed; above, it is estimated from a sample."""
_MOST_TIMED = 10_000
"""Number of schedules that a search with a time limit ranks."""
SAMPLE = 20_000
"""Number of points from which the times of a whole space are estimated."""
_BATCH = 64
_POOL = 4
"""Number of points of the analytical order for each one that a correction chooses."""
_NEARLY = 0.9
"""Correlation of errors above which two schedules are called nearly the same."""
_OPEN_POOL = 1024
"""Size of the first pool if very many schedules are kept: the correction then only orders what is read."""
_NEEDS = {"grid_blocks": ("blocks", 1.0), "local_bytes_per_thread": ("accumulators_per_thread", 4.0)}
"""Rule -> (quantity of a prediction that it limits, factor), where the names differ."""


class Verdict(msgspec.Struct, frozen=True):
    """The decision on a schedule, or on a configuration of another tuner: kept or not, and why.

    Attributes
    ----------
    kept : bool
        Whether it is kept.
    place : int or None
        Place in the predicted order, from 1; None if it was not determined.
    rule : str
        Id of the first broken rule; "" if the schedule is legal.
    needed, limit : float or None
        What the schedule needs of the quantity that the rule limits, and the device's limit.
    time_s, best_s, cut_s : float
        Predicted times of this schedule, of the best one, and of the last one kept, s.
    factor : float
        time_s / cut_s; above 1 if it is predicted to be slower than every kept schedule.
    bound_by : str
        The binding resource: the largest part of its time.
    text : str
        The whole answer in one sentence.
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


def count_kept(keep: float, num_legal: int) -> int:
    """Return how many of `num_legal` schedules are kept; `anatune.prune` explains `keep`.

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
    raise SpaceError(f"keep is {quote(keep)}, expected a share above 0 and below 1, or a count (an integer >= 1)")


class Subset(ABC):
    """Schedules that are worth measuring: an iterable in predicted order that is computed while it is read.

    It is deterministic: iterating twice gives the same schedules, the second time without computing.

    Attributes
    ----------
    workload, hardware, keep
        As passed to `anatune.prune`.
    rules : tuple of Rule
        The rules that limit schedules on the device.
    """

    workload: Workload
    hardware: GpuSpec | CpuSpec
    keep: float
    rules: tuple[Rule, ...]

    @property
    @abstractmethod
    def num_legal(self) -> int:
        """Number of schedules that break no rule; an estimate if a time limit ended the count."""

    @property
    @abstractmethod
    def num_kept(self) -> int:
        """Largest number of schedules that are kept."""

    @abstractmethod
    def _batch(self, start: int, stop: int) -> tuple[list[Schedule], list[Prediction]]:
        """Return the schedules at places `start` to `stop` (from 0) of the order, and their predictions."""

    @abstractmethod
    def _time_range(self) -> tuple[float, float]:
        """Return the predicted seconds of the best schedule and of the last one kept."""

    @abstractmethod
    def _find(self, schedule: Schedule) -> tuple[Prediction, bool, int | None, str]:
        """Return the prediction of a schedule, whether it is kept, its place or None, and a remark."""

    def entries(self) -> Iterator[tuple[Schedule, Prediction]]:
        """Yield the kept schedules with their predictions, best first."""
        num_read = 0
        while num_read < self.num_kept:
            schedules, predictions = self._batch(num_read, min(self.num_kept, max(_BATCH, 2 * num_read)))
            if not schedules:
                return
            yield from zip(schedules, predictions, strict=True)
            num_read += len(schedules)

    def __iter__(self) -> Iterator[Schedule]:
        return (schedule for schedule, _ in self.entries())

    def keeps(self, schedule: Schedule) -> bool:
        """Return whether a schedule is kept; errors as in `explain`."""
        return self.explain(schedule).kept

    def explain(self, schedule: Schedule) -> Verdict:
        """Return why a schedule is kept or not: its place, the rule it breaks, or how much slower it is predicted.

        Raises
        ------
        SpaceError
            The argument is not a Schedule, or belongs to another workload or template.
        """
        check_schedule("explain", schedule)
        prediction, kept, position, remark = self._find(schedule)
        best_s, cut_s = self._time_range()
        time_s = prediction.time_s
        facts = {"time_s": time_s, "best_s": best_s, "cut_s": cut_s, "factor": time_s / cut_s}
        if prediction.rule:
            needed, limit, text = _describe_broken_rule(prediction, self._template_rules(schedule))
            return Verdict(
                False, None, prediction.rule, needed, limit, **facts, bound_by=prediction.bound_by, text=text
            )
        description = f"{_to_text(time_s)} ({against_best(time_s, best_s)}), bound by {prediction.bound_by}"
        if kept:
            place_text = f"rank {position} of {self.num_kept}" if position else f"among the first {self.num_kept}"
            text = f"kept: {place_text}, predicted {description}"
        else:
            slower = f"{time_s / cut_s:.3g} times the time of the last one kept ({_to_text(cut_s)})"
            text = f"left out: predicted {description}; {remark or slower}"
        return Verdict(kept, position, "", None, None, **facts, bound_by=prediction.bound_by, text=text)

    @abstractmethod
    def _template_rules(self, schedule: Schedule) -> tuple[Rule, ...]:
        """Return the rules for schedules of this template."""

    @abstractmethod
    def to_dict(self) -> dict[str, object]:
        """Return everything except the schedules, as plain dictionaries and lists."""


class RankedSubset(Subset):
    """The first schedules of one space or several; `accuracy` is the requested accuracy."""

    accuracy: str = STANDARD

    @property
    @abstractmethod
    def spaces(self) -> tuple[Space, ...]:
        """The spaces of the templates, the device's default first."""

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """Guarantee of the order before a correction."""

    @property
    def templates(self) -> tuple[str, ...]:
        """Names of the ranked templates."""
        return tuple(space.template for space in self.spaces)

    @property
    def space_size(self) -> int:
        """Number of points of all spaces, legal or not."""
        return sum(int(space.size) for space in self.spaces)

    def _head(self, template: str, legal: int | None, rejected: dict[str, int] | None) -> dict[str, object]:
        """Return the fields that subsets of one space and of several have in common."""
        return {
            "workload": msgspec.to_builtins(self.workload),
            "hardware": {"name": self.hardware.name, "model": self.hardware.model, "arch": self.hardware.arch},
            "template": template,
            "threads": self.hardware.most_threads,
            "space": {"size": self.space_size, "legal": legal, "rejected": rejected},
            "keep": self.keep,
            "num_kept": self.num_kept,
            "guarantee": msgspec.to_builtins(self.guarantee) | {"text": self.guarantee.describe()},
        }


class SpaceSubset(RankedSubset):
    """The first schedules of a whole space; few schedules are chosen from its beginning so that they differ.

    Parameters
    ----------
    model
        An analytical model, or a `CorrectedModel`.
    keep
        A share or a count; see `anatune.prune`.
    time_limit_s : float, optional
        Time limit of the search, s; the order then ends after at most 10,000 schedules.
    distinct : bool
        Whether to keep one schedule of each predicted time; only for a count.
    diverse : bool
        Whether few kept schedules (up to `MOST_DIVERSE`) are chosen to differ.
    progress : callable, optional
        Function to call with the finished share of each ranking; not pickled.
    """

    def __init__(
        self,
        model: Model,
        keep: float,
        *,
        time_limit_s: float | None = None,
        distinct: bool = False,
        diverse: bool = True,
        progress: Progress | None = None,
    ) -> None:
        count_kept(keep, 1)
        if distinct and isinstance(keep, float):
            raise SpaceError(f"keep is {keep}, expected a count (an integer) of distinct schedules, as keep=100")
        self.workload, self.hardware = model.workload, model.hardware
        self.keep, self.rules = keep, model.rules
        self.space = model.space
        self.model, self._time_limit_s, self._distinct = model, time_limit_s, distinct
        self._progress = progress
        self._diverse = diverse and get_template(model.space.template).diverse

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_progress": None}

    def __repr__(self) -> str:
        return f"Subset(keep {self.keep:g} of {self.space!r})"

    def with_count(self, count: int) -> SpaceSubset:
        """Return a subset of the same space that keeps `count` schedules; rankings are shared."""
        subset = copy.copy(self)
        for name in ("num_kept", "_order", "_places", "_limits"):
            subset.__dict__.pop(name, None)
        subset.keep = count
        return subset

    @property
    def spaces(self) -> tuple[Space, ...]:
        """The space, as a tuple."""
        return (self.space,)

    @cached_property
    def _plain(self) -> AnalyticalOrder:
        most = _MOST_TIMED if isinstance(self.keep, float) else min(_POOL * int(self.keep), _MOST_TIMED)
        few = self._may_choose and not isinstance(self.keep, float) and self.keep <= MOST_DIVERSE
        distinct = self._distinct or few
        return AnalyticalOrder(
            self.model.plain, self._time_limit_s, max(SHORTLIST, most), distinct=distinct, progress=self._progress
        )

    @property
    def _may_choose(self) -> bool:
        """True if few kept schedules are chosen to differ; with a time limit, the first ones are kept."""
        return self._diverse and self._time_limit_s is None

    @cached_property
    def _order(self) -> PointOrder:
        if self._may_choose and 0 < self.num_kept <= MOST_DIVERSE:
            plain = (
                self._plain
                if self._plain.distinct
                else AnalyticalOrder(self.model.plain, distinct=True, progress=self._progress)
            )
            return ChosenOrder(self.model, plain, self.num_kept, distinct=self._distinct)
        if not self.model.is_corrected:
            return self._plain
        pool = _POOL * self.num_kept if self.num_kept <= MOST_EXACT else _OPEN_POOL
        return CorrectedOrder(self.model, self._plain, max(SHORTLIST, pool))

    @property
    def guarantee(self) -> Guarantee:
        """Guarantee of the order before a correction."""
        return self.ranking.guarantee

    @property
    def ranking(self) -> Ranking:
        """The first points of the analytical order, with exact counts of the space."""
        return self._plain.ranking

    @cached_property
    def num_legal(self) -> int:
        """Number of points that break no rule; an estimate if a time limit ended the count."""
        exact_count = self._plain.ranking.num_legal
        if exact_count is not None:
            return int(exact_count)
        samples = self.space.sample_points(SAMPLE, 0, legal=False)
        return round(int(self.space.size) * float((self.model.check(samples) == 0).mean()))

    @cached_property
    def num_kept(self) -> int:
        """Largest number of schedules that are kept."""
        num_requested = count_kept(self.keep, self.num_legal)
        return min(num_requested, len(self._plain.ranking.points)) if self._time_limit_s is not None else num_requested

    def _batch(self, start: int, stop: int) -> tuple[list[Schedule], list[Prediction]]:
        points = self._order.first(stop)[start:]
        if not len(points):
            return [], []
        return [self.space.schedule_of(point) for point in points], self.model.predictions(points)

    @cached_property
    def _places(self) -> dict[Hashable, int] | None:
        """Program -> place of each kept schedule; None if there are too many."""
        if self.num_kept > MOST_EXACT:
            return None
        kept = list(enumerate(self._order.first(self.num_kept), 1))
        return {self.model.program_key(point): place for place, point in reversed(kept)}

    def _time_range(self) -> tuple[float, float]:
        return self._limits

    @cached_property
    def _limits(self) -> tuple[float, float]:
        if self.num_kept == 0:
            return math.nan, math.nan
        if self._places is not None:
            times = self.model.times(self._order.first(self.num_kept))[0]
            return float(times.min()), float(times.max())
        best_s = float(self.model.plain.times(self._plain.first(1))[0][0])
        times = self.model.plain.times(self.space.sample_points(SAMPLE, 0))[0]
        return best_s, float(np.quantile(times, self.num_kept / self.num_legal))

    def _template_rules(self, schedule: Schedule) -> tuple[Rule, ...]:
        return self.rules

    def _find(self, schedule: Schedule) -> tuple[Prediction, bool, int | None, str]:
        point = self.space.point_of(schedule)
        model = self.model if self._places is not None else self.model.plain
        prediction = model.predictions(point[None, :])[0]
        if prediction.rule:
            return prediction, False, None, ""
        _, cut_s = self._time_range()
        if self._places is None:
            return (prediction, prediction.time_s <= cut_s, None, f"slower than about {_to_text(cut_s)} (estimated)")
        position = self._places.get(self.model.program_key(point))
        if position is not None:
            return prediction, True, position, ""
        if prediction.time_s > cut_s:
            return prediction, False, None, ""
        if not self.space.lists(point):
            return prediction, True, None, ""
        if isinstance(self._order, ChosenOrder):
            return prediction, False, None, describe_likeness(self._order.likeness(point), self._order.considers(point))
        if self.model.is_corrected:
            return prediction, False, None, "too late in the analytical order for the correction to consider it"
        if self._distinct:
            return prediction, False, None, "as fast as one that is kept"
        return prediction, False, None, "as fast as the last one kept, but later among ties"

    def to_dict(self) -> dict[str, object]:
        """Return workload, hardware, space, `keep` and guarantee."""
        tree = self._head(self.space.template, self.ranking.num_legal, self.ranking.rejected)
        return tree | ({"corrected": True} if self.model.is_corrected else {})


def _describe_broken_rule(prediction: Prediction, rules: Sequence[Rule]) -> tuple[float | None, float | None, str]:
    """Return the quantity of a prediction that the first broken rule limits, the limit, and both in words."""
    rule = next(rule for rule in rules if rule.id == prediction.rule)
    quantity, factor = _NEEDS.get(rule.id, (rule.id, 1.0))
    value = prediction.resources.get(quantity)
    needed = rule.needed if value is None else value * factor
    return needed, rule.limit, f"left out: {rule.broken_text(needed)}"


def describe_likeness(likeness: Likeness, considered: bool) -> str:
    """Return why a schedule is left out although it is predicted as fast as some that are kept."""
    position, common, ratio = likeness
    similarity = (
        "nearly the same" if common > _NEARLY else f"the most similar (the model's errors have {common:.0%} in common)"
    )
    speed = f"is predicted {ratio:.3g} times as fast" if ratio > 1.0005 else "is predicted as fast"
    reason = "others are likelier to be faster" if considered else "this one was not among the random candidates"
    return f"the kept schedule of rank {position} is {similarity} and {speed}; {reason}"


def against_best(time_s: float, best_s: float) -> str:
    """Return a time over the best time as text."""
    return "the best time" if time_s <= best_s else f"{time_s / best_s:.3g} times the best time"


def _to_text(seconds: float) -> str:
    return f"{seconds * 1e6:.4g} us" if seconds < 1e-3 else f"{seconds * 1e3:.4g} ms"
