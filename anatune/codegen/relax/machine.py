"""A built model's library in this process, on the CPU or the GPU. Of TVM only the runtime is used."""

from __future__ import annotations

import ctypes
import importlib.util
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from anatune.codegen.compat import TVM_ERRORS, TvmObject, import_tvm, last_line
from anatune.errors import DivisionError, RunError

__all__ = ["Machine", "check_gpu"]

_HELPERS = "vm.builtin."
"""What the names of the runtime's own functions begin with: allocating, checking, naming memory anew."""
_LOADER = "ffi.Module.load_from_bytes.cuda"
"""Function that TVM's CUDA library registers."""
_RUNTIME, _CUDART = "libtvm_runtime_cuda.so", "libcudart.so.13"


class Machine:
    """The functions of a library that `building.built` or `building.built_for_gpu` made.

    Parameters
    ----------
    library : Path
    weights : sequence of tensors of TVM's
        As `writing.Weight` says, in the CPU's memory: they are kept alive, not copied, but for a GPU, where they are
        copied once.
    arch : str, optional
        Of a GPU ("sm_86"): inputs and outputs are copied there and back in every run. None: it runs on the CPU.

    Raises
    ------
    RunError
        The library cannot be loaded, or there is no such GPU here.
    MissingDependencyError
        TVM is not installed.
    """

    def __init__(self, library: Path, weights: Sequence[TvmObject], arch: str | None = None) -> None:
        tvm = import_tvm()
        import tvm_ffi

        if arch is not None:
            check_gpu("the model", arch)
        tvm_ffi.register_error(ZeroDivisionError.__name__, ZeroDivisionError)  # kernels of divisors raise it
        self._host = tvm.cpu()
        self._device = self._host if arch is None else tvm.cuda(0)
        try:
            self._library = tvm.runtime.load_module(str(library))
            self._main: Callable[..., TvmObject] = self._machine()["main"]
        except (RuntimeError, AttributeError, ValueError, OSError) as error:
            raise RunError(f"{library} cannot be loaded: {last_line(error)}") from None
        self._weights = tvm.runtime.convert([self._copied(weight, self._device) for weight in weights])

    def _copied(self, tensor: TvmObject, device: TvmObject) -> TvmObject:
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
        try:
            result = self._main(*(self._copied(tensor, self._device) for tensor in inputs), self._weights)
        except ZeroDivisionError as error:
            raise DivisionError(f"{last_line(error)}; keep zeros out of what whole numbers are divided by") from None
        except TVM_ERRORS as error:
            raise RunError(f"the model cannot be run: {last_line(error):.300}; compile it again") from None
        if self._device is self._host or hasattr(result, "copyto"):
            return self._copied(result, self._host)
        return [tensor.copyto(self._host) for tensor in result]

    def times(self, inputs: Sequence[TvmObject], runs: int) -> dict[str, float]:
        """Return the least time of each function over some runs, all its calls in a run together, s.

        By the clock of the CPU, on a GPU with what a launch costs there.
        """
        times: list[dict[str, float]] = []
        began = 0.0
        machine = self._machine()  # of its own: one that was instrumented once calls Python before and after everything

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
        main, given = machine["main"], [self._copied(tensor, self._device) for tensor in inputs]
        for _ in range(runs):
            times.append({})
            main(*given, self._weights)
        return {name: min(run[name] for run in times) for name in times[0] if not name.startswith(_HELPERS)}

    def _machine(self) -> TvmObject:
        from tvm.runtime.vm import VirtualMachine

        return VirtualMachine(self._library, self._device)


def check_gpu(what: str, arch: str) -> None:
    """Raise RunError unless this machine's first GPU runs cubins of `arch`; `what` leads the message.

    A cubin runs on GPUs of its compute capability and on later ones of the same first number.
    Source: [CUDA-guide] binary compatibility.
    """
    advice = f"run it where there is a GPU of {arch}, or compile it for the processor here with --hw host"
    tvm = import_tvm()
    if (reason := _loaded()) is not None:
        raise RunError(f"{what} was compiled for a GPU ({arch}), and there is none here ({reason}); {advice}")
    device = tvm.cuda(0)
    if not device.exist:
        raise RunError(f"{what} was compiled for a GPU ({arch}), and there is none here; {advice}")
    major, minor = (int(part) for part in str(device.compute_version).split("."))
    wanted = int("".join(filter(str.isdigit, arch)))
    if major != wanted // 10 or minor < wanted % 10:
        raise RunError(f"{what} was compiled for {arch}, and the GPU here is of sm_{major}{minor}; {advice}")


def _loaded() -> str | None:
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
