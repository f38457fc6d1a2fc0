"""Checks of what callers pass: each returns a plain value, or raises one line that says what was got and expected.

The calls of the library check their arguments here once, at the door; what lies below trusts them.
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
"""Longest time limit, s (11 days): what waits for processes counts milliseconds in 32 bits."""
MOST_SEED = 2**63 - 1
MOST_TRIALS = 100_000
"""Of a session, or of all kernels of a model."""
_SHOWN = 60
_MOST_NAME_BYTES = 255
"""Longest name of a file in its folder, on all common file systems."""


def shown(value: object) -> str:
    """Return an argument for a message: its repr in one line, cut where it is long."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        return f"an integer of {value.bit_length()} bits"  # Python refuses to print long ones
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def checked_integer(
    name: str, value: object, least: int, most: int | None = None, error: type[AnatuneError] = SpaceError
) -> int:
    """Return an integer, Python's or NumPy's, as Python's.

    Parameters
    ----------
    name : str
        What it is, for the message: "plan: top_k".
    least, most : int
        Its range, both ends included.

    Raises
    ------
    AnatuneError
        Of type `error`: it is something else (a bool and a float are none), or out of range.
    """
    if isinstance(value, Integral) and not isinstance(value, bool):
        number = int(value)
        if number >= least and (most is None or number <= most):
            return number
    bounds = f">= {least}" + ("" if most is None else f" and at most {most}")
    raise error(f"{name} is {shown(value)}, expected an integer {bounds}")


def checked_seconds(name: str, value: object, error: type[AnatuneError] = SpaceError) -> float | None:
    """Return a time limit in seconds; None is none.

    Raises
    ------
    AnatuneError
        Of type `error`: it is no number above 0 and up to `MOST_SECONDS`.
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
        f"{name} is {shown(value)}, expected a number of seconds > 0 and at most {MOST_SECONDS:g}, or None for no limit"
    )


def checked_share(name: str, value: object, error: type[AnatuneError] = SpaceError) -> float | None:
    """Return a share above 0 and up to 1 as a float; None is none.

    Raises
    ------
    AnatuneError
        Of type `error`: it is something else.
    """
    if value is None:
        return None
    if isinstance(value, Real) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # an integer of thousands of digits
            if 0.0 < float(value) <= 1.0:
                return float(value)
    raise error(f"{name} is {shown(value)}, expected a share above 0 and up to 1 (0.95 is 95 %), or None")


def checked_choice(
    name: str, value: object, choices: Sequence[str], error: type[AnatuneError] = SpaceError, otherwise: str = ""
) -> str:
    """Return `value` if it is one of `choices`.

    Parameters
    ----------
    otherwise : str
        What else would be taken, for the message: "or None".

    Raises
    ------
    AnatuneError
        Of type `error`: it is not.
    """
    if isinstance(value, str) and value in choices:
        return value
    raise error(f"{name} is {shown(value)}, expected one of {', '.join(choices)}{otherwise and f' {otherwise}'}")


def checked_flag(name: str, value: object, error: type[AnatuneError] = SpaceError) -> bool:
    """Return True or False; 1 and "no" are neither.

    Raises
    ------
    AnatuneError
        Of type `error`: it is something else.
    """
    if type(value).__name__ in ("bool", "bool_"):  # NumPy's, too
        return bool(value)
    raise error(f"{name} is {shown(value)}, expected True or False")


def checked_function(name: str, value: object, error: type[AnatuneError] = SpaceError) -> None:
    """Raise an error of type `error` if a callback is neither callable nor None."""
    if value is not None and not callable(value):
        raise error(f"{name} is {shown(value)}, expected a function or None")


def is_iterable(value: object) -> TypeGuard[Iterable[Any]]:
    """Whether a value can be looped over; an array without dimensions has the method and cannot."""
    try:
        iter(value)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


def checked_path(name: str, value: object, error: type[AnatuneError] = SpaceError) -> Path:
    """Return a path of a file or folder, which need not be there.

    Raises
    ------
    AnatuneError
        Of type `error`: it is no str and no path object (bytes are none), is empty, or no system has such a name.
    """
    if not isinstance(value, (str, os.PathLike)) or not isinstance(text := os.fspath(value), str) or not text:
        raise error(f"{name} is {shown(value)}, expected a path (a str or pathlib.Path)")
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError:
        encoded = b"\0"
    if b"\0" in encoded:
        raise error(f"{name} is {shown(value)}, expected a path without characters that no file's name can have")
    longest = max(map(len, encoded.split(os.fsencode(os.sep))))
    if longest > _MOST_NAME_BYTES:
        raise error(
            f"{name} is {shown(value)}, with a name of {longest} bytes, expected at most {_MOST_NAME_BYTES}; shorten it"
        )
    return Path(text)


def plain_array(name: str, value: object, error: type[AnatuneError]) -> NDArray[np.generic]:
    """Return what NumPy makes an array of as one of its own class, in the byte order of the processor.

    Parameters
    ----------
    name : str
        What it is, for the message: "input x".

    Raises
    ------
    AnatuneError
        Of type `error`: NumPy makes no array of it, or it hides elements behind a mask.
    """
    import numpy as np  # late: what only reads arguments needs none

    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as reason:
        told = " ".join(str(reason).split())
        raise error(f"{name} is {shown(value)}, expected an array of numbers: {told:.200}") from None
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise error(f"{name} is an array that hides elements behind a mask; give array.filled(number)")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
