"""Read exported programs of PyTorch's core operators as graphs, node by node.

The program declares the type of each result, and the result of a reader has to have it. Empty tensors need no reader.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

import numpy as np

from anatune.errors import WorkloadError
from anatune.network.graph.building import constant
from anatune.network.graph.nodes import Constant, Graph, Input, TensorType, Value, tensor_type
from anatune.network.graph.torch.arrays import array_of_torch
from anatune.network.graph.torch.call import RefusedError, TorchArgument, TorchCall
from anatune.network.graph.torch.operators import READERS
from anatune.untyped import ExportedProgram, TorchTensor, fx, sympy

__all__ = ["Symbol", "graph_of_program", "initial_buffer", "list_mutated", "refused_nodes", "symbols_of_program"]

_DTYPES = (
    "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "bool",
)  # fmt: skip
_CHECKS = (
    "_assert_async", "_assert_scalar", "_assert_tensor_metadata", "_functional_assert_async", "sym_constrain_range",
    "sym_constrain_range_for_size",
)  # fmt: skip
"""Operators that compute nothing."""
_SIZED = ("_unsafe_index", "index", "masked_select", "nonzero", "repeat_interleave")
"""Operators whose results may have a size that depends on values."""
_BY_STRIDES = ("as_strided", "as_strided_copy")
_BREAKS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""The errors that a reader may raise for arguments that it does not support."""
_FOREIGN = object()
"""Stands for a tensor that graphs do not support: of complex numbers, or of sizes that vary."""
_MUTATIONS = ("BUFFER_MUTATION", "USER_INPUT_MUTATION")
_SETTINGS = {"wrap_with_set_grad_enabled": 1, "wrap_with_autocast": 4}
"""Operators that run a part of a program under a setting -> the index of the argument that is the part."""


def graph_of_program(program: ExportedProgram, name: str, sizes: Mapping[object, int] | None = None) -> Graph:
    """Return the graph of an exported program.

    Buffers that the program writes to are its last inputs. The new values of these, and of inputs that it writes to,
    are its last outputs, in the order of `list_mutated`.

    Parameters
    ----------
    program : torch.export.ExportedProgram
        A program of core operators.
    name : str
        The name of the program, for messages.
    sizes : mapping of object to int, optional
        The values of the symbols of `symbols_of_program`.

    Raises
    ------
    WorkloadError
        The program cannot be read. The message names the operators and nodes, and what can be done.
    """
    reader = _ProgramReader(program, name, sizes)
    if reader.refused:
        raise WorkloadError(f"{name} cannot be read: {'; '.join(_describe_refused(reader.refused))}")
    return reader.graph


def list_mutated(program: ExportedProgram) -> list[tuple[str, bool]]:
    """Return the targets that a program writes to, in the order of its outputs: (name, whether it is a buffer)."""
    signature = program.graph_signature
    names = {**dict.fromkeys(signature.buffers_to_mutate.values(), True)}
    names |= dict.fromkeys(signature.user_inputs_to_mutate.values(), False)
    return [(spec.target, names[spec.target]) for spec in signature.output_specs if spec.kind.name in _MUTATIONS]


def initial_buffer(program: ExportedProgram, target: str) -> TorchTensor:
    """Return the initial value of a buffer of a program."""
    return (program.constants if target in program.constants else program.state_dict)[target]


class Symbol(NamedTuple):
    """A size of a program's inputs that varies.

    Attributes
    ----------
    name : str
        The first input that has the size, and the axis.
    expression : sympy.Symbol
    least, most : int
        The range of the size; None: no limit.
    seen : int
        The value with which the program was exported.
    """

    name: str
    expression: sympy.Symbol
    least: int
    most: int | None
    seen: int


def symbols_of_program(program: ExportedProgram) -> list[Symbol]:
    """Return the sizes of a program's inputs that vary."""
    symbols: dict[sympy.Symbol, Symbol] = {}
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op != "placeholder" or not hasattr(value, "shape"):
            continue
        for axis, size in enumerate(value.shape):
            expression = size.node.expr if hasattr(size, "node") else None
            if expression is None or not expression.is_symbol or expression in symbols:
                continue
            constraint, seen = program.range_constraints.get(expression), size.node.hint if size.node.has_hint() else 1
            least = max(0, int(constraint.lower)) if constraint is not None else 0
            most = int(constraint.upper) if constraint is not None and constraint.upper.is_Integer else None
            symbols[expression] = Symbol(f"{node.name}_{axis}", expression, least, most, int(seen))
    return list(symbols.values())


