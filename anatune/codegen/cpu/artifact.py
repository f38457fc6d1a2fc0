"""The result of a CPU build: a shared library and the information that is needed to call it."""

from __future__ import annotations

import msgspec

from anatune.emit.buffer import Buffer


class Packing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A constant operand that is packed once: ``function(source, packed)`` with the source in the workload's layout."""

    tensor: str
    function: str
    buffer: Buffer


class CpuArtifact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A built kernel. The library is a TVM module with ``main(*arguments)`` and the packing functions.

    Attributes
    ----------
    schedule_key : str
        Key of its schedule; "" for probes.
    library : str
        Path of the shared library.
    arguments : tuple of Buffer
        Operands in the workload's order, then the epilogue's operands, then the result.
    packings : tuple of Packing
        One for each argument that is packed before the run.
    threads : int
        Number of threads that its parallel loops use.
    facts : dict of str to int
        "flop" of a call; probes have more entries.
    error : float
        Largest error that its arithmetic explains, relative to the result's scale; 0.0 for a plain sum.
    function : str
        Name of ``main`` in a library of several kernels.
    """

    schedule_key: str
    library: str
    arguments: tuple[Buffer, ...]
    packings: tuple[Packing, ...] = ()
    threads: int = 1
    facts: dict[str, int] = {}
    error: float = 0.0
    function: str = "main"
