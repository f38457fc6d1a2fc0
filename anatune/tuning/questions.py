"""What a session measures next: the plan's first choice, what records suggest, what the strategy asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement, Outcome, Trial
from anatune.search.base import Strategy

RECORDED = "records"
"""Source of trials of schedules that the records suggested."""
_MOST_ALIASES = 1000
"""Questions in a row whose programs are known already, after which the strategy counts as finished."""
_MOST_ASKED = 2
"""Times that a question is put which nobody answers."""


class Questions:
    """Asks a strategy and tells it what came back.

    Schedules of one program are measured once; the strategy is told the same for all of them. Answers may come in any
    order; what never comes back is asked once more, then the strategy is told that the device was lost.

    Parameters
    ----------
    strategy : Strategy
    name : str
        The strategy's, as trials have it.
    first : Schedule or None
        The plan's own first choice, asked first. None: nothing is asked before the strategy's first question.
    program_key : callable
        Schedule -> key of the program it is lowered to.
    """

    def __init__(
        self, strategy: Strategy, name: str, first: Schedule | None, program_key: Callable[[Schedule], Hashable]
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
        self._open: dict[str, Schedule] = {}
        """Key of a schedule that was asked and has not come back -> the schedule."""
        self._suggested: list[Schedule] = []
        self._again: list[Schedule] = []
        self._times_asked: Counter[str] = Counter()

    def suggest(self, schedules: Sequence[Schedule]) -> None:
        """Ask for these after the plan's first choice, each program once."""
        self._suggested += schedules

    def __len__(self) -> int:
        """How many were asked."""
        return len(self._asked) - len(self._again)

    def reopen(self) -> bool:
        """Say that nothing is on its way: what has not come back is asked again (then return True), or given up."""
        before = len(self._again)
        for key, schedule in list(self._open.items()):
            if self._times_asked[key] < _MOST_ASKED:
                self._again.append(schedule)
            else:
                self.tell(Trial(schedule, Measurement(Outcome.LOST_DEVICE, "it never came back")))
        self._open = {}
        return len(self._again) > before

    def replay(self, history: Sequence[Trial]) -> None:
        """Take in what was measured before, as if it came back now."""
        for trial in history:
            self._admit(trial.schedule, self._program_key(trial.schedule), trial.source)
            self._done[trial.schedule.key] = trial
        self._strategy.tell(history)
        self.first = next((trial.schedule for trial in history if trial.source == "plan"), self.first)

    def next(self, *, ahead: bool = False) -> Schedule | None:
        """Return the next schedule; None where the strategy wants to be told first, or is finished.

        With `ahead` devices would stand still: the strategy goes on without the answers that are missing.
        """
        if self._again:
            return self._put(self._again.pop(0))
        if self.first is not None and self.first.key not in self._asked:
            return self._put(self._admit(self.first, self._program_key(self.first), "plan"))
        while self._suggested:
            schedule = self._suggested.pop(0)
            program = self._program_key(schedule)
            if schedule.key not in self._asked and program not in self._programs:
                return self._put(self._admit(schedule, program, RECORDED))
        for _ in range(_MOST_ALIASES):
            asked = self._strategy.ask(1, ahead=ahead)
            if not asked:
                return None
            schedule = asked[0]
            if schedule.key in self._asked:  # the plan's first choice: the strategy is told when it is done
                continue
            program = self._program_key(schedule)
            original = self._programs.get(program)
            if original is None:
                return self._put(self._admit(schedule, program, self._name))
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
        self._open.pop(trial.schedule.key, None)
        self._done[trial.schedule.key] = trial
        aliases = self._aliases.pop(trial.schedule.key, [])
        self._strategy.tell([trial, *(Trial(alias, trial.measurement, trial.number) for alias in aliases)])

    def _put(self, schedule: Schedule) -> Schedule:
        self._open[schedule.key] = schedule
        self._times_asked[schedule.key] += 1
        return schedule

    def _admit(self, schedule: Schedule, program: Hashable, source: str) -> Schedule:
        self._asked[schedule.key] = source
        self._programs.setdefault(program, schedule.key)
        return schedule
