"""The library calls on one schedule: build it into this process, verify it against float64, ask the compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from anatune.arguments import MOST_SEED, checked_integer
from anatune.core.schedule import Schedule, checked_schedule
from anatune.measure.devices import calls_of, range_calls_of
from anatune.measure.run.correctness import Verification
from anatune.measure.run.memory import check_runs_here
from anatune.model.ranges.plan import RangePlan
from anatune.threads import one_by_one

if TYPE_CHECKING:
    from anatune.measure.cpu.kernel import Kernel
    from anatune.measure.cpu.ranged import RangeKernel
    from anatune.measure.cuda.kernel import GpuKernel
    from anatune.measure.cuda.ranges import GpuRangeKernel

__all__ = ["Verification", "build", "inspect", "verify"]

MOST_THREADS = 4096
"""Most threads that a kernel can be asked to use."""


@overload
def build(schedule: Schedule, threads: int = 1) -> Kernel | GpuKernel: ...


@overload
def build(schedule: RangePlan, threads: int = 1) -> RangeKernel | GpuRangeKernel: ...


@one_by_one
def build(schedule: Schedule | RangePlan, threads: int = 1) -> Kernel | GpuKernel | RangeKernel | GpuRangeKernel:
    """Compile a schedule, or the programs of a plan for a range, and load it into this process.

    Parameters
    ----------
    schedule
        For a CPU, or for this machine's GPU; or what `anatune.plan_range` returned.
    threads
        Threads that a call uses, where the schedule has a parallel loop.

    Returns
    -------
    Kernel, GpuKernel, RangeKernel or GpuRangeKernel
        ``kernel(*arrays)``; of a schedule ``kernel.random_call()``. Of a range the extent is that of the arrays.

    Raises
    ------
    SpaceError
        It is no schedule, or it contradicts itself.
    BuildError
        It cannot be lowered or compiled.
    DeviceError
        It is for a GPU, and there is none of that kind.
    RunError
        It was built for another kind of processor than this one's and cannot be loaded.
    MissingDependencyError
        TVM is not installed.
    """
    if isinstance(schedule, RangePlan):
        hardware = schedule.programs[0].schedule.hardware
        return range_calls_of(hardware).build(schedule, checked_integer("build: threads", threads, 1, MOST_THREADS))
    calls = calls_of(checked_schedule("schedule", schedule).hardware)
    return calls.build(schedule, checked_integer("build: threads", threads, 1, MOST_THREADS))


@one_by_one
def verify(schedule: Schedule | RangePlan, *, threads: int = 1, seed: int = 0) -> Verification:
    """Build a schedule, run it on random operands and compare with float64.

    Of a plan for a range: its programs at both ends and in the middle of the first and the last interval that each
    serves.

    CPU schedules run in this process, without a time limit: measuring, which does not trust kernels, has processes for
    that. The result is filled with NaN first; operands, packed constants and the memory around them must be unchanged.

    GPU schedules need no GPU: their CUDA C runs on the CPU, as written, in a process of its own
    (`measure.emulate.emulator`): ascending, descending and random orders of the threads; races, accesses outside of an
    array, reads of unwritten memory and divergent barriers are found. A C++ compiler must be there. The template
    "triton" is for Triton's interpreter (`measure.emulate.triton_interpreter`), which sees less: `Verification.note`.

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
    hardware = checked_schedule("schedule", first).hardware
    threads = checked_integer("verify: threads", threads, 1, MOST_THREADS)
    seed = checked_integer("verify: seed", seed, 0, MOST_SEED)
    check_runs_here(first.workload, hardware, [first.template])
    if isinstance(schedule, RangePlan):
        return range_calls_of(hardware).verify(schedule, threads, seed)
    return calls_of(hardware).verify(schedule, threads, seed)


@one_by_one
def inspect(schedule: Schedule, threads: int = 1) -> dict[str, int]:
    """Return what the compiler's output says about a schedule; nothing is loaded or run.

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
    calls = calls_of(checked_schedule("schedule", schedule).hardware)
    return calls.inspect(schedule, checked_integer("inspect: threads", threads, 1, MOST_THREADS))
