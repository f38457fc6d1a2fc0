"""Few of many programs, so that what they lose at any extent is least: sets, covers and swaps.

Notation
--------
losses : (num_programs, num_extents) float64, >= 0: seconds of a program over the best known ones, less 1; inf: it is
    not legal there.
choice : numbers of programs; at each extent the fastest of them serves.

The least worst loss of `count` programs is found by covers: a limit can be kept if so many programs cover all extents,
each those where it keeps the limit. Only the extents that decide are looked at: first some, then those that break the
limit of a solution.
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
"""Extents that are looked at first."""
MORE_EXTENTS = 32
"""Extents that join them whenever one breaks a limit."""
TOLERANCE = 1e-3
"""Worst losses this close are one to the choice."""
NEIGHBOURHOODS = 256
"""Parts of the range of which each gives one extent at most, then."""
CHOICE_S = 6.0
"""Longest search for a better choice, s."""
COVER_S = 2.0
"""Longest search for one cover, s; what it has proven until then counts."""
_ROUNDS = 6
"""Times that extents join those whose choice is exchanged."""
_SWEEPS = 50
"""Most rounds of swaps; each makes the choice better."""


class Choice(NamedTuple):
    """Some programs, ascending, and how good they are among the candidates.

    Attributes
    ----------
    programs : tuple of int
    value : float
        Worst or mean loss of the choice.
    bound : float
        No choice of so many candidates has a smaller one.
    """

    programs: tuple[int, ...]
    value: float
    bound: float


class _Cover(NamedTuple):
    programs: Numbers | None
    """A smallest cover that was found, None: there is none."""
    least: float
    """No cover has fewer programs."""


def least_worst(losses: Floats, count: int, watch: Watch) -> Choice:
    """Return at most `count` programs whose worst loss is least.

    Raises
    ------
    ValueError
        At some extent no program is legal.
    """
    _check(losses)
    count, low = min(count, len(losses)), float(losses.min(axis=0).max())
    extents = _spread(losses)
    chosen, value = _best_of_spread(losses, count, extents)
    for limit in _limits(low, value, watch):
        if limit <= low or limit >= value:
            continue
        cover = _covered(losses, limit, extents, watch, count)
        if cover.least > count:
            low = limit  # some extents cannot be served so well: all cannot, either
            continue
        if cover.programs is None or len(cover.programs) > count:
            continue  # not known
        worst = losses[cover.programs].min(axis=0)
        if worst.max() < value:
            chosen, value = cover.programs, float(worst.max())
        if worst.max() > limit:
            extents = _joined(extents, worst)
    return Choice(tuple(sorted(map(int, chosen))), value, min(low, value))


def _limits(low: float, high: float, watch: Watch) -> Iterator[float]:
    """Yield worst losses to try, from both ends inwards: a coarse half of the way first, then finer steps."""
    ends = Watch(CHOICE_S if watch.left_s is None else min(CHOICE_S, watch.left_s))
    for parts in (2, 4, 8, 16, 32, 64):
        for part in range(parts - 1, 0, -2):
            if ends.is_over:
                return
            yield low + (high - low) * part / parts


def _best_of_spread(losses: Floats, count: int, extents: Numbers) -> tuple[Numbers, float]:
    """Return a choice that no exchange improves, at some extents, and its worst loss at all of them."""
    best, best_value = np.empty(0, dtype=np.int64), math.inf
    for _ in range(_ROUNDS):
        part = losses[:, extents]
        start = _greedy(part, count, np.max) if not len(best) else best
        chosen = _swapped(part, start, np.max)
        worst = losses[chosen].min(axis=0)
        if worst.max() < best_value:
            best, best_value = chosen, float(worst.max())
        if worst.max() <= part[chosen].min(axis=0).max() + TOLERANCE:
            break
        extents = _joined(extents, worst)
    return best, best_value


def fewest(losses: Floats, limit: float, watch: Watch) -> tuple[Choice, int]:
    """Return the fewest programs whose worst loss is at most `limit`, and how many are needed at least.

    Where some extents have no such program, the choice's value says how much it loses.
    """
    _check(losses)
    reachable = np.maximum(limit, losses.min(axis=0))
    over = np.where(losses <= reachable, losses, np.inf)
    extents, least = _spread(losses), 1
    chosen = _greedy_cover(np.isfinite(over))
    ends = Watch(CHOICE_S if watch.left_s is None else min(CHOICE_S, watch.left_s))
    while not ends.is_over:
        cover = _covered(over, math.inf, extents, watch, None)
        least = max(least, math.ceil(cover.least))
        if cover.programs is None:
            break
        worst = over[cover.programs].min(axis=0)
        if np.isfinite(worst).all():
            chosen = cover.programs if len(cover.programs) <= len(chosen) else chosen
            break
        extents = _joined(extents, worst)
    value = float(losses[chosen].min(axis=0).max())
    return Choice(tuple(sorted(map(int, chosen))), value, 0.0), least


def least_mean(losses: Floats, count: int, weights: Floats) -> Choice:
    """Return at most `count` programs whose mean loss, weighted, is small: no exchange of one of them makes it smaller.

    Parameters
    ----------
    weights : (num_extents,) float64
        >= 0, sum 1.
    """
    _check(losses)
    used = weights > 0
    part, share = losses[:, used], weights[used]

    def mean(values: Floats, axis: int | None = None) -> Floats:
        return np.asarray(values @ share)

    chosen = _swapped(part, _greedy(part, min(count, len(losses)), mean), mean)
    value = float(mean(part[chosen].min(axis=0)))
    bound = float(mean(part.min(axis=0)))
    return Choice(tuple(sorted(map(int, chosen))), value, bound)


def _check(losses: Floats) -> None:
    if not len(losses) or not np.isfinite(losses.min(axis=0)).all():
        raise ValueError("no candidate serves some extent")


def _spread(losses: Floats) -> Numbers:
    """Return extents of all sizes, as many in each octave, and those where most programs lose most."""
    count = losses.shape[1]
    steps = np.geomspace(1, count, FIRST_EXTENTS).round().astype(np.int64) - 1
    return np.unique(steps)


def _joined(extents: Numbers, worst: Floats) -> Numbers:
    """Return the extents and the worst ones of a solution, apart from each other."""
    # One of each neighbourhood: what is bad at an extent is as bad beside it.
    parts = np.array_split(np.arange(len(worst)), min(len(worst), NEIGHBOURHOODS))
    tops = np.array([part[worst[part].argmax()] for part in parts])
    return np.union1d(extents, tops[np.argsort(-worst[tops], kind="stable")[:MORE_EXTENTS]])


# ---- covers ------------------------------------------------------------------------------------------------


def _covered(losses: Floats, limit: float, extents: Numbers, watch: Watch, count: int | None) -> _Cover:
    """Return the fewest programs that serve some extents within a limit."""
    part = losses[:, extents]
    serves = np.isfinite(part) if math.isinf(limit) else part <= limit
    if not serves.any(axis=0).all():
        return _Cover(None, math.inf)
    programs, table = _reduced(serves)
    chosen = _greedy_cover(table)
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


def _reduced(serves: NDArray[np.bool_]) -> tuple[Numbers, NDArray[np.bool_]]:
    """Return the programs that matter, and which of the extents that matter each serves.

    An extent does not matter where whatever serves another one serves it; a program where another one serves more.
    """
    programs = np.arange(len(serves))
    while True:
        before = serves.shape
        serves = serves[:, _minimal(serves.T)]
        keep = _minimal(~serves)
        programs, serves = programs[keep], serves[keep]
        if serves.shape == before:
            return programs, serves


def _minimal(rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which rows hold no other row; of equal ones the first."""
    table = rows.astype(np.float32)
    sizes = table.sum(axis=1)
    keep = np.ones(len(rows), dtype=bool)
    for start in range(0, len(rows), 512):
        part = slice(start, start + 512)
        held = table[part] @ table.T == sizes  # [a, b]: row b lies in row a
        before = np.arange(len(rows))[None, :] < np.arange(len(rows))[part, None]
        other = (sizes[None, :] < sizes[part, None]) | (before & (sizes[None, :] == sizes[part, None]))
        keep[part] = ~(held & other).any(axis=1)
    return keep


