"""Run a built model's library in this process, on the CPU or the GPU, with TVM's runtime only."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from weakref import WeakSet

from anatune.codegen.compat import TVM_ERRORS, TvmObject, import_tvm, last_line
from anatune.codegen.pool import call_parallel
from anatune.errors import DivisionError, RunError
from anatune.network.graph.nodes import Array
from anatune.threads import new_lock

__all__ = ["Frame", "LibraryRunner", "check_gpu"]

_RUNTIME_PREFIX = "vm.builtin."
"""Prefix of the runtime's own functions, which allocate and check memory and create views."""
_LOADER = "ffi.Module.load_from_bytes.cuda"
"""A function that TVM's CUDA library registers."""
_RUNTIME, _CUDART = "libtvm_runtime_cuda.so", "libcudart.so.13"
_MOST_FORK_WAIT_S = 10.0
"""Longest time that `fork` waits for a run in another thread, s."""


class Frame:
    """The resources of one run: a virtual machine's function, and memory for copies of small inputs.

    Attributes
    ----------
    main : callable
    inputs : list of (ndarray, TVM tensor)
        Memory that belongs to the caller.
    """

    __slots__ = ("inputs", "main")

    def __init__(self, main: Callable[..., TvmObject]) -> None:
        self.main = main
        self.inputs: list[tuple[Array, TvmObject]] = []


class LibraryRunner:
    """Runs a library that `building.build_library` or `building.build_gpu_library` built.

    Several threads may run it at the same time. Each run has its own frame, and waits if all are in use. `fork` waits
    until runs end, because the child could not release their locks.

    Parameters
    ----------
    library : Path
    weights : sequence of TVM tensors
        The tensors of `writing.Weight` in CPU memory. They are kept alive and not copied, except for a GPU, where they
        are copied once.
    threads : int
        Threads of its parallel loops.
    most_frames : int
        Most runs at the same time, >= 1; it is 1 if runs have parallel loops or use a GPU.
    arch : str, optional
        Architecture of a GPU ("sm_86"): inputs and outputs are copied in every run. None runs on the CPU.

    Raises
    ------
    RunError
        The library cannot be loaded, or this machine has no such GPU.
    MissingDependencyError
        TVM is not installed.
    """

    def __init__(
        self,
        library: Path,
        weights: Sequence[TvmObject],
        threads: int = 1,
        most_frames: int = 1,
        arch: str | None = None,
    ) -> None:
        tvm = import_tvm()
        import tvm_ffi

        if arch is not None:
            check_gpu("the model", arch)
        tvm_ffi.register_error(ZeroDivisionError.__name__, ZeroDivisionError)  # kernels with integer division raise it
        self._host = tvm.cpu()
        self._device = self._host if arch is None else tvm.cuda(0)
        try:
            self._library = tvm.runtime.load_module(str(library))
            self._threads = threads
            self._idle = [self._make_frame()]
        except (RuntimeError, AttributeError, ValueError, OSError) as error:
            raise RunError(f"{library} cannot be loaded: {last_line(error)}") from None
        self._num_frames, self._most_frames = 1, most_frames
        self._waiting: deque[SimpleQueue[Frame]] = deque()
        self._weights = tvm.runtime.convert([self._copy_to(weight, self._device) for weight in weights])
        self._lock, self._serving = new_lock(), new_lock()
        _machines.add(self)

    def _make_frame(self) -> Frame:
        main = self._make_virtual_machine()["main"]
        return Frame(main if self._threads == 1 else functools.partial(call_parallel, main))

    def take_frame(self) -> Frame:
        """Return a frame for one run, exclusively until `return_frame`; waits in a queue if all are in use."""
        try:
            return self._idle.pop()
        except IndexError:
            pass
        with self._lock:
            if self._num_frames < self._most_frames:
                frame = self._make_frame()
                self._num_frames += 1
                return frame
        return self._wait_for_frame()

    def return_frame(self, frame: Frame) -> None:
        """Return a frame after a run."""
        self._idle.append(frame)
        if self._waiting:
            self._hand_out_frames()

    def _wait_for_frame(self, timeout_s: float | None = None) -> Frame:
        """Wait for a frame; raises queue.Empty after the timeout."""
        queue = SimpleQueue[Frame]()
        self._waiting.append(queue)
        self._hand_out_frames()
        try:
            return queue.get(timeout=timeout_s)
        except Empty:
            with self._serving:
                if queue in self._waiting:
                    self._waiting.remove(queue)
            return queue.get_nowait()

    def _hand_out_frames(self) -> None:
        """Give idle frames to waiting threads, first come first served."""
        with self._serving:
            while self._idle and self._waiting:
                with contextlib.suppress(IndexError):  # `take_frame` was faster
                    frame = self._idle.pop()
                    self._waiting.popleft().put(frame)

    def pause(self) -> None:
        """Wait until nothing runs, and block new runs until `resume`."""
        self._lock.acquire()
        self._paused: list[Frame] = []
        with contextlib.suppress(Empty):  # after so long a time a child may have to do with less
            while len(self._paused) < self._num_frames:
                self._paused.append(self._wait_for_frame(_MOST_FORK_WAIT_S))

    def resume(self, *, is_child: bool) -> None:
        """Allow runs again after `pause`; a child has none of the threads that held or awaited a frame."""
        if is_child:
            self._waiting.clear()
            if not self._paused:
                self._paused.append(self._make_frame())
            self._num_frames = len(self._paused)
        for frame in self._paused:
            self.return_frame(frame)
        self._lock.release()

    def _copy_to(self, tensor: TvmObject, device: TvmObject) -> TvmObject:
        """Return a tensor in the memory of a device; all CPU tensors share one memory."""
        return tensor if self._device is self._host else tensor.copyto(device)

    def run(self, *inputs: TvmObject) -> TvmObject:
        """Return the outputs of the model in CPU memory: a tensor, or a sequence of them.

        Raises
        ------
        RunError
            TVM refuses the inputs or the weights, or there is too little memory.
        DivisionError
            An integer was divided by zero.
        """
        frame = self.take_frame()
        try:
            return self.run_on(frame, inputs)
        finally:
            self.return_frame(frame)

    def run_on(self, frame: Frame, inputs: Sequence[TvmObject]) -> TvmObject:
        """Return the outputs of the model, run in a given frame. Raises the errors of `run`."""
        try:
            result = frame.main(*(self._copy_to(tensor, self._device) for tensor in inputs), self._weights)
        except ZeroDivisionError as error:
            raise DivisionError(f"{last_line(error)}; give inputs without zeros for integer divisors") from None
        except TVM_ERRORS as error:
            raise RunError(f"the model cannot be run: {last_line(error):.300}; compile it again") from None
        if self._device is self._host or hasattr(result, "copyto"):
            return self._copy_to(result, self._host)
        return [tensor.copyto(self._host) for tensor in result]

    def times(self, inputs: Sequence[TvmObject], runs: int) -> dict[str, float]:
        """Return the least seconds of each function over some runs, with all of its calls in a run.

        The CPU's clock measures them, on a GPU with the cost of a launch.
        """
        times: list[dict[str, float]] = []
        began = 0.0
        # its own one, because an instrumented machine calls Python around every call from then on
        machine = self._make_virtual_machine()

        def instrument(_function: TvmObject, name: str, before: bool, *_: TvmObject) -> int:
            nonlocal began
            if self._device is not self._host:
                self._device.sync()  # calls on a CPU are synchronous
            if before:
                began = time.perf_counter()
            else:
                times[-1][name] = times[-1].get(name, 0.0) + time.perf_counter() - began
            return 0

        machine.set_instrument(instrument)
        main, given = machine["main"], [self._copy_to(tensor, self._device) for tensor in inputs]
        for _ in range(runs):
            times.append({})
            call_parallel(main, *given, self._weights)
        return {name: min(run[name] for run in times) for name in times[0] if not name.startswith(_RUNTIME_PREFIX)}

    def _make_virtual_machine(self) -> TvmObject:
        from tvm.runtime.vm import VirtualMachine

        return VirtualMachine(self._library, self._device)


