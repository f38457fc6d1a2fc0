"""The choice of the next schedule: the plan's first choice, recorded schedules, then the proposals of the strategy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement, Outcome, Trial
from anatune.search.base import Strategy

RECORDED = "records"
"""Source of trials of schedules from the records."""
_MOST_ALIASES = 1000
"""Number of schedules in a row with known programs after which the strategy counts as finished."""
_MOST_ASKED = 2
"""Number of times that a schedule is given out if no result comes back."""


class Questions:
    """The queue of schedules to measure: it gets them from a strategy and reports their results.

    Schedules of one program are measured once, and the strategy gets the same result for all of them. Results may come
    in any order. A schedule without a result is measured once more. If that also fails to return, the strategy gets
    the outcome "device lost".

    Parameters
    ----------
    strategy : Strategy
    name : str
        Name of the strategy, the source of its trials.
    first : Schedule or None
        The plan's first choice, measured first; None to start with the strategy.
    program_key : callable
        Schedule -> key of its program.
    """

    def __init__(
        self, strategy: Strategy, name: str, first: Schedule | None, program_key: Callable[[Schedule], Hashable]
    ) -> None:
        self.first = first
        self._strategy, self._name, self._program_key = strategy, name, program_key
        self._asked: dict[str, str] = {}
        """Key of a proposed schedule -> who proposed it."""
        self._programs: dict[Hashable, str] = {}
        """Key of a program -> key of the schedule that is measured for it."""
        self._aliases: dict[str, list[Schedule]] = {}
        """Key of a schedule that is being measured -> others of its program that were proposed since."""
        self._done: dict[str, Trial] = {}
        self._open: dict[str, Schedule] = {}
        """Key of a schedule that is being measured -> the schedule."""
        self._suggested: list[Schedule] = []
        self._again: list[Schedule] = []
        self._times_asked: Counter[str] = Counter()

    def suggest(self, schedules: Sequence[Schedule]) -> None:
        """Add schedules to measure after the plan's first choice, each program once."""
        self._suggested += schedules

    def __len__(self) -> int:
        """Return the number of schedules that were given out."""
        return len(self._asked) - len(self._again)

    def reopen(self) -> bool:
        """Give up all schedules without a result, or queue them again; return whether some are queued again."""
        before = len(self._again)
        for key, schedule in list(self._open.items()):
            if self._times_asked[key] < _MOST_ASKED:
                self._again.append(schedule)
            else:
                self.tell(Trial(schedule, Measurement(Outcome.LOST_DEVICE, "no result came back")))
        self._open = {}
        return len(self._again) > before

    def replay(self, history: Sequence[Trial]) -> None:
        """Add the trials of an earlier session as if they came back now."""
        for trial in history:
            self._admit(trial.schedule, self._program_key(trial.schedule), trial.source)
            self._done[trial.schedule.key] = trial
        self._strategy.tell(history)
        self.first = next((trial.schedule for trial in history if trial.source == "plan"), self.first)

    def next(self, *, ahead: bool = False) -> Schedule | None:
        """Return the next schedule; None if the strategy waits for results, or is finished.

        With `ahead` the strategy proposes schedules without waiting for missing results, so that no device idles.
        """
        if self._again:
            return self._give_out(self._again.pop(0))
        if self.first is not None and self.first.key not in self._asked:
            return self._give_out(self._admit(self.first, self._program_key(self.first), "plan"))
        while self._suggested:
            schedule = self._suggested.pop(0)
            program = self._program_key(schedule)
            if schedule.key not in self._asked and program not in self._programs:
                return self._give_out(self._admit(schedule, program, RECORDED))
        for _ in range(_MOST_ALIASES):
            proposed = self._strategy.ask(1, ahead=ahead)
            if not proposed:
                return None
            schedule = proposed[0]
            if schedule.key in self._asked:  # given out already; the strategy gets its result later
                continue
            program = self._program_key(schedule)
            original = self._programs.get(program)
            if original is None:
                return self._give_out(self._admit(schedule, program, self._name))
            done = self._done.get(original)
            if done is None:
                self._aliases.setdefault(original, []).append(schedule)
            else:
                self._strategy.tell([Trial(schedule, done.measurement, done.number)])
        return None

    def source(self, schedule: Schedule) -> str:
        """Return the source of a schedule: the plan, the records or the strategy."""
        return self._asked[schedule.key]

    def tell(self, trial: Trial) -> None:
        """Report a trial to the strategy, also for all schedules of the same program."""
        self._open.pop(trial.schedule.key, None)
        self._done[trial.schedule.key] = trial
        aliases = self._aliases.pop(trial.schedule.key, [])
        self._strategy.tell([trial, *(Trial(alias, trial.measurement, trial.number) for alias in aliases)])

    def _give_out(self, schedule: Schedule) -> Schedule:
        self._open[schedule.key] = schedule
        self._times_asked[schedule.key] += 1
        return schedule

    def _admit(self, schedule: Schedule, program: Hashable, source: str) -> Schedule:
        self._asked[schedule.key] = source
        self._programs.setdefault(program, schedule.key)
        return schedule
