"""A worker process that runs functions under limits on time and memory, and is replaced if it dies."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from multiprocessing import connection
from typing import IO, Literal, NamedTuple

from anatune.errors import DeviceError, MissingDependencyError, RunError

_BURIAL_S = 20.0
"""Most seconds to wait for a killed process."""


Kind = Literal["value", "error", "timeout", "memory", "died"]


class Reply(NamedTuple):
    """The reply of a worker process.

    Attributes
    ----------
    kind : str
        "value": the function returned `value`. "error": it raised, `error` is the exception's class name. "timeout":
        its limit passed and it was killed. "memory": it ran out of memory. "died": the process ended by itself.
    message : str
        Reason if there is no value, in one line.
    seconds : float
        Seconds from submitting the function to the reply.
    fresh : bool
        Whether the process had run only its set-up before.
    """

    kind: Kind
    value: object = None
    message: str = ""
    error: str = ""
    seconds: float = 0.0
    fresh: bool = False


class _SubmittedCall(NamedTuple):
    limit_s: float
    is_setup: bool
    name: str


class Worker:
    """A long-lived process, which is started when it is needed first, and again after it died or was killed.

    Not safe to share between threads. The process dies with the thread that started it (Linux) and ends its children,
    such as a linker. It ignores Ctrl-C, because it has its own session.

    Parameters
    ----------
    name : str
        Name for messages: "builder", "runner".
    memory_bytes : int or None
        Limit on its data.
    cores : sequence of int
        Cores that it may use; all if empty.
    environment : mapping
        Added to this process's environment.
    setup : (function, arguments), optional
        A function that every new process runs first, within `setup_s`.
    setup_s : float
        Limit on the seconds for starting and the set-up.

    Attributes
    ----------
    setup : (function, arguments) or None
        The set-up of new processes; may be changed.
    """

    def __init__(
        self,
        name: str,
        *,
        memory_bytes: int | None = None,
        cores: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        setup: tuple[str, Mapping[str, object]] | None = None,
        setup_s: float = 60.0,
    ) -> None:
        self.name = name
        self.setup = setup
        self._settings = {"memory_bytes": memory_bytes, "cores": list(cores), "parent": os.getpid()}
        self._environment = dict(environment or {})
        self._setup_s = setup_s
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: connection.Connection | None = None
        self._errors: IO[bytes] | None = None
        self._calls: deque[_SubmittedCall] = deque()
        self._began = 0.0
        self._stopped_at: float | None = None
        self._served = 0

    @property
    def busy(self) -> bool:
        """True if the reply to a submitted function was not taken yet."""
        return any(not call.is_setup for call in self._calls)

    @property
    def process_id(self) -> int | None:
        """Id of the process; None if none runs."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the process and its set-up if none runs; return at once."""
        if self._process is not None and self._process.poll() is not None:
            self.kill()
        if self._process is not None:
            return
        ours, theirs = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process
        environment = {**os.environ, **self._environment}
        environment["PYTHONPATH"] = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        environment["PYTHONSAFEPATH"] = "1"  # import nothing from the working directory
        command = [sys.executable, "-m", "anatune.measure.run.worker", str(theirs.fileno()), json.dumps(self._settings)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise RunError(f"the {self.name} process cannot be started: {error.strerror or error}") from None
        finally:
            theirs.close()
        self._connection = connection.Connection(ours.detach())
        self._served = 0
        if self.setup is not None:
            self._send(*self.setup, limit_s=self._setup_s, is_setup=True)

    def is_ready(self) -> bool:
        """Return whether a process runs and its set-up is done, without waiting.

        Raises
        ------
        RunError, DeviceError, MissingDependencyError
            The set-up failed.
        """
        while self._calls and self._calls[0].is_setup:
            reply = self._receive(0.0)
            if reply is None:
                return False
            self._finish(reply)
        return self._process is not None

    def submit(self, function: str, arguments: Mapping[str, object], limit_s: float) -> None:
        """Submit ``module:function`` with keyword arguments; the time limit begins when the process can begin.

        Raises
        ------
        RunError
            The process cannot be started.
        """
        if self.busy:
            raise AssertionError(f"the {self.name} process is busy")
        self.start()
        self._send(function, arguments, limit_s=limit_s, is_setup=False)

    def _send(self, function: str, arguments: Mapping[str, object], *, limit_s: float, is_setup: bool) -> None:
        if not self._calls:
            self._began = self._now()
        self._calls.append(_SubmittedCall(limit_s, is_setup, function))
        with contextlib.suppress(BrokenPipeError, ConnectionError):  # if the process died, `poll` reports it
            assert self._connection is not None
            self._connection.send((function, dict(arguments)))

    def remaining_s(self) -> float:
        """Seconds until the limit of the present call."""
        return self._began + self._calls[0].limit_s - self._now() if self._calls else float("inf")

    def pause(self) -> None:
        """Pause the process and its children, and the clock of its limit and reply."""
        if self._process is not None and self._stopped_at is None:
            self._stopped_at = time.monotonic()
            self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a paused process."""
        if self._stopped_at is not None:
            self._began += time.monotonic() - self._stopped_at
            self._stopped_at = None
            self._signal(signal.SIGCONT)

    def _now(self) -> float:
        return time.monotonic() if self._stopped_at is None else self._stopped_at

    def _signal(self, number: int) -> None:
        """Send a signal to the process and its children if they still run."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def poll(self, timeout_s: float = 0.0) -> Reply | None:
        """Return the reply to the submitted function; None if there is none within `timeout_s`.

        Raises
        ------
        RunError, DeviceError, MissingDependencyError
            The set-up of a new process failed.
        """
        until = time.monotonic() + timeout_s
        while self.busy:
            pause = max(0.0, min(until - time.monotonic(), self.remaining_s()))
            reply = self._receive(pause)
            if reply is None:
                if time.monotonic() >= until:
                    return None
                continue
            if not self._finish(reply):
                return reply
        return None

    def wait(self, timeout_s: float) -> Reply:
        """Wait for the reply to the submitted function, until its limit, but no longer than `timeout_s`."""
        reply = self.poll(timeout_s)
        if reply is None:
            self.kill()
            return Reply("timeout", message=f"the {self.name} process did not answer within {timeout_s:g} s")
        return reply

    def _finish(self, reply: Reply) -> bool:
        """Note the end of the present call; return whether it was a successful set-up.

        Raises
        ------
        RunError, DeviceError, MissingDependencyError
            The set-up failed.
        """
        call = self._calls.popleft() if self._calls else None
        self._began = self._now()
        if reply.kind in ("timeout", "died", "memory"):
            self.kill()
        if call is None or not call.is_setup:
            self._served += 1
            return False
        if reply.kind != "value":
            self.kill()
            raise refusal(reply, f"the {self.name} process cannot be set up ({call.name})")
        return True

    def _receive(self, pause_s: float) -> Reply | None:
        """Wait for a message, the end of the process or the limit."""
        assert self._connection is not None
        try:
            if self._connection.poll(pause_s):
                kind, value = self._connection.recv()
                if kind == "value":
                    return self._reply("value", value=value)
                if kind == "memory":
                    return self._reply("memory", value)
                return self._reply("error", value[1], error=value[0])
        except (EOFError, ConnectionError):
            return self._reply("died", self._obituary())
        if self.remaining_s() <= 0:
            return self._reply("timeout", f"not finished after {self._calls[0].limit_s:g} s")
        return None

    def _reply(self, kind: Kind, message: str = "", *, value: object = None, error: str = "") -> Reply:
        return Reply(kind, value, message, error, self._now() - self._began, self._served == 0)

    def _obituary(self) -> str:
        """Return a text about the end of the process; after an abort or an exit, with the last line that it wrote."""
        assert self._process is not None
        assert self._errors is not None
        try:
            status = self._process.wait(5)
        except subprocess.TimeoutExpired:
            return f"the {self.name} process closed its connection"
        if status < 0:
            name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
            how = f"the {self.name} process was killed by {name}"
        else:
            how = f"the {self.name} process ended with status {status}"
        if -status in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE):
            return how  # without the last line, because signal handlers of libraries only write addresses
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - 4000))
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        return f"{how}: {lines[-1][:200]}" if lines else how

    def kill(self) -> None:
        """End the process and its children at once, and forget the submitted function."""
        self._calls.clear()
        self._stopped_at = None
        if self._process is not None:
            self._signal(signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # a process in a hanging driver may never end
                self._process.wait(_BURIAL_S)
            self._process = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._errors is not None:
            self._errors.close()
            self._errors = None


def refusal(reply: Reply, what: str) -> RunError | DeviceError | MissingDependencyError:
    """Return the error for a reply without a value; `what` begins its message."""
    if reply.error == "MissingDependencyError":
        return MissingDependencyError(reply.message)
    if reply.error in ("DeviceError", "LostDeviceError"):
        return DeviceError(reply.message)
    return RunError(f"{what}: {reply.message}")


def wait_for(workers: Sequence[Worker], timeout_s: float) -> None:
    """Wait until one of the busy workers has a message or reached its limit, or for `timeout_s`."""
    busy = {worker._connection: worker for worker in workers if worker.busy and worker._connection is not None}
    if busy:
        pause = min(timeout_s, *(worker.remaining_s() for worker in busy.values()))
        connection.wait([*busy], max(0.0, pause))
