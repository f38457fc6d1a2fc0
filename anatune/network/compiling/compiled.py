"""``CompiledModel``: run, profile, save and load a compiled model. Needs TVM's runtime."""

from __future__ import annotations

import copy
import functools
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from anatune.arguments import check_integer, check_path, plain_array, quote
from anatune.codegen.compat import convert_to_array
from anatune.codegen.pool import set_threads
from anatune.errors import RecordError, RunError
from anatune.files import reason, remove_folder_with, scratch_folder
from anatune.measure.cpu.blocks import ArgumentBlock, tensor_of
from anatune.measure.cpu.features import allow_tiles
from anatune.measure.run.correctness import array_dtype
from anatune.network.compiling import folder
from anatune.network.compiling.memory import Memory, map_file, new_memory, views
from anatune.network.compiling.sizes.called import ModelState, check_size, shape_at, sizes_of
from anatune.network.graph.nodes import Array, is_unknown
from anatune.network.graph.summary import ModelSummary, TensorSummary
from anatune.network.graph.torch.arrays import array_of_torch
from anatune.network.relax.machine import Frame, LibraryRunner
from anatune.printable import printable
from anatune.threads import LockedProperty, new_lock, run_in_turn
from anatune.untyped import tvm

__all__ = ["CompiledModel", "draw_inputs", "draw_state"]

_WIDTH = 120
_Tensors: TypeAlias = "list[tvm.runtime.Tensor]"
_COPIED_DTYPES = frozenset(map(np.dtype, ("float32", "float64", "int32", "int64")))
_MOST_COPIED_ELEMENTS = 1 << 14
"""Most elements of an input that is copied: to check and wrap an array takes as long as to copy ten thousand."""


