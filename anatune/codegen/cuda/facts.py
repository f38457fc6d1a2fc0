"""What the compiler says about GPU schedules."""

from __future__ import annotations

from pathlib import Path

import msgspec

from anatune.codegen.cuda.build_cache import compile_kernel
from anatune.codegen.cuda.kernel import CudaKernel
from anatune.codegen.cuda.nest import GpuNest
from anatune.codegen.cuda.nvrtc import Cubin
from anatune.core.schedule import Schedule
from anatune.errors import AnatuneError

__all__ = ["GpuFacts", "compile_entry", "compile_facts", "facts_of", "inspect_gpu", "program_key"]


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


def compile_facts(schedule: Schedule) -> GpuFacts:
    """Generate and compile `schedule`, through the user's cache of cubins, and return what the compiler says.

    Raises
    ------
    BuildError, SpaceError, MissingDependencyError
        It cannot be generated or compiled, or a package is missing.
    """
    from anatune.codegen.cuda.lower import cuda_kernel

    kernel = cuda_kernel(schedule)
    return facts_of(kernel, compile_kernel(kernel))


def compile_entry(schedule: Schedule, folder: Path, *, threads: int = 1) -> GpuFacts:
    """`compile_facts` as builder processes call it (`anatune.measure.run.build_processes`)."""
    return compile_facts(schedule)


def program_key(schedule: Schedule) -> str:
    """Return a key that schedules of CUDA cores share if they become the same program: loops, widths, tiles.

    Schedules that cannot be lowered have keys of their own.
    """
    try:
        nest = GpuNest(schedule)
    except AnatuneError:
        return schedule.key
    tiles = [(tile.pitches, tile.base, tile.fetch, tile.load, tile.load_level) for tile in nest.tiles]
    return repr((schedule.tiles, sorted(nest.unrolled), nest.stages, tiles))


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
