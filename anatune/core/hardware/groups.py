"""The common part of all groups of a spec: a source, a list of unverified keys, and ranges of plausible values.

The ranges let anatune notice and explain numbers in a wrong unit.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path

import msgspec

from anatune.decoding import convert
from anatune.errors import SpecError


class _PlausibleRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The plausible values of a key; `scales` lists wrong units that people write, as (name, factor)."""

    low: float
    high: float
    unit: str
    scales: tuple[tuple[str, float], ...] = ()


@functools.cache
def _ranges() -> dict[str, _PlausibleRange]:
    """Return the plausible values in ``groups.toml``, by key."""
    return convert(msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes()), dict[str, _PlausibleRange])


def value_problem(group: str, key: str, value: object) -> str | None:
    """Return the reason why a number of a spec is implausible, or None.

    Parameters
    ----------
    group
        Class name of the group ("Dram").
    key
        Key of the group ("bandwidth_bytes_per_s").
    value
        The value in the spec; only int and float are checked.

    Returns
    -------
    str or None
        Text with the value, the expected range, and the unit in which the number was probably meant.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    limits = _ranges().get(f"{group}.{key}") or _ranges().get(key)
    if limits is None:
        return None if math.isfinite(value) else f"got {value!r}, expected a finite number"
    if limits.low <= value <= limits.high:
        return None
    text = f"got {value!r}, expected {limits.low:g} to {limits.high:g} {limits.unit}"
    hints = [
        f"{name} (then write {value * factor:.10g})"
        for name, factor in limits.scales
        if limits.low <= value * factor <= limits.high
    ]
    return f"{text}; it looks like {' or '.join(hints)}" if hints else text


class SpecGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of a spec file: its numbers, their source, and which of them nobody has verified."""

    source: str
    unverified: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.source.strip():
            raise SpecError("source is empty; say where the numbers of this group come from")
        wrong = [key for key in self.unverified if key not in self.__struct_fields__]
        if wrong:
            raise SpecError(f"unverified names {wrong}, which are no keys of this group")
        for key in self.__struct_fields__:
            problem = value_problem(type(self).__name__, key, getattr(self, key))
            if problem:
                raise SpecError(f"{key}: {problem}")
