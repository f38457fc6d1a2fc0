"""Compiling schedules and kernels in builder processes, with compilers that must not run in the user's process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from anatune.codegen.cuda.artifact import GpuArtifact
from anatune.codegen.cuda.nvrtc import Cubin
from anatune.codegen.toolchains import entry_of
from anatune.core.compiler_facts import CompilerFacts
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.trial import Outcome
from anatune.errors import BuildError, SpaceError, no_scratch
from anatune.files import temporary_folder
from anatune.measure.run.build_processes import INVALID_ERRORS, BuildJob, BuildProcesses, Limits, limit_to_one_thread
from anatune.measure.run.process import Worker, refusal
from anatune.templates.triton.program.kernel import TritonKernel, TritonProgram

LIMITS = Limits(build_s=120.0)
"""Limits for one kernel; Triton takes a second for most kernels, and a minute for the largest tiles."""


_COMPILE = "anatune.codegen.triton.compiler:compile_kernel"
_SET_UP = "anatune.codegen.triton.artifact:set_up"
_LIMIT_S = 300.0
_START_S = 120.0


def build_apart(schedule: Schedule, folder: Path) -> GpuArtifact:
    """Compile a schedule into `folder`, in a separate process.

    Raises
    ------
    SpaceError, BuildError, MissingDependencyError
        As `build_schedule` of the template's toolchain; BuildError also if it takes too long or its process ends.
    RunError
        The process cannot be started.
    """
    built = _run_apart("build_schedule", schedule, folder)
    assert isinstance(built, GpuArtifact)
    return built


def facts_apart(schedule: Schedule) -> CompilerFacts:
    """Compile a schedule in a separate process and return the compiler's report; raise the errors of `build_apart`."""
    facts = _in_scratch("compile_entry", schedule)
    assert isinstance(facts, CompilerFacts)
    return facts


def images_apart(schedule: Schedule) -> list[Cubin]:
    """Compile a schedule of the template "triton" in a separate process and return the machine code of its kernels.

    It raises the errors of `build_apart`.
    """
    images = _in_scratch("compile_images", schedule)
    assert isinstance(images, list)
    return images


def _in_scratch(function: str, schedule: Schedule) -> object:
    try:
        with temporary_folder() as folder:
            return _run_apart(function, schedule, folder)
    except OSError as error:
        raise BuildError(no_scratch(error)) from None


def _run_apart(function: str, schedule: Schedule, folder: Path) -> object:
    builders = BuildProcesses(
        entry_of(schedule.template, function),
        [()],
        LIMITS,
        environment={"TMPDIR": str(folder)},
        setup=entry_of(schedule.template, "set_up"),
    )
    try:
        (job,) = builders.finish([BuildJob(schedule, folder)])
    finally:
        builders.kill()
    failed = job.measurement
    if failed is None:
        return job.artifact
    raise (SpaceError if failed.outcome is Outcome.INVALID else BuildError)(failed.message)


def compiled_kernels(
    wanted: Sequence[tuple[TritonProgram, TritonKernel]],
    hardware: GpuSpec,
    workers: int,
    progress: Callable[[int], None] | None = None,
) -> list[Cubin]:
    """Return the machine code of kernels, in order.

    Parameters
    ----------
    workers : int
        Processes.
    progress : callable, optional
        Called with the kernels compiled so far.

    Raises
    ------
    BuildError, SpaceError
        Triton refuses one, or takes too long.
    RunError, MissingDependencyError
        Processes cannot be started; Triton is not installed.
    """
    free: SimpleQueue[Worker] = SimpleQueue()
    processes = [
        Worker("builder", environment=limit_to_one_thread(None), setup=(_SET_UP, {}), setup_s=_START_S)
        for _ in range(max(1, min(workers, len(wanted))))
    ]
    for worker in processes:
        free.put(worker)
    done = 0

    def build(pair: tuple[TritonProgram, TritonKernel]) -> Cubin:
        nonlocal done
        program, kernel = pair
        worker = free.get()
        try:
            worker.submit(_COMPILE, {"program": program, "kernel": kernel, "hardware": hardware}, _LIMIT_S)
            reply = worker.wait(_LIMIT_S + _START_S)
        finally:
            free.put(worker)
        done += 1
        if progress is not None:
            progress(done)
        if reply.kind == "value":
            assert isinstance(reply.value, Cubin)
            return reply.value
        if reply.error in INVALID_ERRORS:
            raise SpaceError(f"{kernel.name}: {reply.message}")
        if reply.error == "BuildError" or reply.kind in ("timeout", "died", "memory"):
            raise BuildError(f"{kernel.name}: {reply.message}")
        raise refusal(reply, f"{kernel.name} cannot be compiled")

    with ThreadPoolExecutor(len(processes)) as pool:
        try:
            return list(pool.map(build, wanted))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # running compilations end with their processes
            for worker in processes:
                worker.kill()
