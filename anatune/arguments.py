"""Checks of arguments: each returns the value in its plain type, or raises an error that states what was expected.

Public functions check their arguments once, here; the code below them relies on it.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from anatune.errors import AnatuneError, SpaceError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_SECONDS = 1e6
"""Longest time limit, s (11 days): processes are waited for with 32-bit counts of milliseconds."""
MOST_SEED = 2**63 - 1
MOST_TRIALS = 100_000
"""Largest number of trials of one session, or of all kernels of a network."""
_MOST_CHARACTERS = 60
_MOST_NAME_BYTES = 255
"""Longest name of a file in its folder, on all common file systems."""


def quote(value: object) -> str:
    """Return `value` for a message: its repr on one line, shortened if it is long."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        return f"an integer of {value.bit_length()} bits"  # Python refuses to print longer ones
    text = " ".join(repr(value).split())
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}..."


def check_integer(
    name: str, value: object, least: int, most: int | None = None, error: type[AnatuneError] = SpaceError
) -> int:
    """Return an integer of Python or NumPy as an ``int``.

    Parameters
    ----------
    name : str
        Name for the message, for example "plan: top_k".
    least, most : int
        The allowed range, both ends included.

    Raises
    ------
    AnatuneError
        Raised as `error`: the value is not an integer (bool and float are refused) or out of range.
    """
    if isinstance(value, Integral) and not isinstance(value, bool):
        number = int(value)
        if number >= least and (most is None or number <= most):
            return number
    bounds = f">= {least}" + ("" if most is None else f" and at most {most}")
    raise error(f"{name} is {quote(value)}, expected an integer {bounds}")


def check_seconds(name: str, value: object, error: type[AnatuneError] = SpaceError) -> float | None:
    """Return a time limit in seconds as a float; None means no limit.

    Raises
    ------
    AnatuneError
        Raised as `error`: the value is not a number above 0 and at most `MOST_SECONDS`.
    """
    if value is None:
        return None
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            seconds = float(value)
        except OverflowError:  # an integer of thousands of digits
            seconds = math.inf
        if 0 < seconds <= MOST_SECONDS:
            return seconds
    raise error(
        f"{name} is {quote(value)}, expected a number of seconds > 0 and at most {MOST_SECONDS:g}, or None for no limit"
    )


def check_share(name: str, value: object, error: type[AnatuneError] = SpaceError) -> float | None:
    """Return a share above 0 and up to 1 as a float; None stays None.

    Raises
    ------
    AnatuneError
        Raised as `error`: the value is not such a number.
    """
    if value is None:
        return None
    if isinstance(value, Real) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # an integer of thousands of digits
            if 0.0 < float(value) <= 1.0:
                return float(value)
    raise error(f"{name} is {quote(value)}, expected a share above 0 and up to 1 (0.95 is 95 %), or None")


def check_choice(
    name: str, value: object, choices: Sequence[str], error: type[AnatuneError] = SpaceError, otherwise: str = ""
) -> str:
    """Return `value` if it is one of `choices`.

    Parameters
    ----------
    otherwise : str
        Further accepted values, for the message: "or None".

    Raises
    ------
    AnatuneError
        Raised as `error`: the value is none of them.
    """
    if isinstance(value, str) and value in choices:
        return value
    raise error(f"{name} is {quote(value)}, expected one of {', '.join(choices)}{otherwise and f' {otherwise}'}")


def check_flag(name: str, value: object, error: type[AnatuneError] = SpaceError) -> bool:
    """Return a bool of Python or NumPy as a ``bool``; 1 and "no" are refused.

    Raises
    ------
    AnatuneError
        Raised as `error`: the value is no bool.
    """
    if type(value).__name__ in ("bool", "bool_"):  # NumPy's, too
        return bool(value)
    raise error(f"{name} is {quote(value)}, expected True or False")


def check_function(name: str, value: object, error: type[AnatuneError] = SpaceError) -> None:
    """Raise `error` unless a callback is callable or None."""
    if value is not None and not callable(value):
        raise error(f"{name} is {quote(value)}, expected a function or None")


def is_iterable(value: object) -> TypeGuard[Iterable[Any]]:
    """Return whether a value can be iterated over; a NumPy array without dimensions cannot."""
    try:
        iter(value)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


def check_path(name: str, value: object, error: type[AnatuneError] = SpaceError) -> Path:
    """Return the path of a file or folder, which need not exist.

    Raises
    ------
    AnatuneError
        Raised as `error`: the value is not a str or path object (bytes are refused), is empty, or no file can have
        such a name.
    """
    if not isinstance(value, (str, os.PathLike)) or not isinstance(text := os.fspath(value), str) or not text:
        raise error(f"{name} is {quote(value)}, expected a path (a str or pathlib.Path)")
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError:
        encoded = b"\0"
    if b"\0" in encoded:
        raise error(f"{name} is {quote(value)}, expected a path without characters that no file's name can have")
    longest = max(map(len, encoded.split(os.fsencode(os.sep))))
    if longest > _MOST_NAME_BYTES:
        raise error(
            f"{name} is {quote(value)}, with a name of {longest} bytes, expected at most {_MOST_NAME_BYTES}; shorten it"
        )
    return Path(text)


def plain_array(name: str, value: object, error: type[AnatuneError]) -> NDArray[np.generic]:
    """Return `value` as a NumPy array in native byte order.

    Parameters
    ----------
    name : str
        Name for the message, for example "input x".

    Raises
    ------
    AnatuneError
        Raised as `error`: NumPy cannot convert the value, or it is a masked array with hidden elements.
    """
    import numpy as np  # late: what only reads arguments needs none

    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as reason:
        message = " ".join(str(reason).split())
        raise error(f"{name} is {quote(value)}, expected an array of numbers: {message:.200}") from None
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise error(f"{name} is an array that hides elements behind a mask; give array.filled(number)")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
