"""How the outputs of a sub-graph lie in memory: views of inputs and of each other, with the strides PyTorch was told.

PyTorch's compiler hands sub-graphs with views and writes in them, and goes on from what it found out on the way: which
results share memory, and how their elements lie. A compiled model returns values. So a sub-graph is compiled that
returns, for each piece of memory that its outputs are in, what the piece holds; outputs are views of these pieces, and
of inputs.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import NamedTuple, TypeAlias

from anatune.arguments import shown
from anatune.errors import WorkloadError
from anatune.untyped import TorchArgument, TorchSize, TorchTensor, fx, sympy, torch

__all__ = ["Outputs"]

_WRITES = re.compile("setitem|i(add|sub|mul|truediv|floordiv|mod|pow|and|or|xor|lshift|rshift)|.*[^_]_")
"""Names of operators that write into their first argument."""
_MOST_SIZES = 256
"""Sets of sizes that layouts are kept of."""
_Read: TypeAlias = "Callable[[Sequence[TorchArgument]], int]"


class _Layout(NamedTuple):
    """Sizes, strides and offset of a tensor, in elements: numbers, or expressions of sizes that vary."""

    size: tuple[int | sympy.Expr, ...]
    stride: tuple[int | sympy.Expr, ...]
    offset: int | sympy.Expr


class _Output(NamedTuple):
    """One output of a sub-graph.

    Attributes
    ----------
    kind : str
        "argument", "piece": a view of one; "same": an argument itself; "again": an earlier output; "value": a number,
        or None.
    source : object
        Place of the argument, piece or earlier output; the value, which may be an expression.
    layout : _Layout, optional
        Of a view; of one of an argument: the offset is from where that begins.
    dtype : torch.dtype, optional
        Of a view.
    """

    kind: str
    source: int | sympy.Expr
    layout: _Layout | None = None
    dtype: torch.dtype | None = None


def _read_size(place: int, axis: int, given: Sequence[TorchArgument]) -> int:
    return int(given[place].shape[axis])


def _read_stride(place: int, axis: int, given: Sequence[TorchArgument]) -> int:
    return int(given[place].stride(axis))


class Outputs:
    """What a sub-graph returns, and the sub-graph that computes it.

    Parameters
    ----------
    torch : module
    module : torch.fx.GraphModule
        As PyTorch's compiler hands it: what is known of a node's result is its "example_value".

    Attributes
    ----------
    module : torch.fx.GraphModule
        Takes the same arguments, and returns pieces of memory: tensors whose dimensions are in the order in which they
        lie.

    Raises
    ------
    WorkloadError
        An output cannot be made from such pieces: PyTorch has to run the sub-graph.
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
        self._outputs = []
        for place, (node, value) in enumerate(zip(returned, values, strict=True)):
            first = next(place for place, other in enumerate(values) if other is value)
            is_again = first < place and isinstance(value, torch.Tensor)
            self._outputs.append(_Output("again", first) if is_again else self._output(node, value))
        if not self._pieces:
            raise WorkloadError("it computes no tensor that it returns, and nothing would be gained")
        self.module = self._with_pieces(module)
        self._known: dict[tuple[int, ...], list[_Output]] = {}

    def restore(self, arguments: Sequence[TorchArgument], pieces: Sequence[TorchTensor]) -> tuple[TorchArgument, ...]:
        """Return the outputs of a call, from its arguments and what `module` returned for them."""
        key = tuple(int(read(arguments)) for read in self._sizes.values())
        outputs = self._known.get(key)
        if outputs is None:
            if len(self._known) >= _MOST_SIZES:
                self._known.clear()
            sizes = dict(zip(self._sizes, key, strict=True))
            outputs = self._known[key] = [_with_sizes(output, sizes) for output in self._outputs]
        restored: list[TorchArgument] = []
        whole = dict(enumerate(pieces))  # those that no output is yet
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

        Exporting tells others, too, but fails with logs of PyTorch's where arguments share memory.
        """
        tensors = [value for value in self._arguments if isinstance(value, self._torch.Tensor)]
        storages = set(map(_storage, tensors))
        for node in self._nodes:
            name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
            if node.op.startswith("call") and _WRITES.fullmatch(name) and node.all_input_nodes:
                value = self._values[node.all_input_nodes[0]]
                if isinstance(value, self._torch.Tensor) and _storage(value) in storages:
                    raise WorkloadError(f"{name} writes into an argument in place, expected values that are returned")

    def _values_of_nodes(self) -> tuple[dict[fx.Node, TorchTensor], dict[int, TorchTensor | None]]:
        """Return what is known of nodes' results, and storages of copies that are none: what they are copies of.

        PyTorch's compiler takes a dropout that drops nothing for a copy; it returns what it is given.
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
                        copies[_storage(value)] = source if _layout(source) == _layout(value) else None
        return values, copies

    def _memory(self, value: TorchTensor) -> tuple[int, TorchSize]:
        """Return the storage that a result is in, and where it begins; errors as the class."""
        storage, offset = _storage(value), value.storage_offset()
        while storage in self._copies:
            source = self._copies[storage]
            if source is None:
                raise WorkloadError("it returns a view of a dropout of a tensor with gaps, expected one without")
            storage, offset = _storage(source), offset + source.storage_offset()
        return storage, offset

    def _sizes_of_arguments(self) -> dict[sympy.Symbol, _Read]:
        """Return the symbols that sizes and strides of arguments are, and how each is read from arguments."""
        readers: dict[sympy.Symbol, _Read] = {}

        def note(number: TorchSize, read: _Read) -> None:
            expression = _expression(number)
            if getattr(expression, "is_symbol", False):
                readers.setdefault(expression, read)

        for place, value in enumerate(self._arguments):
            if isinstance(value, self._torch.SymInt):
                note(value, operator.itemgetter(place))
            elif isinstance(value, self._torch.Tensor):
                for axis in range(value.dim()):
                    note(value.shape[axis], functools.partial(_read_size, place, axis))
                    note(value.stride(axis), functools.partial(_read_stride, place, axis))
        return readers

    def _output(self, node: fx.Node, value: TorchTensor) -> _Output:
        """Return how an output is made; errors as the class."""
        torch = self._torch
        if value is None and isinstance(node, torch.fx.Node):
            raise WorkloadError(f"it returns {shown(node)}, of which nothing is known, expected tensors and sizes")
        if value is None or isinstance(value, bool | int | float | torch.SymInt):
            return _Output("value", self._checked(value))
        if not isinstance(value, torch.Tensor) or hasattr(value, "__tensor_flatten__"):
            raise WorkloadError(f"it returns {shown(value)}, expected tensors and sizes")
        for place, argument in enumerate(self._arguments):
            if argument is value:
                return _Output("same", place)
        if value.requires_grad:
            raise WorkloadError("gradients may be asked for of what it returns; call it under torch.no_grad()")
        if value.layout != torch.strided or value.is_conj() or value.is_neg():
            raise WorkloadError(f"it returns a tensor of {value.dtype} ({value.layout}), expected dense, real ones")
        numbers = (*value.shape, *value.stride())
        size_and_stride = [self._checked(number) for number in numbers]
        size, stride = tuple(size_and_stride[: value.dim()]), tuple(size_and_stride[value.dim() :])
        storage, begin = self._memory(value)
        sources = [
            place
            for place, argument in enumerate(self._arguments)
            if isinstance(argument, torch.Tensor) and _storage(argument) == storage
        ]
        if not sources:
            place = self._piece(value, storage)
            return _Output("piece", place, _Layout(size, stride, self._checked(begin)), value.dtype)
        source = self._arguments[sources[0]]
        if len(sources) > 1 or source.dtype != value.dtype:
            what = "arguments that share memory" if len(sources) > 1 else f"an argument of {source.dtype}"
            raise WorkloadError(f"it returns a view, of {value.dtype}, of {what}, expected one argument of this dtype")
        offset = self._checked(begin - source.storage_offset())
        return _Output("argument", sources[0], _Layout(size, stride, offset), value.dtype)

    def _piece(self, output: TorchTensor, storage: int) -> int:
        """Return the place of the piece that an output is in, a new one at first."""
        if storage not in self._pieces:
            outputs = [node for node in self._nodes if self._values[node] is output]
            for node in outputs + self._nodes:
                value = self._values[node]
                if node.op.startswith("call") and isinstance(value, self._torch.Tensor) and _storage(value) == storage:
                    order = self._order(value)
                    if order is not None:
                        self._pieces[storage] = (node, order)
                        break
            else:
                raise WorkloadError("it returns a part of memory that no result fills, expected a tensor without gaps")
        return list(self._pieces).index(storage)

    def _order(self, value: TorchTensor) -> tuple[int, ...] | None:
        """Return the order in which the dimensions of a tensor lie; None: it does not fill its memory."""
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

    def _checked(self, number: TorchSize) -> int | sympy.Expr:
        """Return a number, or the expression of sizes that it is; errors as the class."""
        expression = _expression(number)
        if not getattr(expression, "free_symbols", set()) <= self._sizes.keys():
            raise WorkloadError(f"it returns a size that depends on values ({number}), expected sizes of its inputs")
        return expression

    def _with_pieces(self, module: fx.GraphModule) -> fx.GraphModule:
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


