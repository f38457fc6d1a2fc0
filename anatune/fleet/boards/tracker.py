"""Requests to TVM's RPC tracker: the number of boards, and a board for a session. Every request has a time limit.

The protocol has neither passwords nor encryption: whoever can connect to a server can run programs on it. Run trackers
and servers on the loopback interface (ssh forwards ports), or in a network that only trusted people can reach.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

from anatune.codegen.compat import import_tvm
from anatune.errors import DeviceError
from anatune.untyped import tvm

__all__ = ["BoardAddress", "Tracker", "check_key", "connect", "count_boards", "open_warning", "request", "tracker_of"]

_ANSWER_S = 10.0
"""The most seconds that a tracker may take to answer."""
_MOST_KEY = 200


class Tracker(NamedTuple):
    """The address of a tracker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class BoardAddress(NamedTuple):
    """The address of a board that the tracker assigned, and the word that the board's server expects."""

    host: str
    port: int
    word: str


def tracker_of(text: str) -> Tracker:
    """Parse the address "HOST:PORT" of a tracker.

    Raises
    ------
    DeviceError
        The text is not such an address.
    """
    host, colon, port = str(text).rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise DeviceError(f"tracker is {text!r:.80}, expected HOST:PORT, for example 127.0.0.1:9190")
    return Tracker(host, int(port))


def check_key(key: str | None) -> str:
    """Return the key of boards if it is valid.

    Raises
    ------
    DeviceError
        The key is missing, or has characters that trackers do not allow.
    """
    if not key:
        raise DeviceError("tracker: the key of the boards' servers is missing; name it with --key KEY")
    if not key.isprintable() or any(sign in key for sign in ' "\\') or len(key) > _MOST_KEY:
        raise DeviceError(f"key is {key!r:.80}, expected a name without spaces and quotes")
    return key


def open_warning(tracker: Tracker) -> str:
    """Return the warning about a tracker on another machine, or an empty text if it is on this one."""
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(tracker.host).is_loopback:
            return ""
    if tracker.host == "localhost":
        return ""
    return (
        f"tracker {tracker} is on another machine: TVM's RPC has no passwords and no encryption, so who can connect "
        "to it or its boards can run programs there; use a private network, or forward ports with ssh"
    )


@contextlib.contextmanager
def _open_connection(tracker: Tracker) -> Iterator[socket.socket]:
    """Open a connection to a tracker and exchange greetings; all errors become DeviceError."""
    import_tvm()
    from tvm.rpc import base

    try:
        with socket.create_connection(tracker, timeout=_ANSWER_S) as connection:
            connection.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
            (magic,) = struct.unpack("<i", base.recvall(connection, 4))
            if magic != base.RPC_TRACKER_MAGIC:
                raise ValueError("another greeting")
            yield connection
    except TimeoutError:
        raise DeviceError(f"the tracker {tracker} does not answer within {_ANSWER_S:g} s") from None
    except OSError as error:
        why = (error.strerror or str(error) or "no answer").lower()
        raise DeviceError(
            f"the tracker {tracker} cannot be reached: {why}; start a tracker with "
            "python -m tvm.exec.rpc_tracker --host 127.0.0.1 --port 9190"
        ) from None
    except ValueError:  # JSON errors are ValueErrors, too
        raise DeviceError(f"the server at {tracker} is not a TVM tracker; check the address") from None


def _ask(connection: socket.socket, question: list[object]) -> object:
    """Send a question to the tracker and return the answer."""
    from tvm.rpc import base

    base.sendjson(connection, question)
    answer = base.recvjson(connection)
    if not isinstance(answer, list) or len(answer) != 2 or answer[0] != base.TrackerCode.SUCCESS:
        raise ValueError("another answer")
    return answer[1]


def count_boards(tracker: Tracker, key: str) -> int:
    """Return the number of boards that are registered under a key, free or busy.

    Raises
    ------
    DeviceError
        The tracker cannot be reached.
    """
    with _open_connection(tracker) as connection:
        from tvm.rpc import base

        reply = _ask(connection, [base.TrackerCode.SUMMARY])
        if not isinstance(reply, dict) or not isinstance(reply.get("server_info"), list):
            raise ValueError("another answer")
        return sum(isinstance(server, dict) and server.get("key") == f"server:{key}" for server in reply["server_info"])


def request(tracker: Tracker, key: str, wait_s: float) -> BoardAddress:
    """Request a free board; wait for one for at most `wait_s`.

    Raises
    ------
    DeviceError
        The tracker cannot be reached, or no board is free.
    """
    with _open_connection(tracker) as connection:
        from tvm.rpc import base

        connection.settimeout(wait_s)
        try:
            answer = _ask(connection, [base.TrackerCode.REQUEST, key, "", 1])
        except TimeoutError:
            board_count = count_boards(tracker, key)
            state = f"{board_count} are registered, but busy" if board_count else "none is registered"
            raise DeviceError(f"tracker {tracker}: no board {key} was free within {wait_s:g} s ({state})") from None
        # the name of the host ends up in records and on terminals
        if not isinstance(answer, list) or len(answer) != 3 or not re.fullmatch(r"[\w.:%-]{1,255}", str(answer[0])):
            raise ValueError("another answer")
        return BoardAddress(str(answer[0]), int(answer[1]), str(answer[2]))


def connect(address: BoardAddress) -> tvm.rpc.RPCSession:
    """Open TVM's session with an assigned board; it raises TVM's errors and waits without limit."""
    import_tvm()
    from tvm import rpc

    return rpc.connect(address.host, address.port, address.word)
