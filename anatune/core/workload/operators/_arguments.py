"""Checks that every constructor shares: plain values in, normalised values out, one-line errors."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index

from anatune.arguments import is_iterable, shown
from anatune.core.workload.access import ACCUMULATOR_DTYPE, MAX_INTEGER, Access, Term
from anatune.core.workload.nest_rules import EPILOGUE_STEPS, accumulated_dtype
from anatune.errors import WorkloadError

__all__ = [
    "EPILOGUE_STEPS",
    "accumulated_dtype",
    "checked_choice",
    "checked_dtype",
    "checked_epilogue",
    "checked_extent",
    "checked_flag",
    "checked_integer",
    "checked_shape",
    "epilogue_reads",
]


def checked_integer(operator: str, name: str, value: object, minimum: int, next_step: str) -> int:
    """Return `value` as a Python int, at least `minimum`; NumPy integers are converted.

    Raises
    ------
    WorkloadError
        If `value` is a bool, a float, a string or below `minimum`.
    """
    number: int | None = None
    if type(value).__name__ not in ("bool", "bool_"):
        try:
            number = index(value)  # type: ignore[arg-type]
        except TypeError:
            number = None
    if number is not None and number > MAX_INTEGER:
        raise WorkloadError(
            f"{operator}: {name} is {shown(value)}, expected at most {MAX_INTEGER} (2**31 - 1); {next_step}"
        )
    if number is None or number < minimum:
        raise WorkloadError(f"{operator}: {name} is {shown(value)}, expected an integer >= {minimum}; {next_step}")
    return number


def checked_extent(operator: str, name: str, value: object) -> int:
    """Return a size in elements (>= 1).

    Raises
    ------
    WorkloadError
        If `value` is not an integer >= 1.
    """
    return checked_integer(operator, name, value, 1, "give the real size in elements")


def checked_shape(operator: str, name: str, value: object) -> tuple[int, ...]:
    """Return a tensor's shape: at least one dimension, each >= 1.

    Raises
    ------
    WorkloadError
        If `value` is not a sequence of integers >= 1, or is empty.
    """
    if isinstance(value, (str, bytes)) or not is_iterable(value):
        raise WorkloadError(f"{operator}: {name} is {shown(value)}, expected integers; write for example (1024, 4096)")
    shape = tuple(checked_extent(operator, f"{name}[{place}]", extent) for place, extent in enumerate(value))
    if not shape:
        raise WorkloadError(f"{operator}: {name} is empty, expected at least one dimension; write for example (1024,)")
    return shape


def checked_choice(operator: str, name: str, value: object, choices: Sequence[str]) -> str:
    """Return `value` if it is one of `choices`.

    Raises
    ------
    WorkloadError
        If it is not.
    """
    if not isinstance(value, str) or value not in choices:
        raise WorkloadError(
            f"{operator}: {name} is {shown(value)}, expected one of {', '.join(choices)}; choose one of them"
        )
    return value


def checked_dtype(operator: str, value: object) -> str:
    """Return an operand dtype that can be computed with.

    Raises
    ------
    WorkloadError
        If `value` is none of the keys of ``ACCUMULATOR_DTYPE``.
    """
    return checked_choice(operator, "dtype", value, tuple(ACCUMULATOR_DTYPE))


def checked_flag(operator: str, name: str, value: object) -> bool:
    """Return a switch as a Python bool.

    Raises
    ------
    WorkloadError
        If `value` is not a bool.
    """
    if type(value).__name__ not in ("bool", "bool_"):
        raise WorkloadError(f"{operator}: {name} is {shown(value)}, expected True or False; leave it out for False")
    return bool(value)


def checked_epilogue(operator: str, value: object) -> tuple[str, ...]:
    """Return the fused steps in order; each may appear once.

    Raises
    ------
    WorkloadError
        If a step is unknown or appears twice.
    """
    known = ", ".join(EPILOGUE_STEPS)
    if isinstance(value, (str, bytes)) or not is_iterable(value):
        raise WorkloadError(
            f"{operator}: epilogue is {shown(value)}, expected a sequence of {known}; write ('bias', 'relu')"
        )
    steps = tuple(value)
    for step in steps:
        checked_choice(operator, "epilogue step", step, EPILOGUE_STEPS)
    if len(set(steps)) != len(steps):
        raise WorkloadError(
            f"{operator}: epilogue {', '.join(steps)} repeats a step, expected each of {known} at most once; "
            "remove the repetition"
        )
    return steps


def epilogue_reads(steps: tuple[str, ...], write: Access, channel: int) -> tuple[Access, ...]:
    """Return the operands of the fused steps.

    Parameters
    ----------
    steps : tuple of str
        Checked steps, in order.
    write : Access
        Result of the reduction.
    channel : int
        Dimension of `write` along which the bias runs.
    """
    reads = []
    for step in steps:
        if step == "bias":
            terms: tuple[Term, ...] = write.indices[channel]
            reads.append(Access("bias", write.dtype, (write.shape[channel],), (terms,), (0,)))
        elif step == "add":
            reads.append(Access("residual", write.dtype, write.shape, write.indices, write.offsets))
    return tuple(reads)
