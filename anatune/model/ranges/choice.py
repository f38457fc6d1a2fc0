"""Choice of few programs with the least loss over all extents: sets, covers and exchanges.

Notation
--------
program : a kernel that is compiled once and takes the extent when it is called.
losses : (num_programs, num_extents) float64, >= 0: seconds of a program over the best known ones, minus 1; inf: the
    program is not legal there.
choice : numbers of programs; at each extent the fastest of them serves.

The least worst loss of `count` programs is found with covers: a limit on the loss can be kept if `count` programs cover
all extents, where a program covers those at which it keeps the limit. Only decisive extents are examined: first some,
then those that break the limit of a solution.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csr_matrix

from anatune.templates.base.watch import Watch

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]

FIRST_EXTENTS = 512
"""Number of extents that are examined first."""
MORE_EXTENTS = 32
"""Number of extents that are added whenever a solution breaks a limit."""
TOLERANCE = 1e-3
"""Difference of worst losses that the choice ignores."""
NEIGHBOURHOODS = 256
"""Number of parts of the range, each of which adds at most one extent at a time."""
CHOICE_S = 6.0
"""Time limit of the search for a better choice, s."""
COVER_S = 2.0
"""Time limit of the search for one cover, s; the proof reached by then is used."""
_ROUNDS = 6
"""Number of times that extents are added while the choice is improved by exchanges."""
_SWEEPS = 50
"""Largest number of rounds of exchanges; each improves the choice."""


class ProgramChoice(NamedTuple):
    """A choice of programs and its quality among the candidates.

    Attributes
    ----------
    programs : tuple of int
        Numbers of the programs, ascending.
    value : float
        Worst or mean loss of the choice.
    bound : float
        Lower bound of the loss of any choice of as many candidates.
    """

    programs: tuple[int, ...]
    value: float
    bound: float


class _Cover(NamedTuple):
    programs: Numbers | None
    """A smallest cover that was found; None if there is none."""
    least: float
    """Lower bound of the size of any cover."""


def minimise_worst(losses: Floats, count: int, watch: Watch) -> ProgramChoice:
    """Return at most `count` programs with the least worst loss.

    Raises
    ------
    ValueError
        No program is legal at some extent.
    """
    _check_served(losses)
    count, low = min(count, len(losses)), float(losses.min(axis=0).max())
    extents = _spread_extents(losses)
    chosen, value = _best_of_spread(losses, count, extents)
    for limit in _limits(low, value, watch):
        if limit <= low or limit >= value:
            continue
        cover = _find_cover(losses, limit, extents, watch, count)
        if cover.least > count:
            low = limit  # the limit cannot be kept at these extents, hence not at all
            continue
        if cover.programs is None or len(cover.programs) > count:
            continue  # neither proven nor refuted
        worst = losses[cover.programs].min(axis=0)
        if worst.max() < value:
            chosen, value = cover.programs, float(worst.max())
        if worst.max() > limit:
            extents = _add_worst(extents, worst)
    return ProgramChoice(tuple(sorted(map(int, chosen))), value, min(low, value))


def _limits(low: float, high: float, watch: Watch) -> Iterator[float]:
    """Yield worst losses to try: first the middle of the interval, then finer steps, from above."""
    ends = Watch(CHOICE_S if watch.left_s is None else min(CHOICE_S, watch.left_s))
    for parts in (2, 4, 8, 16, 32, 64):
        for part in range(parts - 1, 0, -2):
            if ends.is_over:
                return
            yield low + (high - low) * part / parts


def _best_of_spread(losses: Floats, count: int, extents: Numbers) -> tuple[Numbers, float]:
    """Return a choice that no exchange improves at some extents, and its worst loss over all extents."""
    best, best_value = np.empty(0, dtype=np.int64), math.inf
    for _ in range(_ROUNDS):
        part = losses[:, extents]
        start = _choose_greedily(part, count, np.max) if not len(best) else best
        chosen = _improve_by_exchange(part, start, np.max)
        worst = losses[chosen].min(axis=0)
        if worst.max() < best_value:
            best, best_value = chosen, float(worst.max())
        if worst.max() <= part[chosen].min(axis=0).max() + TOLERANCE:
            break
        extents = _add_worst(extents, worst)
    return best, best_value


def minimise_count(losses: Floats, limit: float, watch: Watch) -> tuple[ProgramChoice, int]:
    """Return the fewest programs whose worst loss is at most `limit`, and a lower bound of their number.

    If no program keeps the limit at some extents, the choice's value is its loss.
    """
    _check_served(losses)
    reachable = np.maximum(limit, losses.min(axis=0))
    over = np.where(losses <= reachable, losses, np.inf)
    extents, least = _spread_extents(losses), 1
    chosen = _cover_greedily(np.isfinite(over))
    ends = Watch(CHOICE_S if watch.left_s is None else min(CHOICE_S, watch.left_s))
    while not ends.is_over:
        cover = _find_cover(over, math.inf, extents, watch, None)
        least = max(least, math.ceil(cover.least))
        if cover.programs is None:
            break
        worst = over[cover.programs].min(axis=0)
        if np.isfinite(worst).all():
            chosen = cover.programs if len(cover.programs) <= len(chosen) else chosen
            break
        extents = _add_worst(extents, worst)
    value = float(losses[chosen].min(axis=0).max())
    return ProgramChoice(tuple(sorted(map(int, chosen))), value, 0.0), least


def minimise_mean(losses: Floats, count: int, weights: Floats) -> ProgramChoice:
    """Return at most `count` programs with a small weighted mean loss, which no exchange of one program improves.

    Parameters
    ----------
    weights : (num_extents,) float64
        Weights of the extents, >= 0, with the sum 1.
    """
    _check_served(losses)
    used = weights > 0
    part, share = losses[:, used], weights[used]

    def mean(values: Floats, axis: int | None = None) -> Floats:
        return np.asarray(values @ share)

    chosen = _improve_by_exchange(part, _choose_greedily(part, min(count, len(losses)), mean), mean)
    value = float(mean(part[chosen].min(axis=0)))
    bound = float(mean(part.min(axis=0)))
    return ProgramChoice(tuple(sorted(map(int, chosen))), value, bound)


def _check_served(losses: Floats) -> None:
    if not len(losses) or not np.isfinite(losses.min(axis=0)).all():
        raise ValueError("an extent has no candidate kernel")


def _spread_extents(losses: Floats) -> Numbers:
    """Return numbers of extents of all sizes, equally many in each octave."""
    count = losses.shape[1]
    steps = np.geomspace(1, count, FIRST_EXTENTS).round().astype(np.int64) - 1
    return np.unique(steps)


def _add_worst(extents: Numbers, worst: Floats) -> Numbers:
    """Return the extents together with the worst ones of a solution, at most one from each neighbourhood."""
    # Neighbouring extents have similar losses.
    parts = np.array_split(np.arange(len(worst)), min(len(worst), NEIGHBOURHOODS))
    tops = np.array([part[worst[part].argmax()] for part in parts])
    return np.union1d(extents, tops[np.argsort(-worst[tops], kind="stable")[:MORE_EXTENTS]])


# ---- covers ------------------------------------------------------------------------------------------------


def _find_cover(losses: Floats, limit: float, extents: Numbers, watch: Watch, count: int | None) -> _Cover:
    """Return the fewest programs that serve some extents within a limit on the loss."""
    part = losses[:, extents]
    serves = np.isfinite(part) if math.isinf(limit) else part <= limit
    if not serves.any(axis=0).all():
        return _Cover(None, math.inf)
    programs, table = _reduce_cover(serves)
    chosen = _cover_greedily(table)
    if count is not None and len(chosen) <= count:
        return _Cover(programs[chosen], 1.0)
    matrix = csr_matrix(table.T.astype(np.float64))
    relaxed = linprog(np.ones(len(programs)), A_ub=-matrix, b_ub=-np.ones(table.shape[1]), bounds=(0, 1))
    least = math.ceil(relaxed.fun - 1e-6) if relaxed.status == 0 else 1
    if (count is not None and least > count) or least >= len(chosen):
        return _Cover(programs[chosen], float(least))
    left_s = COVER_S if watch.left_s is None else min(COVER_S, watch.left_s)
    number = len(programs)
    answer = milp(
        np.ones(number),
        constraints=LinearConstraint(matrix, lb=1.0),
        integrality=np.ones(number),
        bounds=Bounds(0, 1),
        options={"time_limit": left_s},
    )
    proven = getattr(answer, "mip_dual_bound", None)
    least = max(least, math.ceil(proven - 1e-6)) if proven is not None and math.isfinite(proven) else least
    if answer.x is not None and answer.x.round().sum() <= len(chosen):
        chosen = np.flatnonzero(answer.x > 0.5)
    return _Cover(programs[chosen], float(least))


def _reduce_cover(serves: NDArray[np.bool_]) -> tuple[Numbers, NDArray[np.bool_]]:
    """Return the programs and extents that matter, and which of these extents each program serves.

    An extent does not matter if all programs that serve another extent serve it; a program does not matter if another
    one serves at least as much.
    """
    programs = np.arange(len(serves))
    while True:
        before = serves.shape
        serves = serves[:, _find_minimal(serves.T)]
        keep = _find_minimal(~serves)
        programs, serves = programs[keep], serves[keep]
        if serves.shape == before:
            return programs, serves


def _find_minimal(rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a mask of the rows that contain no other row; of equal rows the first is kept."""
    table = rows.astype(np.float32)
    sizes = table.sum(axis=1)
    keep = np.ones(len(rows), dtype=bool)
    for start in range(0, len(rows), 512):
        part = slice(start, start + 512)
        contains = table[part] @ table.T == sizes  # [a, b]: row a contains row b
        before = np.arange(len(rows))[None, :] < np.arange(len(rows))[part, None]
        is_candidate = (sizes[None, :] < sizes[part, None]) | (before & (sizes[None, :] == sizes[part, None]))
        keep[part] = ~(contains & is_candidate).any(axis=1)
    return keep


