"""The rounding of operands before a kernel multiplies them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from anatune.core.schedule import Schedule
from anatune.measure.run.correctness import Array
from anatune.templates import get_template


def as_tf32(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round to tf32 (10 mantissa bits), to nearest, ties away from zero. Source: [PTX-ISA] cvt.rna.tf32.f32."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    finite = (bits & np.uint32(0x7F800000)) != np.uint32(0x7F800000)
    return np.where(finite, rounded, bits).view(np.float32)


def find_used_operands(schedule: Schedule, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the operands that the schedule's kernel multiplies: on tensor cores, float32 ones are rounded to tf32.

    A correct kernel agrees with the float64 result of these operands within the tolerance of the workload's dtype.
    """
    workload = schedule.workload
    on_tensor_cores = get_template(schedule.template).tensor_cores and workload.multiplies
    if not on_tensor_cores or workload.dtype != "float32":
        return dict(inputs)
    multiplied = {access.tensor for access in workload.reads}
    return {tensor: as_tf32(array) if tensor in multiplied else array for tensor, array in inputs.items()}
