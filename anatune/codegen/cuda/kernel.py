"""A schedule as TVMScript and as CUDA C: one kernel and everything that is needed to compile and launch it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from anatune.codegen.buffer import Buffer
from anatune.core.hardware.spec import GpuSpec
from anatune.errors import BuildError

__all__ = ["STATIC_SHARED_BYTES", "CudaKernel", "KernelProgram", "check_limits"]

STATIC_SHARED_BYTES = 49152
"""Most shared memory that a kernel may declare; more is asked for at the launch. Source: [CUDA-guide], ptxas."""


class CudaKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """CUDA C of one schedule. Immutable; JSON both ways.

    Attributes
    ----------
    schedule_key : str
        Key of the schedule it was made from ("" for probes).
    name : str
        The ``extern "C"`` function.
    source : str
        Complete CUDA C that NVRTC compiles without further files.
    arch : str
        "sm_86"; what it was generated for.
    parameters : tuple of Buffer
        Pointers in the order in which the function takes them (never the workload's order: bind by name).
    result : str
        Tensor that the kernel writes.
    grid, block : int
        Blocks of the grid, threads of a block; both along x.
    shared_bytes : int
        Shared memory of a block.
    dynamic_shared_bytes : int
        The part of it that the launch must ask for: all or nothing.
    """

    schedule_key: str
    name: str
    source: str
    arch: str
    parameters: tuple[Buffer, ...]
    result: str
    grid: int
    block: int
    shared_bytes: int = 0
    dynamic_shared_bytes: int = 0


class KernelProgram(NamedTuple):
    """One kernel as a GPU template writes it.

    Attributes
    ----------
    script : str
        TVMScript of ``main``: operands, epilogue operands, result in the workload's layouts.
    num_blocks, num_threads, shared_bytes : int
        Launch configuration; more than `STATIC_SHARED_BYTES` of shared memory is dynamic.
    resident_blocks : int
        What the compiler is told about blocks of an SM; 0: nothing.
    finish : callable
        What becomes of the body of TVM's CUDA C.
    """

    script: str
    num_blocks: int
    num_threads: int
    shared_bytes: int
    resident_blocks: int = 0
    finish: Callable[[str], str] = str

    @property
    def dynamic_shared_bytes(self) -> int:
        """What the launch asks for: all or nothing."""
        return self.shared_bytes if self.shared_bytes > STATIC_SHARED_BYTES else 0


def check_limits(hardware: GpuSpec, threads: int, shared_bytes: int) -> None:
    """Raise BuildError for what no compiler and no launch would accept."""
    most_threads = hardware.compute.max_threads_per_block
    if threads > most_threads:
        raise BuildError(
            f"schedule has {threads} threads a block, but {hardware.name} has at most {most_threads}; "
            "choose smaller thread tiles"
        )
    most_bytes = hardware.shared_memory.per_block_bytes
    if shared_bytes > most_bytes:
        raise BuildError(
            f"schedule needs {shared_bytes} bytes of shared memory a block, but {hardware.name} has at most "
            f"{most_bytes} (opt-in); choose smaller tiles or fewer stages"
        )