class CompiledModel:
    """A model as machine code: ``model(*inputs)`` runs it.

    Inputs are NumPy or torch arrays of the sizes and dtypes that the model was compiled for. Outputs have the type of
    the first input, and memory of their own. Inputs are copied only if they are not contiguous or not aligned to 64
    bytes. A model for a GPU copies its weights there before the first run, and inputs and outputs in every run.

    Several threads may call it. A model with ``threads=1`` runs as many calls at once as the machine has cores, each
    with its own memory for intermediate results; further calls wait. A model with more threads, or for a GPU, runs one
    call at a time: for many callers, compile with ``threads=1``. All models of a process share TVM's thread pool; the
    model that was created last sets its number of threads.

    Its `state` between calls is one stream: calls, `reset` and accesses to `state` run one after the other, in the
    order in which they come. ``copy.deepcopy(model)`` returns a second stream, which begins with the same state and
    shares code and weights. Pickling a model includes its code, weights and state; as with all pickles, load only those
    of people you trust. In a child of ``fork`` a model runs as in its parent, unless it ran on a GPU there.

    Parameters
    ----------
    summary : ModelSummary
    library : Path
        The shared library with the code.
    memory : ndarray
        The weights, at the offsets of `ModelSummary.weights`.
    scratch : Path, optional
        A folder that is removed together with the model.
    is_cached : bool
        The model comes from the cache: its library is loaded, and `memory`, a mapped file, is read at the first run.

    Attributes
    ----------
    summary, memory
        As given.
    code : ndarray
        Content of the library's file.
    weights_digest : str, optional
        The digest of the weights (`folder.digest_of`), if it is known.

    Raises
    ------
    RunError
        The library cannot be loaded.
    MissingDependencyError
        TVM is not installed.
    """

    _unshared: tuple[str, ...] = ("_state",)
    """Attributes that copies do not share."""

    def __init__(
        self,
        summary: ModelSummary,
        library: Path,
        memory: Memory,
        scratch: Path | None = None,
        *,
        is_cached: bool = False,
    ) -> None:
        self.summary, self._lock = summary, new_lock()
        self.memory, self._library, self._is_cached = memory, library, is_cached
        self.weights_digest: str | None = None
        try:
            self.code = map_file(library)  # can be saved even after its file is removed
        except OSError as error:
            raise RunError(f"{library} cannot be read: {reason(error)}; compile the model again") from None
        if scratch is not None:
            remove_folder_with(self, scratch)
        if summary.device == "cpu" and not is_cached:
            _ = self._machine  # a model for a GPU need not run on this machine

    @LockedProperty
    def _machine(self) -> LibraryRunner:
        if self._is_cached:
            mapped, self.memory = self.memory, new_memory(self.memory.size)
            self.memory[:] = mapped
        if tiles := [name for name in self.summary.features if name.startswith("amx-")]:
            allow_tiles(tiles)
        threads, is_on_gpu = self.summary.threads, self.summary.device == "gpu"
        if threads > 1:
            set_threads(threads)
        weights = [tensor_of(view) for view in views(self.memory, self.summary.weights)]
        most = 1 if threads > 1 or is_on_gpu else os.cpu_count() or 1
        return LibraryRunner(self._library, weights, threads, most, self.summary.arch if is_on_gpu else None)

    @LockedProperty
    def _weight_addresses(self) -> range:
        """Return the addresses of the weights."""
        return range(self.memory.ctypes.data, self.memory.ctypes.data + self.memory.size)

    @LockedProperty
    def _state(self) -> ModelState:
        return ModelState(self.summary, views(self.memory, self.summary.weights) if self.summary.state else [])

    def __repr__(self) -> str:
        parts = ", ".join(f"{one.name}: {_type_text(one)}" for one in self.summary.inputs)
        threads = f", {self.summary.threads} threads" if self.summary.device == "cpu" else ""
        return printable(f"CompiledModel({parts}; {self.summary.hardware}{threads})")

    def __call__(self, *inputs: object) -> Any:
        """Return the model's output, or a tuple of them, for `inputs`.

        Raises
        ------
        RunError
            The number, shape or dtype of an input differs, or the state would exceed its range.
        """
        if not self.summary.state:
            return self._call(inputs)
        with self._lock:
            return self._call(inputs)

    def _call(self, inputs: Sequence[object]) -> object:
        frame = self._machine.take_frame()
        try:
            tensors = arguments = self._copy_inputs(inputs, frame)
            if not tensors:
                tensors, arguments, sizes_after = self._call_arguments(inputs, self._state, frame)
            result = self._machine.run_on(frame, arguments)
            outputs = [result] if hasattr(result, "copyto") else result[:]
            addresses = {tensor.data_ptr() for tensor in tensors}
            if count := len(self.summary.state):
                new_state = [one.copyto(one.device) if one.data_ptr() in addresses else one for one in outputs[-count:]]
                outputs = outputs[:-count]
                addresses.update(tensor.data_ptr() for tensor in new_state)
                self._state.keep_results(new_state, sizes_after)
            for index, tensor in enumerate(outputs):  # models may return views of inputs, weights, state or each other
                address = tensor.data_ptr()
                if address in addresses or address in self._weight_addresses:
                    outputs[index] = tensor.copyto(tensor.device)
                addresses.add(address)
        finally:
            self._machine.return_frame(frame)
        return self._convert_outputs(outputs, convert_to_array, inputs)

    def _convert_outputs(
        self, outputs: Sequence[object], array_for: Callable[[tvm.runtime.Tensor], Array], inputs: Sequence[object]
    ) -> object:
        """Return outputs as torch tensors if the first input is one, otherwise as NumPy arrays."""
        torch = sys.modules.get("torch")
        if torch is not None and inputs and isinstance(inputs[0], torch.Tensor):
            results = tuple(torch.from_dlpack(one) if hasattr(one, "__dlpack__") else one for one in outputs)
        else:
            results = tuple(map(array_for, outputs))
        return results if self.summary.is_tuple else results[0]

    @run_in_turn
    def reset(self) -> None:
        """Set the state to its initial values: the next call begins another stream."""
        self._state.reset()

    @property
    @run_in_turn
    def state(self) -> dict[str, Array]:
        """Copies of the tensors that stay in the model between calls, by the names of their inputs and buffers.

        It can be set to arrays of these names and dtypes. A tensor that grows may have any size of its range.
        """
        return self._state.arrays()

    @state.setter
    @run_in_turn
    def state(self, arrays: Mapping[str, Array]) -> None:
        self._state.set_arrays(arrays)

    def takes(self, inputs: Sequence[object]) -> bool:
        """Return whether the model was compiled for the sizes of these arrays."""
        shapes = [tuple(one.shape) for one in inputs]  # type: ignore[attr-defined]
        if len(shapes) != len(self.summary.inputs):
            return False
        try:
            sizes = sizes_of(self.summary, shapes)
        except RunError:
            return False
        return shapes == [shape_at(one, sizes) for one in self.summary.inputs]

    def prepared(self, *inputs: object) -> Callable[[], object]:
        """Return a function that calls the model on `inputs`, for timing; it keeps the state. Errors: as a call."""
        return functools.partial(self._machine.run, *self._arguments_on_copy(inputs))

    def random_inputs(self, seed: int = 0, sizes: Mapping[str, int] | None = None) -> list[Array]:
        """Return random inputs: normal numbers, and zeros and ones for integers, which are valid ids in any table.

        Parameters
        ----------
        sizes : mapping of str to int, optional
            Values of the sizes that vary; by default those of the state, otherwise the planned ones.

        Raises
        ------
        RunError
            The size does not exist, is out of its range, or differs from the state's.
        """
        values = {name: one.usual for name, one in self.summary.ranges.items()}
        values |= self._state.add_held_sizes(sizes or {})
        for name, value in values.items():
            check_size(self.summary, name, value)
        return draw_inputs(self.summary.inputs, seed, values)

    def profile(self, *inputs: object, repeats: int = 10) -> dict[str, float]:
        """Return the seconds that each function of the library takes in one run: all its calls, least of several runs.

        Parameters
        ----------
        inputs
            As in a call; random ones by default.
        repeats : int
            Number of runs, >= 1.
        """
        repeats = check_integer("profile: repeats", repeats, 1, 10_000)
        return self._machine.times(self._arguments_on_copy(inputs or self.random_inputs()), repeats)

    def benchmark(self, *inputs: object, runs: int = 30) -> dict[str, float]:
        """Return the seconds that runs take on `inputs`, or on random ones, after one run that is not timed.

        Returns
        -------
        dict
            "runs", "median_s", "least_s", "most_s".
        """
        runs = check_integer("benchmark: runs", runs, 1, 1_000_000)
        call = self.prepared(*(inputs or self.random_inputs()))
        call()
        times = []
        for _ in range(runs):
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
        return {"runs": runs, "median_s": float(np.median(times)), "least_s": min(times), "most_s": max(times)}

    def report(self, *, measure: bool = False) -> str:
        """Return a table of the kernels: predicted time, binding resource, share, layout; and TVM's operators.

        Parameters
        ----------
        measure : bool
            Run the model on random inputs and add the measured times.
        """
        from anatune.network.report import model_lines  # late: only reports need it
        from anatune.report.text import join_lines

        return join_lines(model_lines(self.summary, self.profile() if measure else None, width=_WIDTH))

    def save(self, path: str | Path) -> None:
        """Write the model into a folder. A model that is there is replaced, and stays complete until then.

        Models that were loaded from the folder keep working.

        Raises
        ------
        RecordError
            The folder cannot be written, or contains something else.
        """
        folder.write(check_path("save: path", path, RecordError), [self.to_saved_model()])

    def to_saved_model(self) -> folder.SavedModel:
        """Return the files and the summary that a folder stores of the model."""
        return folder.SavedModel(self.summary, self._library, self.code, self.memory, self.weights_digest)

    def _copy_inputs(self, inputs: Sequence[object], frame: Frame) -> _Tensors:
        """Return inputs copied into the frame's own tensors; [] if the inputs need the full checks."""
        buffers = frame.inputs
        if self.summary.ranges or self.summary.state or len(inputs) != len(buffers):
            return []
        for array, (buffer, _) in zip(map(_to_array, inputs, self.summary.inputs), buffers, strict=True):
            if array.shape != buffer.shape or array.dtype != buffer.dtype:
                return []
            buffer[...] = array
        return [tensor for _, tensor in buffers]

    def _input_arrays(self, inputs: Sequence[object]) -> tuple[list[Array], dict[str, int]]:
        """Return the inputs of a call as arrays, and the values of the sizes that vary."""
        summaries = self.summary.inputs
        if len(inputs) != len(summaries):
            names = ", ".join(f"{one.name} ({_type_text(one)})" for one in summaries)
            raise RunError(f"the model takes {len(summaries)} inputs, got {len(inputs)}; expected {names}")
        arrays = [_to_array(value, one) for value, one in zip(inputs, summaries, strict=True)]
        sizes = self._state.add_held_sizes(sizes_of(self.summary, [array.shape for array in arrays]))
        for array, summary in zip(arrays, summaries, strict=True):
            _check_input(array, summary, sizes)
        return arrays, sizes

    def _call_arguments(
        self, inputs: Sequence[object], state: ModelState, frame: Frame | None = None
    ) -> tuple[_Tensors, _Tensors, dict[str, int]]:
        """Return the tensors of the inputs, all arguments of the library's function, and the held sizes after it."""
        arrays, sizes = self._input_arrays(inputs)
        tensors = list(map(tensor_of, arrays)) if frame is None else _wrap_inputs(arrays, frame)
        sizes_after = state.sizes_after(sizes)
        before, behind = state.arguments(sizes)
        return tensors, [*before, *tensors, *behind], sizes_after

    @run_in_turn
    def _arguments_on_copy(self, inputs: Sequence[object]) -> _Tensors:
        """Return the arguments of a call that leaves the state unchanged."""
        return self._call_arguments(inputs, self._state.copy())[1]

    def _changes(self) -> dict[str, object]:
        """Return the attributes that calls have changed, by name."""
        return {"state": self.state} if self.summary.state and self._state.tensors else {}

    def __setstate__(self, attributes: Mapping[str, object]) -> None:
        for name, value in attributes.items():
            setattr(self, name, value)

    @run_in_turn
    def __deepcopy__(self, memo: object) -> CompiledModel:
        other = object.__new__(type(self))
        other.__dict__ |= {name: value for name, value in vars(self).items() if name not in self._unshared}
        other.__dict__ |= {"_lock": new_lock(), "_source": self}  # keeps the files of this model alive
        other.__setstate__(self._changes())
        return other

    def __copy__(self) -> CompiledModel:
        return copy.deepcopy(self)

    @run_in_turn
    def __reduce__(self) -> tuple[object, ...]:
        return _unpickled, (type(self), self.summary, self.code.tobytes(), np.asarray(self.memory)), self._changes()


