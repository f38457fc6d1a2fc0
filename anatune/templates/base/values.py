"""Checks of values that all templates share: counts, factors, names."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from anatune.arguments import check_integer, quote
from anatune.core.workload.access import MAX_INTEGER, is_integer
from anatune.errors import SpaceError

__all__ = [
    "check_count",
    "check_cover",
    "check_factors",
    "check_names",
    "check_tiles",
    "covering_factors",
    "given_tiles",
    "parse_factors",
]


def check_count(name: str, value: object, least: int, most: int = MAX_INTEGER) -> int:
    """Return a count of a schedule like `check_integer`, but refuse NumPy integers: schedules are written as JSON."""
    if type(value) is not int:
        raise SpaceError(f"{name} is {quote(value)}, expected an integer >= {least}")
    return check_integer(name, value, least, most)


def check_names(what: str, names: Iterable[object], valid: Collection[str], word: str = "name") -> None:
    """Raise SpaceError if a name is not among `valid`; `word` describes such a name in the message."""
    for name in names:
        if name not in valid:
            raise SpaceError(f"{what}: unknown {word} {name!r:.60}, expected some of {', '.join(valid) or 'none'}")


def parse_factors(axis: str, factors: Sequence[object], levels: Sequence[str]) -> tuple[int, ...]:
    """Return `factors` as Python integers; raise SpaceError unless there is one count for each level."""
    if isinstance(factors, str) or not (isinstance(factors, Sequence) or hasattr(factors, "__array__")):
        raise SpaceError(f"tiles[{axis!r}] is {quote(factors)}, expected {len(levels)} factors: {', '.join(levels)}")
    if len(factors) != len(levels):
        raise SpaceError(
            f"tiles[{axis!r}] has {len(factors)} factors {tuple(factors)!s:.60}, expected {len(levels)}: "
            f"{', '.join(levels)}"
        )
    return tuple(check_integer(f"tiles[{axis!r}] factor", factor, 1, MAX_INTEGER) for factor in factors)


def check_factors(axis: str, factors: Sequence[object], levels: Sequence[str], extent: int) -> None:
    """Raise SpaceError unless there is one factor for each level, and their product is the extent."""
    counts = parse_factors(axis, factors, levels)
    product = math.prod(counts)
    if product != extent:
        raise SpaceError(
            f"tiles[{axis!r}] = {counts} multiply to {product}, expected the extent {extent}; "
            "factors have to divide the extent"
        )


def given_tiles(
    tiles: Mapping[str, object], levels: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, tuple[int, ...], Sequence[str]]]:
    """Yield (axis, factors, names of its levels) for every axis.

    Raises
    ------
    SpaceError
        There are other axes, or factors are not a tuple of Python integers >= 1.
    """
    check_names("tiles", tiles, levels, "axis")
    for axis, names in levels.items():
        factors = tiles.get(axis)
        if not isinstance(factors, tuple) or not all(is_integer(factor, 1) for factor in factors):
            raise SpaceError(
                f"tiles[{axis!r}] is {factors!r:.60}, expected a tuple of {len(names)} factors >= 1: {', '.join(names)}"
            )
        yield axis, factors, names


def check_tiles(tiles: Mapping[str, object], levels: Mapping[str, Sequence[str]], extents: Mapping[str, int]) -> None:
    """Raise SpaceError unless `tiles` has exactly the axes of `levels`, each with a tuple of factors of its extent."""
    for axis, factors, names in given_tiles(tiles, levels):
        check_factors(axis, factors, names, extents[axis])


def check_cover(index: str, factors: object, levels: Sequence[str], extent: int, lanes: int | None = None) -> None:
    """Raise SpaceError unless there is one factor for each level, and the first is the fewest blocks that cover all.

    Parameters
    ----------
    lanes : int, optional
        The required last factor.
    """
    if (
        not isinstance(factors, tuple)
        or len(factors) != len(levels)
        or not all(is_integer(factor, 1) for factor in factors)
        or lanes not in (None, factors[-1])
    ):
        last = "" if lanes is None else f", the last one {lanes}"
        raise SpaceError(
            f"tiles[{index!r}] is {factors!r:.60}, expected {len(levels)} factors >= 1: {', '.join(levels)}{last}"
        )
    inner = math.prod(factors[1:])
    blocks = -(-extent // inner)
    if inner > MAX_INTEGER or factors[0] != blocks:
        raise SpaceError(
            f"tiles[{index!r}] is {factors!r:.60}, expected a first factor of {blocks}: blocks that cover {extent}"
        )


def covering_factors(
    index: str, factors: Iterable[object], levels: Sequence[str], extent: int, lanes: int | None = None
) -> tuple[int, ...]:
    """Return factors that pass `check_cover`: the fewest blocks that cover the extent, `factors`, and the lanes.

    Raises
    ------
    SpaceError
        There is not one count for each of `levels`.
    """
    counts = tuple(factors)
    if len(counts) != len(levels):
        raise SpaceError(f"tiles[{index!r}] has {len(counts)} factors, expected {len(levels)}: {', '.join(levels)}")
    inner = [check_integer(f"tiles[{index!r}] factor", factor, 1, MAX_INTEGER) for factor in counts]
    inner += [] if lanes is None else [lanes]
    return (-(-extent // math.prod(inner)), *inner)
