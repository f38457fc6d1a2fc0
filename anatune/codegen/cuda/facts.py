"""What the compiler says about GPU schedules."""

from __future__ import annotations

from pathlib import Path

from anatune.codegen.cuda.build_cache import compile_kernel
from anatune.codegen.cuda.lower import cuda_kernel
from anatune.core.compiler_facts import CompilerFacts
from anatune.core.schedule import Schedule

__all__ = ["compile_entry", "compile_facts"]


def compile_facts(schedule: Schedule) -> CompilerFacts:
    """Generate and compile `schedule`, through the user's cache of cubins, and return what the compiler says.

    Raises
    ------
    BuildError, SpaceError, MissingDependencyError
        It cannot be generated or compiled, or a package is missing.
    """
    kernel = cuda_kernel(schedule)
    return compile_kernel(kernel).facts.with_dynamic(kernel.dynamic_shared_bytes)


def compile_entry(schedule: Schedule, folder: Path, *, threads: int = 1) -> CompilerFacts:
    """`compile_facts` as builder processes call it (`anatune.measure.run.build_processes`)."""
    return compile_facts(schedule)
