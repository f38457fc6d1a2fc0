"""Schedules of the template "triton" as compiled kernels on disk; used in builder processes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from anatune.codegen.cuda.artifact import GpuArtifact, check_resources, write_image
from anatune.codegen.cuda.nvrtc import Cubin
from anatune.codegen.triton.compiler import FLAGS, check_target, compile_kernel, compiler_version
from anatune.core.accuracy import EPS, TRUNCATION, error_of, rounding_error
from anatune.core.compiler_facts import CompilerFacts
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.access import INTEGER_RANGE
from anatune.named import import_optional
from anatune.templates.gpu.kernel import Launch
from anatune.templates.gpu.rules import gpu_of
from anatune.templates.triton import TRITON
from anatune.templates.triton.program.kernel import TritonKernel, TritonProgram

__all__ = [
    "APART",
    "FLAGS",
    "build_schedule",
    "check_target",
    "compile_entry",
    "compile_images",
    "compiler_version",
    "make_launch",
    "set_up",
    "write_program",
]

APART = True
"""True: builds need separate processes, because a failing pass prints and may end its process."""


class _PrincipalKernel(NamedTuple):
    """The numbers of a kernel that are checked before it is written."""

    block: int
    shared_bytes: int
    facts: CompilerFacts


def set_up() -> None:
    """Load what every build needs, once in a process."""
    compiler_version()
    os.environ.pop("TRITON_INTERPRET", None)  # interpreted kernels cannot be compiled; Triton reads it at import
    import_optional("triton.backends.compiler", "triton", "compiling schedules of the template triton")


def build_schedule(schedule: Schedule, folder: Path, *, threads: int = 1) -> GpuArtifact:
    """Compile a schedule of the template "triton" into `folder`.

    Parameters
    ----------
    threads : int
        Ignored; all builders have this parameter.

    Raises
    ------
    SpaceError
        The schedule contradicts itself, or the compiled kernel needs more than the device has.
    BuildError, MissingDependencyError
        Triton refuses the kernel, or is not installed.
    """
    program = TRITON.program(schedule)
    return write_program(
        program, compile_images(schedule, folder), gpu_of(schedule), folder, _compute_explained_error(schedule)
    )


def write_program(
    program: TritonProgram, images: Sequence[Cubin], hardware: GpuSpec, folder: Path, error: float = 0.0
) -> GpuArtifact:
    """Write the machine code of a program's kernels into `folder` and return its artifact.

    Parameters
    ----------
    images : sequence of Cubin
        Machine code of the kernels, in their order.
    error : float
        Largest error that the arithmetic explains, relative to the result's scale.

    Raises
    ------
    SpaceError
        A kernel needs more than the device has.
    BuildError
        The files cannot be written.
    """
    first, *after = (
        make_launch(kernel, image, *write_image(image, folder))
        for kernel, image in zip(program.kernels, images, strict=True)
    )
    artifact = GpuArtifact(
        **msgspec.structs.asdict(first),
        schedule_key=program.schedule_key,
        arch=hardware.arch,
        result=program.result,
        facts=images[0].facts,
        after=tuple(after),
        workspace=program.workspace,
        ranged=program.ranged,
        error=error,
    )
    check_resources(artifact, hardware)
    return artifact


def _compute_explained_error(schedule: Schedule) -> float:
    """Return the largest error that matrix units explain, relative to the result's scale.

    They truncate sums, and float32 operands to tf32 with 10 bits of mantissa, so that each product errs by at most two
    units of them. Source: [Fasi2021].
    """
    workload, bound = schedule.workload, error_of(schedule)
    if bound or workload.dtype in INTEGER_RANGE or not workload.multiplies:
        return bound
    cut_off = 2.0 * EPS["tf32"] if workload.dtype == "float32" else 0.0
    return TRUNCATION * rounding_error(workload) + cut_off


def make_launch(kernel: TritonKernel, image: Cubin, path: str = "", digest: str = "") -> Launch:
    """Return the launch of a compiled kernel; Triton has chosen its threads and shared memory."""
    assert image.threads is not None
    assert image.dynamic_shared_bytes is not None
    return Launch(
        name=image.name,
        parameters=kernel.parameters,
        grid=kernel.grid,
        growth=kernel.growth,
        block=image.threads,
        shared_bytes=image.facts.shared_bytes + image.dynamic_shared_bytes,
        dynamic_shared_bytes=image.dynamic_shared_bytes,
        scratch_bytes=image.scratch_bytes,
        image=path,
        image_sha256=digest,
    )


def compile_entry(schedule: Schedule, folder: Path, *, threads: int = 1) -> CompilerFacts:
    """Compile a schedule, using the user's cache, and return the compiler's facts about its principal kernel.

    Raises
    ------
    BuildError, SpaceError, MissingDependencyError
        As in `build_schedule`.
    """
    program, hardware = TRITON.program(schedule), gpu_of(schedule)
    image = compile_kernel(program, program.kernels[0], hardware)
    launch = make_launch(program.kernels[0], image)
    check_resources(_PrincipalKernel(launch.block, launch.shared_bytes, image.facts), hardware)
    return image.facts.with_dynamic(launch.dynamic_shared_bytes)


def compile_images(schedule: Schedule, folder: Path, *, threads: int = 1) -> list[Cubin]:
    """Compile all kernels of a schedule and return their machine code, in the order of their launches."""
    program = TRITON.program(schedule)
    return [compile_kernel(program, kernel, gpu_of(schedule)) for kernel in program.kernels]
