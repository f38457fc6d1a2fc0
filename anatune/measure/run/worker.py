"""The process that `anatune.measure.run.process.Worker` starts, which runs functions by name, one at a time.

Started as ``python -m anatune.measure.run.worker FD SETTINGS``. FD is one end of a socket on which pickled
(function, arguments) arrive and replies go back; SETTINGS is JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from multiprocessing.connection import Connection

from anatune.errors import AnatuneError
from anatune.named import resolve

_PR_SET_PDEATHSIG = 1


def _end_with_parent(parent: int) -> None:
    """Let the system kill this process when its parent dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _limit_memory(num_bytes: int | None) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if num_bytes is not None:
        # Limit data, not address space, because LLVM and BLAS reserve memory that they never use.
        resource.setrlimit(resource.RLIMIT_DATA, (num_bytes, num_bytes))


def _answer(name: str, arguments: dict[str, object]) -> tuple[str, object]:
    """Run one function and return ("value", result), ("error", (class, message)) or ("memory", message)."""
    try:
        return "value", resolve(name)(**arguments)
    except MemoryError:
        return "memory", "out of memory"
    except Exception as error:  # noqa: BLE001  any exception is a result of the candidate
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        message = lines[-1] if lines else "no message"
        if not isinstance(error, AnatuneError):
            message = f"{type(error).__name__}: {message}"
        return "error", (type(error).__name__, message)


def main() -> None:
    """Run functions until the other end of the socket closes."""
    settings = json.loads(sys.argv[2])
    _end_with_parent(settings["parent"])
    connection = Connection(int(sys.argv[1]))
    _limit_memory(settings["memory_bytes"])
    if settings["cores"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, settings["cores"])
    while True:
        try:
            name, arguments = connection.recv()
        except (EOFError, ConnectionError):
            break
        reply = _answer(name, arguments)
        try:
            connection.send(reply)
        except (BrokenPipeError, ConnectionError):
            break
    os._exit(0)  # skip the normal exit, which a library damaged by a kernel may not survive


if __name__ == "__main__":
    main()
