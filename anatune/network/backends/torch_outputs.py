"""Restore the memory layout of a sub-graph's outputs: views of inputs and of each other, with the expected strides.

PyTorch's compiler passes sub-graphs with views and in-place writes, and relies on the layouts that it traced: which
results share memory, and their strides. A compiled model returns values only. Therefore another sub-graph is compiled:
it returns each piece of memory that holds outputs. The outputs are views of these pieces and of inputs.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import NamedTuple, TypeAlias

from anatune.arguments import quote
from anatune.errors import WorkloadError
from anatune.untyped import TorchArgument, TorchSize, TorchTensor, fx, sympy, torch

__all__ = ["SubGraphOutputs"]

_WRITES = re.compile("setitem|i(add|sub|mul|truediv|floordiv|mod|pow|and|or|xor|lshift|rshift)|.*[^_]_")
"""Names of operators that write into their first argument."""
_MOST_SIZES = 256
"""Most sets of sizes that layouts are stored for."""
_SizeReader: TypeAlias = "Callable[[Sequence[TorchArgument]], int]"


class _TensorLayout(NamedTuple):
    """Sizes, strides and offset of a tensor in elements; they are numbers or expressions of sizes that vary."""

    size: tuple[int | sympy.Expr, ...]
    stride: tuple[int | sympy.Expr, ...]
    offset: int | sympy.Expr


class _OutputSource(NamedTuple):
    """The source of one output of a sub-graph.

    Attributes
    ----------
    kind : str
        "argument" or "piece": a view of one; "same": an argument itself; "again": an earlier output; "value": a number
        or None.
    source : object
        Index of the argument, piece or earlier output; or the value, which may be an expression.
    layout : _TensorLayout, optional
        Layout of a view; for a view of an argument the offset is relative to the argument.
    dtype : torch.dtype, optional
        Number format of a view.
    """

    kind: str
    source: int | sympy.Expr
    layout: _TensorLayout | None = None
    dtype: torch.dtype | None = None


def _read_size(index: int, axis: int, arguments: Sequence[TorchArgument]) -> int:
    return int(arguments[index].shape[axis])


def _read_stride(index: int, axis: int, arguments: Sequence[TorchArgument]) -> int:
    return int(arguments[index].stride(axis))


class SubGraphOutputs:
    """The sources of a sub-graph's outputs, and the changed sub-graph to compile.

    Parameters
    ----------
    torch : module
    module : torch.fx.GraphModule
        The sub-graph from PyTorch's compiler; the metadata "example_value" describes each node's result.

    Attributes
    ----------
    module : torch.fx.GraphModule
        Takes the same arguments, and returns pieces of memory as tensors whose dimensions are in memory order.

    Raises
    ------
    WorkloadError
        An output is not a view of such a piece, so PyTorch has to run the sub-graph.
    """

    def __init__(self, torch: ModuleType, module: fx.GraphModule) -> None:
        self._torch = torch
        self._symbolic = import_module("torch.fx.experimental.symbolic_shapes")
        self._nodes = list(module.graph.nodes)
        self._values, self._copies = self._values_of_nodes()
        self._arguments = [self._values[node] for node in self._nodes if node.op == "placeholder"]
        self._check_writes()
        self._sizes = self._sizes_of_arguments()
        self._pieces: dict[int, tuple[fx.Node, tuple[int, ...]]] = {}  # by storage: a node, the order of dimensions
        (returned,) = (node.args[0] for node in self._nodes if node.op == "output")
        values = [self._values[node] if isinstance(node, torch.fx.Node) else node for node in returned]
        self._sources = []
        for index, (node, value) in enumerate(zip(returned, values, strict=True)):
            first = next(i for i, other in enumerate(values) if other is value)
            is_again = first < index and isinstance(value, torch.Tensor)
            self._sources.append(_OutputSource("again", first) if is_again else self._find_source(node, value))
        if not self._pieces:
            raise WorkloadError("it returns no tensor that it computes, so there is nothing to gain")
        self.module = self._make_module(module)
        self._sources_by_sizes: dict[tuple[int, ...], list[_OutputSource]] = {}

    def restore(self, arguments: Sequence[TorchArgument], pieces: Sequence[TorchTensor]) -> tuple[TorchArgument, ...]:
        """Return the outputs of a call from its arguments and the pieces that `module` returned."""
        key = tuple(int(read(arguments)) for read in self._sizes.values())
        outputs = self._sources_by_sizes.get(key)
        if outputs is None:
            if len(self._sources_by_sizes) >= _MOST_SIZES:
                self._sources_by_sizes.clear()
            sizes = dict(zip(self._sizes, key, strict=True))
            outputs = self._sources_by_sizes[key] = [_evaluate_sizes(output, sizes) for output in self._sources]
        restored: list[TorchArgument] = []
        whole = dict(enumerate(pieces))  # pieces that are not returned as an output yet
        for output in outputs:
            if output.kind == "again":
                restored.append(restored[output.source])
            elif output.kind == "piece" and _is_whole(output, whole.get(output.source)):
                restored.append(whole.pop(output.source))
            else:
                restored.append(_restore(output, arguments, pieces))
        return tuple(restored)

    def _check_writes(self) -> None:
        """Raise WorkloadError for operators that write into arguments.

        Exporting finds them as well, but fails with log messages of PyTorch if arguments share memory.
        """
        tensors = [value for value in self._arguments if isinstance(value, self._torch.Tensor)]
        storages = set(map(_storage, tensors))
        for node in self._nodes:
            name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
            if node.op.startswith("call") and _WRITES.fullmatch(name) and node.all_input_nodes:
                value = self._values[node.all_input_nodes[0]]
                if isinstance(value, self._torch.Tensor) and _storage(value) in storages:
                    raise WorkloadError(f"{name} writes into an argument in place, expected one that returns values")

    def _values_of_nodes(self) -> tuple[dict[fx.Node, TorchTensor], dict[int, TorchTensor | None]]:
        """Return the example value of each node, and (storage of a false copy -> the source whose memory it shares).

        PyTorch's compiler treats a dropout that drops nothing as a copy, but it returns its input.
        """
        functions = (self._torch.nn.functional.dropout, self._torch.dropout)
        values: dict[fx.Node, TorchTensor] = {}
        copies: dict[int, TorchTensor | None] = {}
        for node in self._nodes:
            value = values[node] = node.meta.get("example_value")
            if node.target in functions:
                given = dict(zip(("input", "p", "train"), node.args, strict=False)) | node.kwargs
                source = values.get(given["input"])
                drops = given.get("p", 0.5) != 0 and given.get("train", given.get("training", True))
                if not drops and isinstance(source, self._torch.Tensor):
                    values[node] = source
                    if _storage(value) != _storage(source):
                        copies[_storage(value)] = source if _dimensions(source) == _dimensions(value) else None
        return values, copies

    def _find_memory(self, value: TorchTensor) -> tuple[int, TorchSize]:
        """Return the storage of a result and its offset there. Raises WorkloadError as the class does."""
        storage, offset = _storage(value), value.storage_offset()
        while storage in self._copies:
            source = self._copies[storage]
            if source is None:
                raise WorkloadError("it returns a view of a dropout of a tensor with gaps, expected one without")
            storage, offset = _storage(source), offset + source.storage_offset()
        return storage, offset

    def _sizes_of_arguments(self) -> dict[sympy.Symbol, _SizeReader]:
        """Return a function for each symbol that reads its value from the sizes and strides of arguments."""
        readers: dict[sympy.Symbol, _SizeReader] = {}

        def note(number: TorchSize, read: _SizeReader) -> None:
            expression = _expression(number)
            if getattr(expression, "is_symbol", False):
                readers.setdefault(expression, read)

        for index, value in enumerate(self._arguments):
            if isinstance(value, self._torch.SymInt):
                note(value, operator.itemgetter(index))
            elif isinstance(value, self._torch.Tensor):
                for axis in range(value.dim()):
                    note(value.shape[axis], functools.partial(_read_size, index, axis))
                    note(value.stride(axis), functools.partial(_read_stride, index, axis))
        return readers

    def _find_source(self, node: fx.Node, value: TorchTensor) -> _OutputSource:
        """Return the source of an output. Raises WorkloadError as the class does."""
        torch = self._torch
        if value is None and isinstance(node, torch.fx.Node):
            raise WorkloadError(f"it returns {quote(node)} of unknown type, expected tensors and sizes")
        if value is None or isinstance(value, bool | int | float | torch.SymInt):
            return _OutputSource("value", self._check_number(value))
        if not isinstance(value, torch.Tensor) or hasattr(value, "__tensor_flatten__"):
            raise WorkloadError(f"it returns {quote(value)}, expected tensors and sizes")
        for index, argument in enumerate(self._arguments):
            if argument is value:
                return _OutputSource("same", index)
        if value.requires_grad:
            raise WorkloadError("its outputs may need gradients; call the model under torch.no_grad()")
        if value.layout != torch.strided or value.is_conj() or value.is_neg():
            raise WorkloadError(f"it returns a tensor of {value.dtype} ({value.layout}), expected a dense, real one")
        numbers = (*value.shape, *value.stride())
        size_and_stride = [self._check_number(number) for number in numbers]
        size, stride = tuple(size_and_stride[: value.dim()]), tuple(size_and_stride[value.dim() :])
        storage, begin = self._find_memory(value)
        sources = [
            place
            for place, argument in enumerate(self._arguments)
            if isinstance(argument, torch.Tensor) and _storage(argument) == storage
        ]
        if not sources:
            index = self._piece_index(value, storage)
            return _OutputSource("piece", index, _TensorLayout(size, stride, self._check_number(begin)), value.dtype)
        source = self._arguments[sources[0]]
        if len(sources) > 1 or source.dtype != value.dtype:
            what = "arguments that share memory" if len(sources) > 1 else f"an argument of {source.dtype}"
            raise WorkloadError(f"it returns a view, of {value.dtype}, of {what}, expected one argument of this dtype")
        offset = self._check_number(begin - source.storage_offset())
        return _OutputSource("argument", sources[0], _TensorLayout(size, stride, offset), value.dtype)

    def _piece_index(self, output: TorchTensor, storage: int) -> int:
        """Return the index of the piece that an output is in; a new piece is added."""
        if storage not in self._pieces:
            outputs = [node for node in self._nodes if self._values[node] is output]
            for node in outputs + self._nodes:
                value = self._values[node]
                if node.op.startswith("call") and isinstance(value, self._torch.Tensor) and _storage(value) == storage:
                    order = self._dimension_order(value)
                    if order is not None:
                        self._pieces[storage] = (node, order)
                        break
            else:
                raise WorkloadError("it returns a part of memory that no result fills, expected a tensor without gaps")
        return list(self._pieces).index(storage)

    def _dimension_order(self, value: TorchTensor) -> tuple[int, ...] | None:
        """Return the dimensions of a tensor in memory order; None if it does not fill its memory."""
        is_true = self._symbolic.statically_known_true
        hints = [(_hint(stride), _hint(size)) for stride, size in zip(value.stride(), value.shape, strict=True)]
        order = sorted(range(value.dim()), key=lambda axis: hints[axis], reverse=True)
        expected = 1
        for axis in reversed(order):
            size, stride = value.shape[axis], value.stride(axis)
            if not is_true(size == 1) and not is_true(stride == expected):
                return tuple(range(value.dim())) if any(size == 0 for _, size in hints) else None
            expected = expected * size
        is_whole = is_true(expected * value.element_size() == value.untyped_storage().nbytes())
        return tuple(order) if is_whole and is_true(value.storage_offset() == 0) else None

    def _check_number(self, number: TorchSize) -> int | sympy.Expr:
        """Return a number, or the expression of sizes that it is. Raises WorkloadError as the class does."""
        expression = _expression(number)
        if not getattr(expression, "free_symbols", set()) <= self._sizes.keys():
            raise WorkloadError(f"it returns a size that depends on values ({number}), expected sizes of its inputs")
        return expression

    def _make_module(self, module: fx.GraphModule) -> fx.GraphModule:
        """Return a sub-graph that returns its pieces."""
        graph = self._torch.fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        graph.graph_copy(module.graph, copies)
        pieces = []
        for node, order in self._pieces.values():
            is_turned = order != tuple(range(len(order)))
            pieces.append(graph.call_method("permute", (copies[node], *order)) if is_turned else copies[node])
        graph.output(tuple(pieces))
        for node in graph.nodes:
            if node.target is self._torch._C._autograd._get_data_attr:  # PyTorch's export dies of it (2.13)
                node.op, node.target = "call_method", "detach"
        return self._torch.fx.GraphModule(module, graph)


def _restore(output: _OutputSource, arguments: Sequence[TorchArgument], pieces: Sequence[TorchTensor]) -> TorchArgument:
    """Return an output of a call."""
    if output.kind == "value":
        return output.source
    if output.kind == "same":
        return arguments[output.source]
    assert output.layout is not None
    size, stride, offset = output.layout
    if output.kind == "argument":
        base = arguments[output.source]
        return base.as_strided(size, stride, base.storage_offset() + offset)
    base = pieces[output.source]
    if base.dtype != output.dtype:
        base = base.view(-1).view(output.dtype)
    return base.as_strided(size, stride, offset)


def _is_whole(output: _OutputSource, piece: TorchTensor | None) -> bool:
    """Return whether an output is an unchanged piece; a piece of None is already another output."""
    if piece is None or piece.dtype != output.dtype or output.layout is None:
        return False
    return bool(piece.shape == output.layout.size and piece.stride() == output.layout.stride)


def _dimensions(value: TorchTensor) -> list[int | sympy.Expr]:
    return [_expression(number) for number in (*value.shape, *value.stride())]


def _storage(value: TorchTensor) -> int:
    return int(value.untyped_storage()._cdata)


def _expression(number: TorchSize) -> int | sympy.Expr:
    """Return the expression of a size that varies; other numbers are returned unchanged."""
    expression = number.node.expr if hasattr(number, "node") else number
    return int(expression) if getattr(expression, "is_Integer", False) else expression


def _hint(number: TorchSize) -> int:
    """Return the value that PyTorch's compiler has seen."""
    return int(number.node.hint or 0) if hasattr(number, "node") else int(number)


def _evaluate_sizes(output: _OutputSource, sizes: Mapping[sympy.Symbol, int]) -> _OutputSource:
    """Return an output whose expressions have the values of sizes."""

    def evaluate(number: int | sympy.Expr) -> int | sympy.Expr:
        return int(number.xreplace(sizes)) if hasattr(number, "xreplace") else number

    layout = output.layout and _TensorLayout(
        tuple(map(evaluate, output.layout.size)), tuple(map(evaluate, output.layout.stride)),
        evaluate(output.layout.offset),
    )  # fmt: skip
    return output._replace(source=evaluate(output.source), layout=layout)