def _cover_greedily(serves: NDArray[np.bool_]) -> Numbers:
    """Return a cover, found greedily: the program that serves most remaining extents is added, then surplus ones go."""
    open_, chosen = np.ones(serves.shape[1], dtype=bool), []
    while open_.any():
        best = int((serves & open_).sum(axis=1).argmax())
        chosen.append(best)
        open_ &= ~serves[best]
    for number in list(chosen):
        others = [one for one in chosen if one != number]
        if others and serves[others].any(axis=0).all():
            chosen = others
    return np.array(chosen, dtype=np.int64)


# ---- swaps -------------------------------------------------------------------------------------------------


def _choose_greedily(losses: Floats, count: int, measure: object = np.max) -> Numbers:
    """Return programs that are chosen one after the other, each to make the measure smallest."""
    chosen: list[int] = []
    least_losses = np.full(losses.shape[1], np.inf)
    for _ in range(count):
        values = _measure_rows(np.minimum(losses, least_losses), measure)
        best = int(values.argmin())
        if chosen and not values[best] < float(_measure_rows(least_losses[None], measure)[0]):
            break
        chosen.append(best)
        least_losses = np.minimum(least_losses, losses[best])
    return np.array(chosen, dtype=np.int64)


def _measure_rows(rows: Floats, measure: object) -> Floats:
    """Return the measure of each row; inf if an extent is not served."""
    if measure is np.max:
        return np.asarray(rows.max(axis=1))
    with np.errstate(invalid="ignore"):
        values = np.asarray(measure(rows))  # type: ignore[operator]
    return np.where(np.isfinite(values), values, np.inf)


def _improve_by_exchange(losses: Floats, chosen: Sequence[int] | Numbers, measure: object) -> Numbers:
    """Return a choice that no exchange of one program improves."""
    current = list(map(int, chosen))
    value = float(_measure_rows(losses[current].min(axis=0)[None], measure)[0])
    for _ in range(_SWEEPS):
        better = False
        for index in range(len(current)):
            others = [one for at, one in enumerate(current) if at != index]
            least_losses = losses[others].min(axis=0) if others else np.full(losses.shape[1], np.inf)
            values = _measure_rows(np.minimum(losses, least_losses), measure)
            best = int(values.argmin())
            if values[best] < value * (1 - 1e-9):
                current[index], value, better = best, float(values[best]), True
        if not better:
            break
    return np.array(current, dtype=np.int64)
