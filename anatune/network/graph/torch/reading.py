"""Exported programs of PyTorch's core operators as graphs, node by node.

The program says the type of each result; what is read has to have it. Tensors without elements need no reading.
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
from anatune.network.graph.torch.call import Call, Given, RefusedError
from anatune.network.graph.torch.operators import READERS
from anatune.untyped import ExportedProgram, TorchTensor, fx, sympy

__all__ = [
    "Symbol",
    "buffer_of",
    "graph_of_program",
    "refused_nodes",
    "symbols_of_program",
    "written_by",
]

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
"""What an operator's reader may run into that is given other arguments than it knows."""
_FOREIGN = object()
"""Stands for a tensor that graphs do not have: of complex numbers, of sizes that vary."""
_MUTATIONS = ("BUFFER_MUTATION", "USER_INPUT_MUTATION")
_SETTINGS = {"wrap_with_set_grad_enabled": 1, "wrap_with_autocast": 4}
"""What runs a part of a program under some setting -> which argument the part is."""


def graph_of_program(program: ExportedProgram, name: str, sizes: Mapping[object, int] | None = None) -> Graph:
    """Return an exported program as a graph.

    Buffers that it writes into are its last inputs; what becomes of them, and of inputs, are its last outputs, in the
    order of `written_by`.

    Parameters
    ----------
    program : torch.export.ExportedProgram
        Of core operators.
    name : str
        For messages.
    sizes : mapping of object to int, optional
        Values of the symbols of `symbols_of_program`.

    Raises
    ------
    WorkloadError
        It cannot be read: which operators, which nodes, and what can be done.
    """
    reader = _Reader(program, name, sizes)
    if reader.refused:
        raise WorkloadError(f"{name} cannot be read: {'; '.join(_words(reader.refused))}")
    return reader.graph


def written_by(program: ExportedProgram) -> list[tuple[str, bool]]:
    """Return what an exported program writes into, in the order of its outputs: name, and whether it is a buffer."""
    signature = program.graph_signature
    names = {**dict.fromkeys(signature.buffers_to_mutate.values(), True)}
    names |= dict.fromkeys(signature.user_inputs_to_mutate.values(), False)
    return [(one.target, names[one.target]) for one in signature.output_specs if one.kind.name in _MUTATIONS]


def buffer_of(program: ExportedProgram, target: str) -> TorchTensor:
    """Return a buffer of a program as it is at first."""
    return (program.constants if target in program.constants else program.state_dict)[target]


class Symbol(NamedTuple):
    """A size of a program's inputs that varies.

    Attributes
    ----------
    name : str
        The first input that has it, and the axis.
    expression : sympy.Symbol
    least, most : int
        Its range; None: it has no limit.
    seen : int
        What the program was exported with.
    """

    name: str
    expression: sympy.Symbol
    least: int
    most: int | None
    seen: int


def symbols_of_program(program: ExportedProgram) -> list[Symbol]:
    """Return the sizes of a program's inputs that vary."""
    found: dict[sympy.Symbol, Symbol] = {}
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op != "placeholder" or not hasattr(value, "shape"):
            continue
        for axis, size in enumerate(value.shape):
            own = size.node.expr if hasattr(size, "node") else None
            if own is None or not own.is_symbol or own in found:
                continue
            known, seen = program.range_constraints.get(own), size.node.hint if size.node.has_hint() else 1
            least = max(0, int(known.lower)) if known is not None else 0
            most = int(known.upper) if known is not None and known.upper.is_Integer else None
            found[own] = Symbol(f"{node.name}_{axis}", own, least, most, int(seen))
    return list(found.values())


def refused_nodes(program: ExportedProgram) -> list[fx.Node]:
    """Return the nodes of an exported program that cannot be read, each as if those before it could."""
    sizes = {symbol.expression: symbol.seen for symbol in symbols_of_program(program)}
    return [node for node, _ in _Reader(program, "it", sizes).refused]


def _words(refused: Sequence[tuple[fx.Node, str]]) -> list[str]:
    """Return what is said of nodes that cannot be read: unknown operators together, then the others."""
    places: dict[str, list[str]] = {}
    for node, reason in refused:
        if not reason:
            places.setdefault(_name(node), []).append(_place(node))
    unknown = [
        f"{word} ({nodes[0]}{f' and {len(nodes) - 1} more' if nodes[1:] else ''})" for word, nodes in places.items()
    ]
    found = [f"{_name(node)} ({_place(node)}) {reason}" for node, reason in refused if reason]
    if unknown:
        found.insert(
            0,
            f"it does not know {', '.join(unknown)}; export the model with other operators, or run it by "
            "torch.compile, which leaves them to PyTorch",
        )
    return found


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _place(node: fx.Node) -> str:
    """Return where a model has an operator: its node, and the path of the module that calls it."""
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    path = modules[-1][0] if modules else ""
    return f"node {node.name} in {path}" if path else f"node {node.name}"


