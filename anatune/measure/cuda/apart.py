"""One schedule through a compiler that does not run in the user's process: in a builder process of its own."""

from __future__ import annotations

from pathlib import Path

from anatune.codegen.cuda.artifact import GpuArtifact
from anatune.codegen.cuda.nvrtc import Cubin
from anatune.codegen.toolchains import entry_of
from anatune.core.compiler_facts import CompilerFacts
from anatune.core.schedule import Schedule
from anatune.core.trial import Outcome
from anatune.errors import BuildError, SpaceError
from anatune.files import no_scratch, temporary_folder
from anatune.measure.run.build_processes import BuildJob, BuildProcesses, Limits

__all__ = ["LIMITS", "build_apart", "facts_apart", "images_apart"]

LIMITS = Limits(build_s=120.0)
"""Of one kernel that somebody waits for: Triton takes a second for most, a minute for the largest tiles."""


def build_apart(schedule: Schedule, folder: Path) -> GpuArtifact:
    """Compile a schedule into `folder`, in a process of its own.

    Raises
    ------
    SpaceError, BuildError, MissingDependencyError
        As the `build_schedule` of the template's toolchain; BuildError also where it takes too long or
        its process ends.
    RunError
        The process cannot be started.
    """
    built = _apart("build_schedule", schedule, folder)
    assert isinstance(built, GpuArtifact)
    return built


def facts_apart(schedule: Schedule) -> CompilerFacts:
    """Compile a schedule in a process of its own and return what the compiler says; errors as `build_apart`."""
    facts = _in_scratch("compile_entry", schedule)
    assert isinstance(facts, CompilerFacts)
    return facts


def images_apart(schedule: Schedule) -> list[Cubin]:
    """Compile a schedule of the template "triton" in a process of its own and return the machine code of its kernels.

    Errors as `build_apart`.
    """
    images = _in_scratch("compile_images", schedule)
    assert isinstance(images, list)
    return images


def _in_scratch(function: str, schedule: Schedule) -> object:
    try:
        with temporary_folder() as folder:
            return _apart(function, schedule, folder)
    except OSError as error:
        raise BuildError(no_scratch(error)) from None


def _apart(function: str, schedule: Schedule, folder: Path) -> object:
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
