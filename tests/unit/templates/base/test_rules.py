"""Tables of rules: the text, the first broken rule and what it needs come from one line."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from anatune.templates.base.model import Rule
from anatune.templates.base.rules import Limit, first_broken, in_order


def test_the_first_broken_line_gives_number_and_need() -> None:
    depth, threads = Rule("depth", "at least", 16.0), Rule("threads", "threads", 128.0)
    shallow = Limit(depth, np.array([8, 32, 8, 32]), np.array([True, False, True, False]))
    rules, code, needed = first_broken((shallow, Limit(threads, np.array([256, 256, 64, 128]))))
    assert rules == (depth, threads)
    assert code.tolist() == [1, 2, 1, 0]
    assert needed.tolist() == [8.0, 256.0, 8.0, 0.0]


def test_rules_are_in_the_order_of_their_codes_and_others_follow() -> None:
    codes = IntEnum("codes", "shared grid split")
    grid, shared, other = (Rule(name, name, 1.0) for name in ("grid", "shared", "other"))
    assert in_order(codes, grid, other, shared) == (shared, grid, other)
