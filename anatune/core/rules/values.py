"""Checks of single values that all templates share: counts, factors, names."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from anatune.arguments import checked_integer, shown
from anatune.core.workload.access import MAX_INTEGER, is_integer
from anatune.errors import SpaceError

__all__ = ["check_count", "check_factors", "check_names", "check_tiles", "checked_count"]


def checked_count(name: str, value: object, least: int, most: int = MAX_INTEGER) -> int:
    """Return a number of a schedule, Python's or NumPy's, as Python's.

    Raises
    ------
    SpaceError
        It is no integer (a bool is none), below `least` or above `most`.
    """
    return checked_integer(name, value, least, most)


def check_count(name: str, value: object, least: int, most: int = MAX_INTEGER) -> int:
    """Return a count of a schedule as `checked_count`; NumPy's are none, because schedules are written as JSON."""
    if type(value) is not int:
        raise SpaceError(f"{name} is {shown(value)}, expected an integer >= {least}")
    return checked_count(name, value, least, most)


def check_names(what: str, names: Iterable[object], known: Collection[str], kind: str = "name") -> None:
    """Raise SpaceError unless every name is known; `kind` says what they are names of."""
    for name in names:
        if name not in known:
            raise SpaceError(f"{what}: unknown {kind} {name!r:.60}, expected some of {', '.join(known) or 'none'}")


def check_factors(axis: str, factors: Sequence[Any], levels: Sequence[str], extent: int) -> None:
    """Raise SpaceError unless `factors` are one count for each level that multiply to the extent."""
    if isinstance(factors, str) or not isinstance(factors, Sequence | np.ndarray):
        raise SpaceError(f"tiles[{axis!r}] is {shown(factors)}, expected {len(levels)} factors: {', '.join(levels)}")
    if len(factors) != len(levels):
        raise SpaceError(
            f"tiles[{axis!r}] has {len(factors)} factors {tuple(factors)!s:.60}, expected {len(levels)}: "
            f"{', '.join(levels)}"
        )
    for factor in factors:
        checked_count(f"tiles[{axis!r}] factor", factor, 1, MAX_INTEGER)
    product = math.prod(int(factor) for factor in factors)
    if product != extent:
        raise SpaceError(
            f"tiles[{axis!r}] = {tuple(map(int, factors))} multiply to {product}, expected the extent {extent}; "
            "tilings are perfect divisors"
        )


def check_tiles(tiles: Mapping[str, object], levels: Mapping[str, Sequence[str]], extents: Mapping[str, int]) -> None:
    """Raise SpaceError unless `tiles` has the factors of every axis and of no other, in tuples of Python ints."""
    check_names("tiles", tiles, levels, "axis")
    for axis, names in levels.items():
        factors = tiles.get(axis)
        if not isinstance(factors, tuple) or not all(is_integer(factor, 1) for factor in factors):
            raise SpaceError(
                f"tiles[{axis!r}] is {factors!r:.60}, expected a tuple of {len(names)} factors >= 1: {', '.join(names)}"
            )
        check_factors(axis, factors, names, extents[axis])
