"""Planning of ranges: find candidates, choose among them, and prove the loss of the choice, repeatedly.

A failed proof finds programs that are too fast for the claimed loss. They become candidates, and the choice is made
again. This ends when nothing faster is found, or at the time limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anatune.arguments import check_integer, quote
from anatune.core.accuracy import STANDARD
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.workload.ranges import RangedWorkload
from anatune.errors import SpaceError
from anatune.model.joint import choose_templates
from anatune.model.ranges.choice import TOLERANCE, ProgramChoice, minimise_count, minimise_mean, minimise_worst
from anatune.model.ranges.plan import Interval, RangePlan, RangeProgram
from anatune.templates import get_template
from anatune.templates.base.family import Floats, Program, ProgramFamily
from anatune.templates.base.watch import Watch

MOST_PROGRAMS = 64
"""Largest number of programs of a choice."""

ROUNDS = 5
"""Largest number of choices to prove; each one uses the programs that earlier proofs found."""
SLACK = 0.005
"""Share by which a program may be slower than the fastest of the choice and still serve the next extent. This gives
fewer intervals without a larger worst loss."""
MEAN_SLACK = 0.01
"""Precision of the bounds on the best times if the mean loss is minimised, as a share."""


class Goal(NamedTuple):
    """The goal: a number of `programs` or a `loss`; for the mean loss also `weights`, (num_extents,) with sum 1."""

    programs: int | None = None
    loss: float | None = None
    weights: Floats | None = None

    @property
    def name(self) -> str:
        """The name of the goal, as in `RangePlan.goal`."""
        return "count" if self.loss is not None else "worst" if self.weights is None else "mean"


def check_goal(workload: RangedWorkload, kernels: object, loss: object, weights: object) -> Goal:
    """Return the goal that the arguments of `anatune.plan_range` describe.

    Raises
    ------
    SpaceError
        An argument is out of range, the weights do not fit the extents, or not exactly one of `kernels` and `loss` is
        given.
    """
    if (kernels is None) == (loss is None):
        raise SpaceError("plan_range: give either kernels (their largest number) or loss (the largest allowed loss)")
    if loss is not None:
        if isinstance(loss, bool) or not isinstance(loss, Real) or not 0.0 < float(loss) < math.inf:
            raise SpaceError(f"plan_range: loss is {quote(loss)}, expected a number above 0; 0.05 is 5 %")
        if weights is not None:
            raise SpaceError("plan_range: weights are given with loss, but they need kernels; leave them out")
        return Goal(loss=float(loss))
    count, most = check_integer("plan_range: kernels", kernels, 1), min(MOST_PROGRAMS, len(workload.extents))
    if count > most:
        expected = f"at most {MOST_PROGRAMS}" if most == MOST_PROGRAMS else f"at most the number of extents, {most}"
        raise SpaceError(f"plan_range: kernels is {count}, expected {expected}")
    if weights is None:
        return Goal(programs=count)
    values = [weights.get(extent, 0.0) for extent in workload.extents] if isinstance(weights, Mapping) else weights
    try:
        table = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        table = np.empty(0)
    if table.shape != (len(workload.extents),) or not np.isfinite(table).all() or (table < 0).any() or not table.sum():
        raise SpaceError(
            f"plan_range: weights are {quote(weights)}, expected {len(workload.extents)} numbers >= 0, one for each "
            "extent, or a mapping from extents to numbers, not all 0"
        )
    return Goal(programs=count, weights=table / table.sum())


class _CandidatePool:
    """All candidate programs of all templates, with their times."""

    def __init__(self, families: Sequence[ProgramFamily]) -> None:
        self.families = families
        self.programs: list[tuple[ProgramFamily, Program]] = []
        self._known: set[tuple[int, Program]] = set()
        self.times: Floats = np.empty((0, len(families[0].workload.numbers)))

    def add(self, number: int, programs: Sequence[Program]) -> int:
        """Add the programs of a family that are new; return their number."""
        new = [program for program in dict.fromkeys(programs) if (number, program) not in self._known]
        if new:
            family = self.families[number]
            times = family.times(new)
            legal = np.flatnonzero(np.isfinite(times).any(axis=1))
            self.programs += [(family, new[at]) for at in legal.tolist()]
            self.times = np.concatenate([self.times, times[legal]])
            self._known |= {(number, program) for program in new}
        return len(new)


class _ProvenChoice(NamedTuple):
    """A choice, and for each extent the number of its program, the time in seconds, and the proven bound."""

    choice: ProgramChoice
    least: int
    serving: NDArray[np.int64]
    seconds: Floats
    bounds: Floats
    reference: Floats
    is_proven: bool

    @property
    def losses(self) -> Floats:
        """Proven loss at each extent; inf if nothing is proven."""
        with np.errstate(divide="ignore"):
            return np.maximum(self.seconds / self.bounds - 1.0, 0.0)


def find_families(
    workload: RangedWorkload, hardware: GpuSpec | CpuSpec, template: str | None
) -> tuple[list[ProgramFamily], list[str]]:
    """Return the families of programs, and the names of all templates that plans for single extents rank.

    Parameters
    ----------
    template : str or None
        Only the programs of this template; None: all templates that apply and have programs for this range.

    Raises
    ------
    SpaceError
        No template has programs for this range.
    """
    ends = (workload.largest, workload.at(workload.extents[0]))
    applicable = dict.fromkeys(name for end in ends for name in choose_templates(end, hardware, None, STANDARD))
    names = applicable if template is None else choose_templates(workload.largest, hardware, template, None)
    families, refusals = [], []
    for name in names:
        if get_template(name).has_ranges:
            try:
                families.append(get_template(name).family(workload, hardware))
            except SpaceError as error:
                refusals.append(error)
    if not families and refusals:
        raise refusals[0]
    if not families:
        advice = "plan one extent" if workload.largest.is_kernel else "leave --template out, or plan one extent"
        raise SpaceError(f"template {', '.join(names)} has no kernels for a range of extents; {advice}")
    return families, list(applicable)


def plan_families(
    families: Sequence[ProgramFamily], goal: Goal, watch: Watch, applicable: Sequence[str] = ()
) -> RangePlan:
    """Return the best choice of programs that was found, with its proof.

    Parameters
    ----------
    applicable : sequence of str
        Names of the templates that plans for single extents rank; those without a family are listed as left out.

    Raises
    ------
    SpaceError
        No program is legal at some extent.
    """
    pool = _CandidatePool(families)
    for number, family in enumerate(families):
        share = 0.6 * number / len(families), 0.6 * (number + 1) / len(families)
        # Time that the search for candidates uses is missing for the proof.
        limit_s = None if watch.left_s is None else 0.5 * watch.left_s / (len(families) - number)
        pool.add(number, family.candidates(watch.part(*share, limit_s)))
    if not len(pool.times) or not np.isfinite(pool.times.min(axis=0)).all():
        workload = families[0].workload
        raise SpaceError(f"range: no kernel of {workload.describe()} is legal at every extent; choose a smaller range")
    answer, bounds = None, np.zeros(pool.times.shape[1])
    reference = pool.times.min(axis=0)
    for round_number in range(ROUNDS):
        reference = np.minimum(reference, pool.times.min(axis=0))
        part = watch.part(0.6 + 0.4 * round_number / ROUNDS, 0.6 + 0.4 * (round_number + 1) / ROUNDS)
        losses = pool.times / reference - 1.0
        choice, least = _choose(losses, goal, part)
        serving = _assign_programs(pool.times, losses, choice)
        seconds = pool.times[serving, np.arange(len(serving))]
        limits = _time_limits(seconds, reference, goal)
        is_proven = True
        lower = np.full(len(bounds), np.inf)
        num_new = 0
        for number, family in enumerate(families):
            proof = family.bounds(limits, part)
            lower = np.minimum(lower, proof.seconds)
            is_proven &= proof.is_complete
            num_new += pool.add(number, proof.faster)
        bounds = np.maximum(bounds, lower)
        beaten = lower < limits * (1 - 1e-9)
        if is_proven:
            # There the bound is the best time itself, which is more precise than the candidates' times.
            reference = np.where(beaten, np.minimum(reference, lower), reference)
        candidate = _ProvenChoice(choice, least, serving, seconds, bounds, reference, is_proven)
        if answer is None or _answer_key(candidate, goal) < _answer_key(answer._replace(bounds=bounds), goal):
            answer = candidate
        answer = answer._replace(bounds=bounds)
        if not beaten.any() or watch.is_over or (not num_new and round_number > 0):
            break
    assert answer is not None
    watch.report(1.0)
    left_out = tuple(name for name in applicable if name not in {family.template for family in families})
    return _make_plan(pool, answer, goal, left_out, is_complete=answer.is_proven and not watch.is_over)


def _choose(losses: Floats, goal: Goal, watch: Watch) -> tuple[ProgramChoice, int]:
    """Return the choice, and a lower bound of the number of programs (0: unknown)."""
    if goal.loss is not None:
        return minimise_count(losses, goal.loss, watch)
    assert goal.programs is not None
    if goal.weights is not None:
        return minimise_mean(losses, goal.programs, goal.weights), 0
    return minimise_worst(losses, goal.programs, watch), 0


def _answer_key(answer: _ProvenChoice, goal: Goal) -> tuple[float, ...]:
    """Return a key that is smaller for a better answer."""
    losses = answer.losses
    worst = float(losses.max())
    if goal.loss is not None:
        return max(worst, goal.loss), len(answer.choice.programs), worst
    return (worst,) if goal.weights is None else (_mean(losses, goal), worst)


def _mean(losses: Floats, goal: Goal) -> float:
    return float(losses.mean() if goal.weights is None else losses[goal.weights > 0] @ goal.weights[goal.weights > 0])


def _time_limits(seconds: Floats, reference: Floats, goal: Goal) -> Floats:
    """Return, for each extent, the time below which a program would make the loss larger than assumed."""
    if goal.weights is not None:
        return np.where(goal.weights > 0, reference / (1.0 + MEAN_SLACK), reference / 2.0)
    worst = max(float((seconds / reference).max()) - 1.0, goal.loss or 0.0)
    return np.minimum(reference, seconds / (1.0 + worst + TOLERANCE))


def _assign_programs(times: Floats, losses: Floats, choice: ProgramChoice) -> NDArray[np.int64]:
    """Return the number of the program that serves each extent: the fastest, or one slower by at most `SLACK`."""
    programs = np.array(choice.programs, dtype=np.int64)
    seconds, program_losses = times[programs], losses[programs]
    fastest = seconds.argmin(axis=0)
    worst = float(program_losses.min(axis=0).max())
    allowed = (seconds <= (1.0 + SLACK) * seconds.min(axis=0)) & (program_losses <= max(worst, 0.0) + 1e-12)
    serving = np.empty(len(fastest), dtype=np.int64)
    current = -1
    for extent in range(len(fastest)):
        if current < 0 or not allowed[current, extent]:
            current = int(_find_longest(allowed[:, extent:], fastest[extent]))
        serving[extent] = current
    return programs[serving]


def _find_longest(allowed: NDArray[np.bool_], fastest: int) -> int:
    """Return the allowed program that may serve the longest run of extents from the first on."""
    runs = np.where(allowed.all(axis=1), allowed.shape[1], (~allowed).argmax(axis=1))
    return fastest if runs[fastest] == runs.max() else int(runs.argmax())


def _make_plan(
    pool: _CandidatePool, answer: _ProvenChoice, goal: Goal, left_out: tuple[str, ...], *, is_complete: bool
) -> RangePlan:
    workload = pool.families[0].workload
    numbers, losses = workload.numbers, answer.losses
    known_losses = answer.seconds / answer.reference - 1.0
    starts = np.flatnonzero(np.diff(answer.serving, prepend=-1))
    ends = np.append(starts[1:], len(numbers)) - 1
    order = list(dict.fromkeys(answer.serving[starts].tolist()))
    intervals = tuple(
        Interval(
            first=int(numbers[a]),
            last=int(numbers[b]),
            program=order.index(int(answer.serving[a])),
            loss=float(losses[a : b + 1].max()),
            known_loss=float(known_losses[a : b + 1].max()),
            first_s=float(answer.seconds[a]),
            last_s=float(answer.seconds[b]),
        )
        for a, b in zip(starts.tolist(), ends.tolist(), strict=True)
    )
    programs = []
    for number in order:
        positions = np.flatnonzero(answer.serving == number)
        family, program = pool.programs[number]
        last = int(numbers[positions[-1]])
        programs.append(RangeProgram(family.schedule(program, last), int(numbers[positions[0]]), last, len(positions)))
    return RangePlan(
        workload=workload,
        hardware=pool.families[0].hardware,
        goal=goal.name,  # type: ignore[arg-type]
        programs=tuple(programs),
        intervals=intervals,
        loss=float(losses.max()),
        worst_extent=int(numbers[losses.argmax()]),
        mean_loss=_mean(losses, goal),
        known_loss=float(known_losses.max()),
        known_mean_loss=_mean(known_losses, goal),
        least_loss=answer.choice.bound if goal.loss is None else goal.loss,
        least_programs=answer.least,
        num_candidates=len(pool.programs),
        is_complete=is_complete,
        templates=tuple(family.template for family in pool.families),
        left_out=left_out,
    )