def _unpickled(kind: type[CompiledModel], summary: ModelSummary, code: bytes, memory: Memory) -> CompiledModel:
    """Return a model that another process pickled.

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
    aligned_memory = new_memory(memory.size)
    aligned_memory[:] = memory
    return kind(summary, scratch / "model.so", aligned_memory, scratch)


def draw_inputs(inputs: Sequence[TensorSummary], seed: int, sizes: Mapping[str, int] | None = None) -> list[Array]:
    """Return random arrays for inputs; see `CompiledModel.random_inputs`."""
    random = np.random.default_rng(seed)
    arrays = []
    for summary in inputs:
        shape = shape_at(summary, sizes or {})
        if summary.dtype == "object":
            arrays.append(np.full(shape, "", object))
            continue
        drawn = random.standard_normal(shape) if "float" in summary.dtype else random.integers(0, 2, shape)
        arrays.append(np.asarray(drawn).astype(array_dtype(summary.dtype)))
    return arrays


def draw_state(summary: ModelSummary, sizes: Mapping[str, int]) -> dict[str, Array]:
    """Return random arrays for a state. Raises the errors of `CompiledModel.random_inputs`.

    Sizes that are not given are those that the model was planned for; tensors that grow are empty.
    """
    all_sizes = {name: one.usual for name, one in summary.ranges.items()}
    all_sizes |= {one.grows: 0 for one in summary.state if one.grows} | dict(sizes)
    for name, value in all_sizes.items():
        check_size(summary, name, value)
    tensors = [TensorSummary(one.name, one.dtype, one.held) for one in summary.state]
    return {one.name: array for one, array in zip(tensors, draw_inputs(tensors, 1, all_sizes), strict=True)}


def _type_text(tensor: TensorSummary) -> str:
    return f"{'x'.join(map(str, tensor.shape)) or 'scalar'} {tensor.dtype}"


def _wrap_inputs(arrays: Sequence[Array], frame: Frame) -> _Tensors:
    """Return inputs as tensors; small ones are copied into the frame's own, which inputs of equal shapes use again."""
    if not all(0 < one.size <= _MOST_COPIED_ELEMENTS and one.dtype in _COPIED_DTYPES for one in arrays):
        return list(map(tensor_of, arrays))
    if [(one.shape, one.dtype) for one, _ in frame.inputs] != [(one.shape, one.dtype) for one in arrays]:
        blocks = [ArgumentBlock(one.dtype.name, one.shape) for one in arrays]
        frame.inputs = [(block.array, block.tensor) for block in blocks]
    for array, (buffer, _) in zip(arrays, frame.inputs, strict=True):
        buffer[...] = array
    return [tensor for _, tensor in frame.inputs]