def _greedy_cover(serves: NDArray[np.bool_]) -> Numbers:
    """Return a cover: whatever serves most of what is left, one after the other; without those it needs no more."""
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


def _greedy(losses: Floats, count: int, measure: object = np.max) -> Numbers:
    """Return programs that make the measure least, chosen one after the other."""
    chosen: list[int] = []
    now = np.full(losses.shape[1], np.inf)
    for _ in range(count):
        values = _measured(np.minimum(losses, now), measure)
        best = int(values.argmin())
        if chosen and not values[best] < float(_measured(now[None], measure)[0]):
            break
        chosen.append(best)
        now = np.minimum(now, losses[best])
    return np.array(chosen, dtype=np.int64)


def _measured(rows: Floats, measure: object) -> Floats:
    """Return the measure of each row; inf where an extent is not served."""
    if measure is np.max:
        return np.asarray(rows.max(axis=1))
    with np.errstate(invalid="ignore"):
        values = np.asarray(measure(rows))  # type: ignore[operator]
    return np.where(np.isfinite(values), values, np.inf)


def _swapped(losses: Floats, chosen: Sequence[int] | Numbers, measure: object) -> Numbers:
    """Return a choice that no exchange of one program improves."""
    now = list(map(int, chosen))
    value = float(_measured(losses[now].min(axis=0)[None], measure)[0])
    for _ in range(_SWEEPS):
        better = False
        for place in range(len(now)):
            rest = [one for at, one in enumerate(now) if at != place]
            kept = losses[rest].min(axis=0) if rest else np.full(losses.shape[1], np.inf)
            # Only programs that are better where the rest is bad can help: that is most of the work saved.
            values = _measured(np.minimum(losses, kept), measure)
            best = int(values.argmin())
            if values[best] < value * (1 - 1e-9):
                now[place], value, better = best, float(values[best]), True
        if not better:
            break
    return np.array(now, dtype=np.int64)
