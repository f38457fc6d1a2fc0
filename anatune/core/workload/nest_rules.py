"""Rules that a loop nest obeys so that models can analyse it and code generators can write it.

The constructor of `Workload` checks them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from anatune.arguments import quote
from anatune.core.workload.access import Access, Axis, is_integer
from anatune.core.workload.kernels import KERNELS, check_kernel_dtypes
from anatune.core.workload.number_formats import (
    BYTE_DTYPES,
    OPERAND_PAIRS,
    PLAIN_DTYPES,
    STEP_OPERANDS,
    accumulated_dtype,
    result_dtypes,
    step_dtypes,
)
from anatune.errors import WorkloadError

BODIES: tuple[str, ...] = ("multiply_add", "add", "max", "average", "multiply", "copy", "relu", *KERNELS)
"""Statements that a nest may contain, see `Workload.body`."""

EPILOGUE_STEPS: tuple[str, ...] = tuple(STEP_OPERANDS)
"""Element-wise steps that can be fused behind a reduction, see `anatune.core.workload.number_formats`."""

_MOST = 64
"""Largest number of axes, operands and dimensions: more are a mistake, and some checks grow quickly with them."""

_OPERANDS = {  # body: (operands under a reduction, operands without one); None: the body has no such form
    "multiply_add": ((2, _MOST), None),
    "add": ((1, 1), (2, 2)),
    "max": ((1, 1), (2, 2)),
    "average": ((1, 1), None),
    "multiply": (None, (2, _MOST)),
    "copy": (None, (1, 1)),
    "relu": (None, (1, 1)),
    **{body: kernel.forms for body, kernel in KERNELS.items()},
}


def check_nest(
    operator: str,
    axes: Sequence[Axis],
    reads: Sequence[Access],
    write: Access,
    body: str,
    flop_per_point: int,
    epilogue: Sequence[str],
    epilogue_reads: Sequence[Access],
) -> None:
    """Raise unless the parts of a workload, see `Workload`, form one nest.

    Raises
    ------
    WorkloadError
        A part is wrong; the message names it, the value, and the expected value.
    """
    if not isinstance(operator, str):
        raise WorkloadError(f"operator is {quote(operator)}, expected its name")
    _check_kinds(operator, axes, reads, write, epilogue, epilogue_reads)
    names = [axis.name for axis in axes]
    if len(set(names)) != len(names):
        raise WorkloadError(f"{operator}: axis names {names} repeat; give every loop its own name")
    if not isinstance(body, str) or body not in BODIES:
        raise WorkloadError(f"{operator}: body is {quote(body)}, expected one of {', '.join(BODIES)}")
    if not is_integer(flop_per_point, 0):
        raise WorkloadError(f"{operator}: flop_per_point is {quote(flop_per_point)}, expected an integer >= 0")
    if not reads:
        raise WorkloadError(f"{operator}: reads is empty, expected at least one operand")
    kinds = [axis.kind for axis in axes]
    if kinds != sorted(kinds, reverse=True):
        raise WorkloadError(f"{operator}: axes {names} mix kinds, expected spatial before reduction axes")
    accesses = (*reads, write, *epilogue_reads)
    tensors = [access.tensor for access in accesses]
    if len(set(tensors)) != len(tensors):
        raise WorkloadError(f"{operator}: tensors {tensors} repeat; give every operand and the result its own name")
    for access in accesses:
        unknown = {term.axis for terms in access.indices for term in terms} - set(names)
        if unknown:
            raise WorkloadError(
                f"{operator}: tensor {access.tensor!r} uses unknown axes {sorted(map(str, unknown))}, "
                f"expected some of {sorted(names)}"
            )
    spatial = {axis.name for axis in axes if axis.kind == "spatial"}
    _check_result(operator, {axis.name: axis.extent for axis in axes}, spatial, write)
    _check_operands(operator, names, spatial, reads, body)
    if body in KERNELS:
        check_kernel_dtypes(operator, body, reads, write)
    else:
        _check_dtypes(operator, reads, write, body, epilogue)
    _check_epilogue(operator, body, reads, write, epilogue, epilogue_reads)


def _check_kinds(operator: str, axes: object, reads: object, write: object, *more: object) -> None:
    steps, epilogue_reads = more
    for what, items, expected_type in (
        ("axes", axes, Axis),
        ("reads", reads, Access),
        ("write", (write,), Access),
        ("epilogue", steps, str),
        ("epilogue_reads", epilogue_reads, Access),
    ):
        if not isinstance(items, tuple) or not all(isinstance(item, expected_type) for item in items):
            raise WorkloadError(
                f"{operator}: {what} is {quote(items)}, expected {expected_type.__name__} objects in a tuple"
            )
        if len(items) > _MOST:
            raise WorkloadError(f"{operator}: {len(items)} {what}, expected at most {_MOST}")


def _check_operands(operator: str, names: Sequence[str], spatial: set[str], reads: Sequence[Access], body: str) -> None:
    is_reduction = len(spatial) < len(names)
    limits = _OPERANDS[body][0 if is_reduction else 1]
    if limits is None or not limits[0] <= len(reads) <= limits[1]:
        expected = {True: "with reduction axes", False: "without reduction axes"}
        forms = " or ".join(
            f"{form[0]}{' or more' if form[1] > form[0] else ''} {expected[where == 0]}"
            for where, form in enumerate(_OPERANDS[body])
            if form
        )
        raise WorkloadError(
            f"{operator}: body {body!r} has {len(reads)} operands {expected[is_reduction]}, expected {forms}"
        )


def _check_dtypes(operator: str, reads: Sequence[Access], write: Access, body: str, epilogue: Sequence[str]) -> None:
    dtype = reads[0].dtype
    is_product = body == "multiply_add" and len(reads) == 2
    pair = tuple(read.dtype for read in reads)
    if pair not in OPERAND_PAIRS if is_product else dtype not in PLAIN_DTYPES or len(set(pair)) > 1:
        other = next((read for read in reads if read.dtype != dtype), reads[0])
        raise WorkloadError(
            f"{operator}: operand {other.tensor!r} is {other.dtype}, expected one dtype of all operands, one of "
            f"{', '.join(PLAIN_DTYPES)}; for sums of products of two operands, also pairs such as uint8 "
            "and int8, bfloat16 and int8, or 8-bit floats"
        )
    others = [*reads[1 if is_product and dtype in BYTE_DTYPES else 0 :], *([] if "requantize" in epilogue else [write])]
    if any(access.zero_point for access in others):
        raise WorkloadError(
            f"{operator}: a zero point is given where none is allowed; expected one only for a product's first "
            "operand, or for the result of requantize; leave it out"
        )
    if body == "multiply_add":
        allowed = set(result_dtypes(pair, epilogue))
    else:
        sums = body == "average" or (body == "add" and len(reads) == 1)
        allowed = {accumulated_dtype(dtype)} if sums else {dtype}
    if body == "multiply":  # an element-wise operator, or an outer product of einsum
        allowed = {dtype, accumulated_dtype(dtype)}
    if write.dtype not in allowed:
        steps = f" and the steps ({', '.join(epilogue)})" if epilogue else ""
        expected = " or ".join(sorted(allowed)) or "8-bit operands, with requantize as the last step,"
        raise WorkloadError(
            f"{operator}: result {write.tensor!r} is {write.dtype}, expected {expected} for {body} of {dtype}{steps}"
        )


def _check_result(operator: str, extents: dict[str, int], spatial: set[str], write: Access) -> None:
    """Raise unless each iteration of the spatial axes writes a different element inside the tensor."""
    written = [term.axis for terms in write.indices for term in terms]
    if set(written) != spatial:
        raise WorkloadError(
            f"{operator}: spatial axes are {sorted(spatial)}, expected those that index "
            f"{write.tensor}: {sorted(set(written))}"
        )
    reach = []
    is_mixed = len(set(written)) < len(written)
    for terms in write.indices:
        covered = 1  # number of neighbouring elements that the previous terms reach
        for coefficient, extent in sorted((term.coefficient, extents[term.axis]) for term in terms):
            is_mixed |= extent > 1 and coefficient < covered
            covered += coefficient * (extent - 1)
        reach.append(covered)
    is_outside = any(covered > extent for covered, extent in zip(reach, write.shape, strict=True))
    if is_mixed or is_outside or any(write.offsets):
        raise WorkloadError(
            f"{operator}: result {write.tensor!r} of shape {write.shape} is written at {tuple(reach)} positions with "
            f"offsets {write.offsets}; expected each iteration of the spatial axes to write a different element, "
            "beginning with the first element"
        )


def _check_epilogue(
    operator: str,
    body: str,
    reads: Sequence[Access],
    write: Access,
    epilogue: Sequence[str],
    epilogue_reads: Sequence[Access],
) -> None:
    if any(step not in EPILOGUE_STEPS for step in epilogue) or len(set(epilogue)) < len(epilogue):
        raise WorkloadError(
            f"{operator}: epilogue is {quote(list(epilogue))}, expected each of {', '.join(EPILOGUE_STEPS)} at most "
            "once"
        )
    is_scaled = body == "scaled_matmul"
    if epilogue and body != "multiply_add" and not is_scaled:
        raise WorkloadError(f"{operator}: {body!r} has an epilogue, expected one only for multiply_add; leave it out")
    operands = [write.dtype] * 2 if is_scaled else [read.dtype for read in reads]
    dtypes = step_dtypes(operands, write.dtype, epilogue)
    needed = [(step, dtype) for step, dtype in zip(epilogue, dtypes, strict=False) if dtype]
    if len(needed) != len(epilogue_reads):
        raise WorkloadError(
            f"{operator}: {len(epilogue_reads)} epilogue_reads, expected one for each of the steps "
            f"{[step for step, _ in needed]}"
        )
    for (step, dtype), read in zip(needed, epilogue_reads, strict=True):
        if step == "add":
            fits = (read.shape, read.indices, read.offsets) == (write.shape, write.indices, write.offsets)
        else:
            fits = not any(read.offsets) and _runs_along(read, write)
        if read.dtype != dtype or not fits or read.zero_point:
            expected = "like the result" if step == "add" else "along one dimension of the result, or two (of blocks)"
            raise WorkloadError(
                f"{operator}: epilogue operand {read.tensor!r} of {step!r} is {read.dtype} {read.shape}, expected "
                f"{dtype} and indices {expected}"
            )


def _runs_along(read: Access, write: Access) -> bool:
    """Return whether an operand has one or two of the result's dimensions, in order."""
    dimensions = list(zip(write.shape, write.indices, strict=True))
    operand = tuple(zip(read.shape, read.indices, strict=True))
    return any(operand in itertools.combinations(dimensions, count) for count in (1, 2))
