"""A compiled model in this process: called on NumPy and torch arrays, profiled, saved, loaded. Needs TVM's runtime."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from anatune.arguments import checked_integer, checked_path, plain_array, shown
from anatune.codegen.compat import array_of
from anatune.codegen.pool import set_threads
from anatune.errors import RecordError, RunError
from anatune.files import reason, remove_with, scratch_folder
from anatune.measure.cpu.blocks import Block, tensor_of
from anatune.measure.cpu.features import allow_tiles
from anatune.measure.run.correctness import array_dtype
from anatune.network.compiling import folder
from anatune.network.compiling.memory import Memory, mapped_file, new_memory, views
from anatune.network.compiling.sizes.called import State, check_size, shape_at, sizes_of
from anatune.network.graph.nodes import Array, is_unknown
from anatune.network.graph.summary import ModelSummary, TensorSummary
from anatune.network.graph.torch.arrays import array_of_torch
from anatune.network.relax.machine import Frame, Machine
from anatune.printable import printable
from anatune.threads import LockedProperty, in_turn, new_lock
from anatune.untyped import tvm

__all__ = ["CompiledModel", "draw_inputs", "draw_state"]

_WIDTH = 120
_Tensors: TypeAlias = "list[tvm.runtime.Tensor]"
_COPIED = ("float32", "float64", "int32", "int64")
_COPIED_ELEMENTS = 1 << 14
"""Inputs that a call copies: checking and wrapping one takes as long as copying some ten thousand elements."""


class CompiledModel:
    """A model as machine code: ``model(*inputs)`` runs it.

    Inputs are NumPy or torch arrays of the sizes and dtypes that it was compiled for; outputs are of the kind of the
    first input, in memory of their own. Nothing is copied but inputs that are not contiguous or not aligned to 64
    bytes. A model for a GPU copies its weights there before the first run, inputs and outputs in every run.

    Several threads may call it. A model with ``threads=1`` runs as often at once as the machine has cores, each time
    with memory of its own for what lies between its operators; further calls wait. A model with more threads, or for a
    GPU, runs once at a time: for many callers compile with ``threads=1``. The last model that was made says how many
    threads TVM's pool has, which all kernels of the process share.

    What it holds between calls (`state`) is one stream: calls, `reset` and `state` come one after the other, in no
    order that the model sees to. ``copy.deepcopy(model)`` gives another stream, which begins with the same state and
    shares code and weights. Models can be pickled, with their code, their weights and their state; as with all
    pickles, read only those of people you trust. In a child of ``fork`` a model runs as in its parent, unless it has
    run on a GPU there.

    Parameters
    ----------
    summary : ModelSummary
    library : Path
        The shared library with the code.
    memory : ndarray
        The weights, as `ModelSummary.weights` says.
    scratch : Path, optional
        A folder that is removed with the model.
    is_kept : bool
        Whether an earlier call compiled it: it is loaded when it first runs, and `memory`, a file's, read for that.

    Attributes
    ----------
    summary, memory
        As given.
    code : ndarray
        What is in the library's file.

    Raises
    ------
    RunError
        The library cannot be loaded.
    MissingDependencyError
        TVM is not installed.
    """

    _changing: tuple[str, ...] = ("_state",)
    """Attributes that copies do not share."""

    def __init__(
        self,
        summary: ModelSummary,
        library: Path,
        memory: Memory,
        scratch: Path | None = None,
        *,
        is_kept: bool = False,
    ) -> None:
        self.summary, self._lock = summary, new_lock()
        self.memory, self._library, self._is_kept = memory, library, is_kept
        try:
            self.code = mapped_file(library)  # to be saved also when its file is gone
        except OSError as error:
            raise RunError(f"{library} cannot be read: {reason(error)}; compile the model again") from None
        if scratch is not None:
            remove_with(self, scratch)
        if summary.device == "cpu" and not is_kept:
            _ = self._machine  # a GPU's model need not run here

    @LockedProperty
    def _machine(self) -> Machine:
        if self._is_kept:
            mapped, self.memory = self.memory, new_memory(self.memory.size)
            self.memory[:] = mapped
        if tiles := [name for name in self.summary.features if name.startswith("amx-")]:
            allow_tiles(tiles)
        threads, is_on_gpu = self.summary.threads, self.summary.device == "gpu"
        if threads > 1:
            set_threads(threads)
        weights = [tensor_of(view) for view in views(self.memory, self.summary.weights)]
        most = 1 if threads > 1 or is_on_gpu else os.cpu_count() or 1
        return Machine(self._library, weights, threads, most, self.summary.arch if is_on_gpu else None)

    @LockedProperty
    def _weights_at(self) -> range:
        """Return the addresses of the weights."""
        return range(self.memory.ctypes.data, self.memory.ctypes.data + self.memory.size)

    @LockedProperty
    def _state(self) -> State:
        return State(self.summary, views(self.memory, self.summary.weights) if self.summary.state else [])

    def __repr__(self) -> str:
        parts = ", ".join(f"{one.name}: {_words(one)}" for one in self.summary.inputs)
        threads = f", {self.summary.threads} threads" if self.summary.device == "cpu" else ""
        return printable(f"CompiledModel({parts}; {self.summary.hardware}{threads})")

    def __call__(self, *inputs: object) -> Any:
        """Return the model's output, or a tuple of them, for `inputs`.

        Raises
        ------
        RunError
            Another number of inputs, or one of another shape or dtype; the state would hold more than it can.
        """
        if not self.summary.state:
            return self._call(inputs)
        with self._lock:
            return self._call(inputs)

    def _call(self, inputs: Sequence[object]) -> object:
        frame = self._machine.take()
        try:
            tensors = given = self._copied(inputs, frame)
            if not tensors:
                tensors, given, known = self._given(inputs, self._state)
            result = self._machine.run_on(frame, given)
            outputs, held = [result] if hasattr(result, "copyto") else list(result), []
            if self.summary.state:
                outputs, held = outputs[: -len(self.summary.state)], outputs[-len(self.summary.state) :]
                self._state.take(held, self._state.after(known))
            taken = {tensor.data_ptr() for tensor in (*tensors, *held)}
            for place, tensor in enumerate(outputs):  # models return views of inputs, weights, state or each other
                address = tensor.data_ptr()
                if address in taken or address in self._weights_at:
                    outputs[place] = tensor.copyto(tensor.device)
                taken.add(address)
        finally:
            self._machine.give(frame)
        return self._returned(outputs, array_of, inputs)

    def _returned(
        self, outputs: Sequence[object], array_for: Callable[[tvm.runtime.Tensor], Array], inputs: Sequence[object]
    ) -> object:
        """Return outputs as a call does: tensors of PyTorch's where the first input is one."""
        torch = sys.modules.get("torch")
        if torch is not None and inputs and isinstance(inputs[0], torch.Tensor):
            found = tuple(torch.from_dlpack(one) if hasattr(one, "__dlpack__") else one for one in outputs)
        else:
            found = tuple(map(array_for, outputs))
        return found if self.summary.is_tuple else found[0]

    @in_turn
    def reset(self) -> None:
        """Make the state what it was at first: the next call is the first of another stream."""
        self._state.reset()

    @property
    @in_turn
    def state(self) -> dict[str, Array]:
        """What stays in the model between calls, by the names of its inputs and buffers: copies.

        It can be set, too: to arrays of these names and dtypes, for what grows of any size of its range.
        """
        return self._state.arrays()

    @state.setter
    @in_turn
    def state(self, arrays: Mapping[str, Array]) -> None:
        self._state.put(arrays)

    def takes(self, inputs: Sequence[object]) -> bool:
        """Whether the sizes of arrays are among those that it was compiled for."""
        shapes = [tuple(one.shape) for one in inputs]  # type: ignore[attr-defined]
        if len(shapes) != len(self.summary.inputs):
            return False
        try:
            known = sizes_of(self.summary, shapes)
        except RunError:
            return False
        return shapes == [shape_at(one, known) for one in self.summary.inputs]

    def prepared(self, *inputs: object) -> Callable[[], object]:
        """Return a call without arguments on `inputs`, for timing; the state stays as it is. Errors as a call."""
        return functools.partial(self._machine.run, *self._on_copy(inputs))

    def random_inputs(self, seed: int = 0, sizes: Mapping[str, int] | None = None) -> list[Array]:
        """Return inputs to try it with: normal numbers; of integers zeros and ones, which name something anywhere.

        Parameters
        ----------
        sizes : mapping of str to int, optional
            Of those that vary; by default those of the state, and what the model was planned for.

        Raises
        ------
        RunError
            There is no such size, it is out of its range, or the state has another one.
        """
        known = {name: one.usual for name, one in self.summary.ranges.items()} | self._state.known(sizes or {})
        for name, value in known.items():
            check_size(self.summary, name, value)
        return draw_inputs(self.summary.inputs, seed, known)

    def profile(self, *inputs: object, repeats: int = 10) -> dict[str, float]:
        """Return the time of each of the library's functions in one run: the least of several, all its calls, s.

        Parameters
        ----------
        inputs
            As in a call; none: random ones.
        repeats : int
            Runs, >= 1.
        """
        repeats = checked_integer("profile: repeats", repeats, 1, 10_000)
        return self._machine.times(self._on_copy(inputs or self.random_inputs()), repeats)

    def benchmark(self, *inputs: object, runs: int = 30) -> dict[str, float]:
        """Return the times of some runs on `inputs`, or random ones, after one that is not timed: seconds.

        Returns
        -------
        dict
            "runs", "median_s", "least_s", "most_s".
        """
        runs = checked_integer("benchmark: runs", runs, 1, 1_000_000)
        call = self.prepared(*(inputs or self.random_inputs()))
        call()
        times = []
        for _ in range(runs):
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
        return {"runs": runs, "median_s": float(np.median(times)), "least_s": min(times), "most_s": max(times)}

    def report(self, *, measure: bool = False) -> str:
        """Return a table of the model's kernels: predicted time, what bounds each, share, layout; what TVM was left.

        Parameters
        ----------
        measure : bool
            Run the model on random inputs and say the measured times, too.
        """
        from anatune.network.report import model_lines  # late: the words are for those who print a model
        from anatune.report.text import plain

        return plain(model_lines(self.summary, self.profile() if measure else None, width=_WIDTH))

    def save(self, path: str | Path) -> None:
        """Write the model into a folder; one of a compiled model is replaced, and whole until the new one is.

        Models that were loaded from there stay what they are.

        Raises
        ------
        RecordError
            The folder cannot be written, or holds something else.
        """
        folder.write(checked_path("save: path", path, RecordError), [self.saved()])

    def saved(self) -> folder.Saved:
        """Return what a folder holds of it."""
        return folder.Saved(self.summary, self._library, self.code, self.memory)

    def _places(self) -> list[tuple[Array, tvm.runtime.Tensor]]:
        """Return memory for the inputs, and TVM's tensors of it; []: some are large, or have not one size."""
        own = self.summary
        if own.ranges or own.state or any(one.dtype not in _COPIED for one in own.inputs):
            return []
        kinds = [(one.dtype, shape_at(one, {})) for one in own.inputs]
        if not all(0 < math.prod(shape) <= _COPIED_ELEMENTS for _, shape in kinds):
            return []
        return [(block.array, block.tensor) for block in itertools.starmap(Block, kinds)]

    def _copied(self, inputs: Sequence[object], frame: Frame) -> _Tensors:
        """Return small inputs as tensors of the frame's own; []: they have to be looked at closely."""
        if (places := frame.inputs) is None:
            places = frame.inputs = self._places()
        if len(inputs) != len(places):
            return []
        for array, (own, _) in zip(map(_array, inputs, self.summary.inputs), places, strict=True):
            if array.shape != own.shape or array.dtype != own.dtype:
                return []
            own[...] = array
        return [tensor for _, tensor in places]

    def _arrays(self, inputs: Sequence[object]) -> tuple[list[Array], dict[str, int]]:
        """Return the inputs of a call as arrays, and the sizes that vary."""
        wanted = self.summary.inputs
        if len(inputs) != len(wanted):
            names = ", ".join(f"{one.name} ({_words(one)})" for one in wanted)
            raise RunError(f"the model takes {len(wanted)} inputs: {names}; got {len(inputs)}")
        arrays = [_array(given, one) for given, one in zip(inputs, wanted, strict=True)]
        known = self._state.known(sizes_of(self.summary, [array.shape for array in arrays]))
        for array, one in zip(arrays, wanted, strict=True):
            _check(array, one, known)
        return arrays, known

    def _given(self, inputs: Sequence[object], state: State) -> tuple[_Tensors, _Tensors, dict[str, int]]:
        """Return the inputs of a call as tensors, all that the library takes in it, and the sizes that vary."""
        arrays, known = self._arrays(inputs)
        tensors = list(map(tensor_of, arrays))
        state.after(known)
        before, behind = state.arguments(known)
        return tensors, [*before, *tensors, *behind], known

    @in_turn
    def _on_copy(self, inputs: Sequence[object]) -> _Tensors:
        """Return all that the library takes in a call that leaves the state as it is."""
        return self._given(inputs, self._state.copy())[1]

    def _held(self) -> dict[str, object]:
        """Return what calls have changed, by the names of attributes."""
        return {"state": self.state} if self.summary.state and self._state.tensors else {}

    def __setstate__(self, held: Mapping[str, object]) -> None:
        for name, value in held.items():
            setattr(self, name, value)

    @in_turn
    def __deepcopy__(self, memo: object) -> CompiledModel:
        other = object.__new__(type(self))
        other.__dict__ |= {name: value for name, value in vars(self).items() if name not in self._changing}
        other.__dict__ |= {"_lock": new_lock(), "_source": self}  # whose files stay as long
        other.__setstate__(self._held())
        return other

    def __copy__(self) -> CompiledModel:
        return copy.deepcopy(self)

    @in_turn
    def __reduce__(self) -> tuple[object, ...]:
        return _unpickled, (type(self), self.summary, self.code.tobytes(), np.asarray(self.memory)), self._held()


