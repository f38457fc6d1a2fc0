"""What a build leaves behind: a shared library and how to call it."""

from __future__ import annotations

import msgspec

from anatune.emit.buffer import Buffer


class Packing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A constant operand that is packed once: ``function(source, packed)``, the source in the workload's layout."""

    tensor: str
    function: str
    buffer: Buffer


class CpuArtifact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A built kernel. The library is a TVM module with ``main(*arguments)`` and the packing functions.

    Attributes
    ----------
    schedule_key : str
        Key of the schedule it was built from ("" for probes).
    library : str
        Path of the shared library.
    arguments : tuple of Buffer
        Operands in the workload's order, the epilogue's operands, the result last.
    packings : tuple of Packing
        One for each argument that is packed ahead of the run.
    threads : int
        Threads that its parallel loops use.
    facts : dict of str to int
        "flop" of a call; probes say more.
    error : float
        Largest error that its arithmetic explains, over the result's scale; 0.0: a plain sum's.
    function : str
        What ``main`` is called in a library of several kernels.
    """

    schedule_key: str
    library: str
    arguments: tuple[Buffer, ...]
    packings: tuple[Packing, ...] = ()
    threads: int = 1
    facts: dict[str, int] = {}
    error: float = 0.0
    function: str = "main"
