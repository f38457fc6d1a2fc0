"""Toolchains of the GPU templates: TVM and NVRTC, or Triton."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from anatune.codegen.cuda.artifact import GpuArtifact
from anatune.core.compiler_facts import CompilerFacts
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.templates import get_template


class Toolchain(Protocol):
    """A module that compiles the kernels of schedules; builder processes find its functions by name.

    Attributes
    ----------
    APART : bool
        Whether it must run in builder processes.
    FLAGS : tuple of str
        Compiler options beside the architecture.
    """

    __name__: str
    APART: bool
    FLAGS: tuple[str, ...]

    def set_up(self) -> None:
        """Load what every build needs, once in a process."""

    def check_target(self, hardware: GpuSpec) -> None:
        """Raise an error if nothing can be compiled for a device."""

    def compiler_version(self) -> str:
        """Return the compiler's name and version: "NVRTC 12.9 (12.9.86)"."""

    def build_schedule(self, schedule: Schedule, folder: Path, *, threads: int = 1) -> GpuArtifact:
        """Compile a schedule into a folder."""

    def compile_entry(self, schedule: Schedule, folder: Path, *, threads: int = 1) -> CompilerFacts:
        """Compile a schedule and return the compiler's facts."""


def find_toolchain(template: str) -> Toolchain:
    """Return the toolchain of a GPU template."""
    if get_template(template).toolchain == "triton":
        from anatune.codegen.triton import artifact as triton

        return triton
    from anatune.codegen.cuda import artifact as cuda

    return cuda


def entry_of(template: str, function: str) -> str:
    """Return ``module:function`` for a function of a template's toolchain, as builder processes need it."""
    return f"{find_toolchain(template).__name__}:{function}"


def describe_compilers(templates: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return the compilers for schedules of these templates, "NVRTC 12.9 (12.9.86), Triton 3.9.0", and all their flags.

    Raises
    ------
    MissingDependencyError
        A compiler is not installed.
    """
    chains = dict.fromkeys(map(find_toolchain, templates))
    flags = dict.fromkeys(flag for chain in chains for flag in chain.FLAGS)
    return ", ".join(chain.compiler_version() for chain in chains), tuple(flags)


def build_schedule(schedule: Schedule, folder: Path, *, threads: int = 1) -> GpuArtifact:
    """Compile a schedule of any GPU template into a folder; called by builder processes."""
    return find_toolchain(schedule.template).build_schedule(schedule, folder, threads=threads)


def compile_entry(schedule: Schedule, folder: Path, *, threads: int = 1) -> CompilerFacts:
    """Compile a schedule of any GPU template and return the compiler's facts; called by builder processes."""
    return find_toolchain(schedule.template).compile_entry(schedule, folder, threads=threads)
