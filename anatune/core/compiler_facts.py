"""What a compiler says about one GPU kernel."""

from __future__ import annotations

import msgspec


class CompilerFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the assembler says about one kernel. Immutable; JSON both ways.

    Attributes
    ----------
    registers : int
        Of a thread.
    shared_bytes : int
        Shared memory of a block that the kernel declares, bytes; see `with_dynamic`.
    spill_bytes, spill_load_bytes : int
        Bytes of the instructions that store registers to local memory, and of those that load them again (counted once
        each, however often they run).
    local_bytes : int
        Local memory of a thread: what is spilled, and arrays that are indexed at run time.
    code_bytes : int
        Machine code.
    instructions : dict of str to int
        Products on matrix units and copies by tensor descriptors, as the assembler's text has them, with how often each
        stands there; only of kernels of Triton's.
    """

    registers: int
    shared_bytes: int = 0
    spill_bytes: int = 0
    spill_load_bytes: int = 0
    local_bytes: int = 0
    code_bytes: int = 0
    instructions: dict[str, int] = {}

    def with_dynamic(self, num_bytes: int) -> CompilerFacts:
        """Return the same with the shared memory that the launch asks for."""
        return msgspec.structs.replace(self, shared_bytes=self.shared_bytes + num_bytes)

    def numbers(self) -> dict[str, int]:
        """Return all numbers by name, instructions by theirs."""
        found: dict[str, int] = msgspec.structs.asdict(self)
        del found["instructions"]
        return {**found, **self.instructions}
