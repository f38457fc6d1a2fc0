"""A built model's library in this process, on the CPU or the GPU. Of TVM only the runtime is used."""

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
"""What the names of the runtime's own functions begin with: allocating, checking, naming memory anew."""
_LOADER = "ffi.Module.load_from_bytes.cuda"
"""Function that TVM's CUDA library registers."""
_RUNTIME, _CUDART = "libtvm_runtime_cuda.so", "libcudart.so.13"
_MOST_FORK_WAIT_S = 10.0
"""How long `fork` waits for a run that another thread is in."""


class Frame:
    """What one run needs: the function of a virtual machine of its own, and memory that small inputs are copied into.

    Attributes
    ----------
    main : callable
    inputs : list of (ndarray, tensor of TVM's), optional
        The caller's; None: it has not been asked for.
    """

    __slots__ = ("inputs", "main")

    def __init__(self, main: Callable[..., TvmObject]) -> None:
        self.main = main
        self.inputs: list[tuple[Array, TvmObject]] | None = None


class LibraryRunner:
    """The functions of a library that `building.build_library` or `building.build_gpu_library` made.

    Several threads may run it at once: each run has a frame of its own, and waits where all are in use. `fork` waits
    for runs, whose locks the child could not open.

    Parameters
    ----------
    library : Path
    weights : sequence of tensors of TVM's
        As `writing.Weight` says, in the CPU's memory: they are kept alive, not copied, but for a GPU, where they are
        copied once.
    threads : int
        Of its parallel loops.
    most_frames : int
        Runs at once, >= 1; one where runs have parallel loops or are on a GPU.
    arch : str, optional
        Of a GPU ("sm_86"): inputs and outputs are copied there and back in every run. None: it runs on the CPU.

    Raises
    ------
    RunError
        The library cannot be loaded, or there is no such GPU here.
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
        tvm_ffi.register_error(ZeroDivisionError.__name__, ZeroDivisionError)  # kernels of divisors raise it
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
        """Return what a run needs, which nobody else has until `give`; where all are in use, wait in a queue."""
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
        """Let others have what `take` returned."""
        self._idle.append(frame)
        if self._waiting:
            self._hand_out_frames()

    def _wait_for_frame(self, timeout_s: float | None = None) -> Frame:
        """Wait for a frame; queue.Empty: none came in time."""
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
        """Hand idle frames to those who wait: who came first goes first."""
        with self._serving:
            while self._idle and self._waiting:
                with contextlib.suppress(IndexError):  # `take` was faster
                    frame = self._idle.pop()
                    self._waiting.popleft().put(frame)

    def pause(self) -> None:
        """Wait until nothing runs, and let nothing run until `resume`."""
        self._lock.acquire()
        self._paused: list[Frame] = []
        with contextlib.suppress(Empty):  # after so long a time a child may have to do with less
            while len(self._paused) < self._num_frames:
                self._paused.append(self._wait_for_frame(_MOST_FORK_WAIT_S))

    def resume(self, *, is_child: bool) -> None:
        """Go on behind `pause`; those who have a frame, or wait for one, are not in a child."""
        if is_child:
            self._waiting.clear()
            if not self._paused:
                self._paused.append(self._make_frame())
            self._num_frames = len(self._paused)
        for frame in self._paused:
            self.return_frame(frame)
        self._lock.release()

    def _copy_to(self, tensor: TvmObject, device: TvmObject) -> TvmObject:
        """Return a tensor where a device has it: a CPU's are everywhere in one memory."""
        return tensor if self._device is self._host else tensor.copyto(device)

    def run(self, *inputs: TvmObject) -> TvmObject:
        """Return the result of the model in the CPU's memory: a tensor, or a sequence of them.

        Raises
        ------
        RunError
            TVM refuses the inputs or the weights, or there is too little memory.
        DivisionError
            Whole numbers were to be divided by zero.
        """
        frame = self.take_frame()
        try:
            return self.run_on(frame, inputs)
        finally:
            self.return_frame(frame)

    def run_on(self, frame: Frame, inputs: Sequence[TvmObject]) -> TvmObject:
        """Run as `run` does, on what `take` returned."""
        try:
            result = frame.main(*(self._copy_to(tensor, self._device) for tensor in inputs), self._weights)
        except ZeroDivisionError as error:
            raise DivisionError(f"{last_line(error)}; keep zeros out of what whole numbers are divided by") from None
        except TVM_ERRORS as error:
            raise RunError(f"the model cannot be run: {last_line(error):.300}; compile it again") from None
        if self._device is self._host or hasattr(result, "copyto"):
            return self._copy_to(result, self._host)
        return [tensor.copyto(self._host) for tensor in result]

    def times(self, inputs: Sequence[TvmObject], runs: int) -> dict[str, float]:
        """Return the least time of each function over some runs, all its calls in a run together, s.

        By the clock of the CPU, on a GPU with what a launch costs there.
        """
        times: list[dict[str, float]] = []
        began = 0.0
        machine = (
            self._make_virtual_machine()
        )  # of its own: one that was instrumented once calls Python before and after everything

        def instrument(_function: TvmObject, name: str, before: bool, *_: TvmObject) -> int:
            nonlocal began
            if self._device is not self._host:
                self._device.sync()  # a CPU's calls return when everything is done
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
    """Raise RunError unless this machine's first GPU runs cubins of `arch`; `what` leads the message.

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
    """Load TVM's CUDA library into this process; return why that cannot be."""
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
    """Return NVIDIA's CUDA runtimes that Python packages brought."""
    spec = importlib.util.find_spec("nvidia")
    places = spec.submodule_search_locations if spec is not None else None
    return [path for place in places or () for path in sorted(Path(place).glob(f"*/lib/{_CUDART}"))]
