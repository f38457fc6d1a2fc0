"""What the compiler says about GPU schedules."""

from __future__ import annotations

import msgspec

from anatune.codegen.build_cache import BuildCache, compile_kernel
from anatune.codegen.cuda_kernel import CudaKernel
from anatune.codegen.nvrtc import Cubin
from anatune.core.schedule import Schedule

__all__ = ["GpuFacts", "facts_of", "inspect_gpu"]


class GpuFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the compiler says about one GPU schedule. Immutable; JSON both ways.

    Attributes
    ----------
    registers : int
        Of a thread.
    shared_bytes : int
        Of a block, declared or asked for at the launch, bytes.
    spill_bytes : int
        Of the instructions that store registers to local memory.
    local_bytes : int
        Local memory of a thread: spilled registers, arrays that are indexed at run time.
    code_bytes : int
        Machine code.
    """

    registers: int
    shared_bytes: int
    spill_bytes: int
    local_bytes: int
    code_bytes: int


def facts_of(kernel: CudaKernel, cubin: Cubin) -> GpuFacts:
    """Return the facts of a compiled kernel, with the shared memory that its launch asks for."""
    facts = cubin.facts
    return GpuFacts(
        registers=facts.registers,
        shared_bytes=facts.shared_bytes + kernel.dynamic_shared_bytes,
        spill_bytes=facts.spill_bytes,
        local_bytes=facts.local_bytes,
        code_bytes=facts.code_bytes,
    )


def compile_facts(schedule: Schedule, cache_folder: str | None = None) -> GpuFacts:
    """Generate and compile `schedule` and return what the compiler says.

    Parameters
    ----------
    schedule : Schedule
        For a GPU.
    cache_folder : str, optional
        Folder of cubins; the user's own by default.

    Raises
    ------
    BuildError, SpaceError, MissingDependencyError
        It cannot be generated or compiled, or a package is missing.
    """
    from pathlib import Path

    from anatune.codegen.gpu import cuda_kernel

    kernel = cuda_kernel(schedule)
    cache = None if cache_folder is None else BuildCache(Path(cache_folder))
    return facts_of(kernel, compile_kernel(kernel, cache))


def inspect_gpu(schedule: Schedule) -> dict[str, int]:
    """Return what the compiler says about a GPU schedule; no GPU is needed.

    Returns
    -------
    dict
        "registers" of a thread, "shared_bytes" of a block, "spill_bytes", "local_bytes", "code_bytes", "flop".

    Raises
    ------
    BuildError, SpaceError, MissingDependencyError
        As `compile_facts`.
    """
    return {**msgspec.structs.asdict(compile_facts(schedule)), "flop": schedule.workload.flop}
