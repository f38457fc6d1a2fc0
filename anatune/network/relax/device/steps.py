"""Read a Relax module as steps on tensors: calls of planned kernels, and nests of loops for everything else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from anatune.codegen.compat import TVM_ERRORS, import_tvm, last_line
from anatune.network.graph.nodes import Array
from anatune.network.relax.building import fuse_operators
from anatune.network.relax.device.ir import Cast, DeviceNest, Element, NoSourceError, elements_in
from anatune.network.relax.device.reading import read_nest
from anatune.network.relax.kernels import KERNEL
from anatune.network.relax.rest import nests
from anatune.network.relax.rest.schedule import inline_blocks, nest_in, statements

if TYPE_CHECKING:
    from types import ModuleType

    from tvm import IRModule, ir, relax, tirx
    from tvm.target import Target

__all__ = ["KernelCall", "ModelSteps", "NestStep", "Tensor", "read_steps"]


@dataclass(eq=False)
class Tensor:
    """Memory of a model. Tensors are compared by identity; they can be read in any shape with `size` elements.

    Attributes
    ----------
    size : int
        Number of elements.
    dtype : str
        Number format of its values.
    role : {"input", "weight", "made"}
        "made": computed by a step.
    place : int
        Index of the input or weight.
    """

    size: int
    dtype: str
    role: str = "made"
    place: int = -1


class KernelCall(NamedTuple):
    """A planned kernel on its operands; `function` is its name in the module."""

    function: str
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]


class NestStep(NamedTuple):
    """A nest of loops, and the tensors of its buffers."""

    nest: DeviceNest
    tensors: tuple[Tensor, ...]
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]

    @property
    def is_cast(self) -> bool:
        """True if it copies a whole tensor, element by element, into another number format."""
        target, value = self.nest.target, self.nest.value
        if not (isinstance(value, Cast) and isinstance(value.value, Element)) or target.factors is None:
            return False
        return self.reads[0].size == self.writes[0].size and value.value.index == target.index


class ModelSteps(NamedTuple):
    """The steps of a model, in order.

    Attributes
    ----------
    steps : list of KernelCall or NestStep
    outputs : list of Tensor
    constants : list of ndarray
        Weights in addition to those that the module takes: constants in its text.
    """

    steps: list[KernelCall | NestStep]
    outputs: list[Tensor]
    constants: list[Array]


def read_steps(module: IRModule, target: Target, num_inputs: int, num_weights: int) -> ModelSteps:
    """Return the steps of a Relax module that `writing.write_model` wrote.

    Parameters
    ----------
    target : tvm.target.Target
        Target that TVM legalises operators for.

    Raises
    ------
    NoSourceError
        TVM has no loops for an operator, or it is not a loop nest around arithmetic, such as a large sort.
    """
    tvm = import_tvm()
    from tvm import relax

    try:
        with target:
            module = relax.transform.RewriteDataflowReshape()(fuse_operators(module))
    except TVM_ERRORS as error:
        raise NoSourceError(f"TVM cannot write the model as loops: {last_line(error)}") from error
    return _StepReader(tvm, module, num_inputs, num_weights).read()


class _StepReader:
    def __init__(self, tvm: ModuleType, module: IRModule, num_inputs: int, num_weights: int) -> None:
        from tvm.relax.analysis import has_reshape_pattern

        self.tvm, self.module = tvm, module
        self.is_view = has_reshape_pattern
        self.num_weights = num_weights
        self.steps: list[KernelCall | NestStep] = []
        self.constants: list[Array] = []
        self.values: dict[ir.Expr, Tensor | tuple[Tensor, ...]] = {}
        self.functions: dict[str, tuple[list[tirx.Var], list[DeviceNest]]] = {}
        main = module["main"]
        parameters = list(main.params)
        for index, variable in enumerate(parameters[:num_inputs]):
            self.values[variable] = self.tensor(variable.ty, "input", index)
        for variable in parameters[num_inputs:]:
            kinds = enumerate(variable.ty.fields)
            self.values[variable] = tuple(self.tensor(kind, "weight", place) for place, kind in kinds)

    def read(self) -> ModelSteps:
        body = self.module["main"].body
        for block in body.blocks:
            for binding in block.bindings:
                self.values[binding.var] = self.value(binding.value, binding.var.ty)
        outputs = self.value(body.body, None)
        return ModelSteps(self.steps, list(outputs) if isinstance(outputs, tuple) else [outputs], self.constants)

    def tensor(self, type_: relax.TensorType, role: str = "made", index: int = -1) -> Tensor:
        return Tensor(math.prod(int(size) for size in type_.shape), str(type_.dtype), role, index)

    def value(self, node: ir.Expr, type_: ir.Type | None) -> Tensor | tuple[Tensor, ...]:
        tvm = self.tvm

        if node in self.values:
            return self.values[node]
        if isinstance(node, tvm.ir.Constant):
            return self.constant(np.asarray(node.value.numpy()))
        if isinstance(node, tvm.ir.TupleGetItem):
            parts = self.value(node.tuple_value, None)
            assert isinstance(parts, tuple)
            part: Tensor = parts[node.index]
            return part
        if isinstance(node, tvm.ir.Tuple):
            return tuple(self.single_tensor(part) for part in node.fields)
        name = str(getattr(node.op, "name", ""))
        if name in ("relax.reshape", "relax.memory.view", "relax.expand_dims", "relax.squeeze"):
            return self.single_tensor(node.args[0])
        if name in ("relax.call_tir", "relax.call_tir_inplace"):
            return self.read_call(node, type_, is_in_place=name != "relax.call_tir")
        raise NoSourceError(f"{name or type(node).__name__} of the model has no kernel on GPUs")

    def single_tensor(self, node: ir.Expr) -> Tensor:
        tensor = self.value(node, None)
        assert isinstance(tensor, Tensor)
        return tensor

    def constant(self, array: Array) -> Tensor:
        self.constants.append(array)
        index = self.num_weights + len(self.constants) - 1
        return Tensor(array.size, array.dtype.name, "weight", index)

    def read_call(self, node: ir.Call, type_: ir.Type, *, is_in_place: bool) -> Tensor | tuple[Tensor, ...]:
        """Return the results of a call, and add its steps; with `is_in_place` it writes into its first operand."""
        name = str(node.args[0].name_hint)
        function = self.module[node.args[0]]
        reads = tuple(self.single_tensor(part) for part in node.args[1].fields)
        types = list(type_.fields) if hasattr(type_, "fields") else [type_]
        is_planned = function.attrs is not None and KERNEL in function.attrs and not is_in_place
        if not is_planned and len(reads) == 1 and self.is_view(function):
            return reads[0]
        writes = reads[:1] if is_in_place else tuple(map(self.tensor, types))
        if is_planned:
            self.steps.append(KernelCall(name, reads, writes))
        else:
            self.steps += self.read_function(name, function, reads if is_in_place else (*reads, *writes))
        return writes if len(writes) > 1 else writes[0]

    def read_function(self, name: str, function: tirx.PrimFunc, tensors: Sequence[Tensor]) -> list[NestStep]:
        """Return the nests of a function on given tensors."""
        if name not in self.functions:
            try:
                inlined = inline_blocks(self.tvm, function)
            except TVM_ERRORS:  # it has no blocks: a sort, or a running sum
                raise _make_refusal(name) from None
            allocated = list(inlined.body.block.alloc_buffers)
            buffers = {buffer: place for place, buffer in enumerate((*inlined.params, *allocated))}
            nests_found = [read_nest(name, self.nest(name, one), buffers) for one in statements(self.tvm, inlined)]
            self.functions[name] = allocated, nests_found
        allocated, nests_found = self.functions[name]
        memory = (*tensors, *map(self.tensor, allocated))
        units = []
        for nest in nests_found:
            wrote = memory[nest.target.buffer]
            read = dict.fromkeys(memory[element.buffer] for element in elements_in(nest))
            units.append(NestStep(nest, memory, tuple(one for one in read if one is not wrote), (wrote,)))
        return units

    def nest(self, name: str, statement: tirx.Stmt) -> nests.RelaxNest:
        nest = nest_in(self.tvm, statement) or self.scalar_nest(statement)
        if nest is None:
            raise _make_refusal(name)
        return nest

    def scalar_nest(self, statement: tirx.Stmt) -> nests.RelaxNest | None:
        """Return a statement on tensors of one element as a nest; None if it is none."""
        tvm, body = self.tvm, statement
        if isinstance(statement, tvm.s_tir.SBlockRealize) and statement.block.init is None:
            zeros = {one.var: tvm.tirx.const(0, "int64") for one in statement.block.iter_vars}
            body = nests.substitute(statement.block.body, zeros, tvm)
        if not isinstance(body, tvm.tirx.BufferStore):
            return None
        index = tvm.tirx.Var("i", "int64")
        return nests.RelaxNest([index], [tvm.tirx.const(1, "int64")], [False], body, None, (), frozenset(), frozenset())


def _make_refusal(name: str) -> NoSourceError:
    is_put = name.startswith("scatter")
    advice = "put rows into a state (state=, --state), or " * is_put + "cut the model before it"
    reason = "the operator is not a loop nest around arithmetic, so it has no kernel on GPUs"
    return NoSourceError(f"{name}: {reason}; {advice}")
