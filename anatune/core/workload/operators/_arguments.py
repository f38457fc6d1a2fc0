"""Checks of arguments that all constructors share: each returns a plain value, or raises an error of one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index

from anatune.arguments import is_iterable, quote
from anatune.core.workload.access import MAX_INTEGER
from anatune.core.workload.nest import Attribute
from anatune.core.workload.number_formats import PLAIN_DTYPES, dtype_hint
from anatune.errors import WorkloadError


def check_integer(operator: str, name: str, value: object, minimum: int, next_step: str) -> int:
    """Return `value` as a Python int, at least `minimum`; NumPy integers are converted.

    Raises
    ------
    WorkloadError
        The value is a bool, a float, a string or below `minimum`.
    """
    number: int | None = None
    if type(value).__name__ not in ("bool", "bool_"):
        try:
            number = index(value)  # type: ignore[arg-type]
        except TypeError:
            number = None
    if number is not None and number > MAX_INTEGER:
        raise WorkloadError(
            f"{operator}: {name} is {quote(value)}, expected at most {MAX_INTEGER} (2**31 - 1); {next_step}"
        )
    if number is None or number < minimum:
        raise WorkloadError(f"{operator}: {name} is {quote(value)}, expected an integer >= {minimum}; {next_step}")
    return number


def check_extent(operator: str, name: str, value: object) -> int:
    """Return a size in elements (>= 1).

    Raises
    ------
    WorkloadError
        The value is not an integer >= 1.
    """
    return check_integer(operator, name, value, 1, "give the real size in elements")


def check_shape(operator: str, name: str, value: object) -> tuple[int, ...]:
    """Return a tensor's shape: at least one dimension, each >= 1.

    Raises
    ------
    WorkloadError
        The value is not a sequence of integers >= 1, or is empty.
    """
    if isinstance(value, (str, bytes)) or not is_iterable(value):
        raise WorkloadError(f"{operator}: {name} is {quote(value)}, expected integers; write for example (1024, 4096)")
    shape = tuple(check_extent(operator, f"{name}[{place}]", extent) for place, extent in enumerate(value))
    if not shape:
        raise WorkloadError(f"{operator}: {name} is empty, expected at least one dimension; write for example (1024,)")
    return shape


def check_choice(operator: str, name: str, value: object, choices: Sequence[str]) -> str:
    """Return `value` if it is one of `choices`.

    Raises
    ------
    WorkloadError
        The value is another one.
    """
    if not isinstance(value, str) or value not in choices:
        raise WorkloadError(
            f"{operator}: {name} is {quote(value)}, expected one of {', '.join(choices)}; choose one of them"
        )
    return value


def check_dtype(operator: str, value: object) -> str:
    """Return the dtype of operands if every operator supports it.

    Raises
    ------
    WorkloadError
        The value is not in ``PLAIN_DTYPES``.
    """
    if hint := dtype_hint(value, PLAIN_DTYPES):
        allowed = ", ".join(PLAIN_DTYPES)
        raise WorkloadError(f"{operator}: dtype is {quote(value)}, expected one of {allowed}{hint}")
    return check_choice(operator, "dtype", value, PLAIN_DTYPES)


def check_flag(operator: str, name: str, value: object) -> bool:
    """Return a switch as a Python bool.

    Raises
    ------
    WorkloadError
        The value is not a bool.
    """
    if type(value).__name__ not in ("bool", "bool_"):
        raise WorkloadError(f"{operator}: {name} is {quote(value)}, expected True or False; leave it out for False")
    return bool(value)


def collect_attributes(
    arguments: Mapping[str, object], checked: Mapping[str, Attribute]
) -> tuple[tuple[str, Attribute], ...]:
    """Return a workload's attributes: the checked arguments in the order of the constructor's parameters."""
    return tuple((name, checked[name]) for name in arguments if name in checked)
