"""Schedules of CPU templates to TVM programs and shared libraries."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from anatune.codegen.compat import compile_module, import_tvm, parse_program, target_of
from anatune.codegen.cpu.artifact import CpuArtifact, Packing
from anatune.codegen.linking import link_library
from anatune.codegen.lowered import LoweredSchedule
from anatune.core.accuracy import error_of
from anatune.core.schedule import Schedule
from anatune.emit.buffer import Buffer
from anatune.errors import BuildError
from anatune.templates import get_template
from anatune.templates.cpu.program.program import CpuProgram

_STACK = re.compile(r"-?\d*\((%rsp|%rbp)(?:,[^)]*)?\)|\[(sp|x29)(?:, [^]]*)?\]")
_FRAME = re.compile(r"\tmovq?\s+%rsp, %rbp$|\t(?:mov|add)\s+x29, sp\b")
"""An instruction that makes %rbp or x29 the frame pointer; in other functions they are ordinary registers."""
_VECTOR = re.compile(r"%([xyz])mm(\d+)|\b([qv])(\d+)\b")
_WIDTH = {"x": 16, "y": 32, "z": 64, "q": 16, "v": 16}
"""First letter of a vector register's name -> its bytes."""


@dataclass(frozen=True)
class LoweredCpuSchedule(LoweredSchedule):
    """A TVM module with ``main`` and the packing functions, and the program that it was made from."""

    program: CpuProgram


def lower(schedule: Schedule, *, threads: int = 1, prepacked: bool = True) -> LoweredCpuSchedule:
    """Lower a schedule of a CPU template to a TVM module.

    Parameters
    ----------
    schedule : Schedule
    threads : int
        Number of threads that will run the parallel loop; 1 makes it serial.
    prepacked : bool
        Whether ``main`` takes the operands of ``options["packed_ahead"]`` in packed form, as ``pack_<tensor>`` makes
        it; otherwise it takes all tensors in the workload's own layouts and packs them in every run.

    Raises
    ------
    SpaceError
        The schedule is of another template, or its options contradict the tiles.
    BuildError
        A tensor is too large, or the schedule is for a GPU.
    MissingDependencyError
        TVM is not installed.
    """
    schedule.check()
    if schedule.hardware.kind != "cpu":
        raise BuildError(f"schedule is for {schedule.hardware.name}, expected a CPU; codegen.cuda.lower is for GPUs")
    program = write_program(schedule, threads, prepacked=prepacked)
    tvm = import_tvm()
    functions = {"main": parse_program(program.main, program.llvm)}
    for tensor, text in program.packing.items():
        functions[f"pack_{tensor}"] = parse_program(text, program.packing_llvm)
    module = tvm.IRModule(functions)
    return LoweredCpuSchedule(schedule, module, target_of(schedule.hardware, threads=threads), program)


def write_program(schedule: Schedule, threads: int, **options: object) -> CpuProgram:
    """Return the program that a schedule's template writes; `options` are the template's; errors as in `lower`."""
    write: Callable[..., CpuProgram] = get_template(schedule.check().template).program
    return write(schedule, threads=threads, **options)


def build_schedule(schedule: Schedule, folder: Path, *, threads: int = 1) -> CpuArtifact:
    """Build a schedule into ``folder/<key>_<threads>.so``.

    Raises
    ------
    BuildError
        The program cannot be lowered, compiled or linked.
    """
    lowered = lower(schedule, threads=threads)
    compiled = compile_module(lowered.module, lowered.target)
    path = Path(folder) / f"{schedule.key}_{threads}.so"
    link_library(compiled, path)
    workload = schedule.workload
    sizes = lowered.program.packed_sizes
    arguments = [
        Buffer(access.tensor, access.dtype, (sizes[access.tensor],) if access.tensor in sizes else access.shape)
        for access in workload.tensors
    ]
    packings = tuple(
        Packing(buffer.tensor, f"pack_{buffer.tensor}", buffer) for buffer in arguments if buffer.tensor in sizes
    )
    facts = {"flop": workload.flop}
    return CpuArtifact(schedule.key, str(path), tuple(arguments), packings, threads, facts, error_of(schedule))


def inspect_schedule(schedule: Schedule, *, threads: int = 1) -> dict[str, int]:
    """Compile a schedule for its own processor, which may differ from this machine's, and read the assembly.

    Returns
    -------
    dict
        "flop" of a call, and the entries of `assembly_facts`.

    Raises
    ------
    SpaceError, BuildError, MissingDependencyError
        As in `lower` and `compile_module`.
    """
    lowered = lower(schedule, threads=threads)
    assembly = compile_module(lowered.module, lowered.target).mod.inspect_source("asm")
    return {"flop": schedule.workload.flop, **assembly_facts(assembly)}


def assembly_facts(assembly: str) -> dict[str, int]:
    """Return facts from the assembly of a kernel; LLVM inlines the microkernels into TVM's loops.

    Returns
    -------
    dict
        "num_instructions" of ``main``; "registers": number of vector registers in use; "spill_ops": vector loads from
        and stores to the stack; "spill_bytes": bytes of the stack that they use.
    """
    instructions = spills = 0
    registers: set[str] = set()
    slots: dict[str, int] = {}
    inside = has_frame = False
    for line in assembly.splitlines():
        if line and not line[0].isspace() and line.rstrip().endswith(":") and not line.startswith(".L"):
            inside, has_frame = "main_compute_" in line or "__tvm_parallel_lambda" in line, False
            continue
        if not inside or not line.startswith("\t") or line.lstrip().startswith("."):
            continue
        instructions += 1
        has_frame = has_frame or bool(_FRAME.match(line))
        vectors = _VECTOR.findall(line)
        registers.update(x86 or arm for _, x86, _, arm in vectors)
        slot = _STACK.search(line)
        if slot and vectors and (has_frame or "%rsp" in slot.groups() or "sp" in slot.groups()):
            spills += 1
            width = max(_WIDTH[x86 or arm] for x86, _, arm, _ in vectors)
            slots[slot.group()] = max(width, slots.get(slot.group(), 0))
    return {
        "num_instructions": instructions,
        "registers": len(registers),
        "spill_ops": spills,
        "spill_bytes": sum(slots.values()),
    }
