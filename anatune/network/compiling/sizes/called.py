"""Sizes that vary of a compiled model, as a call has them, and what it holds between calls."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from anatune.arguments import shown
from anatune.codegen.compat import array_of, import_tvm
from anatune.errors import RunError
from anatune.measure.cpu.blocks import tensor_of
from anatune.measure.run.correctness import array_dtype
from anatune.network.compiling.memory import new_memory
from anatune.network.graph.nodes import Array, is_unknown
from anatune.network.graph.summary import ModelSummary, StateSummary, TensorSummary
from anatune.network.graph.torch.arrays import any_array
from anatune.untyped import tvm

__all__ = ["ModelState", "check_size", "fit_state_sizes", "shape_at", "sizes_of"]


def shape_at(tensor: TensorSummary, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of an input or output, numbers in the place of expressions.

    Raises
    ------
    RunError
        A size is not given.
    """
    return tuple(size if isinstance(size, int) else _value(size, sizes) for size in tensor.shape)


def sizes_of(summary: ModelSummary, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """Return what the shapes of a call's inputs say of the sizes that vary.

    Raises
    ------
    RunError
        One is out of its range.
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
    """Raise RunError for a size that a model does not have, or that is out of its range; `where` it is, for people."""
    size_range = summary.ranges.get(name)
    if size_range is None:
        advice = f"expected some of {', '.join(summary.ranges)}" if summary.ranges else "none of its sizes varies"
        raise RunError(f"the model has no size {name!r:.60}, {advice}")
    if not size_range.least <= value <= size_range.most:
        raise RunError(
            f"size {name}{where} is {value}, expected {size_range.least} to {size_range.most}, for which the model "
            "was compiled; compile it for a larger range (sizes, --size)"
        )


@lru_cache(maxsize=1024)
def _parse(expression: str) -> ast.expr:
    return ast.parse(expression, mode="eval").body


def fit_state_sizes(summary: ModelSummary, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return sizes with so few held elements that what comes in a call fits behind them."""
    fitted = dict(sizes)
    for tensor in summary.state:
        if tensor.grows:
            excess = _value(tensor.after, sizes) - summary.ranges[tensor.grows].most
            fitted[tensor.grows] = sizes[tensor.grows] - max(0, excess)
    return fitted


def _value(expression: str, sizes: Mapping[str, int]) -> int:
    """Return the value of an expression of sums, products and floors."""
    if expression in sizes:
        return sizes[expression]

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value(operand)
            case ast.Name(id=name):
                if name not in sizes:
                    raise RunError(f"size {name} is not known, expected inputs that have it, or a number for it")
                return sizes[name]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return value(left) + value(right)
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return value(left) * value(right)
            case ast.BinOp(left=left, op=ast.FloorDiv(), right=right):
                return value(left) // value(right)
        raise RunError(f"{expression!r:.80} is no size; compile the model again")

    return value(_parse(expression))


class ModelState:
    """Tensors as one stream of calls has them. A call hands them to the library, and takes what comes out.

    Parameters
    ----------
    summary : ModelSummary
    weights : sequence of ndarray
        What parts of the state are at first are some of them; nobody writes there.

    Attributes
    ----------
    sizes : dict of str to int
        How many elements are held along what grows, and the sizes that the state has had since it was empty.
    """

    def __init__(self, summary: ModelSummary, weights: Sequence[Array]) -> None:
        self.summary, self.weights = summary, weights
        inputs = {size for one in (*summary.inputs, *summary.state) for size in one.shape}
        # in the order of their symbols, as a library has them
        self.unseen_sizes = [name for name in sorted(summary.ranges, key="{}_".format) if name not in inputs]
        self._growing = dict.fromkeys((one.grows, one.after) for one in summary.state if one.grows)
        self.reset()

    def reset(self) -> None:
        """Make it what it was at first."""
        self.tensors: list[tvm.runtime.Tensor] = []
        self.sizes = {one.grows: 0 for one in self.summary.state if one.grows}

    def copy(self) -> ModelState:
        """Return the same state in memory of its own."""
        other = ModelState(self.summary, self.weights)
        if self.tensors:
            other.set_arrays(self.arrays())
        return other

    def add_held_sizes(self, input_sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes of a call, whose inputs have told some.

        Raises
        ------
        RunError
            The state has another size.
        """
        for name, size in input_sizes.items():
            if self.sizes.get(name, size) != size:
                raise RunError(
                    f"size {name} is {size}, and the state of the model has {self.sizes[name]}; set `state`, call "
                    "reset(), or load the model a second time for another stream"
                )
        return {**input_sizes, **self.sizes}

    def sizes_after(self, call_sizes: Mapping[str, int]) -> dict[str, int]:
        """Return how many elements are held behind a call of these sizes.

        Raises
        ------
        RunError
            More than there is memory for.
        """
        sizes_after = {name: _value(after, call_sizes) for name, after in self._growing}
        for name, size in sizes_after.items():
            most = self.summary.ranges[name].most
            if size > most:
                raise RunError(
                    f"state: {call_sizes[name]} elements are held along {name}, and {size - call_sizes[name]} more exceed "
                    f"the {most} that the model was compiled for; call reset(), or compile it for more (--size)"
                )
        return sizes_after

    def arguments(self, call_sizes: Mapping[str, int]) -> tuple[list[tvm.runtime.ShapeTuple], list[tvm.runtime.Tensor]]:
        """Return what a library's ``main`` takes before and behind the inputs of a call of these sizes."""
        if not self.tensors:
            self.tensors = [tensor_of(self.initial_array(one, call_sizes)) for one in self.summary.state]
            shapes = {size for one in self.summary.state for size in one.shape if isinstance(size, str)}
            self.sizes |= {name: call_sizes[name] for name in shapes if name in self.summary.ranges}
        numbers = (
            [import_tvm().runtime.ShapeTuple([call_sizes[name] for name in self.unseen_sizes])]
            if self.unseen_sizes
            else []
        )
        return numbers, self.tensors

    def keep_results(self, tensors: Sequence[tvm.runtime.Tensor], after: Mapping[str, int]) -> None:
        """Keep what a call returned, and how much is held then."""
        self.tensors = list(tensors)
        self.sizes |= after

    def arrays(self) -> dict[str, Array]:
        """Return copies of what is held."""
        arrays = {}
        for index, tensor in enumerate(self.summary.state):
            array = array_of(self.tensors[index]) if self.tensors else self.initial_array(tensor, self.sizes)
            arrays[tensor.name] = np.array(array[self.held_slices(tensor)])
        return arrays

    def set_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Hold what `arrays` has, all of it.

        Raises
        ------
        RunError
            A name is missing, or none of the state's; a shape or dtype is another one.
        """
        names = [one.name for one in self.summary.state]
        if not isinstance(arrays, Mapping):
            raise RunError(f"state: got {shown(arrays)}, expected arrays by the names {', '.join(names)}")
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
                raise RunError(
                    f"state {tensor.name} is {got}, expected {'x'.join(map(str, tensor.held))} {tensor.dtype}"
                )
            if tensor.grows:
                check_size(
                    self.summary,
                    tensor.grows,
                    array.shape[tensor.axis],
                    f" (axis {tensor.axis} of state {tensor.name})",
                )
            full_array = self.initial_array(tensor, sizes)
            full_array[(*[slice(None)] * tensor.axis, slice(array.shape[tensor.axis]))] = array
            tensors.append(tensor_of(full_array))
        self.keep_results(tensors, sizes)

    def held_slices(self, tensor: StateSummary) -> tuple[slice, ...]:
        """Return which elements of a tensor of the state are held."""
        return (*[slice(None)] * tensor.axis, slice(self.sizes[tensor.grows])) if tensor.grows else ()

    def initial_array(self, tensor: StateSummary, sizes: Mapping[str, int]) -> Array:
        """Return what a tensor is at first."""
        shape = shape_at(tensor, sizes)
        kind = array_dtype(tensor.dtype)
        array: Array = new_memory(math.prod(shape) * kind.itemsize).view(kind).reshape(shape)
        if tensor.initial is not None:
            array[...] = self.weights[tensor.initial]
        return array
