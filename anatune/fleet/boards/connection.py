"""One connection to a board: memory there, files, libraries, functions; what goes wrong is told in one line.

Nothing here limits waiting for a board that says nothing more: that is for whoever started the process (a
`measure.run.process.Worker`). The board limits itself, see `Board.limit`.
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

__all__ = ["MACHINES", "Board", "BoardLostError", "connected"]

MACHINES = ("x86_64", "aarch64")
"""Processors that kernels can be generated for."""

_TEXT_BYTES = 1 << 12
_MOST_TEXT_BYTES = 1 << 20
_PATH_BYTES = 256
_MAILBOX_BYTES = _PATH_BYTES + _TEXT_BYTES


class BoardLostError(DeviceError):
    """A board does not answer any more."""


class Board:
    """A session with a board's server.

    Parameters
    ----------
    session
        TVM's.
    name : str
        The key and where it listens, for people and records.
    machine : str, optional
        Its processor, one of `MACHINES`; found out by default.

    Attributes
    ----------
    machine : str

    Raises
    ------
    DeviceError
        It is of no known processor, or does not answer.
    BuildError
        There is no linker for its processor.
    """

    def __init__(self, session: tvm.rpc.RPCSession, name: str, machine: str | None = None) -> None:
        self.name = name
        self._session = session
        self._tvm = import_tvm()
        self._device = session.cpu()
        self._numbers = itertools.count()
        self._view = self._tvm.get_global_func("tvm.rpc.TensorFromRemoteOpaqueHandle")
        self.machine, self._errands = self._offered_errands(MACHINES if machine is None else (machine,))
        self._functions: dict[str, Callable[..., int]] = {}
        self._mailbox = self.memory(_MAILBOX_BYTES)

    def _offered_errands(self, machines: tuple[str, ...]) -> tuple[str, tvm.runtime.Module]:
        """Return the processor whose code the board can load, and what it loaded."""
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
                    return machine, self._loaded(path)
                except TVM_ERRORS as error:
                    why = last_line(error)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if missing is not None:
            raise missing
        raise DeviceError(f"board {self.name} cannot load code for {' or '.join(machines)}: {why}")

    # -- errors ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def telling(self, what: str) -> Iterator[None]:
        """Make errors of TVM's those of the board: lost, or what it complains about while doing `what`."""
        try:
            yield
        except TVM_ERRORS as error:
            if isinstance(error, (RunError, DeviceError)):
                raise
            if not self.is_alive():
                raise BoardLostError(f"board {self.name} was lost {what}: the connection is closed") from None
            raise RunError(f"board {self.name}, {what}: {last_line(error)}") from None

    def is_alive(self) -> bool:
        """Whether the board answers."""
        try:
            self._errands["processor"]()
        except TVM_ERRORS:
            return False
        return True

    # -- functions ------------------------------------------------------------------------------------------------

    def errand(self, name: str, *numbers: int) -> int:
        """Call one of `codegen.cpu.errands`."""
        with self.telling(f"asked to {name}"):
            if name not in self._functions:
                self._functions[name] = self._errands[name]
            return int(self._functions[name](*numbers))

    def function(self, name: str) -> tvm_ffi.Function:
        """Return a function of TVM's runtime on the board."""
        with self.telling(f"asked for {name}"):
            return self._session.get_function(name)

    def limit(self, seconds: float) -> None:
        """Have the board end this session by itself after so many seconds; a later call replaces an earlier one.

        A kernel that never ends, or a network that is gone, leaves the board to the next one so.
        """
        self.errand("limit", max(1, int(np.ceil(seconds))))

    def load(self, path: str | Path) -> tvm.runtime.Module:
        """Upload a library and load it."""
        with self.telling(f"loading {Path(path).name}"):
            return self._loaded(Path(path))

    def _loaded(self, path: Path) -> tvm.runtime.Module:
        name = f"{next(self._numbers)}-{path.name}"  # one of the same name that is loaded would not be read again
        self._session.upload(bytearray(path.read_bytes()), name)
        module = self._session.load_module(name)
        self._session.remove(name)
        return module

    def timer(self, module: tvm.runtime.Module, name: str, runs: int) -> tvm_ffi.Function:
        """Return TVM's time_evaluator: it runs the function once, then times `runs` runs in a row."""
        with self.telling("asked for a timer"):
            return module.time_evaluator(name, self._device, number=runs, repeat=1)

    # -- memory ---------------------------------------------------------------------------------------------------

    def memory(self, num_bytes: int) -> int:
        """Return the address of new memory, a multiple of a page.

        Raises
        ------
        RunError
            The board has not so much.
        """
        address = self.errand("allocate", num_bytes)
        if not address:
            raise RunError(f"board {self.name} has no {num_bytes} bytes of memory left")
        return address

    def release(self, address: int) -> None:
        """Give memory back; whether the board still answers does not matter."""
        with contextlib.suppress(DeviceError, RunError):
            self.errand("release", address)

    def tensor(self, address: int, dtype: str, shape: tuple[int, ...]) -> tvm.runtime.Tensor:
        """Return memory of the board as one of TVM's tensors, row-major."""
        template = self._tvm.runtime.empty(shape, dtype)  # never touched: only its shape and dtype are read
        return self._view(self._session._sess, ctypes.c_void_p(address), template, self._device, None)

    def write(self, address: int, array: Array) -> None:
        """Copy an array's bytes to the board."""
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        with self.telling("receiving data"):
            self.tensor(address, "uint8", flat.shape).copyfrom(flat)

    def read(self, address: int, dtype: str, shape: tuple[int, ...]) -> Array:
        """Return a copy of the board's memory."""
        count = int(np.prod(shape, dtype=np.int64)) * array_dtype(dtype).itemsize
        with self.telling("sending data"):
            raw = np.asarray(self.tensor(address, "uint8", (count,)).numpy())
        return raw.view(array_dtype(dtype)).reshape(shape)

    # -- what the system tells ------------------------------------------------------------------------------------

    def _put_text(self, *texts: str) -> None:
        """Put texts into the mailbox, each where half a path has room."""
        room = _PATH_BYTES // len(texts)
        raw = b"".join(text.encode()[: room - 1].ljust(room, b"\0") for text in texts)
        self.write(self._mailbox, np.frombuffer(raw, np.uint8))

    def file(self, path: str) -> str | None:
        """Return the text of a file on the board; None if it cannot be read. The first 1 MiB count."""
        self._put_text(path)
        parts: list[bytes] = []
        start = 0
        while start < _MOST_TEXT_BYTES:
            got = self.errand("read", self._mailbox, self._mailbox + _PATH_BYTES, start, _TEXT_BYTES)
            if got < 0 and not parts:
                return None
            if not 0 < got <= _TEXT_BYTES:  # files of the system may tell less at a time than was asked for
                break
            parts.append(self.read(self._mailbox + _PATH_BYTES, "uint8", (got,)).tobytes())
            start += got
        return b"".join(parts).decode(errors="replace")

    def set_threads(self, threads: int) -> None:
        """Have parallel loops run on so many threads.

        Raises
        ------
        DeviceError
            The board does not give them.
        """
        self._put_text("TVM_NUM_THREADS", str(threads))  # TVM asks for it again at every launch
        self.errand("variable", self._mailbox, self._mailbox + _PATH_BYTES // 2)
        with self.telling("asked for threads"):
            self._session.get_function("runtime.config_threadpool")(1, threads)
            given = int(self._session.get_function("runtime.NumThreads")())
        if given < threads:
            raise DeviceError(f"board {self.name} runs parallel loops on {given} threads, expected {threads}")


def connected(tracker: Tracker, key: str, *, wait_s: float, machine: str | None = None) -> Board:
    """Return a session with a free board; wait for one at most `wait_s`.

    Raises
    ------
    DeviceError
        The tracker cannot be reached, no board is free, or it cannot be used.
    BuildError
        There is no linker for its processor.
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
        raise DeviceError(f"board {name} does not work: {last_line(error)}") from None
