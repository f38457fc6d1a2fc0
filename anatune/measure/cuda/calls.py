"""The library calls on one GPU schedule: build it into this process, verify it on the CPU, inspect it."""

from __future__ import annotations

from anatune.codegen.cuda.artifact import compile_facts
from anatune.codegen.cuda.lower import cuda_kernel
from anatune.codegen.toolchains import find_toolchain
from anatune.core.schedule import Schedule
from anatune.errors import BuildError, RunError
from anatune.measure.cuda.apart import facts_apart
from anatune.measure.cuda.kernel import GpuKernel, build_gpu
from anatune.measure.emulate.triton_interpreter import UNSEEN, check_program
from anatune.measure.emulate.verify import check_kernel
from anatune.measure.run.correctness import Verification, compute_expected, random_inputs
from anatune.measure.run.rounding import find_used_operands
from anatune.templates import get_template
from anatune.templates.triton.program import TritonProgram


def build(schedule: Schedule, threads: int) -> GpuKernel:
    """Compile a schedule and load it onto this machine's GPU, see `anatune.build`; `threads` is not used."""
    return build_gpu(schedule)


def verify(schedule: Schedule, threads: int, seed: int) -> Verification:
    """Run a schedule's kernels on the CPU on random operands and compare with float64, see `anatune.verify`."""
    workload = schedule.check().workload
    try:
        program = get_template(schedule.template).program(schedule)
        kernel = None if isinstance(program, TritonProgram) else cuda_kernel(schedule)
    except BuildError as error:
        return Verification(False, message=str(error))
    inputs = random_inputs(workload, seed)
    want = compute_expected(workload, find_used_operands(schedule, inputs))
    note = UNSEEN if kernel is None else ""
    try:
        if kernel is None:
            answer = check_program(workload, program, inputs, want)
        else:
            answer = check_kernel(workload, kernel, inputs, want)
    except RunError as error:
        return Verification(False, message=str(error), tolerance=want.tolerance, note=note)
    return Verification(answer.ok, answer.max_rel_error, answer.message, want.tolerance, note)


def inspect(schedule: Schedule, threads: int) -> dict[str, int]:
    """Return the compiler's report of a schedule, see `anatune.inspect`."""
    facts = facts_apart(schedule) if find_toolchain(schedule.template).APART else compile_facts(schedule)
    return {**facts.numbers(), "flop": schedule.workload.flop}
