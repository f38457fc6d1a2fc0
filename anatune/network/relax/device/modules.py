"""Write groups of nests as one Triton kernel; independent groups have their own programs in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from anatune.core.hardware.spec import GpuSpec
from anatune.emit.buffer import Buffer
from anatune.emit.script import Script
from anatune.network.relax.device.groups import NestGroup
from anatune.network.relax.device.printing import HELPERS, helpers_in, print_statements
from anatune.network.relax.device.rest import KernelPart, write_part
from anatune.network.relax.device.steps import Tensor
from anatune.templates.triton.program.kernel import TritonKernel, TritonProgram

__all__ = ["RestKernel", "make_rest_kernel"]


class RestKernel(NamedTuple):
    """A kernel, and the tensors of its parameters.

    Attributes
    ----------
    program : TritonProgram
        One kernel; equal groups have equal source text.
    reads, writes : tuple of Tensor
        Tensors in the order of its parameters.
    num_bytes : int
        Bytes that it reads and writes.
    flop : int
        Approximate float32 operations, one for each term; loads and stores do not count.
    cached_bytes : int
        Bytes that it takes from L2, if they are more than `num_bytes`.
    """

    program: TritonProgram
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]
    num_bytes: int
    flop: int
    cached_bytes: int = 0


def make_rest_kernel(
    groups: Sequence[NestGroup], is_kept: Callable[[Tensor], bool], dtype_of: Callable[[Tensor], str], hardware: GpuSpec
) -> RestKernel:
    """Return the kernel of independent groups.

    Parameters
    ----------
    is_kept : callable
        Returns whether anything else reads a tensor that a group computes.
    dtype_of : callable
        Returns the number format of a tensor in memory.

    Raises
    ------
    BuildError
        A part has no Triton source.
    """
    parts = [write_part(group, is_kept, dtype_of, hardware) for group in groups]
    reads = tuple(dict.fromkeys(tensor for part in parts for tensor in part.reads))
    writes = tuple(tensor for part in parts for tensor in part.writes)
    names = {tensor: f"in{place}" for place, tensor in enumerate(reads)}
    names |= {tensor: f"out{place}" for place, tensor in enumerate(writes)}
    buffers = tuple(Buffer(name, dtype_of(tensor), (max(1, tensor.size),)) for tensor, name in names.items())
    name = parts[0].name + (f"_and_{len(parts) - 1}_more" if len(parts) > 1 else "")
    grid, warps = sum(part.grid for part in parts), max(part.warps for part in parts)
    whole = Script()
    title = name.replace("_", " ")
    whole.line(f'"""{title}: {", ".join(part.shape for part in parts)}.\n')
    whole.line(f"Launch: {name}[({grid},)]({', '.join(names.values())}, num_warps={warps})")
    whole.line("where")
    for buffer in buffers:
        whole.line(f"    {buffer.tensor}: {buffer.dtype} {math.prod(buffer.shape)}")
    whole.line('"""\n\nimport triton\nimport triton.language as tl\n\n')
    for helper in sorted(set().union(*(helpers_in(part.statements) for part in parts))):
        whole.line(f"{HELPERS[helper]}\n")
    parameters = ", ".join(f"{word}_ptr" for word in names.values())
    if len(parts) > 1:
        _print_functions(whole, parts)
    whole.line("@triton.jit")
    with whole.scope(f"def {name}({parameters}):"):
        whole.line("program = tl.program_id(0)")
        if len(parts) == 1:
            print_statements(whole, parts[0].statements)
        else:
            _dispatch(whole, parts, names)
    kernel = TritonKernel(name, buffers, grid, warps, 1, {"enable_fp_fusion": True})
    first, *further = (names[one] for one in writes)
    program = TritonProgram("", str(whole), (kernel,), first, None, tuple(further))
    num_bytes = sum(part.num_bytes for part in parts)
    return RestKernel(program, reads, writes, num_bytes, sum(part.terms for part in parts))


def _print_functions(whole: Script, parts: Sequence[KernelPart]) -> None:
    """Write a function for each part."""
    for index, part in enumerate(parts):
        parameters = [f"{part.names[one]}_ptr" for one in (*part.reads, *part.writes)]
        whole.line("@triton.jit")
        with whole.scope(f"def part{index}({', '.join(('program', *parameters))}):"):
            print_statements(whole, part.statements)
        whole.line("\n")


def _dispatch(whole: Script, parts: Sequence[KernelPart], names: Mapping[Tensor, str]) -> None:
    """Write lines that assign programs to each part."""
    first = 0
    for index, part in enumerate(parts):
        word = "if" if index == 0 else "elif" if index < len(parts) - 1 else "else"
        local_program = f"program - {first}" if first else "program"
        arguments = ", ".join((local_program, *(f"{names[one]}_ptr" for one in (*part.reads, *part.writes))))
        with whole.scope(f"{word}:" if word == "else" else f"{word} program < {first + part.grid}:"):
            whole.line(f"part{index}({arguments})")
        first += part.grid
