"""Schedules of the CPU template to TVM programs and shared libraries."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anatune.codegen.artifact import Artifact, Buffer, Packing
from anatune.codegen.compat import (
    compile_module,
    import_tvm,
    parse_program,
    schedule_of_module,
    target_of,
)
from anatune.codegen.program import Program, program_of
from anatune.core.hardware import CpuSpec
from anatune.core.schedule import Schedule
from anatune.errors import BuildError

__all__ = ["LoweredProgram", "compile_schedule", "lower"]

_STACK = re.compile(r"\((?:%rsp|%rbp)\)|\[(?:sp|x29)[,\]]")
_VECTOR = re.compile(r"%[xyz]mm|\b[qv]\d+\b")


@dataclass(frozen=True)
class LoweredProgram:
    """A TVM module (``main`` and the packing functions), ready for ``tvm.compile``, and what it was made from."""

    schedule: Schedule
    program: Program
    module: Any
    target: Any

    def tvm_schedule(self) -> Any:
        """Return the module as a ``tvm.s_tir.Schedule``."""
        return schedule_of_module(self.module)


def lower(schedule: Schedule, *, threads: int = 1, prepacked: bool = True) -> LoweredProgram:
    """Turn a schedule of the CPU template into a TVM module.

    Parameters
    ----------
    schedule : Schedule
    threads : int
        Threads that will run the parallel loop; 1 makes it serial.
    prepacked : bool
        ``main`` takes the operands of ``options["packed_ahead"]`` in packed form (``pack_<tensor>`` makes it);
        otherwise it takes all tensors in the workload's own layouts and packs them in every run.

    Raises
    ------
    SpaceError
        Another template, or options that contradict the tiles.
    BuildError
        A tensor is too large.
    MissingDependencyError
        TVM is not installed.
    """
    if not isinstance(schedule.hardware, CpuSpec):
        raise BuildError(f"schedule is for {schedule.hardware.name}, expected a CPU; GPU schedules cannot be built yet")
    program = program_of(schedule, threads=threads, prepacked=prepacked)
    tvm = import_tvm()
    functions = {"main": parse_program(program.main, program.llvm)}
    for tensor, text in program.packing.items():
        functions[f"pack_{tensor}"] = parse_program(text, "")
    module = tvm.IRModule(functions)
    return LoweredProgram(schedule, program, module, target_of(schedule.hardware, threads=threads))


def compile_schedule(schedule: Schedule, folder: Path, *, threads: int = 1) -> Artifact:
    """Build a schedule into ``folder/<key>.so``.

    Raises
    ------
    BuildError
        The program cannot be lowered, compiled or linked.
    """
    lowered = lower(schedule, threads=threads)
    compiled = compile_module(lowered.module, lowered.target)
    path = Path(folder) / f"{schedule.key}_{threads}.so"
    try:
        compiled.export_library(str(path))
    except (RuntimeError, OSError) as error:
        raise BuildError(
            f"cannot link {path.name}: {str(error).splitlines()[-1]}; is a C compiler (cc) installed?"
        ) from None
    workload = schedule.workload
    sizes = lowered.program.packed_sizes
    arguments = [
        Buffer(access.tensor, access.dtype, (sizes[access.tensor],) if access.tensor in sizes else access.shape)
        for access in (*workload.reads, *workload.epilogue_reads, workload.write)
    ]
    packings = tuple(
        Packing(buffer.tensor, f"pack_{buffer.tensor}", buffer) for buffer in arguments if buffer.tensor in sizes
    )
    facts = {"flop": workload.flop, **assembly_facts(compiled.mod.inspect_source("asm"))}
    return Artifact(schedule.key, str(path), tuple(arguments), packings, threads, facts)


def assembly_facts(assembly: str) -> dict[str, int]:
    """Return what the assembly of the kernel says (LLVM inlines the microkernels into TVM's loops).

    Returns
    -------
    dict
        "num_instructions" of ``main``, "spill_ops": its vector loads from and stores to the stack.
    """
    spills = instructions = 0
    inside = False
    for line in assembly.splitlines():
        if line and not line[0].isspace() and line.rstrip().endswith(":") and not line.startswith(".L"):
            inside = "main_compute_" in line or "microkernel_" in line or "__tvm_parallel_lambda" in line
        elif inside and line.startswith("\t") and not line.lstrip().startswith("."):
            instructions += 1
            if _STACK.search(line) and _VECTOR.search(line):
                spills += 1
    return {"num_instructions": instructions, "spill_ops": spills}
