"""Compiled models that are launches of kernels on a GPU; they run without a compiler and without TVM."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from anatune.arguments import check_integer
from anatune.codegen.compat import convert_to_array
from anatune.errors import AnatuneError, BuildError, RecordError, RunError
from anatune.files import scratch_folder
from anatune.measure.cuda.dlpack import device_address
from anatune.measure.cuda.driver import GpuDevice, open_device
from anatune.measure.run.correctness import array_dtype
from anatune.network.compiling.compiled import CompiledModel
from anatune.network.compiling.memory import Memory
from anatune.network.compiling.sizes.held import COUNT
from anatune.network.compiling.targets.device_runner import DeviceRunner
from anatune.network.compiling.targets.interpreted import interpret_model
from anatune.network.graph.nodes import Array
from anatune.network.graph.summary import ModelSummary, TensorSummary
from anatune.network.graph.torch.arrays import torch_of_array
from anatune.network.relax.device.program import DeviceProgram
from anatune.threads import LockedProperty, run_in_turn
from anatune.untyped import TorchTensor

__all__ = ["LaunchedModel", "has_gpu"]

_NAME = "model.gpu"


class LaunchedModel(CompiledModel):
    """A model for a GPU's matrix units; ``model(*inputs)`` runs it there.

    Inputs are NumPy or torch arrays on the CPU, which are copied to the device and back in every run, or torch tensors
    on the device: then outputs are on the device as well, and nothing is copied. ``model.launch(*tensors)`` takes
    tensors of any library. Code and weights go to the device before the first run.

    Attributes
    ----------
    interprets : bool
        Run in Triton's interpreter on the CPU, with the memory layout of the device. A run takes minutes.
    """

    _interprets = False
    _unshared = ("_state", "_runner", "_host_state")

    @property
    def interprets(self) -> bool:  # noqa: D102  see above
        return self._interprets

    @interprets.setter
    @run_in_turn
    def interprets(self, value: bool) -> None:
        state = self._state_bytes() if value != self._interprets and self._has_run and self.summary.state else None
        self._interprets = value
        if state is not None:  # the same stream goes on
            self._set_state(state)

    @property
    def _has_run(self) -> bool:
        return ("_host_state" if self.interprets else "_runner") in self.__dict__

    def _changes(self) -> dict[str, object]:
        held: dict[str, object] = {"interprets": self.interprets}
        return held | {"state": self.state} if self.summary.state and self._has_run else held

    @classmethod
    def from_program(cls, summary: ModelSummary, program: DeviceProgram, memory: Memory) -> LaunchedModel:
        """Return the model of a program and its weights, in a scratch folder that is removed with it."""
        folder = scratch_folder(BuildError)
        (folder / _NAME).write_bytes(msgspec.msgpack.encode(program))
        return cls(summary, folder / _NAME, memory, folder)

    @LockedProperty
    def program(self) -> DeviceProgram:
        """Return the kernels and launches of the model.

        Raises
        ------
        RecordError
            Another version wrote the file.
        """
        try:
            return msgspec.msgpack.decode(self.code.tobytes(), type=DeviceProgram)
        except msgspec.MsgspecError as error:
            raise RecordError(f"{self._library}: no model's program: {error!s:.200}; compile it again") from None

    @LockedProperty
    def _runner(self) -> DeviceRunner:
        arch = self.summary.arch
        device = open_device(arch=arch)
        if not _has_arch(device, arch):
            device.close()
            raise RunError(
                f"the model was compiled for {self.summary.hardware} ({arch}), but the GPU here is {device.arch}; "
                "compile the model for this one (--hw host_gpu)"
            )
        count = [TensorSummary(COUNT, "int32", (1,))] if self.summary.ranges else []
        runner = DeviceRunner(
            self.program, self.memory, [*self.summary.inputs, *count], self.summary.outputs, device
        )  # fmt: skip
        runner.write_state(self._initial_state())
        return runner

    @LockedProperty
    def _host_state(self) -> list[Array]:
        """Return the state in the interpreter's memory, (num_bytes,) uint8 each."""
        return self._initial_state()

    def _initial_state(self) -> list[Array]:
        """Return the initial state as it lies in memory."""
        sizes = {name: one.most for name, one in self.summary.ranges.items()}
        return [self._to_bytes(place, self._state.initial(one, sizes)) for place, one in enumerate(self.summary.state)]

    def _to_bytes(self, index: int, array: Array) -> Array:
        dtype = array_dtype(self.program.state[index].dtype)
        return np.ascontiguousarray(array).astype(dtype).reshape(-1).view(np.uint8)

    @run_in_turn
    def launch(self, *tensors: object) -> None:
        """Run on tensors that lie on the device, inputs and then outputs, and return at once.

        Tensors are C-contiguous and from any library that has DLPack (PyTorch, CuPy, JAX); nothing is copied. Launches
        are queued on the legacy default stream, after the work that computes the tensors there. Keep the tensors until
        it ends.

        Raises
        ------
        RunError
            The number of tensors differs, or one is not on the device, not contiguous, or of another shape or dtype.
        """
        tensor_summaries = (*self.summary.inputs, *self.summary.outputs)
        if len(tensors) != len(tensor_summaries):
            raise RunError(
                f"the model: got {len(tensors)} tensors, expected {len(tensor_summaries)}: "
                f"{', '.join(one.name for one in tensor_summaries)}"
            )
        next_sizes = self._state.sizes_after(self._state.add_held_sizes({}))
        device = self._runner.index, self.summary.arch
        addresses = [
            device_address(one.name, one.dtype, tuple(map(int, one.shape)), tensor, *device)
            for one, tensor in zip(tensor_summaries, tensors, strict=True)
        ]
        self._runner.run_on(addresses, self._counts())
        self._state.sizes |= next_sizes

    def _counts(self) -> list[Array]:
        return [np.array([count], np.int32) for count in self._state.sizes.values()]

    @run_in_turn
    def _run(self, arrays: list[Array]) -> list[Array]:
        inputs = [*arrays, *self._counts()]
        if self.interprets:
            return interpret_model(self.program, self.memory, inputs, self.summary.outputs, self._host_state)
        return self._runner.run(inputs)

    @property
    @run_in_turn
    def state(self) -> dict[str, Array]:
        """Copies of the tensors that stay in the model between calls; can be set, see `CompiledModel.state`."""
        arrays = {}
        for tensor, buffer, array in zip(self.summary.state, self.program.state, self._state_bytes(), strict=True):
            full_array = array.view(array_dtype(buffer.dtype)).reshape(buffer.shape).astype(array_dtype(tensor.dtype))
            arrays[tensor.name] = full_array[self._state.held_slices(tensor)]
        return arrays

    @state.setter
    @run_in_turn
    def state(self, arrays: Mapping[str, Array]) -> None:
        self._state.set_arrays(arrays)
        self._set_state([self._to_bytes(place, convert_to_array(one)) for place, one in enumerate(self._state.tensors)])

    def _set_state(self, state: list[Array]) -> None:
        if self.interprets:
            self._host_state = state
        else:
            self._runner.write_state(state)

    @run_in_turn
    def reset(self) -> None:
        """Set the state to its initial values: the next call begins another stream."""
        self._state.reset()
        if self._has_run:
            self._set_state(self._initial_state())

    @run_in_turn
    def __call__(self, *inputs: object) -> object:
        """Return the model's output, or a tuple of them, for `inputs`. Raises the errors of `CompiledModel`."""
        if inputs and str(getattr(inputs[0], "device", "")).startswith("cuda") and hasattr(inputs[0], "new_empty"):
            return self._call_on_device(inputs)
        arrays, _ = self._input_arrays(inputs)
        next_sizes = self._state.sizes_after(self._state.add_held_sizes({}))
        outputs = self._run(arrays)
        self._state.sizes |= next_sizes
        torch = sys.modules.get("torch")
        if torch is not None and inputs and isinstance(inputs[0], torch.Tensor):
            outputs = [torch_of_array(array) for array in outputs]
        return tuple(outputs) if self.summary.is_tuple else outputs[0]

    def _call_on_device(self, inputs: Sequence[TorchTensor]) -> object:
        """Return outputs on the device for torch tensors on the device."""
        torch = sys.modules["torch"]
        outputs = tuple(
            inputs[0].new_empty(tuple(map(int, one.shape)), dtype=getattr(torch, one.dtype))
            for one in self.summary.outputs
        )
        self.launch(*inputs, *outputs)
        device = inputs[0].device
        torch.cuda.current_stream(device).wait_stream(torch.cuda.default_stream(device))  # which launches run on
        return outputs if self.summary.is_tuple else outputs[0]

    def prepared(self, *inputs: object) -> Callable[[], object]:
        """Return a function that calls the model on `inputs`, with all copies, for timing. Raises the errors of a call.

        It keeps the state. A state of more than cache rows is copied back in each call.
        """
        arrays = self._prepare_inputs(inputs)
        if not self._needs_restoring:
            return functools.partial(self._run, arrays)
        initial = self._state_bytes()

        def call() -> object:
            outputs = self._run(arrays)
            self._set_state([array.copy() for array in initial])
            return outputs

        return call

    @run_in_turn
    def profile(self, *inputs: object, repeats: int = 10) -> dict[str, float]:
        """Return the seconds of each kernel in one run, by events on the device: the least of several runs."""
        repeats = check_integer("profile: repeats", repeats, 1, 10_000)
        arrays = self._prepare_inputs(inputs or tuple(self.random_inputs()))
        initial = self._runner.read_state() if self._needs_restoring else None
        self._runner.run([*arrays, *self._counts()])
        times = self._runner.times(repeats)
        if initial is not None:
            self._runner.write_state(initial)
        return times

    @property
    def _needs_restoring(self) -> bool:
        """True if a run changes data that the next one reads; new cache rows after the held ones do not."""
        return not all(one.grows for one in self.summary.state)

    def _prepare_inputs(self, inputs: Sequence[object]) -> list[Array]:
        """Return inputs as arrays, after checking that the state has space for another call. Errors: as a call."""
        arrays, _ = self._input_arrays(inputs)
        self._state.sizes_after(self._state.add_held_sizes({}))
        return arrays

    def _state_bytes(self) -> list[Array]:
        """Return a copy of the state as it lies in memory."""
        return [array.copy() for array in (self._host_state if self.interprets else self._runner.read_state())]

    def sources(self) -> dict[str, str]:
        """Return the Triton source of each kernel, by the name of its launches."""
        program = self.program
        return {one.name: program.programs[program.kernels[one.kernel].program].source for one in program.launches}


def has_gpu(arch: str) -> bool:
    """Return whether this machine's first GPU runs code of an architecture."""
    try:
        with open_device(arch=arch) as device:
            return _has_arch(device, arch)
    except (AnatuneError, OSError):
        return False


def _has_arch(device: GpuDevice, arch: str) -> bool:
    return device.arch in (arch, arch.rstrip("a"))  # "sm_90a" is sm_90 with its optional instructions
