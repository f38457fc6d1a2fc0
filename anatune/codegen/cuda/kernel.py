"""A schedule as CUDA C: the source of one kernel and everything that is needed to compile and launch it."""

from __future__ import annotations

import msgspec

from anatune.codegen.buffer import Buffer

__all__ = ["STATIC_SHARED_BYTES", "CudaKernel"]

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
