"""Functions for worker processes of tests, found by name; they need no TVM."""

import os
import signal
import subprocess
import sys
import time

STATE = []


def echo(value):
    return value


def remember(value):
    STATE.append(value)


def recall():
    return list(STATE)


def facts():
    return {
        "process": os.getpid(),
        "cores": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
        "threads": os.environ.get("TVM_NUM_THREADS"),
    }


def doze(seconds):
    time.sleep(seconds)


def chatter():
    os.write(1, b"\x00\x01\x02" * 1000)
    return "done"


def fail(kind):
    if kind == "raises":
        raise KeyError("first line\nlast line")
    if kind == "hangs":
        time.sleep(1000)
    if kind == "hangs in a child":
        subprocess.run([sys.executable, "-c", "import time; time.sleep(1000)"], check=False)
    if kind == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == "aborts":
        os.write(2, b"LLVM ERROR: out of registers\n")
        os.abort()
    if kind == "exits":
        os._exit(3)
    if kind == "eats memory":
        return bytearray(1 << 40)
    raise AssertionError(kind)


def children_of(process):
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True, check=False)
    return [int(word) for word in listed.stdout.split()]
