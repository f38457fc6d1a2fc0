"""Execution of the unchanged CUDA C of a kernel on the CPU, to check it without a GPU.

The system's C++ compiler compiles the kernel with cuda_shim.h to a separate program, so that a crash or a hang is
detected. cuda_shim_run.cpp schedules the threads and describes the detected errors.
"""

from __future__ import annotations

import functools
import mmap
import os
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from anatune.emit.buffer import Buffer
from anatune.errors import MissingDependencyError, RunError, no_scratch
from anatune.files import scratch_folder
from anatune.measure.emulate.cuda_text import cpp_source
from anatune.measure.run.correctness import Array, array_dtype
from anatune.templates.gpu.kernel import CudaKernel

_COMPILE_LIMIT_S = 120.0
_FLAGS = ("-std=c++17", "-w", "-fno-strict-aliasing", "-fno-exceptions", "-fno-rtti", "-fno-stack-protector")
_KERNEL_HEADERS = ("cuda_shim.h",)


class Blocks(NamedTuple):
    """The blocks of a grid that run: `first`, ``first + stride`` and so on."""

    first: int = 0
    stride: int = 1


ALL_BLOCKS = Blocks()


def compiler() -> str:
    """Return the C++ compiler: that of the environment variable CXX, else g++, clang++ or c++.

    Raises
    ------
    MissingDependencyError
        There is no C++ compiler.
    """
    for name in (os.environ.get("CXX", ""), "g++", "clang++", "c++"):
        if name and shutil.which(name):
            return name
    raise MissingDependencyError(
        "checking GPU schedules without a GPU needs a C++ compiler, but none of CXX, g++, clang++ and c++ was found; "
        "install g++ (Debian, Ubuntu: apt install g++)"
    )


class _Shim(NamedTuple):
    """The shim in a folder: headers for kernels, and the compiled scheduler."""

    folder: Path
    program: Path
    flags: tuple[str, ...]
    includes: str


@functools.lru_cache(maxsize=4)
def _shim(command: str) -> _Shim:
    """Compile the part that all kernels share, once in a process."""
    folder = scratch_folder(RunError)
    weakref.finalize(_shim, shutil.rmtree, folder, ignore_errors=True)
    for source in resources.files("anatune.measure.emulate").iterdir():
        if source.name.startswith("cuda_shim"):
            (folder / source.name).write_bytes(source.read_bytes())
    program = folder / "run.o"
    flags = [*_FLAGS, "-march=native"]
    command_line = ["-O2", "-c", str(folder / "cuda_shim_run.cpp"), "-o", str(program)]
    log = _compile(command, [*flags, *command_line])
    if log is not None and "-march" in log:  # the compiler may not know -march=native
        flags.pop()
        log = _compile(command, [*flags, *command_line])
    if log is not None:
        raise RunError(f"{command} cannot compile anatune's CUDA shim: {log}; set CXX to a recent g++ or clang++")
    return _Shim(folder, program, tuple(flags), "\n".join(f'#include "{name}"' for name in _KERNEL_HEADERS))


