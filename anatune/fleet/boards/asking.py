"""Questions to boards, asked by a process of their own: a board that says nothing more holds up nobody for long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from anatune.errors import DeviceError
from anatune.fleet.boards.description import BoardDescription
from anatune.measure.run.process import Worker, refusal

__all__ = ["WAIT_S", "answered", "ask_board"]

_Answer = TypeVar("_Answer")

WAIT_S = 20.0
"""Most seconds to wait for a free board."""
_TALK_S = 60.0
"""Most seconds that telling takes, TVM's import included; hundreds of small files over a slow network."""


def ask_board(tracker: str, key: str, *, wait_s: float = WAIT_S) -> BoardDescription:
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
    arguments = {"tracker": tracker, "key": key, "wait_s": wait_s, "limit_s": _TALK_S}
    function = "anatune.fleet.boards.description:describe"
    return answered(BoardDescription, function, arguments, "described", limit_s=wait_s + _TALK_S, start_s=_TALK_S)


def answered(
    kind: type[_Answer], function: str, arguments: Mapping[str, object], done: str, *, limit_s: float, start_s: float
) -> _Answer:
    """Return what a function answers that talks with a board, in a process of its own.

    Parameters
    ----------
    kind : type
        Of the answer.
    function, arguments
        ``module:function`` and its keywords, "tracker" and "key" among them.
    done : str
        What is done to the board, for the message: "described".
    limit_s, start_s : float
        Most seconds of the function; of starting the process besides.

    Raises
    ------
    DeviceError, MissingDependencyError, RunError
        As `ask_board`.
    """
    board = f"board {arguments['key']} of tracker {arguments['tracker']}"
    worker = Worker("board")
    try:
        worker.submit(function, arguments, limit_s)
        reply = worker.wait(limit_s + start_s)
        if isinstance(reply.value, kind):
            return reply.value
        if reply.kind == "timeout":
            raise DeviceError(f"{board} says nothing: {reply.message}")
        raise refusal(reply, f"{board} cannot be {done}")
    finally:
        worker.kill()