def refused_nodes(program: ExportedProgram) -> list[fx.Node]:
    """Return the nodes of an exported program that cannot be read; each is tried even if nodes before it failed."""
    sizes = {symbol.expression: symbol.seen for symbol in symbols_of_program(program)}
    return [node for node, _ in _ProgramReader(program, "it", sizes).refused]


def _describe_refused(refused: Sequence[tuple[fx.Node, str]]) -> list[str]:
    """Return messages about nodes that cannot be read: one for all unknown operators, then one for each other node."""
    by_name: dict[str, list[str]] = {}
    for node, reason in refused:
        if not reason:
            by_name.setdefault(_operator_name(node), []).append(_describe_node(node))
    unknown = [
        f"{word} ({nodes[0]}{f' and {len(nodes) - 1} more' if nodes[1:] else ''})" for word, nodes in by_name.items()
    ]
    messages = [f"{_operator_name(node)} ({_describe_node(node)}) {reason}" for node, reason in refused if reason]
    if unknown:
        messages.insert(
            0,
            f"anatune cannot read {', '.join(unknown)}; export the model with other operators, or run it with "
            "torch.compile, which leaves them to PyTorch",
        )
    return messages


def _operator_name(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _describe_node(node: fx.Node) -> str:
    """Return words that name an operator's node and the path of the module that calls it."""
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    path = modules[-1][0] if modules else ""
    return f"node {node.name} in {path}" if path else f"node {node.name}"


def _tensor_type(tensor: TorchTensor, sizes: Mapping[object, int]) -> TensorType:
    """Return the type of a PyTorch tensor; `sizes` holds the values of known symbols.

    Raises
    ------
    RefusedError
        A size is another symbol, or graphs do not support the dtype.
    """
    shape = []
    for axis, size in enumerate(tensor.shape):
        if not isinstance(size, int):
            expression = size.node.expr.subs(sizes)
            size = int(expression) if expression.is_number else size
        if not isinstance(size, int):
            raise RefusedError(
                f"is dynamic along axis {axis} ({size}), expected fixed sizes; pass example inputs of the sizes to "
                "compile for, and export without dynamic shapes"
            )
        shape.append(size)
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in _DTYPES:
        raise RefusedError(f"has numbers of type {dtype}, expected one of {', '.join(_DTYPES)}")
    return TensorType(tuple(shape), dtype)


class _ProgramReader:
    """Reads the nodes of a program; `graph` is the result, `refused` holds (node, reason) of unreadable ones."""

    def __init__(self, program: ExportedProgram, name: str, sizes: Mapping[object, int] | None = None) -> None:
        self.torch, self.name = import_module("torch"), name
        with contextlib.suppress(ImportError):
            import_module("ml_dtypes")  # registers bfloat16 in NumPy
        self.constants: dict[object, Constant] = {}
        self.sizes = dict(sizes or {})  # values of symbols; readers add symbols that depend on constants
        self.refused: list[tuple[fx.Node, str]] = []
        kinds = import_module("torch.export.graph_signature").InputKind
        nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
        values: dict[fx.Node, TorchArgument] = {}
        inputs: list[Input] = []
        written = [target for target, is_buffer in list_mutated(program) if is_buffer]
        buffers: dict[str, Input] = {}
        for spec in program.graph_signature.input_specs:
            node = nodes[spec.arg.name]
            if spec.kind == kinds.TOKEN:
                values[node] = None
            elif spec.target in written and spec.kind == kinds.BUFFER:
                buffers[spec.target] = values[node] = Input(node.name, _tensor_type(node.meta["val"], self.sizes))
            elif spec.kind != kinds.USER_INPUT:
                tensors = program.constants if spec.target in program.constants else program.state_dict
                values[node] = self.tensor(tensors[spec.target], spec.target)
            elif isinstance(node.meta.get("val"), self.torch.Tensor):
                try:
                    inputs.append(Input(node.name, _tensor_type(node.meta["val"], self.sizes)))
                except RefusedError as error:
                    raise WorkloadError(f"{name}: input {node.name} {error}") from error
                values[node] = inputs[-1]
            else:
                values[node] = getattr(spec.arg, "value", None)
        outputs = self.outputs_of(program.graph_module, values)
        specs = program.graph_signature.output_specs
        user_outputs, mutated = (
            tuple(value for value, one in zip(outputs, specs, strict=True) if one.kind.name in kinds)
            for kinds in (("USER_OUTPUT",), _MUTATIONS)
        )
        inputs += [buffers[target] for target in written]
        graph_outputs = (*(one for one in user_outputs if isinstance(one, Value)), *mutated)
        if not graph_outputs:
            raise WorkloadError(f"{name} returns no tensor, expected at least one")
        self.graph = Graph(tuple(inputs), graph_outputs, is_tuple=True)

    def outputs_of(self, module: fx.GraphModule, values: dict[fx.Node, TorchArgument]) -> list[TorchArgument]:
        """Return the outputs of a PyTorch graph; `values` holds its placeholders."""
        for node in module.graph.nodes:
            if node.op == "get_attr":
                tensor = functools.reduce(getattr, node.target.split("."), module)
                values[node] = self.tensor(tensor, node.target) if isinstance(tensor, self.torch.Tensor) else tensor
            elif node.op == "call_function":
                values[node] = self.result_of(node, values)
            elif node.op == "output":
                return [
                    values[argument] if isinstance(argument, self.torch.fx.Node) else argument
                    for argument in node.args[0]
                ]
        raise AssertionError("a PyTorch graph ends with its output")

    def argument(self, argument: object, values: Mapping[fx.Node, TorchArgument]) -> TorchArgument:
        """Return an argument of a node with values in place of nodes."""
        if isinstance(argument, self.torch.fx.Node):
            if values[argument] is _FOREIGN:
                raise RefusedError(f"reads {argument.name}, which is not a tensor that anatune supports")
            return values[argument]
        if isinstance(argument, list | tuple):
            return [self.argument(part, values) for part in argument]
        return argument

    def tensor(self, tensor: TorchTensor, what: str) -> Constant:
        """Return a tensor of a program as a constant; the same tensor under several names is the same constant.

        Raises
        ------
        WorkloadError
            The tensor has no values, or an unsupported dtype.
        """
        tensor = tensor.detach()
        try:
            kind = _tensor_type(tensor, self.sizes)
            if tensor.is_meta:
                return Constant(array_of_torch(tensor))
            if tensor.layout != self.torch.strided:
                tensor = tensor.to_dense()
            tensor = tensor.cpu().resolve_conj().resolve_neg()
            key = (tensor.data_ptr(), kind, tensor.stride())
            if key not in self.constants:
                self.constants[key] = Constant(array_of_torch(tensor))
            return self.constants[key]
        except RefusedError as error:
            raise WorkloadError(f"{self.name}: tensor {what} {error}") from error
        except (RuntimeError, TypeError, ValueError) as error:
            raise WorkloadError(
                f"{self.name}: the values of tensor {what} cannot be read ({str(error).splitlines()[0]:.200})"
            ) from error

    def result_of(self, node: fx.Node, values: Mapping[fx.Node, TorchArgument]) -> TorchArgument:
        """Return the result of a node, or inputs of its type if it cannot be read."""
        try:
            return self.read(node, values)
        except RefusedError as error:
            reason = str(error)
        except _BREAKS as error:
            text = str(error).strip().splitlines() or [type(error).__name__]
            reason = f"cannot be read: {text[-1]:.200}"
        self.refused.append((node, reason))
        declared = node.meta.get("val")
        is_list = isinstance(declared, list | tuple)
        placeholders = [self.placeholder(tensor) for tensor in (declared if is_list else [declared])]
        return placeholders if is_list else placeholders[0]

    def placeholder(self, value: object) -> TorchArgument:
        """Return an input that replaces a result, or the result itself if it is a number."""
        if not isinstance(value, self.torch.Tensor):
            return value
        try:
            return Input("", _tensor_type(value, self.sizes))
        except RefusedError:
            return _FOREIGN

    def read(self, node: fx.Node, values: Mapping[fx.Node, TorchArgument]) -> TorchArgument:
        """Return the result of a node.

        Raises
        ------
        RefusedError
            The node cannot be read; an empty message means that the operator is unknown.
        """
        name = _operator_name(node)
        base = name.partition(".")[0]
        arguments = self.argument(node.args, values)
        if base in _CHECKS:
            return None
        if node.target is operator.getitem:
            return arguments[0][arguments[1]]
        if base in _SETTINGS:
            return self.part(arguments[_SETTINGS[base]], arguments[_SETTINGS[base] + 1 :])
        if base == "cond" and isinstance(arguments[0], Constant | bool):
            is_true = arguments[0] if isinstance(arguments[0], bool) else bool(arguments[0].array)
            return self.part(arguments[1 if is_true else 2], arguments[3])
        declared = node.meta.get("val")
        if not isinstance(declared, self.torch.Tensor | list | tuple):  # sizes and other numbers
            return self.number(node, arguments)
        if base in _SIZED:
            return self.read_sized(self.call(node, name, arguments, (), values), base, declared)
        kinds = tuple(_tensor_type(tensor, self.sizes) for tensor in _tensors(self.torch, declared))
        if kinds and all(0 in kind.shape for kind in kinds) and base != "cat":  # an empty concatenation may be a state
            zeros = [constant(np.zeros(kind.shape), kind.dtype) for kind in kinds]
            return zeros if isinstance(declared, list | tuple) else zeros[0]
        if base in _BY_STRIDES:
            source = node.args[0].meta["val"]
            if not source.is_contiguous() or (arguments[3:] and arguments[3] is not None and source.storage_offset()):
                raise RefusedError(
                    "reads memory by strides from a tensor that is not contiguous, expected a contiguous one"
                )
        convert = READERS.get(base)
        if convert is None or not hasattr(node.target, "_schema"):
            raise RefusedError("")
        result = convert(self.call(node, name, arguments, kinds, values))
        self.check_type(result, kinds)
        return result

    def read_sized(self, call: TorchCall, base: str, declared: TorchTensor) -> Value:
        """Return a result whose size depends on constants, and store the values of its symbols."""
        value = READERS[base](call)
        assert isinstance(value, Value)
        for size, known_size in zip(declared.shape, tensor_type(value).shape, strict=True):
            if not isinstance(size, int) and size.node.expr.is_symbol:
                self.sizes[size.node.expr] = known_size
        self.check_type(value, (_tensor_type(declared, self.sizes),))
        return value

    def call(
        self, node: fx.Node, name: str, arguments: Sequence[TorchArgument], kinds: tuple[TensorType, ...],
        values: Mapping[fx.Node, TorchArgument],
    ) -> TorchCall:  # fmt: skip
        """Return a node as its reader sees it."""
        schema = node.target._schema.arguments
        named = {p.name: p.default_value for p in schema if p.has_default_value()}
        named |= {p.name: v for p, v in zip(schema, arguments, strict=False)}
        named |= {word: self.argument(v, values) for word, v in node.kwargs.items()}
        raw = {p.name: v for p, v in zip(schema, node.args, strict=False)} | dict(node.kwargs)

        def common(*words: str) -> str:
            operands = [
                raw[word].meta["val"] if isinstance(raw[word], self.torch.fx.Node) else raw[word] for word in words
            ]
            return str(self.torch.result_type(*operands)).removeprefix("torch.")

        indices = [user.args[1] for user in node.users if user.target is operator.getitem]
        return TorchCall(name, named, kinds, common, 1 + max(indices, default=len(kinds) - 1 if node.users else 0))

    def part(self, module: fx.GraphModule, arguments: Sequence[TorchArgument]) -> list[TorchArgument]:
        """Return the outputs of a part of a program for arguments."""
        nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
        return self.outputs_of(module, dict(zip(nodes, arguments, strict=True)))

    def number(self, node: fx.Node, arguments: Sequence[TorchArgument]) -> TorchArgument:
        """Return a number that a node computes from the program, from known sizes or from a constant."""
        value, first = node.meta.get("val"), arguments[0] if arguments else None
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(first, Value) and _operator_name(node).startswith("sym_size"):
            return tensor_type(first).shape[arguments[1]]
        if isinstance(first, Constant) and first.array.size == 1:
            return first.array.reshape(()).item()
        if arguments and all(isinstance(argument, bool | int | float) for argument in arguments):
            return node.target(*arguments)
        if all(_operator_name(user).partition(".")[0] in _CHECKS for user in node.users):
            return None
        raise RefusedError("computes a number that is known only when the model runs, expected fixed sizes")

    def check_type(self, result: TorchArgument, kinds: Sequence[TensorType]) -> None:
        """Raise RefusedError if a result does not have the type that PyTorch declares."""
        for value, kind in zip([result] if isinstance(result, Value) else result, kinds, strict=True):
            if value is not None and value.type != kind:
                raise RefusedError(f"was read as {value.type}, but PyTorch declares {kind}; report this")


def _tensors(torch: ModuleType, results: object) -> Iterator[TorchTensor]:
    for result in results if isinstance(results, list | tuple) else (results,):
        if isinstance(result, torch.Tensor):
            yield result
