"""Checks that every constructor shares: plain values in, normalised values out, one-line errors."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index

from anatune.arguments import is_iterable, shown
from anatune.core.workload.access import ACCUMULATOR_DTYPE, DTYPE_BYTES, INTEGER_RANGE, MAX_INTEGER, Access
from anatune.core.workload.nest_rules import EPILOGUE_STEPS
from anatune.core.workload.number_formats import STEP_OPERANDS, Formats, accumulated_dtype, formats_of, stage_dtypes
from anatune.errors import WorkloadError

__all__ = [
    "EPILOGUE_STEPS",
    "accumulated_dtype",
    "checked_choice",
    "checked_dtype",
    "checked_epilogue",
    "checked_extent",
    "checked_flag",
    "checked_formats",
    "checked_integer",
    "checked_shape",
    "epilogue_reads",
    "zero_points",
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
        If `value` is none of the keys of ``ACCUMULATOR_DTYPE``, or uint8 (which is for products with int8).
    """
    return checked_choice(operator, "dtype", value, tuple(name for name in ACCUMULATOR_DTYPE if name != "uint8"))


def checked_formats(operator: str, word: object, epilogue: tuple[str, ...]) -> Formats:
    """Return the dtypes of a product's operands and result that a word such as "uint8xint8" says.

    Raises
    ------
    WorkloadError
        If it is no such word (`anatune.core.workload.number_formats`), or the fused steps do not fit it.
    """
    found = formats_of(word, epilogue) if isinstance(word, str) else formats_of("", epilogue)
    if isinstance(found, str):
        raise WorkloadError(f"{operator}: dtype is {shown(word)}, expected {found}; correct the dtype or the epilogue")
    return found


def _zero_point(operator: str, name: str, value: object, dtype: str) -> int:
    """Return the zero point of a tensor of `dtype`; dtype "": of one that has none but 0.

    Raises
    ------
    WorkloadError
        If `value` is no integer that `dtype` holds.
    """
    low, high = INTEGER_RANGE[dtype] if dtype else (0, 0)
    where = f"the stored {dtype} number that means zero" if dtype else "0: nothing is quantised there"
    number = checked_integer(operator, name, value, low, f"give {where}")
    if number > high:
        raise WorkloadError(f"{operator}: {name} is {number}, expected an integer from {low} to {high}; give {where}")
    return number


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


def epilogue_reads(steps: tuple[str, ...], dtype: str, write: Access, channels: Sequence[int]) -> tuple[Access, ...]:
    """Return the operands of the fused steps.

    Parameters
    ----------
    steps : tuple of str
        Checked steps, in order.
    dtype : str
        Of the first operand.
    write : Access
        Result of the reduction.
    channels : sequence of int
        Dimensions of `write` along which the bias and the scales run.
    """
    along = tuple(write.indices[channel] for channel in channels)
    sizes = tuple(write.shape[channel] for channel in channels)
    reads = []
    for step, element in zip(steps, stage_dtypes(dtype, write.dtype, steps), strict=False):
        tensor = STEP_OPERANDS[step]
        if step == "add":
            reads.append(Access("residual", element, write.shape, write.indices, write.offsets))
        elif tensor is not None:
            reads.append(Access(tensor, element, sizes, along, (0,) * len(sizes)))
    return tuple(reads)


def zero_points(
    operator: str, formats: Formats, steps: tuple[str, ...], input_zero_point: object, output_zero_point: object
) -> dict[str, int]:
    """Return the zero points that are not 0, by the name of the argument.

    Raises
    ------
    WorkloadError
        If one is no integer that its tensor holds, or is given where nothing is quantised.
    """
    read = formats.left if DTYPE_BYTES[formats.left] == 1 else ""
    written = formats.result if "requantize" in steps else ""
    found = {
        "input_zero_point": _zero_point(operator, "input_zero_point", input_zero_point, read),
        "output_zero_point": _zero_point(operator, "output_zero_point", output_zero_point, written),
    }
    return {name: number for name, number in found.items() if number}
