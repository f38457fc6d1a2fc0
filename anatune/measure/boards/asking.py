"""Questions to boards, asked by a process of their own: a board that says nothing more holds up nobody for long."""

from __future__ import annotations

from anatune.errors import DeviceError
from anatune.measure.boards.description import BoardDescription
from anatune.measure.run.process import Worker, refusal

__all__ = ["ask_board"]

_WAIT_S = 20.0
"""Most seconds to wait for a free board."""
_TALK_S = 60.0
"""Most seconds that telling takes, TVM's import included; hundreds of small files over a slow network."""


def ask_board(tracker: str, key: str, *, wait_s: float = _WAIT_S) -> BoardDescription:
    """Return what a free board of the key is.

    Raises
    ------
    DeviceError
        The tracker or the board cannot be reached, or does not answer.
    MissingDependencyError
        TVM is not installed.
    RunError
        There is no linker for the board's processor, or no process can be started.
    """
    worker = Worker("board")
    try:
        arguments = {"tracker": tracker, "key": key, "wait_s": wait_s, "limit_s": _TALK_S}
        limit_s = wait_s + _TALK_S
        worker.submit("anatune.measure.boards.description:describe", arguments, limit_s)
        reply = worker.wait(limit_s + _TALK_S)
        if isinstance(reply.value, BoardDescription):
            return reply.value
        if reply.kind == "timeout":
            raise DeviceError(f"board {key} of tracker {tracker} says nothing: {reply.message}")
        raise refusal(reply, f"board {key} of tracker {tracker} cannot be described")
    finally:
        worker.kill()
