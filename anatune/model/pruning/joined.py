"""Subsets of several templates: the answer of `anatune.prune` where several are ranked together."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable, Iterator, Sequence
from functools import cached_property

import numpy as np

from anatune.core.accuracy import STANDARD
from anatune.core.prediction import Prediction
from anatune.core.schedule import Schedule
from anatune.errors import SpaceError
from anatune.model.joint import join_guarantees, sum_rejections
from anatune.model.plan import JoinedSpace, space_tree
from anatune.model.pruning.subset import MOST_EXACT, SAMPLE, RankedSubset, SpaceSubset, count_kept
from anatune.templates.base.model import Guarantee, Model, Progress, Rule
from anatune.templates.base.space import Space

_Entry = tuple[Schedule, Prediction]


class JoinedSubset(RankedSubset):
    """The first schedules of the spaces of several templates, in one order.

    Each template contributes a subset as large as the whole: a schedule that is no faster than the last one of its
    template's subset is no faster than the last one of all.

    Parameters
    ----------
    parts : sequence of SpaceSubset
        One subset for each template, the device's default first; all have the same workload, device and `keep`.
    accuracy : str
        The requested accuracy.
    """

    def __init__(self, parts: Sequence[SpaceSubset], accuracy: str = STANDARD) -> None:
        first = parts[0]
        self.accuracy = accuracy
        self.workload, self.hardware, self.keep = first.workload, first.hardware, first.keep
        self.rules = tuple({rule.id: rule for part in reversed(parts) for rule in part.rules}.values())
        self._asked = tuple(parts)
        self._read: list[_Entry] = []

    def __getstate__(self) -> dict[str, object]:
        kept = {name: value for name, value in self.__dict__.items() if name != "_merged"}
        return {**kept, "_read": []}

    def __repr__(self) -> str:
        spaces = ", ".join(repr(part.space) for part in self._asked)
        return f"Subset(keep {self.keep:g} of {spaces})"

    @property
    def spaces(self) -> tuple[Space, ...]:
        """The spaces of the templates, the device's default first."""
        return tuple(part.space for part in self._asked)

    @property
    def guarantee(self) -> Guarantee:
        """Guarantee of the order before a correction: the weakest guarantee of the templates."""
        return join_guarantees(self._brought)

    @cached_property
    def num_legal(self) -> int:
        """Number of points that break no rule; an estimate if a time limit ended a count."""
        return sum(part.num_legal for part in self._asked)

    @cached_property
    def num_kept(self) -> int:
        """Largest number of schedules that are kept."""
        return min(count_kept(self.keep, self.num_legal), sum(part.num_kept for part in self._parts))

    @cached_property
    def _parts(self) -> tuple[SpaceSubset, ...]:
        """The templates' subsets, each as large as the whole, because one template may have all kept schedules."""
        count = count_kept(self.keep, self.num_legal)
        return tuple(part.with_count(max(1, count)) for part in self._asked)

    @cached_property
    def _brought(self) -> tuple[JoinedSpace, ...]:
        spaces = []
        for part in self._asked:
            ranking, plain = part.ranking, part.model.plain
            best_s = float(plain.times(ranking.points[:1])[0][0]) if len(ranking.points) else None
            spaces.append(
                JoinedSpace(
                    part.space.template, part.space_size, ranking.num_legal, ranking.rejected, part.rules,
                    ranking.guarantee, best_s,
                )
            )  # fmt: skip
        return tuple(spaces)

    @cached_property
    def _merged(self) -> Iterator[_Entry]:
        """The entries that were not read yet, merged by time; each template keeps its own order."""
        entries = heapq.merge(*(part.entries() for part in self._parts), key=lambda entry: entry[1].time_s)
        return itertools.islice(entries, len(self._read), self.num_kept)

    def _batch(self, start: int, stop: int) -> tuple[list[Schedule], list[Prediction]]:
        self._read += itertools.islice(self._merged, max(0, stop - len(self._read)))
        chosen = self._read[start:stop]
        return [schedule for schedule, _ in chosen], [prediction for _, prediction in chosen]

    def _time_range(self) -> tuple[float, float]:
        return self._limits

    @cached_property
    def _limits(self) -> tuple[float, float]:
        if self.num_kept <= MOST_EXACT:
            times = [prediction.time_s for prediction in self._batch(0, self.num_kept)[1]] or [np.nan]
            return min(times), max(times)
        best_s = min(space.best_s for space in self._brought if space.best_s is not None)
        sampled_s = [part.model.plain.times(part.space.sample_points(SAMPLE, 0))[0] for part in self._asked]
        sampled = np.concatenate(sampled_s)
        weights = np.repeat([part.num_legal / SAMPLE for part in self._asked], [len(times) for times in sampled_s])
        order = np.argsort(sampled)
        position = np.searchsorted(np.cumsum(weights[order]), self.num_kept)
        return best_s, float(sampled[order][min(int(position), len(order) - 1)])

    @cached_property
    def _places(self) -> dict[Hashable, int] | None:
        """(template, program) -> place of each kept schedule; None if there are too many."""
        if self.num_kept > MOST_EXACT:
            return None
        kept = list(enumerate(self._batch(0, self.num_kept)[0], 1))
        return {self._key(schedule): place for place, schedule in reversed(kept)}

    def _key(self, schedule: Schedule) -> Hashable:
        part = self._part(schedule)
        return schedule.template, part.model.program_key(part.space.point_of(schedule))

    def _part(self, schedule: Schedule) -> SpaceSubset:
        for part in self._parts:
            if part.space.template == schedule.template:
                return part
        raise SpaceError(
            f"the schedule is of template {schedule.template!r}, expected one of {', '.join(self.templates)}; pass it "
            "as template=, or list the schedule among candidates"
        )

    def _template_rules(self, schedule: Schedule) -> tuple[Rule, ...]:
        return self._part(schedule).rules

    def _find(self, schedule: Schedule) -> tuple[Prediction, bool, int | None, str]:
        prediction, kept, _, remark = self._part(schedule)._find(schedule)
        cut_s = self._time_range()[1]
        if not kept or prediction.time_s > cut_s:
            return prediction, False, None, remark
        if self._places is None:
            return prediction, True, None, ""
        position = self._places.get(self._key(schedule))
        return (prediction, position is not None, position, "as fast as the last one kept, but later among ties")

    def to_dict(self) -> dict[str, object]:
        """Return workload, hardware, space, `keep` and guarantee, and the space of each template."""
        counts = [space.num_legal for space in self._brought]
        legal = None if None in counts else sum(count for count in counts if count is not None)
        first = self._batch(0, 1)[0]
        template = first[0].template if first else self.templates[0]
        tree = self._head(template, legal, sum_rejections(self._brought))
        tree["accuracy"] = self.accuracy
        tree["spaces"] = [space_tree(space) for space in self._brought]
        return tree | ({"corrected": True} if any(part.model.is_corrected for part in self._asked) else {})


def make_subset(
    models: Sequence[Model],
    keep: float,
    accuracy: str,
    time_limit_s: float | None,
    distinct: bool,
    diverse: bool,
    progress: Progress | None,
) -> RankedSubset:
    """Return the subset for the model of one template, or of several; parameters as in `SpaceSubset`."""
    share_s = None if time_limit_s is None else time_limit_s / len(models)
    parts = [
        SpaceSubset(
            model, keep, time_limit_s=share_s, distinct=distinct, diverse=diverse, progress=progress
        ) for model in models
    ]  # fmt: skip
    return JoinedSubset(parts, accuracy) if parts[1:] else parts[0]
