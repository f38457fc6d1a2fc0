"""What a session measures next: the plan's first choice, then what the strategy asks for, each program once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from anatune.core.schedule import Schedule
from anatune.core.trial import Trial
from anatune.search.base import Strategy

__all__ = ["Questions"]

_MOST_ALIASES = 1000
"""Questions in a row whose programs are known already, after which the strategy counts as finished."""


class Questions:
    """Asks a strategy and tells it what came back.

    Schedules of one program are measured once; the strategy is told the same for all of them.

    Parameters
    ----------
    strategy : Strategy
    name : str
        The strategy's, as trials have it.
    first : Schedule
        The plan's own first choice, asked first.
    program_key : callable
        Schedule -> key of the program it is lowered to.
    """

    def __init__(
        self, strategy: Strategy, name: str, first: Schedule, program_key: Callable[[Schedule], Hashable]
    ) -> None:
        self.first = first
        self._strategy, self._name, self._program_key = strategy, name, program_key
        self._asked: dict[str, str] = {}
        """Key of a schedule that was asked -> who asked."""
        self._programs: dict[Hashable, str] = {}
        """Key of a program -> key of the schedule that is measured for it."""
        self._aliases: dict[str, list[Schedule]] = {}
        """Key of a schedule that is being measured -> others of its program that were asked for since."""
        self._done: dict[str, Trial] = {}

    def __len__(self) -> int:
        """How many were asked."""
        return len(self._asked)

    def replay(self, history: Sequence[Trial]) -> None:
        """Take in what was measured before, as if it came back now."""
        for trial in history:
            self._admit(trial.schedule, self._program_key(trial.schedule), trial.source)
            self._done[trial.schedule.key] = trial
        self._strategy.tell(history)
        self.first = next((trial.schedule for trial in history if trial.source == "plan"), self.first)

    def next(self) -> Schedule | None:
        """Return the next schedule; None where the strategy wants to be told first, or is finished."""
        if self.first.key not in self._asked:
            return self._admit(self.first, self._program_key(self.first), "plan")
        for _ in range(_MOST_ALIASES):
            asked = self._strategy.ask(1)
            if not asked:
                return None
            schedule = asked[0]
            if schedule.key in self._asked:  # the plan's first choice: the strategy is told when it is done
                continue
            program = self._program_key(schedule)
            original = self._programs.get(program)
            if original is None:
                return self._admit(schedule, program, self._name)
            done = self._done.get(original)
            if done is None:
                self._aliases.setdefault(original, []).append(schedule)
            else:
                self._strategy.tell([Trial(schedule, done.measurement, done.number)])
        return None

    def source(self, schedule: Schedule) -> str:
        """Return who asked for a schedule."""
        return self._asked[schedule.key]

    def tell(self, trial: Trial) -> None:
        """Take in a trial."""
        self._done[trial.schedule.key] = trial
        aliases = self._aliases.pop(trial.schedule.key, [])
        self._strategy.tell([trial, *(Trial(alias, trial.measurement, trial.number) for alias in aliases)])

    def _admit(self, schedule: Schedule, program: Hashable, source: str) -> Schedule:
        self._asked[schedule.key] = source
        self._programs.setdefault(program, schedule.key)
        return schedule
