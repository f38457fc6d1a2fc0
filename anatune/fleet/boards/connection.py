"""A connection to a board: memory, files, libraries and functions there, with errors in one line.

Calls here wait for the board without limit. Whoever started the process (a `measure.run.process.Worker`) limits the
waiting. The board limits its session itself, see `Board.limit`.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from anatune.codegen.compat import TVM_ERRORS, import_tvm, last_line
from anatune.errors import BuildError, DeviceError, RunError
from anatune.fleet.boards.errands import build_errands
from anatune.fleet.boards.tracker import Tracker, connect, request
from anatune.measure.run.correctness import Array, array_dtype
from anatune.untyped import tvm, tvm_ffi

__all__ = ["MACHINES", "Board", "BoardLostError", "open_board"]

MACHINES = ("x86_64", "aarch64")
"""The processors for which kernels can be generated."""

_TEXT_BYTES = 1 << 12
_MOST_TEXT_BYTES = 1 << 20
_PATH_BYTES = 256
_MAILBOX_BYTES = _PATH_BYTES + _TEXT_BYTES


class BoardLostError(DeviceError):
    """A board stopped answering."""


class Board:
    """A session with a board's server.

    Parameters
    ----------
    session
        The TVM session.
    name : str
        The key and address of the board, for messages and records.
    machine : str, optional
        The processor, one of `MACHINES`; detected by default.

    Attributes
    ----------
    machine : str
        The processor.

    Raises
    ------
    DeviceError
        The processor is unknown, or the board does not answer.
    BuildError
        There is no linker for the processor.
    """

    def __init__(self, session: tvm.rpc.RPCSession, name: str, machine: str | None = None) -> None:
        self.name = name
        self._session = session
        self._tvm = import_tvm()
        self._device = session.cpu()
        self._numbers = itertools.count()
        self._view = self._tvm.get_global_func("tvm.rpc.TensorFromRemoteOpaqueHandle")
        self.machine, self._errands = self._load_errands(MACHINES if machine is None else (machine,))
        self._functions: dict[str, Callable[..., int]] = {}
        self._mailbox = self.memory(_MAILBOX_BYTES)

    def _load_errands(self, machines: tuple[str, ...]) -> tuple[str, tvm.runtime.Module]:
        """Return the processor whose code the board can load, and the loaded module of errands."""
        folder = Path(tempfile.mkdtemp(prefix="anatune-"))
        why, missing = "", None
        try:
            for machine in machines:
                path = folder / f"errands-{machine}.so"
                try:
                    build_errands(machine, path)
                except BuildError as error:
                    missing = error
                    continue
                try:
                    return machine, self._load_module(path)
                except TVM_ERRORS as error:
                    why = last_line(error)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if missing is not None:
            raise missing
        raise DeviceError(f"board {self.name} cannot load code for {' or '.join(machines)}: {why}")

    # -- errors ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def translate_errors(self, what: str) -> Iterator[None]:
        """Convert TVM's errors to BoardLostError or RunError; the messages say what the board was doing."""
        try:
            yield
        except TVM_ERRORS as error:
            if isinstance(error, (RunError, DeviceError)):
                raise
            if not self.is_alive():
                raise BoardLostError(f"board {self.name} was lost while {what}: the connection is closed") from None
            raise RunError(f"board {self.name} failed while {what}: {last_line(error)}") from None

    def is_alive(self) -> bool:
        """Return whether the board answers."""
        try:
            self._errands["processor"]()
        except TVM_ERRORS:
            return False
        return True

    # -- functions ------------------------------------------------------------------------------------------------

    def errand(self, name: str, *numbers: int) -> int:
        """Call one of the board's errands (`build_errands`)."""
        with self.translate_errors(f"running {name}"):
            if name not in self._functions:
                self._functions[name] = self._errands[name]
            return int(self._functions[name](*numbers))

    def function(self, name: str) -> tvm_ffi.Function:
        """Return a function of TVM's runtime on the board."""
        with self.translate_errors(f"looking up {name}"):
            return self._session.get_function(name)

    def limit(self, seconds: float) -> None:
        """Make the board end this session after `seconds`; a later call replaces the limit.

        After a kernel that never ends, or a network failure, the board is then free for others.
        """
        self.errand("limit", max(1, int(np.ceil(seconds))))

    def load(self, path: str | Path) -> tvm.runtime.Module:
        """Upload a library and load it."""
        with self.translate_errors(f"loading {Path(path).name}"):
            return self._load_module(Path(path))

    def _load_module(self, path: Path) -> tvm.runtime.Module:
        name = f"{next(self._numbers)}-{path.name}"  # a library with the name of a loaded one would not be read again
        self._session.upload(bytearray(path.read_bytes()), name)
        module = self._session.load_module(name)
        self._session.remove(name)
        return module

    def timer(self, module: tvm.runtime.Module, name: str, runs: int) -> tvm_ffi.Function:
        """Return TVM's time_evaluator, which runs the function once, then times `runs` runs in a row."""
        with self.translate_errors("preparing a timer"):
            return module.time_evaluator(name, self._device, number=runs, repeat=1)

    # -- memory ---------------------------------------------------------------------------------------------------

    def memory(self, num_bytes: int) -> int:
        """Allocate memory and return its address, a multiple of a page.

        Raises
        ------
        RunError
            The board does not have enough memory.
        """
        address = self.errand("allocate", num_bytes)
        if not address:
            raise RunError(f"board {self.name} does not have {num_bytes} bytes of free memory; use a smaller workload")
        return address

    def release(self, address: int) -> None:
        """Free memory; errors of the board are ignored."""
        with contextlib.suppress(DeviceError, RunError):
            self.errand("release", address)

    def tensor(self, address: int, dtype: str, shape: tuple[int, ...]) -> tvm.runtime.Tensor:
        """Return memory of the board as a row-major TVM tensor."""
        template = self._tvm.runtime.empty(shape, dtype)  # only its shape and dtype are read
        return self._view(self._session._sess, ctypes.c_void_p(address), template, self._device, None)

    def write(self, address: int, array: Array) -> None:
        """Copy an array's bytes to the board."""
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        with self.translate_errors("receiving data"):
            self.tensor(address, "uint8", flat.shape).copyfrom(flat)

    def read(self, address: int, dtype: str, shape: tuple[int, ...]) -> Array:
        """Return a copy of the board's memory."""
        count = int(np.prod(shape, dtype=np.int64)) * array_dtype(dtype).itemsize
        with self.translate_errors("sending data"):
            raw = np.asarray(self.tensor(address, "uint8", (count,)).numpy())
        return raw.view(array_dtype(dtype)).reshape(shape)

    # -- files and settings of the system -------------------------------------------------------------------------

    def _put_text(self, *texts: str) -> None:
        """Write one or two texts into the mailbox, each in an equal part of the space for a path."""
        room = _PATH_BYTES // len(texts)
        raw = b"".join(text.encode()[: room - 1].ljust(room, b"\0") for text in texts)
        self.write(self._mailbox, np.frombuffer(raw, np.uint8))

    def file(self, path: str) -> str | None:
        """Return the first MiB of a text file on the board, or None if it cannot be read."""
        self._put_text(path)
        parts: list[bytes] = []
        start = 0
        while start < _MOST_TEXT_BYTES:
            got = self.errand("read", self._mailbox, self._mailbox + _PATH_BYTES, start, _TEXT_BYTES)
            if got < 0 and not parts:
                return None
            if not 0 < got <= _TEXT_BYTES:  # system files may return less than was asked for
                break
            parts.append(self.read(self._mailbox + _PATH_BYTES, "uint8", (got,)).tobytes())
            start += got
        return b"".join(parts).decode(errors="replace")

    def set_threads(self, threads: int) -> None:
        """Set the number of threads of parallel loops.

        Raises
        ------
        DeviceError
            The board uses fewer threads.
        """
        self._put_text("TVM_NUM_THREADS", str(threads))  # TVM reads it at every launch
        self.errand("variable", self._mailbox, self._mailbox + _PATH_BYTES // 2)
        with self.translate_errors("setting threads"):
            self._session.get_function("runtime.config_threadpool")(1, threads)
            given = int(self._session.get_function("runtime.NumThreads")())
        if given < threads:
            raise DeviceError(f"board {self.name} runs parallel loops on {given} threads, expected {threads}")


def open_board(tracker: Tracker, key: str, *, wait_s: float, machine: str | None = None) -> Board:
    """Open a session with a free board; wait for one for at most `wait_s`.

    Raises
    ------
    DeviceError
        The tracker cannot be reached, no board is free, or the board does not work.
    BuildError
        There is no linker for the board's processor.
    """
    address = request(tracker, key, wait_s)
    name = f"{key}@{address.host}:{address.port}"
    try:
        session = connect(address)
    except TVM_ERRORS as error:
        raise DeviceError(f"board {name} cannot be reached: {last_line(error)}") from None
    try:
        return Board(session, name, machine)
    except TVM_ERRORS as error:
        if isinstance(error, (BuildError, RunError, DeviceError)):
            raise
        raise DeviceError(f"board {name} does not work: {last_line(error)}; restart its RPC server") from None
