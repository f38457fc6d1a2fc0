"""A built model's library on a GPU of this machine. Of TVM only the runtime is used, and its CUDA library."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from anatune.codegen.compat import TvmObject, import_tvm, last_line
from anatune.codegen.relax.machine import Machine
from anatune.errors import RunError

__all__ = ["GpuMachine", "check_gpu"]

_LOADER = "ffi.Module.load_from_bytes.cuda"
"""Function that TVM's CUDA library registers."""
_RUNTIME, _CUDART = "libtvm_runtime_cuda.so", "libcudart.so.13"


class GpuMachine(Machine):
    """The functions of a library for a GPU: weights are copied there once, inputs and outputs at every run.

    Parameters
    ----------
    library : Path
    weights : sequence of tensors of TVM's
        In the CPU's memory.
    arch : str
        "sm_86".

    Raises
    ------
    RunError
        There is no such GPU here, or the library cannot be loaded.
    MissingDependencyError
        TVM is not installed.
    """

    def __init__(self, library: Path, weights: Sequence[TvmObject], arch: str) -> None:
        check_gpu("the model", arch)
        device = import_tvm().cuda(0)
        self._host = import_tvm().cpu()
        super().__init__(library, [one.copyto(device) for one in weights], device)

    def run(self, *inputs: TvmObject) -> TvmObject:
        """Return the result of the model in the CPU's memory: a tensor, or a list of them."""
        found = super().run(*(one.copyto(self._device) for one in inputs))
        return found.copyto(self._host) if hasattr(found, "copyto") else [one.copyto(self._host) for one in found]

    def times(self, inputs: Sequence[TvmObject], runs: int) -> dict[str, float]:
        """Return the least time of each function over some runs; of the CPU's clock, with what a launch costs there."""
        return super().times([one.copyto(self._device) for one in inputs], runs)

    def wait(self) -> None:
        """Wait for what the GPU does."""
        self._device.sync()


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
    folders = [Path(one) for one in tvm.libinfo.package_lib_paths()]
    found = next((folder / _RUNTIME for folder in folders if (folder / _RUNTIME).is_file()), None)
    if found is None:
        return f"this TVM has no {_RUNTIME}"
    try:
        ctypes.CDLL(str(found), ctypes.RTLD_GLOBAL)
    except OSError as error:
        if _CUDART not in str(error) or not (packaged := _packaged_runtimes()):
            return last_line(error)
        try:
            for path in (packaged[0], found):
                ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
        except OSError as other:
            return last_line(other)
    return None


def _packaged_runtimes() -> list[Path]:
    """Return NVIDIA's CUDA runtimes that Python packages brought."""
    spec = importlib.util.find_spec("nvidia")
    places = spec.submodule_search_locations if spec is not None else None
    return [path for place in places or () for path in sorted(Path(place).glob(f"*/lib/{_CUDART}"))]
