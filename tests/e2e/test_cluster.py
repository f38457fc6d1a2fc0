"""A lab on the loopback: certificates, a scheduler and workers in processes, a session; what is refused."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from anatune.cli.main import load_all_commands
from tests.certificates import make_certificates

pytest.importorskip("distributed", reason="pip install '.[cluster]'")
pytest.importorskip("cryptography", reason="pip install '.[cluster]'")

ELSEWHERE = "192.0.2.1:8786"
"""Nobody's address, for documents (RFC 5737)."""


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("lab") / "tls")


@contextlib.contextmanager
def serving(script, environment, *words):
    """Run a command until the test is done with it; then SIGTERM, upon which it ends with status 0."""
    with subprocess.Popen(
        [script, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            yield process
            assert process.poll() is None, process.stderr.read()
            process.terminate()
            process.said = process.communicate(timeout=60)[1]
            assert process.returncode == 0
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def lab(script, environment, tls):
    """The address of a scheduler with certificates, on a free port."""
    with serving(script, environment, "cluster", "scheduler", "--port", 0, "--tls", tls) as process:
        said = process.stdout.readline() + process.stdout.readline()
        found = re.match(r"scheduler at (tls://127\.0\.0\.1:\d+)\n", said)
        assert found, said
        assert f"`anatune worker {found[1]} --tls {tls}`" in said
        yield found[1]


def status(anatune, address, tls):
    done = anatune("cluster", "status", address, "--tls", tls, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["workers"]


PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "fleets.md").read_text()
COMMANDS = [line for line in re.findall(r"^\w+\$ (.+)$", PAGE, re.MULTILINE) if line.startswith("anatune ")]
SMALL = {"1x64x56x56": "1x8x8x8", "64x64x3x3": "8x8x3x3", "256": "3", "host_gpu": "host"}
"""What is smaller here than in the document; there is no GPU, either."""


def of_page(start, *more, **places):
    """Return the words of the page's first command that begins so and has these words, as they are run here."""
    line = next(one for one in COMMANDS if one.startswith(f"anatune {start}") and all(word in one for word in more))
    return [places.get(word.replace(":8786", ""), SMALL.get(word, word)) for word in line.split()[1:]]


def test_there_are_commands_on_the_page():
    assert len(COMMANDS) > 10


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_page_is_one(line):
    """As far as words go: the command, its options, what they take."""
    command, words = load_all_commands(), line.split()[1:]
    while hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    assert command.make_context("anatune", words)


@pytest.mark.slow
def test_the_three_machines_of_the_page(script, environment, anatune, tmp_path):
    """All of it on one machine: what begins with `laptop$` and `gpu1$`; of the boxes the first alone measures."""
    pytest.importorskip("tvm", reason="pip install '.[tvm]'")
    tls, records, best = tmp_path / "tls", tmp_path / "r.sqlite", tmp_path / "best.json"
    make_certificates(tls)
    with contextlib.ExitStack() as lab:
        words = [*of_page("cluster scheduler", "0.0.0.0", tls=tls), "--port", 0]
        scheduler = lab.enter_context(serving(script, environment, *words))
        port = re.match(r"scheduler at tls://.*:(\d+)\n", scheduler.stdout.readline())[1]
        places = {"tls": tls, "laptop": f"127.0.0.1:{port}"}
        assert "no worker has joined" in anatune(*of_page("cluster status", **places)).stdout
        for name, start in (("box1", "host_gpu"), ("builds", "--build-only")):
            words = [*of_page("worker", start, **places), "--name", name, "--builders", 1]
            worker = lab.enter_context(serving(script, environment, *words))
            assert re.match(
                rf"{name} joined tls://127\.0\.0\.1:{port}: .*\b1 builds at once$", worker.stderr.readline()
            )
        more = ["--threads", 1, "--records", records, "--output", best, "--json"]
        done = anatune(*of_page("tune", "--cluster", **places), *more)
        assert done.returncode == 0, done.stderr
        assert "worker box1 joined: " in done.stderr
        assert "worker builds joined: builds only" in done.stderr
        assert "; 1 device" in done.stderr
        tree = json.loads(done.stdout)
        assert [(one["name"], one["trials"], one["state"]) for one in tree["workers"]] == [
            ("box1", 3, "ready"),
            ("builds", 0, "ready"),
        ]
        assert {one["measurement"]["worker"] for one in tree["trials"]} == {"box1"}
        assert best.exists()
        text = anatune(*of_page("cluster status", **places)).stdout
        assert re.search(r"^scheduler tls://\S+: 2 workers, 1 device, 2 builds at once$", text, re.MULTILINE), text
        assert re.search(r"^box1 +ready +1 +\d+ +\d+ ", text, re.MULTILINE), text
        assert re.search(r"^builds +ready +1 +0 +\d+ +builds only +idle$", text, re.MULTILINE), text


@pytest.mark.slow
def test_a_worker_waits_for_its_scheduler(script, environment, tls):
    """It says once that nobody is there, and goes on; two of one name are said, too."""
    with serving(script, environment, "worker", "127.0.0.1:1", "--tls", tls, "--build-only", "--builders", 1) as worker:
        said = worker.stderr.readline()
        assert said.startswith("tls://127.0.0.1:1: ")
        assert "every 2 s" in said
        time.sleep(3.0)
    assert worker.said == "the worker ended\n"


@pytest.mark.slow
def test_two_workers_of_one_name(script, environment, anatune, lab, tls):
    words = ("worker", lab, "--tls", tls, "--build-only", "--builders", 1, "--name", "twin")
    with serving(script, environment, *words) as first:
        assert first.stderr.readline().startswith(f"twin joined {lab}: builds only, ")
        with serving(script, environment, *words) as second:
            assert {"twin", "--name"} <= set(second.stderr.readline().replace(";", " ").split())
        (one,) = status(anatune, lab, tls)
        assert (one["measures"], one["builds"], one["device"]) == (0, 1, "")


def test_a_taken_port(anatune, lab, tls):
    port = lab.rpartition(":")[2]
    done = anatune("cluster", "scheduler", "--port", port, "--tls", tls)
    check(done, 1, f"127.0.0.1:{port}: the port ", "--port")


def check(done, code, *parts):
    assert done.returncode == code, (done.stdout, done.stderr)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error: ")
    assert len(done.stderr) < 500
    for part in parts:
        assert part in done.stderr


TUNE = "tune --hw host matmul 8x8x8 "


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (f"cluster status {ELSEWHERE}", ["192.0.2.1:8786", "loopback", "certificates"]),
        (f"worker {ELSEWHERE}", ["loopback"]),
        (f"{TUNE}--cluster {ELSEWHERE}", ["loopback"]),
        ("cluster scheduler --host 0.0.0.0", ["0.0.0.0", "loopback"]),
        ("cluster scheduler --host 192.0.2.1 --tls TLS", ["192.0.2.1", "address of this machine"]),
        ("cluster scheduler --host nowhere.invalid", ["nowhere.invalid"]),
        ("cluster scheduler --tls /nowhere", ["/nowhere", "no such folder", "ca.pem"]),
        ("cluster status 127.0.0.1:1", ["tcp://127.0.0.1:1: ", "anatune cluster scheduler"]),
        ("cluster status 127.0.0.1:1 --tls TLS", ["tls://127.0.0.1:1: ", "anatune cluster scheduler"]),
        ("cluster status 127.0.0.1:x", ["'127.0.0.1:x'", "HOST:PORT"]),
        ("cluster status http://127.0.0.1:8787", ["http", "HOST:PORT"]),
        ("cluster status tls://127.0.0.1:1", ["--tls DIR"]),
        ("cluster status tcp://127.0.0.1:1 --tls TLS", ["tls://127.0.0.1:1"]),
        ("cluster status LAB", ["--tls DIR"]),
        ("cluster status PLAIN", ["TLS only", "--tls DIR"]),
        ("cluster status LAB --tls OTHER", ["authority", "ca.pem", "copy the folder"]),
        ("worker LAB --tls OTHER --build-only --builders 1", ["authority", "ca.pem"]),
        (f"{TUNE}--cluster LAB --tls OTHER", ["authority", "ca.pem"]),
        (f"{TUNE}--cluster LAB --tls OLD", ["expired on", "make a new set"]),
        ("worker LAB --tls OLD", ["expired on"]),
        ("cluster scheduler --tls OLD", ["expired on"]),
        ("worker 127.0.0.1:1 --device nonsense", ["nonsense", "anatune hw list"]),
        ("worker 127.0.0.1:1 --device no.such.module:function", ["no.such.module:function"]),
    ],
)
def test_bad_words(anatune, lab, tls, others, words, parts):
    places = {"LAB": lab, "PLAIN": lab.removeprefix("tls://"), "TLS": tls, **others}
    check(anatune(*[places.get(word, word) for word in words.split()]), 1, *parts)


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """A set of certificates of another lab, and one that has expired."""
    folder = tmp_path_factory.mktemp("others")
    make_certificates(folder / "other")
    make_certificates(folder / "old", days=-1)
    return {"OTHER": folder / "other", "OLD": folder / "old"}


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("cluster", ["command"]),
        ("cluster nonsense", ["nonsense"]),
        ("cluster status", ["ADDRESS"]),
        ("cluster scheduler --port 70000", ["--port", "65535"]),
        ("worker", ["SCHEDULER"]),
        ("worker 127.0.0.1:1 --builders -1", ["--builders"]),
        ("worker 127.0.0.1:1 --build-only --device host", ["--device", "--build-only"]),
        ("worker 127.0.0.1:1 --build-only --builders 0", ["does nothing"]),
        ("worker 127.0.0.1:1 --backend pycuda", ["--backend is for GPUs"]),
        ("tune --hw h200 matmul 8x8x8 --build-only k --cluster 127.0.0.1:1", ["--cluster"]),
        ("tune --hw h200 matmul 8x8x8 --build-only k --no-reuse", ["--no-reuse"]),
        ("tune --manifest k --cluster 127.0.0.1:1", ["--cluster", "--manifest"]),
        ("tune --manifest k --tracker 127.0.0.1:1 --key k", ["--tracker", "--manifest"]),
        ("tune --hw host_gpu matmul 8x8x8 --cluster 127.0.0.1:1 --device 1", ["--device", "anatune worker"]),
        ("tune --hw host_gpu matmul 8x8x8 --cluster 127.0.0.1:1 --backend pycuda", ["--backend", "anatune worker"]),
        ("tune --hw host_gpu matmul 8x8x8 --tracker 127.0.0.1:1 --key k --device 1", ["--device"]),
        *[
            (f"{command} {options}", parts)
            for command in ("tune --hw host matmul 8x8x8", "compile m.onnx -o d --trials 9")
            for options, parts in (
                ("--tls d", ["--tls", "--cluster"]),
                ("--key k", ["--key", "--tracker"]),
                ("--tracker 127.0.0.1:9190", ["--tracker", "--key"]),
                ("--tracker 127.0.0.1:9190 --key k --tls d", ["--tls", "--cluster"]),
                ("--cluster 127.0.0.1:1 --key k", ["--key", "--tracker"]),
                ("--cluster 127.0.0.1:1 --tracker 127.0.0.1:9190 --key k", ["--cluster", "--tracker", "leave one"]),
            )
        ],
        ("compile m.onnx -o d --cluster 127.0.0.1:1", ["--cluster", "--trials"]),
        ("compile m.onnx -o d --tracker 127.0.0.1:1 --key k", ["--tracker", "--trials"]),
    ],
)
def test_wrong_usage(anatune, words, parts):
    check(anatune(*words.split()), 2, "--help", *parts)


def test_a_name_of_two_words(anatune):
    check(anatune("worker", "127.0.0.1:1", "--name", "a b"), 2, "--name is 'a b'", "--help")