_machines: WeakSet[LibraryRunner] = WeakSet()


def _pause() -> None:
    for machine in (paused := list(_machines)):
        machine.pause()
    _paused[:] = paused


def _resume(*, is_child: bool = False) -> None:
    for machine in _paused:
        machine.resume(is_child=is_child)
    _paused.clear()


_paused: list[LibraryRunner] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_pause, after_in_parent=_resume, after_in_child=functools.partial(_resume, is_child=True)
    )


def check_gpu(what: str, arch: str) -> None:
    """Raise RunError unless this machine's first GPU runs cubins of `arch`; `what` begins the message.

    A cubin runs on GPUs of its compute capability and on later ones of the same first number.
    Source: [CUDA-guide] binary compatibility.
    """
    advice = f"run it where there is a GPU of {arch}, or compile it for the processor here with --hw host"
    tvm = import_tvm()
    if (reason := _load_cuda_runtime()) is not None:
        raise RunError(f"{what} was compiled for a GPU ({arch}), and there is none here ({reason}); {advice}")
    device = tvm.cuda(0)
    if not device.exist:
        raise RunError(f"{what} was compiled for a GPU ({arch}), and there is none here; {advice}")
    major, minor = (int(part) for part in str(device.compute_version).split("."))
    wanted = int("".join(filter(str.isdigit, arch)))
    if major != wanted // 10 or minor < wanted % 10:
        raise RunError(f"{what} was compiled for {arch}, and the GPU here is of sm_{major}{minor}; {advice}")


def _load_cuda_runtime() -> str | None:
    """Load TVM's CUDA library into this process; return the reason if that fails, else None."""
    tvm = import_tvm()
    if tvm.get_global_func(_LOADER, allow_missing=True) is not None:
        return None
    places = [Path(folder) / _RUNTIME for folder in tvm.libinfo.package_lib_paths()]
    runtime = next((place for place in places if place.is_file()), None)
    if runtime is None:
        return f"this TVM has no {_RUNTIME}"
    try:
        ctypes.CDLL(str(runtime), ctypes.RTLD_GLOBAL)
    except OSError as error:
        if _CUDART not in str(error) or not (packaged := _packaged_runtimes()):
            return last_line(error)
        try:
            for path in (packaged[0], runtime):
                ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
        except OSError as other:
            return last_line(other)
    return None


def _packaged_runtimes() -> list[Path]:
    """Return the CUDA runtimes of NVIDIA's Python packages."""
    spec = importlib.util.find_spec("nvidia")
    places = spec.submodule_search_locations if spec is not None else None
    return [path for place in places or () for path in sorted(Path(place).glob(f"*/lib/{_CUDART}"))]
