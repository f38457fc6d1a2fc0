"""Symbols of the sizes that vary in a model's inputs, and the ranges that a caller asks for."""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection, Mapping

from anatune.arguments import quote
from anatune.errors import WorkloadError

__all__ = ["MOST", "Ranges", "Sizes", "check_symbols", "make_symbol", "name_of", "narrow_ranges", "parse_ranges"]

Ranges = Mapping[str, tuple[int, int]]
"""Symbol -> its least and its largest value. Symbols end with ``_``, so that no variable of a program has the same
name; `name_of` returns the name for people."""
Sizes = Mapping[str, int | str | tuple[int, int]]
"""Ranges as callers give them: 4, (1, 512), "1..512"."""

MOST = 512
"""Largest value of a symbol that neither the model nor the caller limits."""
_FACTOR = 4
_LARGEST = 1 << 24
_WORD = re.compile(r"([0-9]{1,9})(?:\.\.([0-9]{1,9}))?")


def parse_ranges(sizes: Sizes | None) -> dict[str, tuple[int, int]]:
    """Return the ranges that a caller asks for, by symbol.

    Raises
    ------
    WorkloadError
        A value is not a range of sizes.
    """
    if sizes is not None and not isinstance(sizes, Mapping):
        raise WorkloadError(f"sizes is {quote(sizes)}, expected ranges by name, such as {{'tokens': '1..512'}}")
    ranges = {}
    for name, value in (sizes or {}).items():
        ends: object = value
        if isinstance(value, str) and (match := _WORD.fullmatch(value)):
            ends = (int(match[1]), int(match[2] or match[1]))
        elif isinstance(value, int) and not isinstance(value, bool):
            ends = (value, value)
        is_pair = isinstance(ends, tuple | list) and len(ends) == 2 and all(type(end) is int for end in ends)
        if not is_pair or not 0 <= ends[0] <= ends[1] <= _LARGEST or not ends[1]:  # type: ignore[index]
            raise WorkloadError(
                f"size {quote(name)} is {quote(value)}, expected a number from 1 to {_LARGEST:,} or a range of them: "
                '32, "1..512", (1, 512), "0..512"'
            )
        ranges[make_symbol(str(name))] = (ends[0], ends[1])  # type: ignore[index]
    return ranges


def narrow_ranges(
    allowed: Mapping[str, tuple[int, int | None, int]], wanted: Ranges, name: str, growing: Collection[str] = ()
) -> dict[str, tuple[int, int]]:
    """Return the ranges of a model's symbols: those asked for, checked against the model's.

    Ranges that are not asked for begin with 1; those of `growing` symbols, such as held sizes, begin with 0.

    Parameters
    ----------
    allowed : mapping of str to (int, int or None, int)
        Symbol -> least value, largest value (None without a limit), and the value seen in the example. Without a limit
        the largest value is `MOST`, or `_FACTOR` times the value seen.

    Raises
    ------
    WorkloadError
        The model does not take a range, or has no such symbol.
    """
    check_symbols(allowed, wanted, name)
    ranges = {}
    for symbol, (least, most, seen) in allowed.items():
        low, high = wanted.get(
            symbol, (max(least, int(symbol not in growing)), most or max(MOST, least, _FACTOR * seen))
        )
        if low < least or (most is not None and high > most):
            limit = f"{least}..{most}" if most is not None else f"{least} or more"
            raise WorkloadError(
                f"{name}: size {name_of(symbol)} is given as {low}..{high}, but the model takes {limit}"
            )
        ranges[symbol] = (low, high)
    return ranges


def check_symbols(allowed: Mapping[str, object], requested: Ranges, name: str) -> None:
    """Raise WorkloadError for a range of a symbol that a model does not have."""
    unknown = [symbol for symbol in requested if symbol not in allowed]
    if unknown:
        advice = f"expected one of {', '.join(map(name_of, allowed))}" if allowed else "and none of its sizes varies"
        raise WorkloadError(f"{name} has no size {name_of(unknown[0])}, {advice}")


def make_symbol(word: str) -> str:
    """Return an identifier for a size's name."""
    if keyword.iskeyword(word):
        word = f"{word}_size"
    identifier = re.sub(r"\W", "_", word.strip("_"), flags=re.ASCII)
    return f"{identifier if identifier[:1].isalpha() else f'size_{identifier}'}_"


def name_of(text: object) -> str:
    """Return a symbol, or an expression of symbols, as people read it."""
    return re.sub(r"_\b", "", str(text))