def _unpickled(kind: type[CompiledModel], summary: ModelSummary, code: bytes, memory: Memory) -> CompiledModel:
    """Return a model as another process pickled it.

    Raises
    ------
    RunError
        It was compiled for another processor.
    """
    folder.check_processor("the pickled model", summary)
    scratch = scratch_folder(RunError)
    try:
        (scratch / "model.so").write_bytes(code)
    except OSError as error:
        raise RunError(f"{scratch} cannot be written: {reason(error)}") from None
    own = new_memory(memory.size)
    own[:] = memory
    return kind(summary, scratch / "model.so", own, scratch)


def draw_inputs(inputs: Sequence[TensorSummary], seed: int, sizes: Mapping[str, int] | None = None) -> list[Array]:
    """Return random arrays for inputs; see `CompiledModel.random_inputs`."""
    random = np.random.default_rng(seed)
    found = []
    for one in inputs:
        shape = shape_at(one, sizes or {})
        if one.dtype == "object":
            found.append(np.full(shape, "", object))
            continue
        drawn = random.standard_normal(shape) if "float" in one.dtype else random.integers(0, 2, shape)
        found.append(np.asarray(drawn).astype(array_dtype(one.dtype)))
    return found


def draw_state(summary: ModelSummary, sizes: Mapping[str, int]) -> dict[str, Array]:
    """Return random arrays for a state; errors as `CompiledModel.random_inputs`.

    Of sizes that are not given it has those that it was planned for, and nothing along what grows.
    """
    known = {name: one.usual for name, one in summary.ranges.items()}
    known |= {one.grows: 0 for one in summary.state if one.grows} | dict(sizes)
    for name, value in known.items():
        check_size(summary, name, value)
    wanted = [TensorSummary(one.name, one.dtype, one.held) for one in summary.state]
    return {one.name: array for one, array in zip(wanted, draw_inputs(wanted, 1, known), strict=True)}


