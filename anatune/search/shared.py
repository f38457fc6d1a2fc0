"""A search over the spaces of several templates: a strategy for each, and a rule that chooses among them.

Each space has a bound of what its next trial may reach: the best time measured there, less what further trials usually
gain; before its first trial, the model's best time, scaled by what was measured in other spaces, less the possible
error of the model. The space with the least bound proposes next. A clearly slower space costs one trial, or none if the
model is sure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement, Outcome, Trial
from anatune.search.base import Strategy
from anatune.search.points import Integers, find_legal_point
from anatune.templates.base.model import Model

_GAIN = 0.1
"""Possible gain of further trials on the best of n, over sqrt(n), in log time. The mean gain from n trials to 32 over
29 layers (sessions of `bench.cpu.device`, AMD Zen 4) was 0.059, 0.035, 0.023, 0.013, 0.006 for n = 1, 2, 4, 8, 16; the
constant is about twice that."""
_DOUBT = 0.2
"""Possible error of a model between templates, in log time: a space is tried once if the model predicts it less than a
fifth slower. Ratios of Winograd to direct kernels were wrong by 0.04 (median of 84 layers; `bench.cpu.picks`, AMD Zen
4) and at most by 0.58."""


class SpaceMember(NamedTuple):
    """A space of the search: its model, its strategy, and the first points of its ranking (at least one)."""

    model: Model
    strategy: Strategy
    ranked: Integers


class SharedStrategy:
    """A `search.base.Strategy` over several spaces; deterministic if its members are.

    Parameters
    ----------
    members : sequence of SpaceMember
        One for each template, the device's default first, which is preferred at equal bounds.
    """

    def __init__(self, members: Sequence[SpaceMember]) -> None:
        self._members = tuple(members)
        self.least_samples = max(member.strategy.least_samples for member in members)
        self._best_log = [math.log(float(one.model.times(one.ranked[:1])[0][0])) for one in members]
        self._asked: list[set[str]] = [set() for _ in members]
        """Keys of proposed schedules without a trial."""
        self._told: list[set[tuple[int, Measurement]]] = [set() for _ in members]
        """Numbers and measurements of trials; schedules of one program share both."""

    def ask(self, n: int, *, ahead: bool = False) -> list[Schedule]:
        """Return the next `n` schedules; fewer if all members need trials first or have finished."""
        schedules: list[Schedule] = []
        silent: set[int] = set()
        while len(schedules) < n and len(silent) < len(self._members):
            bounds = self._bounds()
            best = min((place for place in range(len(bounds)) if place not in silent), key=lambda place: bounds[place])
            proposed = self._members[best].strategy.ask(1, ahead=ahead)
            if not proposed:
                silent.add(best)
                continue
            self._asked[best].add(proposed[0].key)
            schedules += proposed
        return schedules

    def tell(self, trials: Sequence[Trial]) -> None:
        """Learn from trials; those of other templates are ignored."""
        for number, member in enumerate(self._members):
            own_trials = [trial for trial in trials if trial.schedule.template == member.model.space.template]
            if not own_trials:
                continue
            member.strategy.tell(own_trials)
            for trial in own_trials:
                self._asked[number].discard(trial.schedule.key)
                if find_legal_point(member.model, trial.schedule) is not None:
                    self._told[number].add((trial.number, trial.measurement))

    def _bounds(self) -> list[float]:
        """Return a bound of the next trial of each member, in log time."""
        costs = self._costs()
        # The common scale of all members: the best measured time over the best predicted one.
        ratios = [min(own) - best for own, best in zip(costs, self._best_log, strict=True) if own]
        scale = statistics.median(ratios) if ratios else 0.0
        bounds = []
        for number, member_costs in enumerate(costs):
            count = len(self._told[number]) + len(self._asked[number])
            if member_costs:
                bound = min(member_costs) - _GAIN / math.sqrt(count)
            else:
                bound = self._best_log[number] + scale - _DOUBT / math.sqrt(1 + count)
            ended = sum(one.outcome is not Outcome.LOST_DEVICE for _, one in self._told[number])
            # Laplace's rule of succession: the expected number of trials for one that runs.
            bounds.append(round(bound + math.log((ended + 1) / (len(member_costs) + 1)), 9))
        return bounds

    def _costs(self) -> list[list[float]]:
        """Return the logs of each member's measured times, relative to the reference kernel if all trials have one."""
        good = [[one for _, one in trials if one.time_s is not None] for trials in self._told]
        relative = all(one.relative is not None for own in good for one in own)
        return [[math.log((one.relative if relative else one.time_s) or math.nan) for one in own] for own in good]
