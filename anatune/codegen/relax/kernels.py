"""Kernels of anatune's as functions of a Relax module, with what packs their constant operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from anatune.codegen.compat import TvmObject, parse_program
from anatune.codegen.cpu.program import CpuProgram
from anatune.core.schedule import Schedule
from anatune.core.templates import template_named

__all__ = ["KERNEL", "ModelKernel", "Packer", "model_kernel"]

KERNEL = "anatune.kernel"
"""Attribute of a function that is a kernel of anatune's: TVM's passes leave it as it is."""
_OPAQUE = 8
"""TVM's word for a function that nothing is fused with."""


@dataclass(frozen=True)
class Packer:
    """A function ``(tensor, packed)`` that packs a constant operand, and the elements of the packed form."""

    function: TvmObject
    num_elements: int


@dataclass(frozen=True)
class ModelKernel:
    """One kernel of a model.

    Attributes
    ----------
    name : str
        Of the function, and of what it holds: unique in the model.
    schedule : Schedule
    function : tvm.tirx.PrimFunc
        Takes the workload's operands, those of `packers` in packed form, and the result last.
    packers : dict of str to Packer
        By tensor.
    """

    name: str
    schedule: Schedule
    function: TvmObject
    packers: dict[str, Packer]


def model_kernel(name: str, schedule: Schedule, threads: int) -> ModelKernel:
    """Return a schedule's program as a kernel of a model.

    Raises
    ------
    SpaceError, BuildError
        As `codegen.cpu.lower.lower`.
    """
    schedule.check()
    write: Callable[..., CpuProgram] = template_named(schedule.template).part("program")
    program = write(schedule, threads=threads, prepacked=True, prefix=name)
    attributes = {"global_symbol": name, KERNEL: schedule.key, "op_pattern": _OPAQUE}
    function = parse_program(program.main, program.llvm).with_attr(attributes)
    packers = {
        tensor: Packer(
            parse_program(text, program.packing_llvm).with_attr("global_symbol", f"{name}_pack_{tensor}"),
            program.packed_sizes[tensor],
        )
        for tensor, text in program.packing.items()
    }
    return ModelKernel(name, schedule, function, packers)
