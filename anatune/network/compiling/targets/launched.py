"""Compiled models that are launches of kernels on a GPU: no compiler and no TVM is needed to run them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from anatune.arguments import checked_integer
from anatune.codegen.compat import array_of
from anatune.errors import AnatuneError, BuildError, RecordError, RunError
from anatune.files import scratch_folder
from anatune.measure.cuda.dlpack import device_address
from anatune.measure.cuda.driver import GpuDevice, open_device
from anatune.measure.run.correctness import array_dtype
from anatune.network.compiling.compiled import CompiledModel
from anatune.network.compiling.memory import Memory
from anatune.network.compiling.sizes.held import COUNT
from anatune.network.compiling.targets.device_runner import DeviceRunner
from anatune.network.compiling.targets.interpreted import interpreted
from anatune.network.graph.nodes import Array
from anatune.network.graph.summary import ModelSummary, TensorSummary
from anatune.network.graph.torch.arrays import torch_of_array
from anatune.network.relax.device.program import DeviceProgram
from anatune.threads import LockedProperty, in_turn
from anatune.untyped import TorchTensor

__all__ = ["LaunchedModel", "is_here"]

_NAME = "model.gpu"


class LaunchedModel(CompiledModel):
    """A model for a GPU's matrix units; ``model(*inputs)`` runs it there.

    Inputs are NumPy or torch arrays on the CPU, copied to the device and back in every run, or tensors of PyTorch's on
    the device, where outputs are then, too: nothing is copied. ``model.launch(*tensors)`` takes those of any library.
    Its code and weights go there before the first run.

    Attributes
    ----------
    interprets : bool
        Whether runs are made by Triton's interpreter on the CPU: minutes, on memory that lies as it does on the device.
    """

    _interprets = False
    _changing = ("_state", "_runner", "_kept")

    @property
    def interprets(self) -> bool:  # noqa: D102  see above
        return self._interprets

    @interprets.setter
    @in_turn
    def interprets(self, does: bool) -> None:
        held = self._held_bytes() if does != self._interprets and self._has_run and self.summary.state else None
        self._interprets = does
        if held is not None:  # one stream, wherever it goes on
            self._hold(held)

    @property
    def _has_run(self) -> bool:
        return ("_kept" if self.interprets else "_runner") in self.__dict__

    def _held(self) -> dict[str, object]:
        held: dict[str, object] = {"interprets": self.interprets}
        return held | {"state": self.state} if self.summary.state and self._has_run else held

    @classmethod
    def of(cls, summary: ModelSummary, program: DeviceProgram, memory: Memory) -> LaunchedModel:
        """Return a model of its program and weights, in a scratch folder that goes with it."""
        folder = scratch_folder(BuildError)
        (folder / _NAME).write_bytes(msgspec.msgpack.encode(program))
        return cls(summary, folder / _NAME, memory, folder)

    @LockedProperty
    def program(self) -> DeviceProgram:
        """Its kernels and launches.

        Raises
        ------
        RecordError
            The file is of another version.
        """
        try:
            return msgspec.msgpack.decode(self.code.tobytes(), type=DeviceProgram)
        except msgspec.MsgspecError as error:
            raise RecordError(f"{self._library}: no program of a model: {error!s:.200}; compile it again") from None

    @LockedProperty
    def _runner(self) -> DeviceRunner:
        arch = self.summary.arch
        device = open_device(arch=arch)
        if not _is_of(device, arch):
            device.close()
            raise RunError(
                f"the model was compiled for {self.summary.hardware} ({arch}), and the GPU here is of {device.arch}; "
                "compile it for this one (--hw host_gpu)"
            )
        count = [TensorSummary(COUNT, "int32", (1,))] if self.summary.ranges else []
        runner = DeviceRunner(
            self.program, self.memory, [*self.summary.inputs, *count], self.summary.outputs, device
        )  # fmt: skip
        runner.hold(self._first())
        return runner

    @LockedProperty
    def _kept(self) -> list[Array]:
        """Return the state in the interpreter's memory, (num_bytes,) uint8 each."""
        return self._first()

    def _first(self) -> list[Array]:
        """Return the state as it is at first, as memory holds it."""
        known = {name: one.most for name, one in self.summary.ranges.items()}
        return [self._bytes(place, self._state.first(one, known)) for place, one in enumerate(self.summary.state)]

    def _bytes(self, place: int, array: Array) -> Array:
        kind = array_dtype(self.program.state[place].dtype)
        return np.ascontiguousarray(array).astype(kind).reshape(-1).view(np.uint8)

    @in_turn
    def launch(self, *tensors: object) -> None:
        """Run on tensors that lie on the device already, inputs and then outputs, and return at once.

        They are of any library that has DLPack (PyTorch, CuPy, JAX), C-contiguous; nothing is copied. Launches are
        queued on the legacy default stream, behind what computes the tensors there; they have to stay until it ends.

        Raises
        ------
        RunError
            Another number of tensors, or one that is not on the device, of another shape or dtype, not contiguous.
        """
        told = (*self.summary.inputs, *self.summary.outputs)
        if len(tensors) != len(told):
            raise RunError(
                f"the model: got {len(tensors)} tensors, expected {len(told)}: {', '.join(one.name for one in told)}"
            )
        behind = self._state.after(self._state.known({}))
        place = self._runner.index, self.summary.arch
        addresses = [
            device_address(one.name, one.dtype, tuple(map(int, one.shape)), tensor, *place)
            for one, tensor in zip(told, tensors, strict=True)
        ]
        self._runner.run_on(addresses, self._counts())
        self._state.sizes |= behind

    def _counts(self) -> list[Array]:
        return [np.array([count], np.int32) for count in self._state.sizes.values()]

    @in_turn
    def _run(self, arrays: list[Array]) -> list[Array]:
        given = [*arrays, *self._counts()]
        if self.interprets:
            return interpreted(self.program, self.memory, given, self.summary.outputs, self._kept)
        return self._runner.run(given)

    @property
    @in_turn
    def state(self) -> dict[str, Array]:
        """What stays in the model between calls, copied from where it is; settable: see `CompiledModel.state`."""
        found = {}
        for one, buffer, array in zip(self.summary.state, self.program.state, self._held_bytes(), strict=True):
            whole = array.view(array_dtype(buffer.dtype)).reshape(buffer.shape).astype(array_dtype(one.dtype))
            found[one.name] = whole[self._state.held(one)]
        return found

    @state.setter
    @in_turn
    def state(self, arrays: Mapping[str, Array]) -> None:
        self._state.put(arrays)
        self._hold([self._bytes(place, array_of(one)) for place, one in enumerate(self._state.tensors)])

    def _hold(self, state: list[Array]) -> None:
        if self.interprets:
            self._kept = state
        else:
            self._runner.hold(state)

    @in_turn
    def reset(self) -> None:
        """Make the state what it was at first: the next call is the first of another stream."""
        self._state.reset()
        if self._has_run:
            self._hold(self._first())

    @in_turn
    def __call__(self, *inputs: object) -> object:
        """Return the model's output, or a tuple of them, for `inputs`; errors as `CompiledModel`."""
        if inputs and str(getattr(inputs[0], "device", "")).startswith("cuda") and hasattr(inputs[0], "new_empty"):
            return self._on_device(inputs)
        arrays, _ = self._arrays(inputs)
        behind = self._state.after(self._state.known({}))
        found = self._run(arrays)
        self._state.sizes |= behind
        torch = sys.modules.get("torch")
        if torch is not None and inputs and isinstance(inputs[0], torch.Tensor):
            found = [torch_of_array(array) for array in found]
        return tuple(found) if self.summary.is_tuple else found[0]

    def _on_device(self, inputs: Sequence[TorchTensor]) -> object:
        """Return outputs for tensors of PyTorch's on the device, where they are, too."""
        torch = sys.modules["torch"]
        found = tuple(
            inputs[0].new_empty(tuple(map(int, one.shape)), dtype=getattr(torch, one.dtype))
            for one in self.summary.outputs
        )
        self.launch(*inputs, *found)
        place = inputs[0].device
        torch.cuda.current_stream(place).wait_stream(torch.cuda.default_stream(place))  # where launches go
        return found if self.summary.is_tuple else found[0]

    def prepared(self, *inputs: object) -> Callable[[], object]:
        """Return a call without arguments on `inputs`, copies included, for timing; errors as a call.

        The state stays as it is; where it is more than rows of caches it is copied back in each call.
        """
        given = self._timed(inputs)
        if not self._changes:
            return functools.partial(self._run, given)
        before = self._held_bytes()

        def call() -> object:
            found = self._run(given)
            self._hold([array.copy() for array in before])
            return found

        return call

    @in_turn
    def profile(self, *inputs: object, repeats: int = 10) -> dict[str, float]:
        """Return the time of each kernel in one run, by events on the device: the least of several, s."""
        repeats = checked_integer("profile: repeats", repeats, 1, 10_000)
        given = self._timed(inputs or tuple(self.random_inputs()))
        before = self._runner.state() if self._changes else None
        self._runner.run([*given, *self._counts()])
        found = self._runner.times(repeats)
        if before is not None:
            self._runner.hold(before)
        return found

    @property
    def _changes(self) -> bool:
        """Whether a run changes what the next one reads; rows of caches behind those that are held say nothing."""
        return not all(one.grows for one in self.summary.state)

    def _timed(self, inputs: Sequence[object]) -> list[Array]:
        """Return inputs as arrays, for which there is room behind what is held; errors as a call."""
        arrays, _ = self._arrays(inputs)
        self._state.after(self._state.known({}))
        return arrays

    def _held_bytes(self) -> list[Array]:
        """Return the state as memory holds it: copies."""
        return [array.copy() for array in (self._kept if self.interprets else self._runner.state())]

    def sources(self) -> dict[str, str]:
        """Return the Triton text of each kernel, by the name of its launches."""
        own = self.program
        return {launch.name: own.programs[own.kernels[launch.kernel].program].source for launch in own.launches}


def is_here(arch: str) -> bool:
    """Whether this machine's first GPU runs code of an architecture."""
    try:
        with open_device(arch=arch) as device:
            return _is_of(device, arch)
    except (AnatuneError, OSError):
        return False


def _is_of(device: GpuDevice, arch: str) -> bool:
    return device.arch in (arch, arch.rstrip("a"))  # "sm_90a" is sm_90 with all of its instructions
