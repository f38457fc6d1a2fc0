"""Processes that run cases, each case after the other: one that dies or hangs is replaced by a new one."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import multiprocessing
import os
import re
import resource
import signal
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

from bench.fuzz.program import Outcome

__all__ = ["KINDS", "Worker", "kind_module", "outcome_of"]

KINDS = {
    "onnx": "bench.fuzz.onnx.cases", "torch": "bench.fuzz.torch.cases", "compile": "bench.fuzz.torch.compiled",
    "kernels": "bench.fuzz.kernels", "logs": "bench.fuzz.logs",
}  # fmt: skip
"""Kind of cases -> the module that makes, judges and prints them."""
_NEEDS = {
    "onnx": ("onnx", "onnxruntime", "tvm"),
    "torch": ("torch", "tvm"),
    "compile": ("torch", "tvm"),
    "kernels": ("tvm",),
}
_RAW = re.compile(r"Check failed|LLVM ERROR|Traceback|ffi\.|\btir\b|\bT\.|\b\w+Error\b|\n")
"""Words of TVM and of Python in a message that is to be a sentence for users."""
_MEMORY_BYTES = 24 << 30
"""Address space of a worker; TVM and PyTorch map several GiB that they do not use."""


def kind_module(kind: str) -> ModuleType:
    """Return the module of a kind; others are named by their modules."""
    return importlib.import_module(KINDS.get(kind, kind))


def can_run(kind: str) -> bool:
    """Return whether what a kind needs is installed."""
    return all(importlib.util.find_spec(name) is not None for name in _NEEDS.get(kind, ()))


def outcome_of(program: Any) -> Outcome:
    """Return what becomes of a program in this process: `judge` of its kind, with what it raises."""
    from anatune.errors import AnatuneError

    operators = tuple(dict.fromkeys(step.op for step in getattr(program, "steps", ())))
    try:
        outcome = kind_module(program.kind).judge(program)
    except AnatuneError as error:
        is_raw = _RAW.search(str(error)) is not None
        state = "raw" if is_raw else "refused"
        outcome = Outcome(state, f"{type(error).__name__}: {error}"[:600], operators)
    except MemoryError:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        outcome = Outcome("raw", f"{type(error).__name__}: {error}"[:600], operators)
    return outcome if not outcome.is_failure or outcome.program is not None else replace(outcome, program=program)


def _serve(connection: Connection) -> None:
    """Answer ("judge", program), ("make", kind, seed) and ("call", name, program) until the other side closes."""
    silent = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silent, stream)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["ANATUNE_CACHE"] = "off"
    import warnings

    warnings.simplefilter("ignore")
    while True:
        try:
            what, *arguments = connection.recv()
        except EOFError:
            return
        try:
            if what == "judge":
                answer: Any = outcome_of(*arguments)
            elif what == "make":
                answer = kind_module(arguments[0]).make(arguments[1])
            else:
                answer = getattr(kind_module(arguments[1].kind), arguments[0])(arguments[1])
        except BaseException as error:  # noqa: BLE001  a fault of the fuzzer's own is told, too
            answer = Outcome("skipped", f"fuzzer: {what}: {type(error).__name__}: {error}"[:300])
        connection.send(answer)


class Worker:
    """A process that answers one request at a time; not thread-safe.

    Parameters
    ----------
    limit_s : float
        How long an answer may take.
    preload : sequence of str
        Modules that the server of processes imports once, before its first worker.
    """

    def __init__(self, limit_s: float = 60.0, preload: Sequence[str] = ("bench.fuzz.preloaded",)) -> None:
        self._limit_s = limit_s
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(preload))
        self._process: Any = None
        self._connection: Any = None

    def _start(self) -> None:
        self._connection, other = self._context.Pipe()
        self._process = self._context.Process(target=_serve, args=(other,), daemon=True)
        self._process.start()
        other.close()

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._connection.close()
            self._process.kill()
            self._process.join()
            self._process = None

    def _ask(self, *request: Any) -> Any:
        """Return the answer to a request, or a "crash" or "hang"."""
        is_first = self._process is None
        if is_first:
            self._start()
        try:
            self._connection.send(request)
            if self._connection.poll(self._limit_s + (60 if is_first else 0)):
                return self._connection.recv()
            self.close()
            return Outcome("hang", f"no answer in {self._limit_s:.0f} s")
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._process.join(10)
            code = self._process.exitcode
            self.close()
            name = signal.Signals(-code).name if code is not None and code < 0 else f"exit {code}"
            return Outcome("crash", name)

    def make(self, kind: str, seed: int) -> Any:
        """Return the program of a seed, or an `Outcome` where making it fails.

        The generator of ONNX models calls nothing of anatune's: a process that ends there is a fault of what it
        compares with (onnxruntime divides by zero in some pools).
        """
        made = self._ask("make", kind, seed)
        is_crash = kind == "onnx" and isinstance(made, Outcome) and made.state == "crash"
        return replace(made, state="skipped", why=f"a generator's process ended: {made.why}") if is_crash else made

    def judge(self, program: Any) -> Outcome:
        """Return what becomes of a program."""
        outcome = self._ask("judge", program)
        if outcome.is_failure and outcome.program is None:
            operators = tuple(dict.fromkeys(step.op for step in getattr(program, "steps", ())))
            outcome = replace(outcome, program=program, operators=operators)
        return outcome

    def call(self, name: str, program: Any) -> Any:
        """Return what a function of the program's kind returns for it; an `Outcome` where it fails."""
        return self._ask("call", name, program)
