"""Kernels of anatune's as functions of a Relax module, with what packs their constant operands."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from anatune.codegen.compat import TvmObject, parse_program
from anatune.codegen.cpu.attention import AttentionKernel, attention_program
from anatune.codegen.cpu.rows import RowKernel, row_program
from anatune.core.schedule import Schedule
from anatune.emit.buffer import Buffer
from anatune.graph.nodes import Graph, Node, tensor_type
from anatune.graph.rows import LAYER_NORM, MAP, ROWS, SOFTMAX
from anatune.templates import template_named
from anatune.templates.cpu.program.program import CpuProgram

__all__ = ["KERNEL", "OPAQUE", "ModelKernel", "Packer", "attention_kernel", "model_kernel", "row_kernels"]

KERNEL = "anatune.kernel"
"""Attribute of a function that is a kernel of anatune's: TVM's passes leave it as it is."""
OPAQUE = 8
"""TVM's word for a function that nothing is fused with."""


@dataclass(frozen=True)
class Packer:
    """A function ``(tensor, packed)`` that packs a constant operand, and the elements of the packed form.

    Attributes
    ----------
    name : str
        Of the function: packers of one name make the same of the same operand, whatever their kernels compute.
    """

    name: str
    function: TvmObject
    num_elements: int


@dataclass(frozen=True)
class ModelKernel:
    """One kernel of a model.

    Attributes
    ----------
    name : str
        Of the function, and of what it holds: unique in the model.
    function : tvm.tirx.PrimFunc
        Takes the operands, those of `packers` in packed form, and the result last.
    packers : dict of str to Packer
        By tensor.
    """

    name: str
    function: TvmObject
    packers: dict[str, Packer]

    @property
    def workspace(self) -> Buffer | None:
        """Memory that the function takes last, behind the result, and that holds nothing between calls."""
        return None


def model_kernel(name: str, schedule: Schedule, threads: int) -> ModelKernel:
    """Return a schedule's program as a kernel of a model.

    Raises
    ------
    SpaceError, BuildError
        As `codegen.cpu.lower.lower`.
    """
    schedule.check()
    write: Callable[..., CpuProgram] = template_named(schedule.template).program
    program = write(schedule, threads=threads, prepacked=True, prefix=name)
    attributes = {"global_symbol": name, KERNEL: schedule.key, "op_pattern": OPAQUE}
    function = parse_program(program.main, program.llvm).with_attr(attributes)
    packers = {
        tensor: _packer(text, program.packing_llvm, program.packed_sizes[tensor], name)
        for tensor, text in program.packing.items()
    }
    return ModelKernel(name, function, packers)


def _packer(text: str, llvm: str, num_elements: int, kernel: str) -> Packer:
    """Return a function that packs an operand of a kernel, named by what it does."""
    own = f"{text}{llvm}".replace(kernel, "")  # functions that it calls are named after the kernel
    name = f"anatune_pack_{hashlib.sha256(own.encode()).hexdigest()[:16]}"
    return Packer(name, parse_program(text, llvm).with_attr("global_symbol", name), num_elements)


def attention_kernel(name: str, kernel: AttentionKernel, lanes: int, threads: int) -> ModelKernel:
    """Return an attention as a kernel of a model; `lanes`: float32 elements of a vector.

    Raises
    ------
    SpaceError, BuildError
        As `model_kernel`.
    """
    function = parse_program(*attention_program(kernel, name, lanes, threads))
    attributes = {"global_symbol": name, KERNEL: "attention", "op_pattern": OPAQUE}
    return ModelKernel(name, function.with_attr(attributes), {})


def row_kernels(graph: Graph, lanes: int, threads: int) -> dict[int, ModelKernel]:
    """Return ``id`` of each node of `anatune.graph.rows` -> its kernel, which equal nodes share.

    Parameters
    ----------
    lanes : int
        float32 elements of a vector.
    """
    made: dict[RowKernel, ModelKernel] = {}
    found = {}
    for node in graph.nodes():
        if node.op in ROWS:
            kernel = _row_kernel(node)
            if kernel not in made:
                name = f"anatune_rows_{len(made)}_{kernel.kind}"
                function = parse_program(*row_program(kernel, name, lanes, threads))
                attributes = {"global_symbol": name, KERNEL: kernel.kind, "op_pattern": OPAQUE}
                made[kernel] = ModelKernel(name, function.with_attr(attributes), {})
            found[id(node)] = made[kernel]
    return found


def _row_kernel(node: Node) -> RowKernel:
    rows, length = tensor_type(node).shape
    own = node.attributes
    if node.op == SOFTMAX:
        mask_rows = tensor_type(node.arguments[1]).shape[0] if len(node.arguments) > 1 else 0
        return RowKernel("softmax", rows, length, own["scale"], mask_rows, own["zero_rows"], block=own["block"])
    if node.op == LAYER_NORM:
        return RowKernel("layer_norm", rows, length, epsilon=own["epsilon"], operands=len(node.arguments) - 1)
    assert node.op == MAP
    return RowKernel(own["function"], rows, length)