def _compile(command: str, arguments: list[str]) -> str | None:
    """Run the compiler; return None, or its first error."""
    try:
        done = subprocess.run(
            [command, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_COMPILE_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not finished after {_COMPILE_LIMIT_S:g} s"
    except OSError as error:
        return error.strerror or str(error)
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    errors = [line for line in lines if "error" in line]
    return (errors or lines or [f"exit status {done.returncode}"])[0].strip()[:300]


class EmulatedKernel:
    """A kernel as a program for the CPU, which is compiled once and can run many times.

    It may be used from any thread. Its files are removed with the object.

    Parameters
    ----------
    kernel : CudaKernel
        The kernel.
    traced : bool
        Check every access to shared and global memory, which takes about seven times as long. Races between threads (a
        missing barrier), reads of unwritten memory, misaligned vectors, and accesses outside an array or a thread's own
        arrays are then detected for every order of the threads.

    Raises
    ------
    MissingDependencyError
        There is no C++ compiler.
    RunError
        The source does not compile.
    """

    def __init__(self, kernel: CudaKernel, *, traced: bool = False) -> None:
        command = compiler()
        shim = _shim(command)
        self.kernel = kernel
        folder = scratch_folder(RunError)
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        source, self._program = folder / "kernel.cpp", folder / "kernel"
        source.write_text(cpp_source(kernel, shim.includes, traced=traced))
        objects = folder / "kernel.o"
        trace = ["-fsanitize=thread,bounds"] if traced else []
        log = _compile(command, [*shim.flags, *trace, "-O1", f"-I{shim.folder}", "-c", str(source), "-o", str(objects)])
        if log is None:  # linked without -fsanitize, because the kernel reports to the shim
            log = _compile(command, [str(objects), str(shim.program), "-lm", "-o", str(self._program)])
        if log is not None:
            raise RunError(f"the CUDA C of {kernel.name} does not compile for the CPU: {log}")

    def run(
        self,
        arrays: Mapping[str, Array],
        *,
        order: int = 0,
        blocks: Blocks = ALL_BLOCKS,
        launch: int | None = None,
        limit_s: float = 60.0,
    ) -> None:
        """Run the kernel once; the array of the result is changed in place.

        Parameters
        ----------
        arrays : mapping of str to ndarray
            All operands and the result by tensor, in the dtypes and shapes of the kernel's parameters.
        order : int
            Threads and warps ascending (0), descending (1), or at random with this seed (2 and more). Asynchronous
            copies arrive when they are waited for (0), at once (1), or either (2 and more).
        blocks : Blocks
            The blocks to run in every launch.
        launch : int, optional
            Run only this one of `CudaKernel.launches`; then `arrays` contains the workspace, which is changed as well.
            By default all launches run in order.
        limit_s : float
            Longest time of a launch, seconds.

        Raises
        ------
        RunError
            An array is missing or has another shape or dtype; or the kernel made an error, which the message names.
        """
        kernel = self.kernel
        arrays, workspace = dict(arrays), kernel.workspace
        if workspace is not None and launch is None:
            arrays[workspace.tensor] = np.empty(workspace.shape, array_dtype(workspace.dtype))
            arrays[workspace.tensor].reshape(-1).view(np.uint8)[:] = 0xFF
        chosen = range(len(kernel.launches)) if launch is None else [launch]
        buffers = {parameter.tensor: parameter for at in chosen for parameter in kernel.launches[at].parameters}
        places, size = {}, 0
        for tensor, buffer in buffers.items():
            array = self._check_array(buffer, arrays)
            places[tensor] = size
            size += -(-max(array.nbytes, 1) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        with _file_of(size) as file, mmap.mmap(file.fileno(), size) as memory:
            whole = np.frombuffer(memory, np.uint8)
            whole[:] = 0xFF
            views = {}
            for tensor, offset in places.items():
                start = offset + _start(arrays[tensor].nbytes, order)
                views[tensor] = whole[start : start + arrays[tensor].nbytes]
                views[tensor][:] = arrays[tensor].reshape(-1).view(np.uint8)
            try:
                for number in chosen:
                    words = []
                    for tensor in (parameter.tensor for parameter in kernel.launches[number].parameters):
                        writable = tensor in find_written_tensors(kernel, number)
                        words += [tensor, str(arrays[tensor].nbytes), str(places[tensor]), str(int(writable))]
                    self._run(file.fileno(), number, words, order, blocks, limit_s)
                for tensor in set[str]().union(*(find_written_tensors(kernel, at) for at in chosen)):
                    arrays[tensor].reshape(-1).view(np.uint8)[:] = views[tensor]
            finally:
                del whole, views

    def _check_array(self, buffer: Buffer, arrays: Mapping[str, Array]) -> Array:
        name = buffer.tensor
        if name not in arrays:
            raise RunError(f"{self.kernel.name}: the array for {name} is missing")
        array = arrays[name]
        if array.shape != buffer.shape or array.dtype != array_dtype(buffer.dtype) or not array.flags.c_contiguous:
            raise RunError(
                f"{self.kernel.name}: {name} is {array.dtype} of shape {array.shape}, "
                f"expected contiguous {buffer.dtype} of shape {buffer.shape}"
            )
        return array

    def _run(self, file: int, number: int, words: list[str], order: int, blocks: Blocks, limit_s: float) -> None:
        launch = self.kernel.launches[number]
        granule = min(array_dtype(buffer.dtype).itemsize for buffer in launch.parameters)
        numbers = [number, order, order, launch.grid, launch.block, blocks.first, blocks.stride]
        numbers += [launch.dynamic_shared_bytes, min(granule, 4)]
        try:
            done = subprocess.run(
                [str(self._program), str(file), *map(str, numbers), *words],
                capture_output=True,
                text=True,
                errors="replace",
                pass_fds=[file],
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RunError(f"{launch.name} did not finish within {limit_s:g} s on the CPU") from None
        except OSError as error:
            raise RunError(f"{self._program} cannot be started: {error.strerror or error}; set TMPDIR") from None
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"]
            raise RunError(f"{launch.name}: {lines[-1].strip()}")


def find_written_tensors(kernel: CudaKernel, launch: int) -> frozenset[str]:
    """Return the tensors that a launch may write: the result, and the workspace up to the principal kernel."""
    parameters = {parameter.tensor for parameter in kernel.launches[launch].parameters}
    allowed = {kernel.result}
    if kernel.workspace is not None and launch <= len(kernel.before):
        allowed.add(kernel.workspace.tensor)
    return frozenset(parameters & allowed)


def _file_of(size: int) -> IO[bytes]:
    """Return an unnamed file with `size` allocated bytes, because writing to a hole on a full disk ends the process."""
    try:
        file = tempfile.TemporaryFile()  # noqa: SIM115  the caller closes it
    except OSError as error:
        raise RunError(no_scratch(error)) from None
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)
    except OSError as error:
        file.close()
        raise RunError(
            f"{tempfile.gettempdir()}: no space for {size} bytes of arguments ({error.strerror or error}); "
            "free some space or set TMPDIR"
        ) from None
    return file


def _start(num_bytes: int, order: int) -> int:
    """Return the offset of an array in its pages: at their end for even orders, at their beginning for odd ones."""
    pages = -(-max(num_bytes, 1) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
    return 0 if order & 1 else (pages - num_bytes) // 16 * 16
