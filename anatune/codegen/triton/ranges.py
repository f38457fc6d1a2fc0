"""The kernels of a range plan on a GPU, in CUDA C and Triton."""

from __future__ import annotations

from anatune.codegen.cuda.lower import cuda_kernel
from anatune.errors import SpaceError
from anatune.model.ranges.plan import RangePlan
from anatune.templates import TRITON, get_template
from anatune.templates.gpu.kernel import CudaKernel
from anatune.templates.gpu.ranged import Ranged
from anatune.templates.triton.program.kernel import TritonProgram


def range_kernels(plan: RangePlan) -> list[CudaKernel | TritonProgram]:
    """Return the kernels of each program, which take the extent when they are launched.

    Raises
    ------
    SpaceError, BuildError, MissingDependencyError
        As in `lower.cuda_kernel`; SpaceError also if the plan is not for a GPU.
    """
    if plan.hardware.kind != "gpu":
        raise SpaceError(f"range: {plan.hardware.name} is no GPU; its kernels are built as one library for CPUs")
    kernels: list[CudaKernel | TritonProgram] = []
    for number, program in enumerate(plan.programs):
        of_range = Ranged(plan.workload.axis, plan.least(number), program.last)
        is_triton = get_template(program.schedule.template).toolchain == "triton"
        kernels.append((TRITON.program if is_triton else cuda_kernel)(program.schedule, of_range))
    return kernels
