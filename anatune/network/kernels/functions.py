"""Predicted cost of functions that kernels apply to their results, such as SiLU; models of products leave it out."""

from __future__ import annotations

import functools
import math

import msgspec

from anatune.core.hardware.spec import CpuSpec
from anatune.core.prediction import Prediction
from anatune.core.workload.nest import Workload
from anatune.emit.elementary import FUNCTIONS
from anatune.emit.llvm import LlvmCode

__all__ = ["add_functions", "count_instructions"]


@functools.cache
def count_instructions(step: str) -> int:
    """Return the instructions on a vector that our code of a step has; 0 for steps that are no functions.

    Constants stay in registers, and changes of type between registers are free. A division counts as one.
    """
    if step not in FUNCTIONS:
        return 0
    code = LlvmCode(4, "float32", "copy")
    FUNCTIONS[step](code, "%x")
    return sum(" bitcast " not in line for line in code.lines)


def add_functions(prediction: Prediction, workload: Workload, hardware: CpuSpec) -> Prediction:
    """Return the prediction of a product with the time of the functions in its epilogue.

    They run between products, on vectors in registers, as fast as a core starts vector instructions.
    """
    count = sum(map(count_instructions, workload.epilogue))
    if not count:
        return prediction
    compute = hardware.compute
    vectors = math.prod(workload.write.shape) / (compute.simd_bits // 32)
    threads = max(1.0, round(prediction.occupancy * compute.num_cores))
    rate = (compute.vector_ops_per_cycle or compute.issue_width) * compute.clock_hz * threads
    time_s = prediction.time_s + count * vectors / rate
    gflop_per_s = prediction.gflop_per_s * prediction.time_s / time_s
    return msgspec.structs.replace(prediction, time_s=time_s, gflop_per_s=gflop_per_s)
