"""The library calls `anatune.build`, `anatune.verify` and `anatune.inspect`."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from anatune.arguments import MOST_SEED, check_integer
from anatune.core.schedule import Schedule, check_schedule
from anatune.measure.devices import calls_of, range_calls_of
from anatune.measure.run.correctness import Verification
from anatune.measure.run.memory import check_runs_here
from anatune.model.ranges.plan import RangePlan
from anatune.threads import compile_in_turn

if TYPE_CHECKING:
    from anatune.measure.cpu.kernel import Kernel
    from anatune.measure.cpu.ranged import RangeKernel
    from anatune.measure.cuda.kernel import GpuKernel
    from anatune.measure.cuda.ranges import GpuRangeKernel

__all__ = ["Verification", "build", "inspect", "verify"]

MOST_THREADS = 4096
"""Largest number of threads that a kernel can use."""


@overload
def build(schedule: Schedule, threads: int = 1) -> Kernel | GpuKernel: ...


@overload
def build(schedule: RangePlan, threads: int = 1) -> RangeKernel | GpuRangeKernel: ...


@compile_in_turn
def build(schedule: Schedule | RangePlan, threads: int = 1) -> Kernel | GpuKernel | RangeKernel | GpuRangeKernel:
    """Compile a schedule, or the kernels of a plan for a range, and load it into this process.

    Parameters
    ----------
    schedule
        A schedule for a CPU or for a GPU of this machine; or a result of `anatune.plan_range`.
    threads
        Number of threads of a call, if the schedule has a parallel loop.

    Returns
    -------
    Kernel, GpuKernel, RangeKernel or GpuRangeKernel
        ``kernel(*arrays)``; of a schedule ``kernel.random_call()``. Of a range the extent is that of the arrays.

    Raises
    ------
    SpaceError
        The argument is no schedule, or the schedule contradicts itself.
    BuildError
        It cannot be generated or compiled.
    DeviceError
        It is for a GPU, but this machine has no such GPU.
    RunError
        It was built for another kind of processor and cannot be loaded.
    MissingDependencyError
        TVM is not installed.
    """
    if isinstance(schedule, RangePlan):
        hardware = schedule.programs[0].schedule.hardware
        return range_calls_of(hardware).build(schedule, check_integer("build: threads", threads, 1, MOST_THREADS))
    calls = calls_of(check_schedule("schedule", schedule).hardware)
    return calls.build(schedule, check_integer("build: threads", threads, 1, MOST_THREADS))


@compile_in_turn
def verify(schedule: Schedule | RangePlan, *, threads: int = 1, seed: int = 0) -> Verification:
    """Build a schedule, run it on random operands and compare the result with float64.

    The kernels of a plan for a range run at both ends and in the middle of the first and the last interval that each
    serves.

    CPU schedules run in this process without a time limit; measuring uses separate processes. The result is filled with
    NaN first. Operands, packed constants and the memory around them must not change.

    GPU schedules need no GPU, but a C++ compiler: their CUDA C runs on the CPU in a separate process
    (`measure.emulate.emulator`), with ascending, descending and random orders of the threads. Races, accesses outside
    an array, reads of unwritten memory and divergent barriers are detected. Schedules of the template "triton" run in
    Triton's interpreter (`measure.emulate.triton_interpreter`), which detects fewer errors, see `Verification.note`.

    Raises
    ------
    SpaceError
        It is no schedule, or it contradicts itself.
    RunError
        It was built for another kind of processor than this one's and cannot be loaded.
    MissingDependencyError
        TVM is not installed; a GPU schedule and no C++ compiler, or no Triton.
    """
    first = schedule.programs[-1].schedule if isinstance(schedule, RangePlan) else schedule
    hardware = check_schedule("schedule", first).hardware
    threads = check_integer("verify: threads", threads, 1, MOST_THREADS)
    seed = check_integer("verify: seed", seed, 0, MOST_SEED)
    check_runs_here(first.workload, hardware, [first.template])
    if isinstance(schedule, RangePlan):
        return range_calls_of(hardware).verify(schedule, threads, seed)
    return calls_of(hardware).verify(schedule, threads, seed)


@compile_in_turn
def inspect(schedule: Schedule, threads: int = 1) -> dict[str, int]:
    """Return the compiler's report of a schedule, without loading or running it.

    Returns
    -------
    dict
        CPU: "registers" (vector registers in use), "spill_ops" and "spill_bytes", "num_instructions", "shared_bytes"
        (0), "flop" of a call. GPU: the fields of `anatune.core.compiler_facts.CompilerFacts`, "flop"; no GPU is needed.

    Raises
    ------
    SpaceError, BuildError, MissingDependencyError
        As `build`, also for processors other than the present one.
    """
    calls = calls_of(check_schedule("schedule", schedule).hardware)
    return calls.inspect(schedule, check_integer("inspect: threads", threads, 1, MOST_THREADS))
