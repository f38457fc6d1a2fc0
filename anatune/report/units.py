"""Numbers as text with units: seconds as us or ms, bytes as KiB, rates as GFLOP/s, counts in groups of three.

All other modules use SI units.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from anatune.core.show import digits, duration, duration_unit

__all__ = [
    "TimeUnit", "count", "duration", "energy", "flop", "flop_rate", "giga", "many", "or_dash", "percent", "rate",
    "ratio", "share", "size", "threads",
]  # fmt: skip

_BYTES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes"))
_THOUSANDS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_JOULES = ((1e6, "MJ"), (1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"), (1e-6, "uJ"))
_MAX_GROUPED = 10_000_000


class TimeUnit(NamedTuple):
    """A unit of time that several times share, such as those of a column or an axis."""

    scale_s: float
    name: str

    @classmethod
    def fitting(cls, seconds: float) -> TimeUnit:
        """Return the unit that `duration` uses for a time."""
        return cls(*duration_unit(seconds))

    def of(self, seconds: float | None) -> float | None:
        """Return a time in this unit; None stays None."""
        return None if seconds is None else seconds / self.scale_s


def size(num_bytes: float) -> str:
    """Return a number of bytes with a binary unit.

    Examples
    --------
    >>> size(6291456), size(100), size(1536)
    ('6 MiB', '100 bytes', '1.5 KiB')
    """
    if not math.isfinite(num_bytes):
        return "unknown"
    for scale, unit in _BYTES:
        if abs(num_bytes) >= scale:
            return f"{num_bytes / scale:.4g} {unit}"
    return "0 bytes"


def _thousands(value: float, unit: str) -> str:
    """Return a value with a decimal prefix."""
    if not math.isfinite(value):
        return "unknown"
    for scale, prefix in _THOUSANDS:
        if abs(value) >= 0.99995 * scale:
            return f"{digits(value / scale)} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def rate(bytes_per_s: float) -> str:
    """Return a bandwidth with a decimal unit, as data sheets do.

    Examples
    --------
    >>> rate(936e9)
    '936.0 GB/s'
    """
    return _thousands(bytes_per_s, "B/s")


def flop(operations: float) -> str:
    """Return a number of operations.

    Examples
    --------
    >>> flop(4294967296), flop(0)
    ('4.295 GFLOP', '0 FLOP')
    """
    return _thousands(operations, "FLOP") if operations else "0 FLOP"


def energy(joules: float) -> str:
    """Return an energy.

    Examples
    --------
    >>> energy(0.0123), energy(1234.5), energy(0.0)
    ('12.30 mJ', '1.234 kJ', '0 J')
    """
    for scale, unit in _JOULES:
        if joules >= 0.99995 * scale:
            return f"{digits(joules / scale)} {unit}"
    return f"{joules:.3g} J"


def flop_rate(flop_per_s: float) -> str:
    """Return operations a second.

    Examples
    --------
    >>> flop_rate(35.58144e12)
    '35.58 TFLOP/s'
    """
    return _thousands(flop_per_s, "FLOP/s")


def giga(rate: float) -> str:
    """Return a rate in 10^9 per second without its unit, for cells of tables.

    Examples
    --------
    >>> giga(22.821e12), giga(1.5e9)
    ('22821', '1.5')
    """
    return f"{rate / 1e9:.0f}" if rate >= 99.5e9 else f"{rate / 1e9:.3g}"


def count(number: float) -> str:
    """Return a count: digits in groups of three up to ten million, a power of ten above.

    Examples
    --------
    >>> count(235111), count(50831953920)
    ('235,111', '5.083e10')
    """
    if not math.isfinite(number):
        return "unknown"
    if abs(number) < _MAX_GROUPED:
        return f"{round(number):,}"
    mantissa, _, exponent = f"{number:.3e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def percent(fraction: float) -> str:
    """Return a fraction in per cent: two digits below ten, whole numbers above.

    Examples
    --------
    >>> percent(0.4118), percent(0.0123), percent(1.0), percent(0.0)
    ('41 %', '1.2 %', '100 %', '0 %')
    """
    if not math.isfinite(fraction):
        return "unknown"
    value = 100 * fraction
    if value == 0:
        return "0 %"
    if abs(value) < 9.95:
        return f"{value:.2g} %" if abs(value) >= 0.01 else "< 0.01 %"
    return f"{value:.0f} %"


def ratio(value: float) -> str:
    """Return a ratio with three significant digits.

    Examples
    --------
    >>> ratio(1.0), ratio(3.6666), ratio(123.4), ratio(54321.0)
    ('1.00', '3.67', '123', '54321')
    """
    if not math.isfinite(value):
        return "unknown"
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def share(fraction: float) -> str:
    """Return a fraction in per cent without a blank, for cells of tables.

    Examples
    --------
    >>> share(0.4118)
    '41%'
    """
    return percent(fraction).replace(" ", "")


def or_dash(value: float | None, format_number: Callable[[float], str] = duration) -> str:
    """Return a number as text, or a dash if it is unknown, for cells of tables.

    Examples
    --------
    >>> or_dash(2.5e-6), or_dash(None), or_dash(2.0, ratio)
    ('2.500 us', '-', '2.00')
    """
    return "-" if value is None else format_number(value)


def many(number: int, what: str) -> str:
    """Return a number with a noun, in the plural if needed.

    Examples
    --------
    >>> many(1, "build"), many(0, "build")
    ('1 build', '0 builds')
    """
    return f"{number} {what}{'s' * (number != 1)}"


def threads(number: int) -> str:
    """Return a number of threads.

    Examples
    --------
    >>> threads(1), threads(8)
    ('1 thread', '8 threads')
    """
    return many(number, "thread")
