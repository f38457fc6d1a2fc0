"""Tables of rules: each line says what it limits, how much a point needs of that, and which points it rejects."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anatune.templates.base.model import Rule

__all__ = ["Limit", "first_broken", "in_order"]


class Limit(NamedTuple):
    """One line of the table of rules of a batch of points.

    Attributes
    ----------
    rule : Rule
    needed : (num_points,)
        How much each point needs.
    broken : (num_points,) bool, optional
        Which points the rule rejects; left out: those that need more than the limit.
    """

    rule: Rule
    needed: NDArray[np.int64] | NDArray[np.float64]
    broken: NDArray[np.bool_] | None = None


def first_broken(table: Sequence[Limit]) -> tuple[tuple[Rule, ...], NDArray[np.int64], NDArray[np.float64]]:
    """Return the rules of a table, and of each point the number of the first one that it breaks and what it needs.

    Numbers begin at 1; 0, and 0.0, where a point breaks none. Both arrays are (num_points,).
    """
    code, needed = np.zeros(len(table[0].needed), dtype=np.int64), np.zeros(len(table[0].needed))
    for number, line in reversed(list(enumerate(table, 1))):
        broken = line.needed > line.rule.limit if line.broken is None else line.broken
        code[broken], needed[broken] = number, line.needed[broken]
    return tuple(line.rule for line in table), code, needed


def in_order(codes: type[IntEnum], *rules: Rule) -> tuple[Rule, ...]:
    """Return rules in the order of the codes that a compiled function writes: members have the rules' ids as names.

    Rules without a code come last; a rule that a workload does not have leaves out the last code.
    """
    named = [rule for rule in rules if rule.id in codes.__members__]
    others = [rule for rule in rules if rule.id not in codes.__members__]
    return (*sorted(named, key=lambda rule: codes[rule.id]), *others)
