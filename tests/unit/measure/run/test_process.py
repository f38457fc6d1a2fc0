import contextlib
import os
import subprocess
import sys
import time

import pytest

from anatune.errors import MissingDependencyError, RunError
from anatune.measure.run.process import Worker, wait_for
from tests.wording import refuses

JOBS = "tests.unit.measure.jobs:"
LONG_S = 60.0


@pytest.fixture
def worker():
    worker = Worker("builder", memory_bytes=1 << 30, environment={"TVM_NUM_THREADS": "3"})
    yield worker
    worker.kill()


def ask(worker, function, limit_s=LONG_S, **arguments):
    worker.submit(JOBS + function, arguments, limit_s)
    return worker.poll(LONG_S)


def alive(process):
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, 0)
        return not subprocess.run(
            ["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False
        ).stdout.startswith("Z")
    return False


def test_a_worker_answers_and_stays(worker):
    first, second = ask(worker, "facts"), ask(worker, "facts")
    assert first.kind == second.kind == "value"
    assert first.value["process"] == second.value["process"] == worker.process_id
    assert first.value["threads"] == "3"
    assert first.fresh
    assert not second.fresh


def test_a_worker_is_pinned():
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("no affinity masks here")
    core = max(os.sched_getaffinity(0))
    worker = Worker("runner", cores=(core,))
    assert ask(worker, "facts").value["cores"] == [core]
    worker.kill()


def test_noise_on_standard_output_harms_no_reply(worker):
    assert ask(worker, "chatter").value == "done"
    assert ask(worker, "echo", value={"a": (1, 2.5)}).value == {"a": (1, 2.5)}


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("raises", "error", "KeyError: 'first line\\nlast line'"),
        ("crashes", "died", "the builder process was killed by SIGSEGV"),
        ("aborts", "died", "the builder process was killed by SIGABRT: LLVM ERROR: out of registers"),
        ("exits", "died", "the builder process ended with status 3"),
        ("eats memory", "memory", "out of memory"),
    ],
)
def test_failures_are_replies_and_the_next_call_works(worker, how, kind, message):
    reply = ask(worker, "fail", kind=how)
    assert (reply.kind, reply.value) == (kind, None)
    assert reply.message.replace("\\\\n", "\\n") == message
    again = ask(worker, "echo", value=1)
    assert again.value == 1
    assert again.fresh == (kind != "error")


@pytest.mark.parametrize("how", ["hangs", "hangs in a child"])
def test_a_hang_is_killed_at_its_limit_with_its_children(worker, how):
    ask(worker, "echo", value=1)
    process = worker.process_id
    reply = ask(worker, "fail", limit_s=0.5, kind=how)
    assert reply.kind == "timeout"
    assert reply.message == "not finished after 0.5 s"
    assert not alive(process)
    assert ask(worker, "echo", value=2).value == 2


def test_a_paused_worker_stands_still_and_so_does_its_limit(worker):
    worker.pause()  # none runs yet
    ask(worker, "echo", value=1)
    worker.submit(JOBS + "doze", {"seconds": 0.2}, 2.0)
    worker.pause()
    worker.pause()
    left = worker.remaining_s()
    assert worker.poll(3.0) is None
    assert worker.remaining_s() == left > 0
    worker.resume()
    worker.resume()
    reply = worker.poll(LONG_S)
    assert reply.kind == "value"
    assert reply.seconds < 2.0
    worker.submit(JOBS + "fail", {"kind": "hangs"}, 0.5)
    worker.pause()
    worker.resume()
    assert worker.poll(LONG_S).kind == "timeout"
    assert ask(worker, "echo", value=2).value == 2
    worker.pause()
    worker.kill()
    assert ask(worker, "echo", value=3).value == 3


def test_an_unknown_function_is_an_error(worker):
    assert "cannot be imported" in ask(worker, "nothing").message


def test_a_set_up_runs_in_every_new_process():
    worker = Worker("runner", setup=(JOBS + "remember", {"value": 7}))
    assert ask(worker, "recall").value == [7]
    assert ask(worker, "fail", kind="exits").kind == "died"
    worker.setup = (JOBS + "remember", {"value": 8})
    reply = ask(worker, "recall")
    assert reply.value == [8]
    assert reply.fresh
    worker.kill()


def test_a_process_is_ready_when_its_set_up_is_done():
    worker = Worker("builder", setup=(JOBS + "doze", {"seconds": 0.3}))
    assert not worker.is_ready()  # there is none
    worker.start()
    assert not worker.is_ready()
    worker.pause()
    assert not worker.is_ready()
    worker.resume()
    until = time.monotonic() + LONG_S
    while not worker.is_ready() and time.monotonic() < until:
        time.sleep(0.01)
    assert worker.is_ready()
    reply = ask(worker, "echo", value=1)
    assert (reply.value, reply.fresh) == (1, True)
    worker.kill()
    worker = Worker("builder", setup=(JOBS + "fail", {"kind": "hangs"}), setup_s=0.2)
    worker.start()
    time.sleep(0.3)
    with refuses(RunError):
        worker.is_ready()
    assert worker.process_id is None


def test_a_failing_set_up_is_an_error_of_ours():
    worker = Worker("runner", setup=(JOBS + "fail", {"kind": "exits"}))
    with refuses(RunError):
        ask(worker, "recall")
    assert worker.process_id is None
    worker = Worker("runner", setup=(JOBS + "fail", {"kind": "hangs"}), setup_s=0.5)
    with refuses(RunError):
        ask(worker, "recall")


def test_a_package_that_the_worker_lacks_is_named(monkeypatch, tmp_path):
    (tmp_path / "tvm.py").write_text("raise ImportError('hidden', name='tvm')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    worker = Worker("builder", setup=("anatune.measure.run.build_processes:set_up", {}))
    with refuses(MissingDependencyError):
        ask(worker, "recall")


def test_waiting_returns_for_the_first_that_answers():
    workers = [Worker("builder"), Worker("runner")]
    workers[0].submit(JOBS + "fail", {"kind": "hangs"}, LONG_S)
    workers[1].submit(JOBS + "echo", {"value": 1}, LONG_S)
    wait_for(workers, LONG_S)
    assert workers[1].poll(LONG_S).value == 1
    assert workers[0].poll() is None
    assert workers[0].busy
    wait_for([], LONG_S)
    for worker in workers:
        worker.kill()
        assert not worker.busy


def test_a_worker_dies_with_its_parent():
    code = (
        "import os, signal\n"
        "from anatune.measure.run.process import Worker\n"
        f"worker = Worker('builder'); worker.submit('{JOBS}facts', {{}}, 60)\n"
        "print(worker.poll(60).value['process'], flush=True)\n"
        f"worker.submit('{JOBS}fail', {{'kind': 'hangs'}}, 600)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    process = int(done.stdout)
    for _ in range(100):
        if not alive(process):
            break
        time.sleep(0.1)
    assert not alive(process)
