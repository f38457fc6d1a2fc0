"""Sums of products of two tensors: the common part of matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anatune.arguments import is_iterable, quote
from anatune.core.workload.access import INTEGER_RANGE
from anatune.core.workload.nest import Access, Attribute, Axis, Term, Workload
from anatune.core.workload.nest_rules import EPILOGUE_STEPS
from anatune.core.workload.number_formats import (
    BYTE_DTYPES,
    STEP_OPERANDS,
    Formats,
    format_word,
    parse_formats,
    step_dtypes,
)
from anatune.core.workload.operators._arguments import check_choice, check_integer, collect_attributes
from anatune.errors import WorkloadError

Dimension = tuple[int, tuple[Term, ...], int]
"""The size, index terms and offset of a tensor's dimension."""


def make_access(tensor: str, dtype: str, dimensions: Sequence[Dimension], zero_point: int = 0) -> Access:
    """Return the access to a tensor with these dimensions."""
    shape, indices, offsets = zip(*dimensions, strict=True) if dimensions else ((), (), ())
    return Access(tensor, dtype, shape, indices, offsets, zero_point)


def make_product(
    operator: str,
    arguments: Mapping[str, object],
    axes: Sequence[Axis],
    tensors: Mapping[str, Sequence[Dimension]],
    channels: Sequence[int],
    checked: Mapping[str, Attribute],
) -> Workload:
    """Return a product of two tensors with its dtypes, fused steps and zero points.

    Parameters
    ----------
    operator : str
        Name of the constructor, for messages and for the workload.
    arguments : mapping of str to object
        Arguments of the constructor; dtype, epilogue, input_zero_point and output_zero_point are read here.
    axes : sequence of Axis
        The loops.
    tensors : mapping of str to sequence of Dimension
        Name -> dimensions of the first operand, the second operand and the result.
    channels : sequence of int
        Numbers of the result's dimensions along which the bias and the scales run.
    checked : mapping of str to attribute
        The other arguments, as the workload stores them.

    Raises
    ------
    WorkloadError
        The dtype is unknown; a step is unknown, repeated or does not fit the dtype; or a tensor cannot have the given
        zero point.
    """
    steps = check_steps(operator, arguments["epilogue"])
    formats = check_product_formats(operator, arguments["dtype"], steps)
    zeros = {
        name: _zero_point(operator, name, arguments[name], dtype)
        for name, dtype in (
            ("input_zero_point", formats.left if formats.left in BYTE_DTYPES else ""),
            ("output_zero_point", formats.result if "requantize" in steps else ""),
        )
    }
    left, right, write = (
        make_access(tensor, dtype, dimensions, zero_point)
        for (tensor, dimensions), dtype, zero_point in zip(
            tensors.items(), formats, (zeros["input_zero_point"], 0, zeros["output_zero_point"]), strict=True
        )
    )
    attributes: dict[str, Attribute] = {
        **checked,
        "dtype": format_word(formats[:2], formats.result, steps),
        "epilogue": steps,
        **{name: zero_point for name, zero_point in zeros.items() if zero_point},
    }
    return Workload(
        operator=operator,
        axes=tuple(axes),
        reads=(left, right),
        write=write,
        body="multiply_add",
        flop_per_point=2,
        epilogue=steps,
        epilogue_reads=epilogue_reads(steps, formats, write, channels),
        attributes=collect_attributes(arguments, attributes),
    )


def check_product_formats(operator: str, word: object, epilogue: tuple[str, ...]) -> Formats:
    """Return the dtypes of a product's operands and result for a word such as "uint8xint8".

    Raises
    ------
    WorkloadError
        The word is unknown (`anatune.core.workload.number_formats`), or the fused steps do not fit it.
    """
    formats = parse_formats(word, epilogue) if isinstance(word, str) else parse_formats("", epilogue)
    if isinstance(formats, str):
        raise WorkloadError(
            f"{operator}: dtype is {quote(word)}, expected {formats}; correct the dtype or the epilogue"
        )
    return formats


def _zero_point(operator: str, name: str, value: object, dtype: str) -> int:
    """Return the zero point of a tensor of `dtype`; dtype "" stands for a tensor that can only have 0.

    Raises
    ------
    WorkloadError
        The value is not an integer that `dtype` can hold.
    """
    low, high = INTEGER_RANGE[dtype] if dtype else (0, 0)
    meaning = f"the stored {dtype} number that means zero" if dtype else "0: nothing is quantised there"
    number = check_integer(operator, name, value, low, f"give {meaning}")
    if number > high:
        raise WorkloadError(f"{operator}: {name} is {number}, expected an integer from {low} to {high}; give {meaning}")
    return number


def check_steps(operator: str, value: object) -> tuple[str, ...]:
    """Return the fused steps in order; each may appear once.

    Raises
    ------
    WorkloadError
        A step is unknown or appears twice.
    """
    allowed = ", ".join(EPILOGUE_STEPS)
    if isinstance(value, (str, bytes)) or not is_iterable(value):
        raise WorkloadError(
            f"{operator}: epilogue is {quote(value)}, expected a sequence of {allowed}; write ('bias', 'relu')"
        )
    steps = tuple(value)
    for step in steps:
        check_choice(operator, "epilogue step", step, EPILOGUE_STEPS)
    if len(set(steps)) != len(steps):
        raise WorkloadError(
            f"{operator}: epilogue {', '.join(steps)} repeats a step, expected each of {allowed} at most once; "
            "remove the repetition"
        )
    return steps


def epilogue_reads(
    steps: tuple[str, ...], formats: Formats, write: Access, channels: Sequence[int]
) -> tuple[Access, ...]:
    """Return the operands of the fused steps.

    Parameters
    ----------
    steps : tuple of str
        Checked steps, in order.
    formats : Formats
        Dtypes of the product.
    write : Access
        Access to the result of the reduction.
    channels : sequence of int
        Numbers of the dimensions of `write` along which the bias and the scales run.
    """
    along = tuple(write.indices[channel] for channel in channels)
    sizes = tuple(write.shape[channel] for channel in channels)
    reads = []
    for step, element in zip(steps, step_dtypes(formats[:2], write.dtype, steps), strict=False):
        tensor = STEP_OPERANDS[step]
        if step == "add":
            reads.append(Access("residual", element, write.shape, write.indices, write.offsets))
        elif tensor is not None:
            reads.append(Access(tensor, element, sizes, along, (0,) * len(sizes)))
    return tuple(reads)
