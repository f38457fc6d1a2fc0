"""Tables of rules: each line has a rule, what each point needs of the limited resource, and which points break it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anatune.templates.base.model import Rule

__all__ = ["Limit", "find_first_broken", "sort_rules"]


class Limit(NamedTuple):
    """A rule applied to a batch of points.

    Attributes
    ----------
    rule : Rule
    needed : (num_points,)
        The amount that each point needs.
    broken : (num_points,) bool, optional
        The points that the rule rejects. Without it, those that need more than the limit.
    """

    rule: Rule
    needed: NDArray[np.int64] | NDArray[np.float64]
    broken: NDArray[np.bool_] | None = None


def find_first_broken(table: Sequence[Limit]) -> tuple[tuple[Rule, ...], NDArray[np.int64], NDArray[np.float64]]:
    """Return the rules of a table, and for each point the number of the first rule it breaks and the amount it needs.

    Numbers begin at 1. A point that breaks no rule has 0 and 0.0. Both arrays are (num_points,).
    """
    code, needed = np.zeros(len(table[0].needed), dtype=np.int64), np.zeros(len(table[0].needed))
    for number, line in reversed(list(enumerate(table, 1))):
        broken = line.needed > line.rule.limit if line.broken is None else line.broken
        code[broken], needed[broken] = number, line.needed[broken]
    return tuple(line.rule for line in table), code, needed


def sort_rules(codes: type[IntEnum], *rules: Rule) -> tuple[Rule, ...]:
    """Return rules in the order of the codes that a compiled function writes.

    The members of `codes` have the ids of the rules as names. Rules without a code come last. If a workload lacks a
    rule, the rule has to be the one with the last code.
    """
    named = [rule for rule in rules if rule.id in codes.__members__]
    others = [rule for rule in rules if rule.id not in codes.__members__]
    return (*sorted(named, key=lambda rule: codes[rule.id]), *others)
