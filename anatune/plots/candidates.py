"""The schedules that figures of a plan show: its best ones, and others of the same spaces for comparison."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from anatune.core.prediction import Prediction
from anatune.core.schedule import Schedule
from anatune.model.joint import make_applied_model
from anatune.model.plan import Plan
from anatune.report import units
from anatune.templates.base.model import Model

MOST_DRAWN = 400
"""Number of schedules that are drawn at random from all spaces together, besides the best ones."""
MOST_WHOLE = 1_000
"""Largest number of legal schedules that are all shown."""
_LARGEST_WHOLE = 200_000
"""Number of points of the largest space whose legal points are all determined."""
_LEAST_SAVED = 1.05
"""Ratio of operations above which a template counts as one that saves operations."""
_TIMED = 20_000
"""Number of points of a space whose predicted times form the distribution."""


@dataclass(frozen=True)
class Candidate:
    """A schedule with its prediction.

    Attributes
    ----------
    schedule, prediction
    rank : int or None
        Rank in the plan from 1; None if it was drawn at random.
    moved_bytes : dict of str to float
        Memory level -> bytes that cross it, as in `Prediction.traffic_over_bound`.
    """

    schedule: Schedule
    prediction: Prediction
    rank: int | None
    moved_bytes: dict[str, float]

    @property
    def results_at_once(self) -> float:
        """Number of results of a block (GPU), or of a piece of the parallel loop (CPU)."""
        resources = self.prediction.resources
        if "threads_per_block" in resources:
            return resources["threads_per_block"] * resources.get("accumulators_per_thread", 1.0)
        pieces = max(1.0, self.prediction.waves * resources.get("threads", 1.0))
        return self.schedule.workload.write.num_elements / pieces


@dataclass(frozen=True)
class SpaceSample:
    """Legal points of one template's space, either all or a uniform sample.

    Attributes
    ----------
    template : str
    columns : tuple of str
        Names of the entries of a point.
    points : (num_points, len(columns)) int64
    time_s : (num_points,) float64
        Predicted seconds.
    is_whole : bool
        Whether these are all legal points.
    """

    template: str
    columns: tuple[str, ...]
    points: NDArray[np.int64]
    time_s: NDArray[np.float64]
    is_whole: bool


@dataclass(frozen=True)
class Candidates:
    """The schedules of a plan that figures show.

    Attributes
    ----------
    plan : Plan
    best, drawn : list of Candidate
        The schedules of the plan, best first; others drawn from the same spaces.
    spaces : list of SpaceSample
        One sample for each template, in the plan's order.
    is_whole : bool
        Whether `best` and `drawn` are all legal schedules.
    """

    plan: Plan
    best: list[Candidate]
    drawn: list[Candidate]
    spaces: list[SpaceSample]
    is_whole: bool

    def __iter__(self) -> Iterator[Candidate]:
        yield from self.best
        yield from self.drawn

    @cached_property
    def levels(self) -> tuple[str, ...]:
        """The levels of memory in the predictions, the outermost first."""
        level_names = dict.fromkeys(level for one in self for level in one.prediction.traffic_over_bound)
        return tuple(sorted(level_names, key=("dram", "l3", "l2", "l1", "shared").index))

    @cached_property
    def io_bounds(self) -> dict[str, float]:
        """Level of memory -> fewest bytes that cross it, for the best schedule's template."""
        best = self.best[0]
        ratios = best.prediction.traffic_over_bound
        return {level: best.moved_bytes[level] / ratio for level, ratio in ratios.items() if ratio}

    def describe(self) -> str:
        """Return a sentence that says which schedules are shown."""
        legal = self.plan.num_legal
        if self.is_whole:
            return f"All {units.count(len(self.best) + len(self.drawn))} legal schedules are shown."
        total = "the legal ones" if legal is None else f"{units.count(legal)} legal ones"
        best = len(self.best)
        shown = "the best one" if best == 1 else f"the {best} best ones"
        return f"Shown are {shown} and {units.count(len(self.drawn))} that were drawn at random from {total}."


def models_of(plan: Plan) -> dict[str, Model]:
    """Return the models that ranked a plan, by template, with the corrections of the plan."""
    applied = {space.template: space.correction for space in plan.joined} or {plan.template: plan.correction}
    return {template: make_applied_model(plan, template, correction) for template, correction in applied.items()}


def saved_work(plan: Plan) -> dict[str, float]:
    """Return template -> operations of the workload over the fewest operations of its schedules, if above 1.

    These are templates with Winograd's transforms, or that leave out products with padding. The effective peak of such
    a template is this ratio times the peak of the device.
    """
    flop = float(plan.workload.flop)
    saved = {name: flop / fewest for name, model in models_of(plan).items() if (fewest := model.plain.least_flop)}
    return {name: times for name, times in saved.items() if times >= _LEAST_SAVED}


def candidates_of(plan: Plan, seed: int = 0) -> Candidates:
    """Return the schedules of a plan, and others of its spaces: all legal ones of small spaces, some of large ones.

    The same plan and seed give the same schedules.

    Raises
    ------
    SpaceError
        No schedule is legal.
    """
    _ = plan.best  # raises an error if there is none
    models = models_of(plan)
    spaces = [_sample(model, seed) for model in models.values()]
    whole = sum(len(space.points) for space in spaces)
    is_whole = all(space.is_whole for space in spaces) and whole <= MOST_WHOLE
    bounds = {template: model.plain.io_bounds for template, model in models.items()}
    best = _rank_candidates(zip(plan.schedules, plan.predictions, strict=True), bounds)
    listed_keys = {one.schedule.key for one in best}
    drawn = []
    for model, space in zip(models.values(), spaces, strict=True):
        count = len(space.points) if is_whole else max(1, MOST_DRAWN // len(spaces))
        points = space.points[:count]
        for point, prediction in zip(points, model.predictions(points), strict=True):
            schedule = model.space.schedule_of(point)
            if schedule.key not in listed_keys:
                listed_keys.add(schedule.key)
                moved = _moved_bytes(prediction, bounds[space.template])
                drawn.append(Candidate(schedule, prediction, None, moved))
    return Candidates(plan, best, drawn, spaces, is_whole)


def as_candidates(plan: Plan, entries: Iterable[tuple[Schedule, Prediction]]) -> list[Candidate]:
    """Return schedules of a plan's spaces, best first, as candidates with their ranks."""
    return _rank_candidates(entries, {template: model.plain.io_bounds for template, model in models_of(plan).items()})


def _rank_candidates(
    entries: Iterable[tuple[Schedule, Prediction]], bounds: Mapping[str, Mapping[str, float]]
) -> list[Candidate]:
    return [
        Candidate(schedule, prediction, rank, _moved_bytes(prediction, bounds[schedule.template]))
        for rank, (schedule, prediction) in enumerate(entries, 1)
    ]


def _sample(model: Model, seed: int) -> SpaceSample:
    """Return legal points of a model's space in a random order: all, or a sample."""
    space = model.space
    is_whole = space.size <= _LARGEST_WHOLE
    if is_whole:
        numbers = np.random.default_rng(seed).permutation(space.size)
        points = space.points_at(numbers)
        points = points[model.check(points) == 0]
    else:
        points = space.sample_points(_TIMED, seed)
    time_s = model.times(points)[0] if len(points) else np.zeros(0)
    return SpaceSample(space.template, space.columns, points, time_s, is_whole)


def _moved_bytes(prediction: Prediction, bounds: Mapping[str, float]) -> dict[str, float]:
    return {level: ratio * bounds[level] for level, ratio in prediction.traffic_over_bound.items() if level in bounds}