def _type_of(tensor: TorchTensor, sizes: Mapping[object, int]) -> TensorType:
    """Return the type of a tensor of PyTorch's; `sizes`: of the symbols that are known.

    Raises
    ------
    RefusedError
        A size is another symbol, or its numbers are of a kind that graphs do not have.
    """
    shape = []
    for axis, size in enumerate(tensor.shape):
        if not isinstance(size, int):
            expression = size.node.expr.subs(sizes)
            size = int(expression) if expression.is_number else size
        if not isinstance(size, int):
            raise RefusedError(
                f"is dynamic along axis {axis} ({size}), expected fixed sizes; give example inputs of the sizes to "
                "compile for, and export without dynamic shapes"
            )
        shape.append(size)
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in _DTYPES:
        raise RefusedError(f"has numbers of type {dtype}, expected some of {', '.join(_DTYPES)}")
    return TensorType(tuple(shape), dtype)


class _Reader:
    """Walks the nodes of a program in order; `graph` is what comes out, `refused` what does not: node and reason."""

    def __init__(self, program: ExportedProgram, name: str, sizes: Mapping[object, int] | None = None) -> None:
        self.torch, self.name = import_module("torch"), name
        with contextlib.suppress(ImportError):
            import_module("ml_dtypes")  # NumPy has bfloat16 from it
        self.constants: dict[object, Constant] = {}
        self.sizes = dict(sizes or {})  # by symbol; those join that depend on values that are known here
        self.refused: list[tuple[fx.Node, str]] = []
        kinds = import_module("torch.export.graph_signature").InputKind
        nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
        values: dict[fx.Node, Given] = {}
        inputs: list[Input] = []
        written = [target for target, is_buffer in written_by(program) if is_buffer]
        buffers: dict[str, Input] = {}
        for one in program.graph_signature.input_specs:
            node = nodes[one.arg.name]
            if one.kind == kinds.TOKEN:
                values[node] = None
            elif one.target in written and one.kind == kinds.BUFFER:
                buffers[one.target] = values[node] = Input(node.name, _type_of(node.meta["val"], self.sizes))
            elif one.kind != kinds.USER_INPUT:
                known = program.constants if one.target in program.constants else program.state_dict
                values[node] = self.tensor(known[one.target], one.target)
            elif isinstance(node.meta.get("val"), self.torch.Tensor):
                try:
                    inputs.append(Input(node.name, _type_of(node.meta["val"], self.sizes)))
                except RefusedError as error:
                    raise WorkloadError(f"{name}: input {node.name} {error}") from error
                values[node] = inputs[-1]
            else:
                values[node] = getattr(one.arg, "value", None)
        outputs = self.outputs_of(program.graph_module, values)
        specs = program.graph_signature.output_specs
        own, changed = (
            tuple(value for value, one in zip(outputs, specs, strict=True) if one.kind.name in kinds)
            for kinds in (("USER_OUTPUT",), _MUTATIONS)
        )
        inputs += [buffers[target] for target in written]
        kept = (*(one for one in own if isinstance(one, Value)), *changed)
        if not kept:
            raise WorkloadError(f"{name} returns no tensor, expected one at least; return what it computes")
        self.graph = Graph(tuple(inputs), kept, is_tuple=True)

    def outputs_of(self, module: fx.GraphModule, values: dict[fx.Node, Given]) -> list[Given]:
        """Return what a graph of PyTorch's returns; `values` has its placeholders."""
        for node in module.graph.nodes:
            if node.op == "get_attr":
                held = functools.reduce(getattr, node.target.split("."), module)
                values[node] = self.tensor(held, node.target) if isinstance(held, self.torch.Tensor) else held
            elif node.op == "call_function":
                values[node] = self.result_of(node, values)
            elif node.op == "output":
                return [values[one] if isinstance(one, self.torch.fx.Node) else one for one in node.args[0]]
        raise AssertionError("a graph of PyTorch's ends with its output")

    def argument(self, given: object, values: Mapping[fx.Node, Given]) -> Given:
        """Return an argument of a node: values in the place of nodes, the numbers of symbols."""
        if isinstance(given, self.torch.fx.Node):
            if values[given] is _FOREIGN:
                raise RefusedError(f"reads {given.name}, which is no tensor that graphs have")
            return values[given]
        if isinstance(given, list | tuple):
            return [self.argument(one, values) for one in given]
        return given

    def tensor(self, tensor: TorchTensor, what: str) -> Constant:
        """Return a tensor of a program, each once: several names may be one.

        Raises
        ------
        WorkloadError
            It has no values, or numbers of another kind.
        """
        tensor = tensor.detach()
        try:
            kind = _type_of(tensor, self.sizes)
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
                f"{self.name}: tensor {what} has no values that can be read ({str(error).splitlines()[0]:.200})"
            ) from error

    def result_of(self, node: fx.Node, values: Mapping[fx.Node, Given]) -> Given:
        """Return the result of a node; where it cannot be read, inputs of its type stand for it."""
        try:
            return self.read(node, values)
        except RefusedError as error:
            reason = str(error)
        except _BREAKS as error:
            text = str(error).strip().splitlines() or [type(error).__name__]
            reason = f"cannot be read: {text[-1]:.200}"
        self.refused.append((node, reason))
        found = node.meta.get("val")
        several = isinstance(found, list | tuple)
        places = [self.placeholder(one) for one in (found if several else [found])]
        return places if several else places[0]

    def placeholder(self, value: object) -> Given:
        """Return an input that stands for a result, or the number that it is."""
        if not isinstance(value, self.torch.Tensor):
            return value
        try:
            return Input("", _type_of(value, self.sizes))
        except RefusedError:
            return _FOREIGN

    def read(self, node: fx.Node, values: Mapping[fx.Node, Given]) -> Given:
        """Return the result of a node.

        Raises
        ------
        RefusedError
            It cannot be read; "": the operator is not known.
        """
        name = _name(node)
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
        found = node.meta.get("val")
        if not isinstance(found, self.torch.Tensor | list | tuple):  # sizes, numbers
            return self.number(node, arguments)
        if base in _SIZED:
            return self.sized(self.call(node, name, arguments, (), values), base, found)
        kinds = tuple(_type_of(one, self.sizes) for one in _tensors(self.torch, found))
        if (
            kinds and all(0 in kind.shape for kind in kinds) and base != "cat"
        ):  # which may be a state that holds nothing
            zeros = [constant(np.zeros(kind.shape), kind.dtype) for kind in kinds]
            return zeros if isinstance(found, list | tuple) else zeros[0]
        if base in _BY_STRIDES:
            source = node.args[0].meta["val"]
            if not source.is_contiguous() or (arguments[3:] and arguments[3] is not None and source.storage_offset()):
                raise RefusedError(
                    "reads memory by strides, of a tensor that does not lie row by row from where it begins"
                )
        convert = READERS.get(base)
        if convert is None or not hasattr(node.target, "_schema"):
            raise RefusedError("")
        result = convert(self.call(node, name, arguments, kinds, values))
        self.checked(result, kinds)
        return result

    def sized(self, call: Call, base: str, found: TorchTensor) -> Value:
        """Return a result whose size depends on values, which have to be known; its symbols have numbers then."""
        value = READERS[base](call)
        assert isinstance(value, Value)
        for size, own in zip(found.shape, tensor_type(value).shape, strict=True):
            if not isinstance(size, int) and size.node.expr.is_symbol:
                self.sizes[size.node.expr] = own
        self.checked(value, (_type_of(found, self.sizes),))
        return value

    def call(
        self, node: fx.Node, name: str, arguments: Sequence[Given], kinds: tuple[TensorType, ...],
        values: Mapping[fx.Node, Given],
    ) -> Call:  # fmt: skip
        """Return what the reader of a node's operator sees."""
        schema = node.target._schema.arguments
        named = {one.name: one.default_value for one in schema if one.has_default_value()}
        named |= {one.name: given for one, given in zip(schema, arguments, strict=False)}
        named |= {word: self.argument(given, values) for word, given in node.kwargs.items()}
        raw = {one.name: given for one, given in zip(schema, node.args, strict=False)} | dict(node.kwargs)

        def common(*words: str) -> str:
            given = [
                raw[word].meta["val"] if isinstance(raw[word], self.torch.fx.Node) else raw[word] for word in words
            ]
            return str(self.torch.result_type(*given)).removeprefix("torch.")

        places = [user.args[1] for user in node.users if user.target is operator.getitem]
        return Call(name, named, kinds, common, 1 + max(places, default=len(kinds) - 1 if node.users else 0))

    def part(self, module: fx.GraphModule, arguments: Sequence[Given]) -> list[Given]:
        """Return what a part of a program returns for arguments."""
        nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
        return self.outputs_of(module, dict(zip(nodes, arguments, strict=True)))

    def number(self, node: fx.Node, arguments: Sequence[Given]) -> Given:
        """Return a number that a node computes: known by the program, of known sizes, an element of a constant."""
        value, first = node.meta.get("val"), arguments[0] if arguments else None
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(first, Value) and _name(node).startswith("sym_size"):
            return tensor_type(first).shape[arguments[1]]
        if isinstance(first, Constant) and first.array.size == 1:
            return first.array.reshape(()).item()
        if arguments and all(isinstance(one, bool | int | float) for one in arguments):
            return node.target(*arguments)
        if all(_name(user).partition(".")[0] in _CHECKS for user in node.users):
            return None
        raise RefusedError("computes a number that is known only when the model runs, expected fixed sizes")

    def checked(self, result: Given, kinds: Sequence[TensorType]) -> None:
        """Raise RefusedError where what was read is not of the type that PyTorch says."""
        for value, kind in zip([result] if isinstance(result, Value) else result, kinds, strict=True):
            if value is not None and value.type != kind:
                raise RefusedError(f"was read as {value.type}, and is {kind}; report this")


def _tensors(torch: ModuleType, found: object) -> Iterator[TorchTensor]:
    for one in found if isinstance(found, list | tuple) else (found,):
        if isinstance(one, torch.Tensor):
            yield one
