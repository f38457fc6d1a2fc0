"""TVM's RPC tracker: which boards it knows, and one of them for a session; every wait has a limit.

The protocol has neither passwords nor encryption: whoever reaches a server may run programs on it. Trackers and servers
belong on the loopback (ssh forwards ports), or into a network that only trusted people can reach.
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

__all__ = ["BoardAddress", "Tracker", "boards_of", "checked_key", "connect", "open_warning", "request", "tracker_of"]

_ANSWER_S = 10.0
"""A tracker that takes longer to say hello does not work."""
_MOST_KEY = 200


class Tracker(NamedTuple):
    """Where a tracker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class BoardAddress(NamedTuple):
    """A board that the tracker gave away: where its server listens, and the word that it expects."""

    host: str
    port: int
    word: str


def tracker_of(text: str) -> Tracker:
    """Return the tracker that "HOST:PORT" names.

    Raises
    ------
    DeviceError
        It names none.
    """
    host, colon, port = str(text).rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise DeviceError(f"tracker is {text!r:.80}, expected HOST:PORT, for example 127.0.0.1:9190")
    return Tracker(host, int(port))


def checked_key(key: str | None) -> str:
    """Return the name under which boards registered.

    Raises
    ------
    DeviceError
        There is none, or no tracker could know it.
    """
    if not key:
        raise DeviceError("tracker: which boards? name the key that their servers were started with (--key KEY)")
    if not key.isprintable() or any(sign in key for sign in ' "\\') or len(key) > _MOST_KEY:
        raise DeviceError(f"key is {key!r:.80}, expected a name without spaces and quotes")
    return key


def open_warning(tracker: Tracker) -> str:
    """Return what people have to know about a tracker that is not on this machine; "" if it is."""
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(tracker.host).is_loopback:
            return ""
    if tracker.host == "localhost":
        return ""
    return (
        f"tracker {tracker} is on another machine: TVM's RPC has no passwords and no encryption, so whoever reaches "
        "it or its boards can run programs there; keep them in a network of your own, or forward ports with ssh"
    )


@contextlib.contextmanager
def _connected(tracker: Tracker) -> Iterator[socket.socket]:
    """Give a connection to a tracker that has said hello; what goes wrong is a DeviceError."""
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
            f"the tracker {tracker} cannot be reached: {why}; one is started with "
            "python -m tvm.exec.rpc_tracker --host 127.0.0.1 --port 9190"
        ) from None
    except ValueError:  # of JSON, too
        raise DeviceError(f"what listens at {tracker} is no tracker of TVM's") from None


def _asked(connection: socket.socket, question: list[object]) -> object:
    """Return the tracker's answer."""
    from tvm.rpc import base

    base.sendjson(connection, question)
    answer = base.recvjson(connection)
    if not isinstance(answer, list) or len(answer) != 2 or answer[0] != base.TrackerCode.SUCCESS:
        raise ValueError("another answer")
    return answer[1]


def boards_of(tracker: Tracker, key: str) -> int:
    """Return how many boards are registered under a key, free or not.

    Raises
    ------
    DeviceError
        The tracker cannot be reached.
    """
    with _connected(tracker) as connection:
        from tvm.rpc import base

        told = _asked(connection, [base.TrackerCode.SUMMARY])
        if not isinstance(told, dict) or not isinstance(told.get("server_info"), list):
            raise ValueError("another answer")
        return sum(isinstance(server, dict) and server.get("key") == f"server:{key}" for server in told["server_info"])


def request(tracker: Tracker, key: str, wait_s: float) -> BoardAddress:
    """Return a free board; wait for one at most `wait_s`.

    Raises
    ------
    DeviceError
        The tracker cannot be reached, or no board is free.
    """
    with _connected(tracker) as connection:
        from tvm.rpc import base

        connection.settimeout(wait_s)
        try:
            told = _asked(connection, [base.TrackerCode.REQUEST, key, "", 1])
        except TimeoutError:
            known = boards_of(tracker, key)
            state = f"{known} are registered and busy" if known else "none is registered"
            raise DeviceError(
                f"tracker {tracker}: no board with the key {key} is free within {wait_s:g} s ({state})"
            ) from None
        # the name of the host ends up in records and on terminals
        if not isinstance(told, list) or len(told) != 3 or not re.fullmatch(r"[\w.:%-]{1,255}", str(told[0])):
            raise ValueError("another answer")
        return BoardAddress(str(told[0]), int(told[1]), str(told[2]))


def connect(address: BoardAddress) -> tvm.rpc.RPCSession:
    """Return TVM's session with a board that the tracker gave away; errors are TVM's, waiting has no limit."""
    import_tvm()
    from tvm import rpc

    return rpc.connect(address.host, address.port, address.word)