def _restore(output: _Output, arguments: Sequence[TorchArgument], pieces: Sequence[TorchTensor]) -> TorchArgument:
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


def _is_whole(output: _Output, piece: TorchTensor | None) -> bool:
    """Whether an output is a piece as it lies; None: it is another output already."""
    if piece is None or piece.dtype != output.dtype or output.layout is None:
        return False
    return bool(piece.shape == output.layout.size and piece.stride() == output.layout.stride)


def _layout(value: TorchTensor) -> list[int | sympy.Expr]:
    return [_expression(number) for number in (*value.shape, *value.stride())]


def _storage(value: TorchTensor) -> int:
    return int(value.untyped_storage()._cdata)


def _expression(number: TorchSize) -> int | sympy.Expr:
    """Return the expression of a size that varies; other numbers are returned as they are."""
    expression = number.node.expr if hasattr(number, "node") else number
    return int(expression) if getattr(expression, "is_Integer", False) else expression


def _hint(number: TorchSize) -> int:
    """Return the value that PyTorch's compiler has seen."""
    return int(number.node.hint or 0) if hasattr(number, "node") else int(number)


def _with_sizes(output: _Output, sizes: Mapping[sympy.Symbol, int]) -> _Output:
    """Return an output whose expressions have the values of sizes."""

    def evaluate(number: int | sympy.Expr) -> int | sympy.Expr:
        return int(number.xreplace(sizes)) if hasattr(number, "xreplace") else number

    layout = output.layout and _Layout(
        tuple(map(evaluate, output.layout.size)), tuple(map(evaluate, output.layout.stride)),
        evaluate(output.layout.offset),
    )  # fmt: skip
    return output._replace(source=evaluate(output.source), layout=layout)
