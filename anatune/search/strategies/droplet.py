"""Droplet search: coordinate descent from the unoptimised kernel, with a significance test and speculation.

Source: [Droplet24] Sec. 3; details that the text leaves open follow its code in AutoTVM (apache/tvm, PR 14683).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence

import numpy as np
from scipy.special import stdtr

from anatune.search.points import Integers
from anatune.search.stepwise import MISSING, StepwiseStrategy, TrialAnswer, Walk

Moving = Generator[Integers, list[TrialAnswer], Integers | None]


class DropletStrategy(StepwiseStrategy):
    """Coordinate descent on sorted lists of values, one knob and one step at a time.

    As published: it starts at the first value of every knob and ends if no neighbour is faster. From the model's
    ranking: it starts at the first point of the ranking and measures neighbours in predicted order; when it would end,
    it starts again at the next point of the ranking, later at the best predicted of random points.

    Deviations: the text measures the whole neighbourhood before it moves; the code, which is followed here, moves after
    a batch. Neighbours are those of the text (one knob); the code moves every subset of the knobs by the same step.
    """

    significance = 0.05
    """Significance level of the t-test that a neighbour must pass; 1: the better mean is enough. Source: [Droplet24]
    Sec. 3.3: 0.05."""
    published_batch, ordered_batch = 16, 4
    """Number of points that are measured before the search decides whether to move: as published (the code of
    [Droplet24] has 16, or the number of CPU cores if that is more), and if the model orders the neighbours."""
    least_samples = 3
    """Number of samples of every schedule. With two samples of each a t-test detects a gain of 5 % at 1 % noise in 73 %
    of cases, with three in 99 %; a schedule that was stopped after two may be faster than the one it is compared
    with."""
    most_failed = 3
    """Number of consecutive batches without a valid program after which the search stops. Source: code of [Droplet24]:
    3."""

    def walk(self) -> Walk:
        """Yield batches of neighbours."""
        waiting: list[Integers] = []
        for start in self._starts():
            if self.is_new(start):
                yield start[None, :]
                waiting.append(start)
            # If devices would be idle and nothing is known at all, other starting points tell more than the neighbours
            # of a point that may be slow.
            is_blind = self.is_ahead and not self.as_published and all(map(self.is_missing, waiting))
            if not is_blind or len(waiting) >= len(self.ranked):
                yield from self._descend_from(waiting)
        yield from self._descend_from(waiting)

    def _descend_from(self, starts: list[Integers]) -> Walk:
        """Descend from all starting points, each time from the best known one."""
        while starts:
            costs = [self.find_answer(point).cost for point in starts]
            best = min(range(len(starts)), key=lambda at: (costs[at] is None, costs[at] or 0.0))
            yield from self._descend(starts.pop(best))

    def _starts(self) -> Iterator[Integers]:
        if self.as_published:
            yield self._origin()
            return
        yield from self.ranked
        number = 0
        while len(drawn := self.draw_new(64, 1, number)):
            yield drawn[int(np.argmin(self.model.times(drawn)[0]))]
            number += 1

    def _origin(self) -> Integers:
        """Return the point of all first values; if it is illegal, the random point with the fewest steps to it."""
        points, legal = self.knobs.at(np.zeros((1, len(self.knobs.names)), dtype=np.int64))
        if not legal[0]:
            points = self.draw(1024, 0)
            points = points[[int(np.argmin(self.knobs.indices(points).sum(axis=1)))]]
        origin: Integers = points[0]
        return origin

    def _descend(self, now: Integers) -> Walk:
        """Move to significantly faster neighbours until there is none."""
        last: Integers | None = None
        while True:
            better = yield from self._find_better(now, last)
            if better is None:
                return
            last, now = now, better

    def _find_better(self, now: Integers, last: Integers | None) -> Moving:
        """Measure the neighbourhood batch by batch; return the best point of the first batch with a faster one."""
        batch = self.published_batch if self.as_published else self.ordered_batch
        queue = self._unknown(self.knobs.neighbours(now, 1))
        failed = 0
        rivals: list[tuple[float, Integers]] = []
        for first in range(0, len(queue), batch):
            points = queue[first : first + batch]
            if len(points) < batch and last is not None:
                points = np.concatenate([points, self._beyond(points, last, now)[: batch - len(points)]])
            answers = yield points
            good = any(one.cost is not None for one in answers)
            failed = 0 if good else failed + (MISSING not in answers)
            if failed > self.most_failed:
                return None
            if best := self._faster(rivals, points, answers, now):
                return best[0]
        return (yield from self._wait(rivals, now, last))

    def _wait(self, rivals: list[tuple[float, Integers]], now: Integers, last: Integers | None) -> Moving:
        """Wait for missing answers and speculate meanwhile; return the first point that is faster."""
        speculates = last is not None
        while self.num_missing:
            batch = np.empty((0, len(now)), dtype=np.int64)
            if self.is_ahead and speculates and last is not None:
                batch, speculates = self._beyond(batch, last, now), False
            elif self.is_ahead and not self.as_published:
                return None  # start the next descent; late answers may still win
            answers = yield batch
            if best := self._faster(rivals, batch, answers, now):
                return best[0]
        return None

    def _faster(
        self, rivals: list[tuple[float, Integers]], points: Integers, answers: Sequence[TrialAnswer], now: Integers
    ) -> list[Integers]:
        """Return the best of the received points, as a list of one, if it is faster than `now`; otherwise [].

        `rivals` are received points that could not be compared, because the time of `now` is missing.
        """
        late, late_answers = self.take_late()
        received = zip([*points, *late], [*answers, *late_answers], strict=True)
        rivals += [(one.cost, point) for point, one in received if one.cost is not None]
        answer = self.find_answer(now)
        if answer.is_missing or not rivals:
            return []
        best = min(rivals, key=lambda one: one[0])[1]
        rivals.clear()
        return [best] if is_faster(self.find_answer(best), answer, self.significance) else []

    def _unknown(self, points: Integers) -> Integers:
        """Return the points that were not measured, each program once; in predicted order unless as published."""
        if not self.as_published and len(points):
            points = points[np.argsort(self.model.times(points)[0], kind="stable")]
        return self.filter_new(points)

    def _beyond(self, points: Integers, last: Integers, now: Integers) -> Integers:
        """Return the unknown points around the point that repeats the last change, without `points`."""
        centre = self.knobs.repeat_change(last, now)
        if centre is None:
            return points[:0]
        candidates = self._unknown(np.concatenate([centre[None, :], self.knobs.neighbours(centre, 1)]))
        excluded = {self.program(point) for point in points}
        return candidates[[at for at, point in enumerate(candidates) if self.program(point) not in excluded]]


def is_faster(first: TrialAnswer, second: TrialAnswer, significance: float) -> bool:
    """Return whether the first answer has the smaller mean and Student's t-test finds the difference significant.

    If there is a single sample, or all samples are equal, the smaller mean is enough. Source: [Droplet24] Sec. 3.3.
    """
    if first.cost is None or second.cost is None:
        return first.cost is not None
    return _mean(first.samples) < _mean(second.samples) and _p_value(first.samples, second.samples) <= significance


def _mean(samples: Sequence[float]) -> float:
    return math.fsum(samples) / len(samples)


def _p_value(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the p-value of a two-sided t-test with equal variances; 0 if there are too few samples to test."""
    freedom = len(first) + len(second) - 2
    means = _mean(first), _mean(second)
    spread = sum(math.fsum((x - mean) ** 2 for x in part) for part, mean in zip((first, second), means, strict=True))
    if min(len(first), len(second)) < 2 or spread == 0.0:
        return 0.0
    error = math.sqrt(spread / freedom * (1 / len(first) + 1 / len(second)))
    return float(2.0 * stdtr(freedom, -abs(means[0] - means[1]) / error))
