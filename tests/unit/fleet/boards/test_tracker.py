import json
import socket
import struct
import threading

import pytest

from anatune.errors import DeviceError
from anatune.fleet.boards import tracker
from anatune.fleet.boards.tracker import Tracker, check_key, count_boards, open_warning, request, tracker_of
from tests.wording import refuses


@pytest.mark.parametrize(
    ("text", "found"), [("127.0.0.1:9190", ("127.0.0.1", 9190)), ("lab:1", ("lab", 1)), ("[::1]:65535", ("::1", 65535))]
)
def test_an_address_is_a_host_and_a_port(text, found):
    assert tracker_of(text) == found


@pytest.mark.parametrize("text", ["", "lab", "lab:", ":9190", "lab:0", "lab:65536", "lab:port", "lab:-1", "lab:²"])
def test_anything_else_is_refused(text):
    with refuses(DeviceError):
        tracker_of(text)


@pytest.mark.parametrize("key", ['a"b', "a b", "a\\b", "a\nb", "x" * 201])
def test_keys_that_no_tracker_could_know(key):
    with refuses(DeviceError):
        check_key(key)


def test_a_key_is_asked_for():
    assert check_key("rasp4b") == "rasp4b"
    with refuses(DeviceError):
        check_key(None)


def test_who_leaves_the_loopback_is_told_what_that_means():
    assert open_warning(Tracker("127.0.0.1", 1)) == open_warning(Tracker("localhost", 1)) == ""
    assert open_warning(Tracker("::1", 1)) == ""
    for host in ("192.168.1.5", "lab", "8.8.8.8"):
        assert "no passwords and no encryption" in open_warning(Tracker(host, 1))


@pytest.fixture
def answering():
    """Start something that listens and answers what a test says."""
    pytest.importorskip("tvm")
    listeners = []

    def start(*answers: bytes) -> Tracker:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def serve():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                for answer in answers:
                    connection.recv(4096)
                    connection.sendall(answer)
                connection.settimeout(5)
                try:
                    while connection.recv(4096):
                        pass
                except OSError:
                    pass

        threading.Thread(target=serve, daemon=True).start()
        return Tracker(*listener.getsockname()[:2])

    yield start
    for listener in listeners:
        listener.close()


HELLO = struct.pack("<i", 0x2F271)


def message(value) -> bytes:
    text = json.dumps(value).encode()
    return struct.pack("<i", len(text)) + text


def test_nobody_there():
    pytest.importorskip("tvm")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with refuses(DeviceError):
        count_boards(Tracker("127.0.0.1", port), "key")


ANSWERS = [message({"a": 1}), message([1, {}]), message([0, []]), struct.pack("<i", 3) + b"{[}"]
GIVEN = [
    message([0, None]),
    message([0, ["host"]]),
    message([0, ["host", "x", "word"]]),
    message([0, ["\x1b[2J", 1, "w"]]),
]


@pytest.mark.parametrize("answers", [(b"HTTP/1.1 400 Bad Request",), *((HELLO, answer) for answer in ANSWERS)])
def test_somebody_else_there(answering, answers):
    with refuses(DeviceError):
        count_boards(answering(*answers), "key")


@pytest.mark.parametrize("answer", GIVEN)
def test_somebody_who_gives_no_board(answering, answer):
    with refuses(DeviceError):
        request(answering(HELLO, answer), "key", 5.0)


def test_a_tracker_that_says_nothing(answering, monkeypatch):
    monkeypatch.setattr(tracker, "_ANSWER_S", 0.2)
    with refuses(DeviceError):
        count_boards(answering(), "key")


def test_boards_are_counted_by_their_key(answering):
    servers = [{"key": "server:a"}, {"key": "server:b"}, {"key": "server:a"}, "nonsense"]
    assert count_boards(answering(HELLO, message([0, {"server_info": servers}])), "a") == 2


def test_a_board_is_given(answering):
    found = request(answering(HELLO, message([0, ["10.0.0.7", 9090, "a:0.5"]])), "a", 5.0)
    assert found == ("10.0.0.7", 9090, "a:0.5")