def _words(one: TensorSummary) -> str:
    return f"{'x'.join(map(str, one.shape)) or 'scalar'} {one.dtype}"


def _array(given: object, one: TensorSummary) -> Array:
    """Return an input as an array; errors as `_check`."""
    torch = sys.modules.get("torch")
    array = given
    if torch is not None and isinstance(given, torch.Tensor):
        array = array_of_torch(given, f"input {one.name}", RunError)
    if not isinstance(array, np.ndarray):
        raise RunError(f"input {one.name} is {shown(given)}, expected a NumPy or torch array of {_words(one)}")
    if is_unknown(array):
        raise RunError(f"input {one.name} is on the meta device, which holds no elements; give a tensor that has some")
    if type(array) is not np.ndarray or not array.dtype.isnative:
        array = plain_array(f"input {one.name}", array, RunError)
    return array.astype(object) if array.dtype.kind in "US" else array  # text


def _check(array: Array, one: TensorSummary, sizes: Mapping[str, int]) -> None:
    """Raise RunError unless an array is of an input's shape and dtype; `sizes`: those that vary, as inputs have them.

    Raises
    ------
    RunError
        It is no array of the shape and dtype.
    """
    shape = shape_at(one, sizes) if array.ndim == len(one.shape) else one.shape
    if array.shape != shape or (array.dtype != array_dtype(one.dtype) and array.dtype.name != one.dtype):
        got = f"{'x'.join(map(str, array.shape)) or 'scalar'} {array.dtype.name}"
        there = "" if shape == one.shape else f" (here {'x'.join(map(str, shape))})"
        raise RunError(
            f"input {one.name} is {got}, expected {_words(one)}{there}: the model was compiled for that; convert the "
            "array, or compile with example inputs of this kind"
        )
