"""Write graphs as Relax modules: calls of anatune's kernels, and Relax operators for everything else."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np

from anatune.codegen.compat import TVM_ERRORS, TvmObject, import_tvm, last_line
from anatune.core.sizes import Size, is_run_time
from anatune.emit.buffer import Buffer
from anatune.errors import BuildError, WorkloadError
from anatune.network.graph.building import make_node
from anatune.network.graph.nodes import (
    ITEM,
    LEADING,
    WRITTEN,
    Argument,
    Array,
    Constant,
    Graph,
    Node,
    Scalar,
    Shape,
    TensorType,
    Value,
    drop_repeats,
    is_unknown,
    tensor_type,
)
from anatune.network.graph.operators import DEQUANTIZE, PRODUCTS, PUT, QUANTIZE
from anatune.network.graph.products import workload_of
from anatune.network.graph.state import StatePair
from anatune.network.relax.kernels import ModelKernel, Packer, sizes_of_concatenation
from anatune.network.relax.ranges import Ranges
from anatune.network.relax.rest.legalising import element_call

__all__ = ["Weight", "WrittenModel", "write_model"]


class Weight(NamedTuple):
    """A constant as the built model takes it.

    Attributes
    ----------
    constant : Constant
        The constant of the graph.
    packer : Packer, optional
        Packs the constant for the model; None if it stays unchanged.
    shape, dtype
        Type of the packed constant.
    """

    constant: Constant
    packer: Packer | None
    shape: tuple[int, ...]
    dtype: str

    @property
    def num_bytes(self) -> int:
        """Bytes of the packed constant."""
        return math.prod(self.shape) * self.constant.array.dtype.itemsize


_REPEATED_BYTES = 1 << 24
"""Size above which a repetitive constant is written as a broadcast: small files may ask for gigabytes."""
_SUBSTITUTES: dict[str, Callable[..., TvmObject]] = {"nn.relu6": lambda op, x: op.clip(x, 0, 6)}
"""Operator that TVM lacks -> a function of ``relax.op`` and arguments that expresses it by others."""
_ELEMENTWISE = ("atan2", "copysign", "erfc", "exp2", "expm1", "hypot", "log10", "log1p", "log2", "mish")
"""Elementwise functions that Relax has no operator for."""


MakeConstants = Callable[[Sequence[Weight]], Sequence[TvmObject]]
"""A function from weights to TVM's tensors of them, each as its `Weight` describes."""


class WrittenModel(NamedTuple):
    """A Relax module whose ``main`` takes the inputs and, unless they are constants, a tuple of weights.

    Symbols that are not the size of an input come first, as one shape in alphabetical order.
    """

    module: TvmObject
    weights: tuple[Weight, ...]


def write_model(
    graph: Graph,
    kernels: Mapping[Node, ModelKernel],
    make_constants: MakeConstants | None = None,
    ranges: Ranges | None = None,
    state: Sequence[StatePair] = (),
) -> WrittenModel:
    """Write a graph as a Relax module.

    Parameters
    ----------
    graph : Graph
    kernels : mapping of Node to ModelKernel
        The kernel of each node that anatune has one for; equal nodes share one.
    make_constants : callable, optional
        Returns the tensors that become constants of the module; with None, weights are one more argument, a tuple.
    ranges : mapping of str to (int, int), optional
        Ranges of the symbols of sizes that vary.
    state : sequence of StatePair
        The state; its initial values are the last weights.
    """
    initial = [Constant(pair.initial) for pair in state if pair.initial is not None]
    return _RelaxWriter(graph, kernels, make_constants, ranges or {}, initial).model


def _repeated_part(value: Constant) -> Array | None:
    """Return the part that a large constant repeats; None if the constant has to be a weight."""
    array = value.array
    if is_unknown(array):
        return None
    part = drop_repeats(array)
    return part if array.nbytes > _REPEATED_BYTES > part.nbytes else None


def _slice_numbers(node: Node) -> tuple[tuple[int, ...], ...]:
    """Return the axes, begins, ends and steps of a slice, and the sizes along the axes."""
    axes, *others = (tuple(one.value for one in column) for column in node.arguments[1:])
    shape = tensor_type(node.arguments[0]).shape
    return axes, *others, tuple(shape[axis] for axis in axes)


def _check_attributes(node: Node) -> None:
    """Raise WorkloadError if an attribute depends on a size that varies, because TVM would read it as a number."""
    varying = [name for name, value in node.attributes.items() if is_run_time(value)]
    if varying and node.op != "split":
        raise WorkloadError(
            f"{node.op} ({node}): {varying[0]} depends on a size that varies, expected a number; compile the model "
            "for fixed sizes (example inputs)"
        )


