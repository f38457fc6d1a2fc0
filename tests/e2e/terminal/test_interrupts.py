"""Ctrl-C in a terminal: one line, exit status 130, nothing lost, nothing left behind, also inside compiled code."""

import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from tests.e2e.terminal.pseudo import CEILING_S, PATIENCE_S, Pseudo

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="terminals and processes are looked at as Linux has them"),
    pytest.mark.usefixtures("interruptible"),
]

_HUGE = ("conv2d", "64x512x28x28", "512x512x3x3", "--padding", "1", "--json")


def needs(package):
    """Skip where a package is not installed."""
    found = importlib.util.find_spec(package.partition(".")[0])
    return pytest.mark.skipif(found is None, reason=f"needs {package}")


@pytest.mark.parametrize(
    ("words", "drawn"),
    [
        (("plan", "--hw", "a100", *_HUGE, "--top-k", "5000", "--all"), r"searching"),
        (("plan", "--hw", "xeon_gold_6230r", *_HUGE), r"searching"),
        (("plan", "--hw", "rtx3090", "matmul", "1..8192x4096x4096", "--kernels", "6"), r"searching"),
        (("prune", "--hw", "xeon_gold_6230r", *_HUGE[:-1], "--keep", "1%"), r"searching"),
        pytest.param(
            ("plan", "--hw", "a100", "matmul", "128x128x128", "--compile", "60"), r"compiling.* of ",
            marks=[needs("cuda"), pytest.mark.slow],
        ),
    ],
    ids=["GPU", "CPU", "range", "prune", "compile"],
)  # fmt: skip
def test_while_something_long_goes_on(script, environment, tmp_path, words, drawn):
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    with (
        (tmp_path / "answer").open("wb") as answer,
        Pseudo([script, *words], environment | {"TMPDIR": str(scratch)}, folder=tmp_path, answer=answer) as running,
    ):
        running.until(drawn)
        assert running.interrupt() == (130, ["error: interrupted"])
        assert running.drawn.rindex("\x1b[?25h") > running.drawn.rindex("\x1b[?25l"), "the cursor is not there"
        assert not running.left()
    assert (tmp_path / "answer").read_bytes() == b""
    assert not list(scratch.iterdir())


def test_while_the_model_is_compiled_the_first_time(script, environment, tmp_path):
    variables = environment | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    with Pseudo([script, "plan", "--hw", "xeon_gold_6230r", "relu", "512x512"], variables) as running:
        running.until(r"compiling the analytical model \(once\)")
        assert running.interrupt() == (130, ["error: interrupted"])
        assert not running.left()


@needs("tvm")
def test_tuning_says_what_is_kept(script, environment, anatune, tmp_path):
    words = ["tune", "--hw", "host", "--threads", "1", "matmul", "64x64x64", "--trials", "500"]
    with Pseudo([script, *words], environment, folder=tmp_path) as running:
        running.until(r"trial 2/500")
        status, lines = running.interrupt()
        assert status == 130
        assert not running.left()
    kept = anatune("records", "list", "--records", tmp_path / "tuning.sqlite", "--json").stdout.count('"outcome"')
    assert lines[-1].startswith(f"error: interrupted after {kept} of 500 trials, which are kept in tuning.sqlite")


@needs("distributed")
def test_a_scheduler_ends_as_it_should(script, environment):
    with Pseudo([script, "cluster", "scheduler", "--port", "0"], environment) as running:
        running.until(r"scheduler at tcp://")
        assert running.interrupt() == (0, ["the scheduler ended"])


_HOLDING = """
import hashlib, os, pathlib, signal, subprocess, sys
from anatune import __main__, api, errors, files
from anatune.cli import main

def hold(*_):
    folder = files.scratch_folder(errors.RunError)
    (folder / "half").write_text("x")
    subprocess.Popen(["sleep", "300"], start_new_session=True)
    print("holding", folder, file=sys.stderr, flush=True)
    {body}

api.hardware = hold
sys.argv[1:] = ["plan", "--hw", "rtx3090", "matmul", "8x8x8"]
__main__.run()
"""
_BODIES = {
    "compiled code": "hashlib.pbkdf2_hmac('sha256', b'x', b'y', 2**31 - 1)  # holds the thread, not the lock",
    "swallowed": """
    while True:
        try:
            signal.pause()
        except BaseException:
            pass
    """,
    "in a destructor": """
    class Holds:
        def __del__(self):
            signal.pause()
    one = Holds()
    del one
    hashlib.pbkdf2_hmac('sha256', b'x', b'y', 2**31 - 1)
    """,
    "another error": """
    try:
        signal.pause()
    except KeyboardInterrupt:
        raise ImportError("half of a package", name="tvm")
    """,
    "an error of no class of ours": """
    try:
        signal.pause()
    except KeyboardInterrupt as stop:
        raise RuntimeError("Error calling __set_name__") from stop
    """,
}


@pytest.mark.parametrize("body", [pytest.param(text, id=name) for name, text in _BODIES.items()])
def test_whatever_holds_the_main_thread(environment, tmp_path, body):
    code = _HOLDING.format(body=textwrap.indent(textwrap.dedent(body), "    ").strip())
    with Pseudo([sys.executable, "-c", code], environment | {"TMPDIR": str(tmp_path)}) as running:
        running.until(r"holding \S+")
        assert len(list(tmp_path.iterdir())) == 1
        time.sleep(0.2)  # it holds
        assert running.interrupt() == (130, ["error: interrupted"])
        assert not running.left()
    assert not list(tmp_path.iterdir())


def test_ignored_where_the_program_was_started_so(script, environment):
    """As ``nohup anatune ... &`` in a script: the answer comes all the same."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with subprocess.Popen(
            [script, "hw", "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        ) as process:
            for _ in range(20):
                process.send_signal(signal.SIGINT)
                time.sleep(0.01)
            out, err = process.communicate(timeout=60)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (process.returncode, err) == (0, b"")
    assert out


def test_a_signal_to_the_process_alone(script, environment, tmp_path):
    """As a supervisor sends it: no terminal, no process group."""
    with subprocess.Popen(
        [script, "plan", "--hw", "xeon_gold_6230r", *_HUGE], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment | {"TMPDIR": str(tmp_path)}, text=True,
    ) as process:  # fmt: skip
        until = time.monotonic() + PATIENCE_S
        while len(os.listdir(f"/proc/{process.pid}/task")) < 2:  # the other thread waits for signals
            assert time.monotonic() < until
            time.sleep(0.02)
        time.sleep(1.0)
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=CEILING_S)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "error: interrupted"
    assert not list(tmp_path.iterdir())
