"""The facts that a compiler reports about a GPU kernel."""

from __future__ import annotations

import msgspec


class CompilerFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The facts that the assembler reports about one GPU kernel. Immutable; JSON both ways.

    Attributes
    ----------
    registers : int
        Registers of a thread.
    shared_bytes : int
        Shared memory that the kernel declares for a block, bytes; see `with_dynamic`.
    spill_bytes, spill_load_bytes : int
        Bytes of the instructions that store registers to local memory, and of those that load them again. Each
        instruction counts once, however often it runs.
    local_bytes : int
        Local memory of a thread, bytes: spilled registers, and arrays that are indexed at run time.
    code_bytes : int
        Size of the machine code, bytes.
    instructions : dict of str to int
        Instruction -> how often the assembler's text contains it: products on matrix units and copies with tensor
        descriptors; only for Triton kernels.
    """

    registers: int
    shared_bytes: int = 0
    spill_bytes: int = 0
    spill_load_bytes: int = 0
    local_bytes: int = 0
    code_bytes: int = 0
    instructions: dict[str, int] = {}

    def with_dynamic(self, num_bytes: int) -> CompilerFacts:
        """Return the facts with the shared memory added that the launch requests, bytes."""
        return msgspec.structs.replace(self, shared_bytes=self.shared_bytes + num_bytes)

    def numbers(self) -> dict[str, int]:
        """Return all numbers by name; instructions keep their own names."""
        counts: dict[str, int] = msgspec.structs.asdict(self)
        del counts["instructions"]
        return {**counts, **self.instructions}
