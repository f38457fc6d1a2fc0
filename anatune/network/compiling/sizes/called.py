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

__all__ = ["State", "check_size", "fitting", "shape_at", "sizes_of"]


def shape_at(one: TensorSummary, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of an input or output, numbers in the place of expressions.

    Raises
    ------
    RunError
        A size is not given.
    """
    return tuple(size if isinstance(size, int) else _value(size, sizes) for size in one.shape)


def sizes_of(summary: ModelSummary, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """Return what the shapes of a call's inputs say of the sizes that vary.

    Raises
    ------
    RunError
        One is out of its range.
    """
    found: dict[str, int] = {}
    for one, shape in zip(summary.inputs, shapes, strict=True):
        for axis, (size, given) in enumerate(zip(one.shape, shape, strict=False)):
            if not isinstance(size, str) or size in found or size not in summary.ranges:
                continue
            found[size] = given
            check_size(summary, size, given, f" (axis {axis} of input {one.name})")
    return found


def check_size(summary: ModelSummary, name: str, value: int, where: str = "") -> None:
    """Raise RunError for a size that a model does not have, or that is out of its range; `where` it is, for people."""
    own = summary.ranges.get(name)
    if own is None:
        known = f"expected some of {', '.join(summary.ranges)}" if summary.ranges else "none of its sizes varies"
        raise RunError(f"the model has no size {name!r:.60}, {known}")
    if not own.least <= value <= own.most:
        raise RunError(
            f"size {name}{where} is {value}, expected {own.least} to {own.most}: the model was compiled for these; "
            "compile it for a larger range (sizes, --size)"
        )


@lru_cache(maxsize=1024)
def _parsed(expression: str) -> ast.expr:
    return ast.parse(expression, mode="eval").body


def fitting(summary: ModelSummary, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return sizes with so few held elements that what comes in a call fits behind them."""
    found = dict(sizes)
    for one in summary.state:
        if one.grows:
            excess = _value(one.after, sizes) - summary.ranges[one.grows].most
            found[one.grows] = sizes[one.grows] - max(0, excess)
    return found


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

    return value(_parsed(expression))


class State:
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
        self.untold = [name for name in sorted(summary.ranges, key="{}_".format) if name not in inputs]
        self._growing = dict.fromkeys((one.grows, one.after) for one in summary.state if one.grows)
        self.reset()

    def reset(self) -> None:
        """Make it what it was at first."""
        self.tensors: list[tvm.runtime.Tensor] = []
        self.sizes = {one.grows: 0 for one in self.summary.state if one.grows}

    def copy(self) -> State:
        """Return the same state in memory of its own."""
        other = State(self.summary, self.weights)
        if self.tensors:
            other.put(self.arrays())
        return other

    def known(self, told: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes of a call, whose inputs have told some.

        Raises
        ------
        RunError
            The state has another size.
        """
        for name, size in told.items():
            if self.sizes.get(name, size) != size:
                raise RunError(
                    f"size {name} is {size}, and the state of the model has {self.sizes[name]}; set `state`, call "
                    "reset(), or load the model a second time for another stream"
                )
        return {**told, **self.sizes}

    def after(self, known: Mapping[str, int]) -> dict[str, int]:
        """Return how many elements are held behind a call of these sizes.

        Raises
        ------
        RunError
            More than there is memory for.
        """
        found = {name: _value(after, known) for name, after in self._growing}
        for name, size in found.items():
            most = self.summary.ranges[name].most
            if size > most:
                raise RunError(
                    f"state: {known[name]} elements are held along {name}, and {size - known[name]} more exceed the "
                    f"{most} that the model was compiled for; call reset(), or compile it for more (sizes, --size)"
                )
        return found

    def arguments(self, known: Mapping[str, int]) -> tuple[list[tvm.runtime.ShapeTuple], list[tvm.runtime.Tensor]]:
        """Return what a library's ``main`` takes before and behind the inputs of a call of these sizes."""
        if not self.tensors:
            self.tensors = [tensor_of(self.first(one, known)) for one in self.summary.state]
            shapes = {size for one in self.summary.state for size in one.shape if isinstance(size, str)}
            self.sizes |= {name: known[name] for name in shapes if name in self.summary.ranges}
        numbers = [import_tvm().runtime.ShapeTuple([known[name] for name in self.untold])] if self.untold else []
        return numbers, self.tensors

    def take(self, tensors: Sequence[tvm.runtime.Tensor], after: Mapping[str, int]) -> None:
        """Keep what a call returned, and how much is held then."""
        self.tensors = list(tensors)
        self.sizes |= after

    def arrays(self) -> dict[str, Array]:
        """Return copies of what is held."""
        found = {}
        for place, one in enumerate(self.summary.state):
            array = array_of(self.tensors[place]) if self.tensors else self.first(one, self.sizes)
            found[one.name] = np.array(array[self.held(one)])
        return found

    def put(self, arrays: Mapping[str, Array]) -> None:
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
        for one in self.summary.state:
            array = any_array(f"state {one.name}", arrays[one.name], RunError)
            fits = len(one.held) == array.ndim and array.dtype.name == one.dtype and not is_unknown(array)
            for size, own in zip(one.held, array.shape, strict=False):
                fits = fits and own == (sizes.setdefault(size, own) if size in self.summary.ranges else size)
            if not fits:
                got = f"{'x'.join(map(str, array.shape))} {array.dtype.name}"
                raise RunError(f"state {one.name} is {got}, expected {'x'.join(map(str, one.held))} {one.dtype}")
            if one.grows:
                check_size(self.summary, one.grows, array.shape[one.axis], f" (axis {one.axis} of state {one.name})")
            whole = self.first(one, sizes)
            whole[(*[slice(None)] * one.axis, slice(array.shape[one.axis]))] = array
            tensors.append(tensor_of(whole))
        self.take(tensors, sizes)

    def held(self, one: StateSummary) -> tuple[slice, ...]:
        """Return which elements of a tensor of the state are held."""
        return (*[slice(None)] * one.axis, slice(self.sizes[one.grows])) if one.grows else ()

    def first(self, one: StateSummary, known: Mapping[str, int]) -> Array:
        """Return what a tensor is at first."""
        shape = shape_at(one, known)
        kind = array_dtype(one.dtype)
        found: Array = new_memory(math.prod(shape) * kind.itemsize).view(kind).reshape(shape)
        if one.initial is not None:
            found[...] = self.weights[one.initial]
        return found
