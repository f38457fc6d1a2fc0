"""A Relax module as steps on tensors: calls of planned kernels, and nests of loops of everything else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from anatune.codegen.compat import TVM_ERRORS, import_tvm, last_line
from anatune.network.graph.nodes import Array
from anatune.network.relax.building import fused
from anatune.network.relax.device.ir import Cast, Element, Nest, NoSourceError, elements_in
from anatune.network.relax.device.reading import read_nest
from anatune.network.relax.kernels import KERNEL
from anatune.network.relax.rest import nests
from anatune.network.relax.rest.schedule import inlined, nest_in, statements

if TYPE_CHECKING:
    from types import ModuleType

    from tvm import IRModule, ir, relax, tirx
    from tvm.target import Target

__all__ = ["Call", "Steps", "Tensor", "Unit", "steps_of"]


@dataclass(eq=False)
class Tensor:
    """Memory of a model: compared by identity, and read as any shape of as many elements.

    Attributes
    ----------
    size : int
        Elements.
    dtype : str
        That its values have.
    role : {"input", "weight", "made"}
        "made": by a step.
    place : int
        Which input or weight.
    """

    size: int
    dtype: str
    role: str = "made"
    place: int = -1


class Call(NamedTuple):
    """A planned kernel on its operands; `function` is what it is called in the module."""

    function: str
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]


class Unit(NamedTuple):
    """A nest of loops, and the tensors that its buffers are."""

    nest: Nest
    tensors: tuple[Tensor, ...]
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]

    @property
    def is_cast(self) -> bool:
        """Whether it copies a whole tensor element by element, in another dtype."""
        target, value = self.nest.target, self.nest.value
        if not (isinstance(value, Cast) and isinstance(value.value, Element)) or target.factors is None:
            return False
        return self.reads[0].size == self.writes[0].size and value.value.index == target.index


class Steps(NamedTuple):
    """What a model does, in order.

    Attributes
    ----------
    steps : list of Call or Unit
    outputs : list of Tensor
    constants : list of ndarray
        Weights beyond those that the module takes: numbers that stand in its text.
    """

    steps: list[Call | Unit]
    outputs: list[Tensor]
    constants: list[Array]


def steps_of(module: IRModule, target: Target, num_inputs: int, num_weights: int) -> Steps:
    """Return the steps of a Relax module that `writing.written` made.

    Parameters
    ----------
    target : tvm.target.Target
        For which TVM says what its operators compute.

    Raises
    ------
    NoSourceError
        TVM has no loops for an operator, or they are more than loops around arithmetic: large sorts.
    """
    tvm = import_tvm()
    from tvm import relax

    try:
        with target:
            module = relax.transform.RewriteDataflowReshape()(fused(module))
    except TVM_ERRORS as error:
        raise NoSourceError(f"TVM cannot write the model as loops: {last_line(error)}") from error
    return _Reader(tvm, module, num_inputs, num_weights).read()


class _Reader:
    def __init__(self, tvm: ModuleType, module: IRModule, num_inputs: int, num_weights: int) -> None:
        from tvm.relax.analysis import has_reshape_pattern

        self.tvm, self.module = tvm, module
        self.is_view = has_reshape_pattern
        self.num_weights = num_weights
        self.steps: list[Call | Unit] = []
        self.constants: list[Array] = []
        self.values: dict[ir.Expr, Tensor | tuple[Tensor, ...]] = {}
        self.written: dict[str, tuple[list[tirx.Var], list[Nest]]] = {}
        main = module["main"]
        given = list(main.params)
        for place, variable in enumerate(given[:num_inputs]):
            self.values[variable] = self.tensor(variable.ty, "input", place)
        for variable in given[num_inputs:]:
            kinds = enumerate(variable.ty.fields)
            self.values[variable] = tuple(self.tensor(kind, "weight", place) for place, kind in kinds)

    def read(self) -> Steps:
        body = self.module["main"].body
        for block in body.blocks:
            for binding in block.bindings:
                self.values[binding.var] = self.value(binding.value, binding.var.ty)
        found = self.value(body.body, None)
        return Steps(self.steps, list(found) if isinstance(found, tuple) else [found], self.constants)

    def tensor(self, kind: relax.TensorType, role: str = "made", place: int = -1) -> Tensor:
        return Tensor(math.prod(int(size) for size in kind.shape), str(kind.dtype), role, place)

    def value(self, node: ir.Expr, kind: ir.Type | None) -> Tensor | tuple[Tensor, ...]:
        tvm = self.tvm

        if node in self.values:
            return self.values[node]
        if isinstance(node, tvm.ir.Constant):
            return self.constant(np.asarray(node.value.numpy()))
        if isinstance(node, tvm.ir.TupleGetItem):
            whole = self.value(node.tuple_value, None)
            assert isinstance(whole, tuple)
            part: Tensor = whole[node.index]
            return part
        if isinstance(node, tvm.ir.Tuple):
            return tuple(self.one(part) for part in node.fields)
        name = str(getattr(node.op, "name", ""))
        if name in ("relax.reshape", "relax.memory.view", "relax.expand_dims", "relax.squeeze"):
            return self.one(node.args[0])
        if name in ("relax.call_tir", "relax.call_tir_inplace"):
            return self.called(node, kind, is_in_place=name != "relax.call_tir")
        raise NoSourceError(f"{name or type(node).__name__} of the model has no kernel on GPUs")

    def one(self, node: ir.Expr) -> Tensor:
        found = self.value(node, None)
        assert isinstance(found, Tensor)
        return found

    def constant(self, array: Array) -> Tensor:
        self.constants.append(array)
        place = self.num_weights + len(self.constants) - 1
        return Tensor(array.size, array.dtype.name, "weight", place)

    def called(self, node: ir.Call, kind: ir.Type, *, is_in_place: bool) -> Tensor | tuple[Tensor, ...]:
        """Return the results of a call, whose steps are noted; in place: it writes into its first operand."""
        name = str(node.args[0].name_hint)
        function = self.module[node.args[0]]
        reads = tuple(self.one(part) for part in node.args[1].fields)
        kinds = list(kind.fields) if hasattr(kind, "fields") else [kind]
        own = function.attrs is not None and KERNEL in function.attrs and not is_in_place
        if not own and len(reads) == 1 and self.is_view(function):
            return reads[0]
        writes = reads[:1] if is_in_place else tuple(map(self.tensor, kinds))
        if own:
            self.steps.append(Call(name, reads, writes))
        else:
            self.steps += self.units(name, function, reads if is_in_place else (*reads, *writes))
        return writes if len(writes) > 1 else writes[0]

    def units(self, name: str, function: tirx.PrimFunc, tensors: Sequence[Tensor]) -> list[Unit]:
        """Return the nests of a function on tensors."""
        if name not in self.written:
            try:
                made = inlined(self.tvm, function)
            except TVM_ERRORS:  # no blocks: a sort, or a sum of all that is before
                raise _refused(name) from None
            allocated = list(made.body.block.alloc_buffers)
            buffers = {buffer: place for place, buffer in enumerate((*made.params, *allocated))}
            found = [read_nest(name, self.nest(name, one), buffers) for one in statements(self.tvm, made)]
            self.written[name] = allocated, found
        allocated, found = self.written[name]
        known = (*tensors, *map(self.tensor, allocated))
        units = []
        for nest in found:
            wrote = known[nest.target.buffer]
            read = dict.fromkeys(known[element.buffer] for element in elements_in(nest))
            units.append(Unit(nest, known, tuple(one for one in read if one is not wrote), (wrote,)))
        return units

    def nest(self, name: str, statement: tirx.Stmt) -> nests.Nest:
        nest = nest_in(self.tvm, statement) or self.scalar(statement)
        if nest is None:
            raise _refused(name)
        return nest

    def scalar(self, statement: tirx.Stmt) -> nests.Nest | None:
        """Return a statement on tensors of one element without loops as a nest; None: it is none."""
        tvm, body = self.tvm, statement
        if isinstance(statement, tvm.s_tir.SBlockRealize) and statement.block.init is None:
            zeros = {one.var: tvm.tirx.const(0, "int64") for one in statement.block.iter_vars}
            body = nests.replaced(statement.block.body, zeros, tvm)
        if not isinstance(body, tvm.tirx.BufferStore):
            return None
        one = tvm.tirx.Var("i", "int64")
        return nests.Nest([one], [tvm.tirx.const(1, "int64")], [False], body, None, (), frozenset(), frozenset())


def _refused(name: str) -> NoSourceError:
    is_put = name.startswith("scatter")
    advice = "put rows into what is state (state=, --state), or " * is_put + "cut the model before it"
    what = "the operator is more than loops around arithmetic, and has no kernel on GPUs"
    return NoSourceError(f"{name}: {what}; {advice}")
