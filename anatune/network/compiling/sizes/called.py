"""Sizes and state of a compiled model in its calls."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from anatune.arguments import quote
from anatune.codegen.compat import convert_to_array, import_tvm
from anatune.errors import RunError
from anatune.measure.cpu.blocks import tensor_of
from anatune.measure.run.correctness import array_dtype
from anatune.network.compiling.memory import new_memory
from anatune.network.graph.nodes import Array, is_unknown
from anatune.network.graph.summary import ModelSummary, StateSummary, TensorSummary
from anatune.network.graph.torch.arrays import any_array
from anatune.untyped import tvm

__all__ = ["ModelState", "check_size", "fit_state_sizes", "shape_at", "sizes_of"]

_OPERATIONS = {ast.Add: operator.add, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}


def shape_at(tensor: TensorSummary, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of a tensor with the values of its sizes.

    Raises
    ------
    RunError
        A size is not given.
    """
    return tuple(size if isinstance(size, int) else _value(size, sizes) for size in tensor.shape)


def sizes_of(summary: ModelSummary, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """Return the values of the sizes that vary, from the shapes of a call's inputs.

    Raises
    ------
    RunError
        A size is out of its range.
    """
    sizes: dict[str, int] = {}
    for summary_input, shape in zip(summary.inputs, shapes, strict=True):
        for axis, (size, value) in enumerate(zip(summary_input.shape, shape, strict=False)):
            if not isinstance(size, str) or size in sizes or size not in summary.ranges:
                continue
            sizes[size] = value
            check_size(summary, size, value, f" (axis {axis} of input {summary_input.name})")
    return sizes


def check_size(summary: ModelSummary, name: str, value: int, where: str = "") -> None:
    """Raise RunError if a model has no such size, or if it is out of its range; `where` is added to the message."""
    size_range = summary.ranges.get(name)
    if size_range is None:
        advice = f"expected one of {', '.join(summary.ranges)}" if summary.ranges else "none of its sizes varies"
        raise RunError(f"the model has no size {name!r:.60}, {advice}")
    if not size_range.least <= value <= size_range.most:
        raise RunError(
            f"size {name}{where} is {value}, expected {size_range.least} to {size_range.most}, for which the model "
            "was compiled; compile it for a larger range (sizes, --size)"
        )


def fit_state_sizes(summary: ModelSummary, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return sizes with the held elements reduced so that one more call fits into the state."""
    fitted = dict(sizes)
    for tensor in summary.state:
        if tensor.grows:
            excess = _value(tensor.after, sizes) - summary.ranges[tensor.grows].most
            fitted[tensor.grows] = sizes[tensor.grows] - max(0, excess)
    return fitted


def _value(expression: str, sizes: Mapping[str, int]) -> int:
    """Return the value of an expression of sums, products and floor divisions."""
    if expression in sizes:
        return sizes[expression]
    try:
        return _evaluator(expression)(sizes)
    except KeyError as error:
        raise RunError(f"size {error.args[0]} is not known; give inputs that have it, or a value for it") from None


@lru_cache(maxsize=1024)
def _evaluator(expression: str) -> Callable[[Mapping[str, int]], int]:
    """Return the function that evaluates an expression at the values of sizes; KeyError if one is not given."""

    def write(node: ast.expr) -> Callable[[Mapping[str, int]], int]:
        match node:
            case ast.Constant(value=int(number)):
                return lambda _: number
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = write(operand)
                return lambda sizes: -value(sizes)
            case ast.Name(id=name):
                return operator.itemgetter(name)
            case ast.BinOp(left=left, op=ast.Add() | ast.Mult() | ast.FloorDiv() as kind, right=right):
                calculate, first, second = _OPERATIONS[type(kind)], write(left), write(right)
                return lambda sizes: calculate(first(sizes), second(sizes))
        raise RunError(f"{expression!r:.80} is not an expression of sizes; compile the model again")

    return write(ast.parse(expression, mode="eval").body)


class ModelState:
    """The tensors that one stream of calls keeps. A call passes them to the library and keeps the new ones.

    Parameters
    ----------
    summary : ModelSummary
    weights : sequence of ndarray
        The weights, some of which are initial values of the state; they are not written to.

    Attributes
    ----------
    sizes : dict of str to int
        Number of elements held along each size that grows, and the sizes that the state has had since it was empty.
    """

    def __init__(self, summary: ModelSummary, weights: Sequence[Array]) -> None:
        self.summary, self.weights = summary, weights
        inputs = {size for one in (*summary.inputs, *summary.state) for size in one.shape}
        # in the order of their symbols, which the library expects
        self.unseen = [name for name in sorted(summary.ranges, key="{}_".format) if name not in inputs]
        self._growing = dict.fromkeys((one.grows, one.after) for one in summary.state if one.grows)
        self.reset()

    def reset(self) -> None:
        """Set the state to its initial values."""
        self.tensors: list[tvm.runtime.Tensor] = []
        self.sizes = {one.grows: 0 for one in self.summary.state if one.grows}

    def copy(self) -> ModelState:
        """Return a copy of the state in its own memory."""
        other = ModelState(self.summary, self.weights)
        if self.tensors:
            other.set_arrays(self.arrays())
        return other

    def add_held_sizes(self, input_sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes of a call: those of its inputs and those of the state.

        Raises
        ------
        RunError
            The state has another size.
        """
        for name, size in input_sizes.items():
            if self.sizes.get(name, size) != size:
                raise RunError(
                    f"size {name} is {size}, but the state of the model has {self.sizes[name]}; set `state`, call "
                    "reset(), or load the model a second time for another stream"
                )
        return {**input_sizes, **self.sizes}

    def sizes_after(self, call_sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the number of elements that are held after a call of these sizes.

        Raises
        ------
        RunError
            It exceeds the range that the model was compiled for.
        """
        sizes_after = {name: _value(after, call_sizes) for name, after in self._growing}
        for name, size in sizes_after.items():
            most = self.summary.ranges[name].most
            if size > most:
                raise RunError(
                    f"state: {call_sizes[name]} elements are held along {name}, and {size - call_sizes[name]} more "
                    f"exceed the {most} that the model was compiled for; call reset(), or compile it for more (--size)"
                )
        return sizes_after

    def arguments(self, call_sizes: Mapping[str, int]) -> tuple[list[tvm.runtime.ShapeTuple], list[tvm.runtime.Tensor]]:
        """Return the arguments of the library's ``main`` before and after the inputs, for a call of these sizes."""
        if not self.tensors:
            self.tensors = [tensor_of(self.initial(one, call_sizes)) for one in self.summary.state]
            shapes = {size for one in self.summary.state for size in one.shape if isinstance(size, str)}
            self.sizes |= {name: call_sizes[name] for name in shapes if name in self.summary.ranges}
        numbers = [import_tvm().runtime.ShapeTuple([call_sizes[name] for name in self.unseen])] if self.unseen else []
        return numbers, self.tensors

    def keep_results(self, tensors: Sequence[tvm.runtime.Tensor], after: Mapping[str, int]) -> None:
        """Keep the tensors that a call returned, and the number of held elements after it."""
        self.tensors = list(tensors)
        self.sizes |= after

    def arrays(self) -> dict[str, Array]:
        """Return copies of the held elements, by name."""
        arrays = {}
        for index, tensor in enumerate(self.summary.state):
            array = convert_to_array(self.tensors[index]) if self.tensors else self.initial(tensor, self.sizes)
            arrays[tensor.name] = np.array(array[self.held_slices(tensor)])
        return arrays

    def set_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Replace the whole state by arrays.

        Raises
        ------
        RunError
            A name is missing or unknown, or a shape or dtype differs.
        """
        names = [one.name for one in self.summary.state]
        if not isinstance(arrays, Mapping):
            raise RunError(f"state: got {quote(arrays)}, expected arrays with the names {', '.join(names)}")
        if sorted(arrays) != sorted(names):
            raise RunError(f"state: got {', '.join(map(str, arrays)) or 'nothing'}, expected {', '.join(names)}")
        sizes: dict[str, int] = {}
        tensors = []
        for tensor in self.summary.state:
            array = any_array(f"state {tensor.name}", arrays[tensor.name], RunError)
            fits = len(tensor.held) == array.ndim and array.dtype.name == tensor.dtype and not is_unknown(array)
            for size, extent in zip(tensor.held, array.shape, strict=False):
                fits = fits and extent == (sizes.setdefault(size, extent) if size in self.summary.ranges else size)
            if not fits:
                got = f"{'x'.join(map(str, array.shape))} {array.dtype.name}"
                raise RunError(f"state {tensor.name}: {got}, expected {'x'.join(map(str, tensor.held))} {tensor.dtype}")
            if tensor.grows:
                check_size(self.summary, tensor.grows, array.shape[tensor.axis], f" (state {tensor.name})")
            full_array = self.initial(tensor, sizes)
            full_array[(*[slice(None)] * tensor.axis, slice(array.shape[tensor.axis]))] = array
            tensors.append(tensor_of(full_array))
        self.keep_results(tensors, sizes)

    def held_slices(self, tensor: StateSummary) -> tuple[slice, ...]:
        """Return the slices of a tensor's held elements."""
        return (*[slice(None)] * tensor.axis, slice(self.sizes[tensor.grows])) if tensor.grows else ()

    def initial(self, tensor: StateSummary, sizes: Mapping[str, int]) -> Array:
        """Return the initial value of a tensor."""
        shape = shape_at(tensor, sizes)
        kind = array_dtype(tensor.dtype)
        array: Array = new_memory(math.prod(shape) * kind.itemsize).view(kind).reshape(shape)
        if tensor.initial is not None:
            array[...] = self.weights[tensor.initial]
        return array
