"""The library calls on one GPU schedule: built into this process, verified on the CPU, what the compiler says."""

from __future__ import annotations

import msgspec

from anatune.codegen.cuda.artifact import compile_facts
from anatune.codegen.cuda.lower import cuda_kernel
from anatune.core.schedule import Schedule
from anatune.errors import BuildError, RunError
from anatune.measure.cuda.kernel import GpuKernel, build_gpu
from anatune.measure.emulate.verify import check_kernel
from anatune.measure.run.correctness import Verification, expected, random_inputs
from anatune.measure.run.rounding import operands_used

__all__ = ["build", "inspect", "verify"]


def build(schedule: Schedule, threads: int) -> GpuKernel:
    """Compile a schedule and load it for this machine's GPU; see `anatune.build`. It has threads of its own."""
    return build_gpu(schedule)


def verify(schedule: Schedule, threads: int, seed: int) -> Verification:
    """Run a schedule's CUDA C on the CPU, on random operands, and compare with float64; see `anatune.verify`."""
    try:
        kernel = cuda_kernel(schedule)
    except BuildError as error:
        return Verification(False, message=str(error))
    inputs = random_inputs(schedule.workload, seed)
    want = expected(schedule.workload, operands_used(schedule, inputs))
    try:
        answer = check_kernel(schedule.workload, kernel, inputs, want)
    except RunError as error:
        return Verification(False, message=str(error), tolerance=want.tolerance)
    return Verification(answer.ok, answer.max_rel_error, answer.message, want.tolerance)


def inspect(schedule: Schedule, threads: int) -> dict[str, int]:
    """Return what the compiler says about a schedule; see `anatune.inspect`."""
    return {**msgspec.structs.asdict(compile_facts(schedule)), "flop": schedule.workload.flop}
