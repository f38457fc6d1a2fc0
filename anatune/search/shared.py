"""Trials shared between the spaces of several templates: one strategy for each, and a rule whose turn it is.

Each space is judged by what its next trial may reach: the best time measured there, less what further trials usually
gain; while none has run, the model's best time, scaled by what was measured of the others, less what the model may err.
The space of the least bound is asked. A space that is clearly slower costs one trial, or none where the model is sure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement, Outcome, Trial
from anatune.search.base import Strategy
from anatune.search.points import Integers, legal_point
from anatune.templates.base.model import Model

_GAIN = 0.1
"""What further trials may gain on the best of n, over sqrt(n), in log time. They did gain from n trials to 32, mean of
29 layers (sessions of `bench.cpu.device`, AMD Zen 4): 0.059, 0.035, 0.023, 0.013, 0.006 for n = 1, 2, 4, 8, 16; about
twice that is what one may hope for."""
_DOUBT = 0.2
"""What a model may err between templates, in log time: a space is tried once if the model has it less than a fifth
behind. Ratios of Winograd to direct kernels were off by 0.04 (median of 84 layers; `bench.cpu.picks`, AMD Zen 4), at
most by 0.58."""


class Member(NamedTuple):
    """One of the spaces: its model, the strategy that walks it, the first points of its ranking (at least one)."""

    model: Model
    strategy: Strategy
    ranked: Integers


class SharedStrategy:
    """A `search.base.Strategy` over several spaces; deterministic, as its members are.

    Parameters
    ----------
    members : sequence of Member
        One a template, the device's default first: of equal bounds the first is asked.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = tuple(members)
        self.least_samples = max(member.strategy.least_samples for member in members)
        self._best_log = [math.log(float(one.model.times(one.ranked[:1])[0][0])) for one in members]
        self._asked: list[set[str]] = [set() for _ in members]
        """Keys of schedules that were asked and have not come back."""
        self._told: list[set[tuple[int, Measurement]]] = [set() for _ in members]
        """Numbers of trials, and what came back: schedules of one program share both."""

    def ask(self, n: int, *, ahead: bool = False) -> list[Schedule]:
        """Return the next `n` schedules; fewer where all members want to be told first or are finished."""
        found: list[Schedule] = []
        silent: set[int] = set()
        while len(found) < n and len(silent) < len(self._members):
            bounds = self._bounds()
            at = min((place for place in range(len(bounds)) if place not in silent), key=lambda place: bounds[place])
            asked = self._members[at].strategy.ask(1, ahead=ahead)
            if not asked:
                silent.add(at)
                continue
            self._asked[at].add(asked[0].key)
            found += asked
        return found

    def tell(self, trials: Sequence[Trial]) -> None:
        """Take in trials; those of other templates are left out."""
        for at, member in enumerate(self._members):
            own = [trial for trial in trials if trial.schedule.template == member.model.space.template]
            if not own:
                continue
            member.strategy.tell(own)
            for trial in own:
                self._asked[at].discard(trial.schedule.key)
                if legal_point(member.model, trial.schedule) is not None:
                    self._told[at].add((trial.number, trial.measurement))

    def _bounds(self) -> list[float]:
        """Return what the next trial of each member may reach, in log time."""
        costs = self._costs()
        # What the best measured one takes over the best predicted one: what all members have in common.
        ratios = [min(own) - best for own, best in zip(costs, self._best_log, strict=True) if own]
        scale = statistics.median(ratios) if ratios else 0.0
        bounds = []
        for at, own in enumerate(costs):
            count = len(self._told[at]) + len(self._asked[at])
            if own:
                bound = min(own) - _GAIN / math.sqrt(count)
            else:
                bound = self._best_log[at] + scale - _DOUBT / math.sqrt(1 + count)
            ended = sum(one.outcome is not Outcome.LOST_DEVICE for _, one in self._told[at])
            # Laplace's rule of succession: as many trials as one that runs is likely to cost.
            bounds.append(round(bound + math.log((ended + 1) / (len(own) + 1)), 9))
        return bounds

    def _costs(self) -> list[list[float]]:
        """Return the log times measured of each member; over the reference kernel's beside them, where all have one."""
        good = [[one for _, one in told if one.time_s is not None] for told in self._told]
        relative = all(one.relative is not None for own in good for one in own)
        return [[math.log((one.relative if relative else one.time_s) or math.nan) for one in own] for own in good]