def _slices(node: Node) -> list[Value]:
    """Return the parts of a split tensor as slices, for bounds that depend on sizes that vary."""
    value, axis, parts = node.arguments[0], node.attributes["axis"], []
    ends = (*node.attributes["indices_or_sections"], tensor_type(value).shape[axis])
    for begin, end, kind in zip((0, *ends), ends, node.type, strict=False):
        numbers = ((Scalar(number, "int64"),) for number in (axis, begin, end, 1))
        parts.append(make_node("strided_slice", (value, *numbers), cast(TensorType, kind), assume_inbound=False))
    return parts


class _RelaxWriter:
    """Writes the nodes of a graph in order into one Relax function."""

    def __init__(
        self,
        graph: Graph,
        kernels: Mapping[Node, ModelKernel],
        make_constants: MakeConstants | None,
        ranges: Ranges,
        initial: Sequence[Constant],
    ) -> None:
        self.tvm = import_tvm()
        self.symbols = {symbol: self.tvm.tirx.Var(symbol, "int64") for symbol in sorted(ranges)}
        bounds = {symbol: most for symbol, (_, most) in ranges.items()}
        from tvm import relax

        self.relax = relax
        self.kernels = kernels
        self.weights: list[Weight] = []
        self.weight_indices: dict[tuple[Value, str], int] = {}
        nodes = graph.nodes()
        for node in nodes:
            for value, packer in self.find_weights(node):
                self.weight_index(value, packer)
        for output in graph.outputs:
            if isinstance(output, Constant):
                self.weight_index(output, None)
        self.weights += [Weight(value, None, *tensor_type(value)) for value in initial]
        builder = relax.BlockBuilder()
        inputs = [relax.Var(value.name, self.type_of(value.type)) for value in graph.inputs]
        input_sizes = {str(size) for value in graph.inputs for size in tensor_type(value).shape}
        unseen_symbols = [variable for symbol, variable in self.symbols.items() if symbol not in input_sizes]
        size_parameters = [relax.Var("filled", relax.ShapeType(values=unseen_symbols))] if unseen_symbols else []
        types = [self.type_of(TensorType(weight.shape, weight.dtype)) for weight in self.weights]
        self.tuple = relax.Var("weights", self.tvm.ir.TupleType(types))
        self.values: dict[Value, TvmObject] = {
            value: variable for value, variable in zip(graph.inputs, inputs, strict=True)
        }
        functions: dict[str, TvmObject] = {}
        self.constants = None if make_constants is None else [relax.const(one) for one in make_constants(self.weights)]
        attributes = {"tir_var_upper_bound": bounds} if bounds else None  # memory is planned for the largest sizes
        parameters = [*size_parameters, *inputs, *([self.tuple] if make_constants is None else [])]
        with builder.function("main", parameters, attrs=attributes):
            with builder.dataflow():
                for node in nodes:
                    if node in kernels:
                        kernel = kernels[node]
                        if kernel.name not in functions:
                            functions[kernel.name] = builder.add_func(kernel.function, kernel.name)
                        call = self.kernel_call(node, functions[kernel.name], kernel.workspace)
                        if kernel.workspace is not None:
                            call = relax.TupleGetItem(builder.emit(call), 0)
                        self.values[node] = builder.emit(call)
                        continue
                    _check_attributes(node)
                    try:
                        self.values[node] = builder.emit(self.operator_call(node, builder))
                    except TVM_ERRORS as error:
                        raise BuildError(
                            f"TVM cannot compile the operator {node.op} of {node.type}: {last_line(error)}"
                        ) from error
                results = [self.result(value) for value in graph.outputs]
                result = builder.emit_output(relax.Tuple(results) if graph.is_tuple else results[0])
            builder.emit_func_output(result)
        self.model = WrittenModel(builder.get(), tuple(self.weights))

    def find_weights(self, node: Node) -> list[tuple[Constant, Packer | None]]:
        """Return the constants of a node that are weights, with the packer of each."""
        if node.op in PRODUCTS and node in self.kernels:
            packers = self.kernels[node].packers
            tensors = [access.tensor for access in workload_of(node).operands]
            return [
                (value, packers.get(tensor))
                for tensor, value in zip(tensors, node.arguments, strict=True)
                if isinstance(value, Constant)
            ]
        if node in self.kernels:
            return [(value, None) for value in node.arguments if isinstance(value, Constant)]
        weights: list[tuple[Constant, Packer | None]] = []
        stack: list[Argument] = list(node.arguments)
        while stack:
            value = stack.pop(0)
            if isinstance(value, Constant):
                if value.array.size != 1 and _repeated_part(value) is None:
                    weights.append((value, None))
            elif type(value) is tuple:
                stack += value
        return weights

    def weight_index(self, value: Constant, packer: Packer | None) -> int:
        """Return the index of a constant's weight in the form that a kernel takes; each form is stored once."""
        key = (value, packer.name if packer else "")
        if key not in self.weight_indices:
            self.weight_indices[key] = len(self.weights)
            shape, dtype = tensor_type(value)
            self.weights.append(Weight(value, packer, (packer.num_elements,) if packer else shape, dtype))
        return self.weight_indices[key]

    def weight_expression(self, index: int) -> TvmObject:
        """Return a weight as an expression."""
        return self.relax.TupleGetItem(self.tuple, index) if self.constants is None else self.constants[index]

    def type_of(self, kind: TensorType | tuple[TensorType, ...]) -> TvmObject:
        assert isinstance(kind, TensorType)
        return self.relax.TensorType(self.sizes(kind.shape), kind.dtype)

    def size(self, size: int) -> TvmObject:
        """Return a size for TVM: a number, or an expression of symbols."""
        return size.at(self.symbols) if isinstance(size, Size) else size

    def sizes(self, shape: tuple[int, ...]) -> list[TvmObject]:
        return [self.size(size) for size in shape]

    def result(self, value: Value) -> TvmObject:
        """Return an output as an expression; a reshape to a size that varies stays a view."""
        sizes = tensor_type(value).shape
        if not (isinstance(value, Node) and value.op == "reshape" and is_run_time(sizes)):
            return self.argument(value)
        shape, kind = self.relax.ShapeExpr(self.sizes(sizes)), self.type_of(value.type)
        source = self.argument(value.arguments[0])
        return self.relax.op.call_pure_packed("vm.builtin.reshape", source, shape, ty_args=kind)

    def kernel_call(self, node: Node, function: TvmObject, workspace: Buffer | None) -> TvmObject:
        """Return the call of a kernel; its operands are in the workload's order.

        A workspace is a second result that nothing reads, so that TVM plans its memory with that of all tensors.
        """
        places = [self.weight_index(*one) for one in self.find_weights(node)]
        operands = [
            self.weight_expression(places.pop(0)) if isinstance(value, Constant) else self.values[value]
            for value in node.arguments
            if isinstance(value, Value)
        ]
        sizes = {name: self.tvm.tirx.const(size, "int64") for name, size in sizes_of_concatenation(node).items()}
        operands += [{**self.symbols, **sizes}[symbol] for symbol in self.kernels[node].symbols]
        results = self.type_of(node.type)
        if node.op == PUT:
            return self.relax.op.call_tir_inplace(function, self.relax.Tuple(operands), [0], results)
        if workspace is not None:
            results = [results, self.relax.TensorType(workspace.shape, workspace.dtype)]
        return self.relax.call_tir(function, self.relax.Tuple(operands), results)

    def operator_call(self, node: Node, builder: TvmObject) -> TvmObject:
        """Return the call of a TVM operator, or of a function that the importer wrote."""
        if node.op == ITEM:
            return self.relax.TupleGetItem(self.values[node.arguments[0]], node.attributes["index"])
        if node.op == LEADING:
            shape, dtype = tensor_type(node)
            source = self.argument(node.arguments[0])
            return self.relax.op.memory.view(source, self.relax.ShapeExpr(self.sizes(shape)), dtype, 0)
        if node.op in PRODUCTS:
            return self.write_product(node)
        if node.op.startswith(WRITTEN):
            function = builder.add_func(node.attributes["function"], node.op.removeprefix(WRITTEN))
            operands = self.relax.Tuple([self.argument(one) for one in node.arguments])
            return self.relax.call_tir(function, operands, self.type_of(node.type))
        if node.op in (QUANTIZE, DEQUANTIZE):
            return self.write_conversion(node)
        if node.op == "strided_slice" and is_run_time(_slice_numbers(node)):
            return self.slice_at_run_time(node, builder)
        if node.op == "lookup":
            data, kind = tensor_type(node.arguments[0]), tensor_type(node)
            indices = self.relax.op.astype(self.argument(node.arguments[0]), "int32")
            if data.dtype == "int8":
                indices = self.relax.op.add(indices, self.relax.const(128, "int32"))
            table = self.relax.const(np.asarray(node.attributes["table"], kind.dtype))
            return self.relax.op.take(table, indices, axis=0, mode="fast")
        if node.op in _SUBSTITUTES:
            return _SUBSTITUTES[node.op](self.relax.op, *map(self.argument, node.arguments))
        if node.op in _ELEMENTWISE:
            operands = [self.broadcast(value, tensor_type(node)) for value in node.arguments]
            return element_call(builder, node.op, [builder.emit(value) for value in operands])
        attributes_of_node = node.attributes
        if node.op == "split" and is_run_time(attributes_of_node["indices_or_sections"]):
            return self.relax.Tuple([self.slice_at_run_time(part, builder) for part in _slices(node)])
        if node.op == "split" and isinstance(attributes_of_node["indices_or_sections"], tuple):
            indices = [self.tvm.tirx.IntImm("int64", place) for place in attributes_of_node["indices_or_sections"]]
            attributes_of_node = {**attributes_of_node, "indices_or_sections": indices}
        attributes = self.tvm.ir.make_node(node.kind, **attributes_of_node) if node.kind else None
        arguments = [self.argument(argument) for argument in node.arguments]
        return self.relax.Call(self.tvm.ir.Op.get(f"relax.{node.op}"), arguments, attributes)

    def broadcast(self, value: Value, kind: TensorType) -> TvmObject:
        """Return an operand broadcast to the shape of a result."""
        operand = self.argument(value)
        return operand if value.type == kind else self.relax.op.broadcast_to(operand, self.argument(Shape(kind.shape)))

    def slice_at_run_time(self, node: Value, builder: TvmObject) -> TvmObject:
        """Return a slice with bounds that vary, in the graph's size, because TVM cannot infer that."""
        from tvm import te

        assert isinstance(node, Node)
        axes, begins, _, steps, _ = _slice_numbers(node)
        rank = len(tensor_type(node).shape)
        firsts, widths = [0] * rank, [1] * rank
        for axis, begin, step in zip(axes, begins, steps, strict=True):
            firsts[axis % rank], widths[axis % rank] = self.size(begin), self.size(step)

        def take(values: TvmObject, sizes: Sequence[TvmObject], *bounds: Sequence[TvmObject]) -> TvmObject:
            def element(*indices: TvmObject) -> TvmObject:
                return values(*(i * width + first for i, first, width in zip(indices, *bounds, strict=True)))

            return te.compute(sizes, element, name="slice_of_varying")

        sizes = self.sizes(tensor_type(node).shape)
        return builder.call_te(take, self.argument(node.arguments[0]), sizes, firsts, widths)

    def write_conversion(self, node: Node) -> TvmObject:
        """Return a conversion from or to integers with scales."""
        op, (data, scale, zero) = self.relax.op, map(self.argument, node.arguments)
        has_zero = bool(node.arguments[2].array.any())
        if node.op == DEQUANTIZE:
            integers = op.astype(data, "int32")
            return op.multiply(op.astype(op.subtract(integers, zero) if has_zero else integers, "float32"), scale)
        scaled = op.round(op.divide(data, scale))
        scaled = op.add(scaled, op.astype(zero, "float32")) if has_zero else scaled
        clipped = op.clip(scaled, node.attributes["low"], node.attributes["high"])
        return op.astype(op.astype(clipped, "int32"), tensor_type(node).dtype)

    def write_product(self, node: Node) -> TvmObject:
        """Return a matrix product without a kernel, with its epilogue."""
        op = self.relax.op
        data, weight, *operands = map(self.argument, node.arguments)
        result = op.matmul(data, weight)
        for step in node.attributes["epilogue"]:
            if step in ("bias", "add"):
                result = op.add(result, operands.pop(0))
            elif (name := f"nn.{step}") in _SUBSTITUTES:
                result = _SUBSTITUTES[name](op, result)
            else:
                result = getattr(op.nn, step)(result)
        return result

    def argument(self, argument: Argument) -> TvmObject:
        """Return an argument as a Relax expression."""
        relax = self.relax
        if isinstance(argument, Constant):
            index = self.weight_indices.get((argument, ""))
            if index is None and (part := _repeated_part(argument)) is not None:
                return relax.op.broadcast_to(relax.const(part), self.argument(Shape(tensor_type(argument).shape)))
            if index is None:
                return relax.const(argument.array, argument.array.dtype.name)
            return self.weight_expression(index)
        if isinstance(argument, Value):
            return self.values[argument]
        if isinstance(argument, Shape):
            return relax.ShapeExpr(self.sizes(argument))
        if isinstance(argument, Scalar) and isinstance(argument.value, Size):
            return self.size(argument.value)
        if isinstance(argument, Scalar):
            return self.tvm.tirx.const(argument.value, argument.dtype)
        if isinstance(argument, tuple):
            return relax.Tuple([self.argument(one) for one in argument])
        return argument
