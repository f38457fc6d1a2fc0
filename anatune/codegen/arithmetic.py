"""The arithmetic of a schedule's kernel: number formats of products and sums, and the expected error."""

from __future__ import annotations

import math
import textwrap

import msgspec

from anatune.core.accuracy import EPS, TRUNCATION, TYPICAL_ERROR, TYPICAL_OF_BOUND, error_of
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import ACCUMULATOR_DTYPE
from anatune.templates import get_template

_ROUNDING = 1 / math.sqrt(28)
"""Root mean square of rounding errors over that of the values, in eps, for values that are uniform around 0. In each
power of two errors are uniform over one spacing; the sum over all powers gives ``(1 / 84) / (1 / 3)``, squared."""


class KernelArithmetic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The number formats of a kernel. Immutable; JSON both ways.

    Attributes
    ----------
    operands, result : str
        Dtypes in memory.
    multiplied_as : str
        Format that operands are rounded to before they are multiplied; "tf32" for float32 on tensor cores.
    accumulated_in : str
        Dtype of the sums and of the epilogue.
    expected_relative_error : float
        Expected error of the result over the result (root mean square), for operands that are uniform around 0.
    """

    operands: str
    multiplied_as: str
    accumulated_in: str
    result: str
    expected_relative_error: float

    def sentences(self) -> str:
        """Return the arithmetic in words."""
        if self.operands == self.multiplied_as == self.accumulated_in == self.result:
            text = f"Arithmetic: {self.operands} throughout"
        else:
            text = f"Arithmetic: {self.operands} operands"
        if self.multiplied_as != self.operands:
            text += f", rounded to {self.multiplied_as} (10 bits of mantissa),"
        if self.accumulated_in != self.result or self.multiplied_as != self.operands:
            text += f" summed in {self.accumulated_in}, results in {self.result}"
        if self.expected_relative_error:
            text += f". Expect errors of about {self.expected_relative_error:.1g} of a typical result"
        return f"{text}."


def format_comment(text: str, first: str, rest: str = "") -> str:
    """Return a text as lines of a C comment that begin with `first`, later ones with `rest` (by default `first`)."""
    return textwrap.fill(text, 120, initial_indent=first, subsequent_indent=rest or first)


def find_arithmetic(schedule: Schedule) -> KernelArithmetic:
    """Return the number formats of a schedule's kernel."""
    workload = schedule.workload
    on_tensor_cores = get_template(schedule.template).tensor_cores and workload.multiplies
    dtype, result = workload.formats.partition(":")[0] if workload.is_kernel else workload.dtype, workload.write.dtype
    multiplied = "tf32" if on_tensor_cores and dtype == "float32" else dtype
    sums = ACCUMULATOR_DTYPE.get(dtype, "float32" if workload.is_kernel else dtype)  # for mixed and 4-bit formats
    products = math.prod(axis.extent for axis in workload.reduction_axes)
    rounds = workload.body not in ("max", "copy", "relu")
    parts = [_ROUNDING * EPS.get(result, 0.0)] if rounds or workload.epilogue else []
    if multiplied != dtype:
        parts.append(_ROUNDING * EPS[multiplied] * math.sqrt(len(workload.reads)))
    if bound := error_of(schedule):
        parts.append(TYPICAL_OF_BOUND * bound)
    elif rounds and products > 1:
        parts.append(
            TYPICAL_ERROR * EPS.get(sums, 0.0) * math.sqrt(products) * (TRUNCATION if on_tensor_cores else 1.0)
        )
    return KernelArithmetic(dtype, multiplied, sums if rounds else result, result, float(f"{math.hypot(*parts):.2g}"))