def _to_array(value: object, summary: TensorSummary) -> Array:
    """Return an input as an array. Raises the errors of `_check_input`."""
    torch = sys.modules.get("torch")
    array = value
    if torch is not None and isinstance(value, torch.Tensor):
        array = array_of_torch(value, f"input {summary.name}", RunError)
    if not isinstance(array, np.ndarray):
        raise RunError(f"input {summary.name} is {quote(value)}, expected an array of {_type_text(summary)}")
    if is_unknown(array):
        raise RunError(f"input {summary.name} is on the meta device, which stores no values; pass one with values")
    if type(array) is not np.ndarray or not array.dtype.isnative:
        array = plain_array(f"input {summary.name}", array, RunError)
    return array.astype(object) if array.dtype.kind in "US" else array  # text


def _check_input(array: Array, summary: TensorSummary, sizes: Mapping[str, int]) -> None:
    """Raise RunError unless an array has an input's shape and dtype; `sizes` are the values of sizes that vary."""
    shape = shape_at(summary, sizes) if array.ndim == len(summary.shape) else summary.shape
    if array.shape != shape or (array.dtype != array_dtype(summary.dtype) and array.dtype.name != summary.dtype):
        got = f"{'x'.join(map(str, array.shape)) or 'scalar'} {array.dtype.name}"
        here = "" if shape == summary.shape else f" (here {'x'.join(map(str, shape))})"
        raise RunError(
            f"input {summary.name} is {got}, expected {_type_text(summary)}{here} as it was compiled for; "
            "convert the array, or compile the model with example inputs of this shape and dtype"
        )
