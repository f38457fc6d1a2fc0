import subprocess
import sys

import msgspec
import pytest

from anatune.decoding import convert, from_json, from_message

THREADS = """
import sys, threading
import msgspec
from anatune.fleet.cluster.messages import BuildRequest, SessionSetting, decode
from anatune.errors import RunError
sys.setswitchinterval(1e-6)
content = msgspec.msgpack.encode({"session": "a", "number": 1, "hardware": {"kind": "none"}})
together = threading.Barrier(8)
def read():
    together.wait()
    for kind in (BuildRequest, SessionSetting):
        try:
            decode(content, kind)
        except RunError:
            pass
threads = [threading.Thread(target=read) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("all read")
"""


@pytest.mark.parametrize("_", range(3))
def test_threads_that_meet_a_type_for_the_first_time_do_not_end_the_process(_):
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "all read\n"), done.stderr


class Point(msgspec.Struct):
    x: int


def test_each_form_is_read_as_a_type_and_checked():
    assert from_json(b'{"x": 1}', Point) == from_message(b"\x81\xa1x\x01", Point) == convert({"x": 1}, Point)
    assert from_json("null", Point | None) is None
    for read, content in ((from_json, b'{"x": "1"}'), (from_message, b"\x81\xa1x\xc0"), (convert, {"x": None})):
        with pytest.raises(msgspec.ValidationError):
            read(content, Point)
