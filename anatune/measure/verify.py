"""The library calls on one schedule: build it into this process, verify it against float64, ask the compiler."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from anatune.arguments import MOST_SEED, checked_integer
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.schedule import Schedule, checked_schedule
from anatune.errors import BuildError, RunError
from anatune.measure.cpu.detect import detect_cpu
from anatune.measure.cpu.kernel import Kernel
from anatune.measure.emulate.verify import check_kernel
from anatune.measure.run.correctness import expected, random_inputs
from anatune.measure.run.room import check_runs_here
from anatune.measure.run.rounding import operands_used

if TYPE_CHECKING:
    from anatune.measure.cuda.kernel import GpuKernel

__all__ = ["Verification", "build", "inspect", "verify"]


class Verification(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether a schedule computes what its workload says.

    Attributes
    ----------
    ok : bool
        It was built, ran, and its result is right.
    max_rel_error : float or None
        Largest error over the largest magnitude of the float64 reference; None if nothing was computed.
    message : str
        Why it is not ok, in one line.
    tolerance : float
        Largest error that rounding explains.
    """

    ok: bool
    max_rel_error: float | None = None
    message: str = ""
    tolerance: float = 0.0


MOST_THREADS = 4096
"""Most threads that a kernel can be asked to use."""
_X86 = ("sse", "avx", "avx2", "avx512")


def check_instructions(schedule: Schedule) -> None:
    """Raise RunError if the schedule's instruction set is not one that the present machine has."""
    if not isinstance(schedule.hardware, CpuSpec):
        return
    wanted, here = schedule.hardware.compute.isa, detect_cpu().compute.isa
    runs = wanted == here or {wanted, here} == {"neon", "sve"}
    if wanted in _X86 and here in _X86:
        runs = _X86.index(wanted) <= _X86.index(here)
    if not runs:
        raise RunError(
            f"schedule is for {schedule.hardware.name} with {wanted}, but this machine has {here}; "
            "anatune.inspect() works without running, a plan for --hw host runs here"
        )


def build(schedule: Schedule, threads: int = 1) -> Kernel | GpuKernel:
    """Compile a schedule and load it into this process.

    Parameters
    ----------
    schedule
        For a CPU, or for this machine's GPU.
    threads
        Threads that a call uses, where the schedule has a parallel loop.

    Returns
    -------
    Kernel or GpuKernel
        ``kernel(*arrays)``, ``kernel.random_call()``.

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
    _check_type(schedule)
    threads = checked_integer("build: threads", threads, 1, MOST_THREADS)
    if not isinstance(schedule.hardware, GpuSpec):
        return _build_cpu(schedule, threads)
    from anatune.measure.cuda.kernel import build_gpu

    return build_gpu(schedule)


def _build_cpu(schedule: Schedule, threads: int) -> Kernel:
    from anatune.codegen.cpu.lower import compile_schedule

    check_instructions(schedule)
    try:
        folder = Path(tempfile.mkdtemp(prefix="anatune-"))
    except OSError as error:
        raise BuildError(f"{tempfile.gettempdir()}: {error.strerror or error}; free some space or set TMPDIR") from None
    try:
        artifact = compile_schedule(schedule, folder, threads=threads)
        return Kernel(schedule.workload, artifact, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def verify(schedule: Schedule, *, threads: int = 1, seed: int = 0) -> Verification:
    """Build a schedule, run it on random operands and compare with float64.

    CPU schedules run in this process, without a time limit: measuring, which does not trust kernels, has processes for
    that. The result is filled with NaN first; operands, packed constants and the memory around them must be unchanged.

    GPU schedules need no GPU: their CUDA C runs on the CPU, as written, in a process of its own
    (`measure.emulate.emulator`): ascending, descending and random orders of the threads; races, accesses outside of an
    array, reads of unwritten memory and divergent barriers are found. A C++ compiler must be there.

    Raises
    ------
    SpaceError
        It is no schedule, or it contradicts itself.
    RunError
        It was built for another kind of processor than this one's and cannot be loaded.
    MissingDependencyError
        TVM is not installed; a GPU schedule and no C++ compiler.
    """
    _check_type(schedule)
    threads = checked_integer("verify: threads", threads, 1, MOST_THREADS)
    seed = checked_integer("verify: seed", seed, 0, MOST_SEED)
    check_runs_here(schedule.workload, schedule.hardware)
    if isinstance(schedule.hardware, GpuSpec):
        return _verify_gpu(schedule, seed)
    try:
        kernel = _build_cpu(schedule, threads)
    except (BuildError, RunError) as error:
        return Verification(False, message=str(error))
    inputs = random_inputs(schedule.workload, seed)
    want = expected(schedule.workload, inputs)
    try:
        answer = kernel.prepare(inputs, guarded=True).check(schedule.workload, want)
    except (RunError, RuntimeError, ValueError, TypeError) as error:  # TVM raises what its checks find
        lines = str(error).splitlines() or [type(error).__name__]
        return Verification(False, message=lines[-1].strip(), tolerance=want.tolerance)
    return Verification(answer.ok, answer.max_rel_error, answer.message, want.tolerance)


def _check_type(schedule: Schedule) -> None:
    checked_schedule("schedule", schedule)


def _verify_gpu(schedule: Schedule, seed: int) -> Verification:
    from anatune.codegen.cuda.lower import cuda_kernel

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


def inspect(schedule: Schedule, threads: int = 1) -> dict[str, int]:
    """Return what the compiler's output says about a schedule; nothing is loaded or run.

    Returns
    -------
    dict
        CPU: "registers" (vector registers in use), "spill_ops" and "spill_bytes", "num_instructions", "shared_bytes"
        (0), "flop" of a call. GPU: the fields of `anatune.codegen.cuda.facts.GpuFacts`; no GPU is needed.

    Raises
    ------
    SpaceError, BuildError, MissingDependencyError
        As `build`, also for processors other than the present one.
    """
    from anatune.codegen.cpu.lower import inspect_schedule
    from anatune.codegen.cuda.facts import inspect_gpu

    _check_type(schedule)
    threads = checked_integer("inspect: threads", threads, 1, MOST_THREADS)
    if isinstance(schedule.hardware, GpuSpec):
        return inspect_gpu(schedule)
    return {**inspect_schedule(schedule, threads=threads), "shared_bytes": 0}
