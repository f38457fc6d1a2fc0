"""A worker tells what became of a case, and the next case gets a new one where it died."""

import pytest

from bench.fuzz.worker import Worker
from tests.fuzz_faults import Deed

EXPECTED = {
    "is right": ("right", ""), "dies": ("crash", "SIGABRT"), "raises": ("raw", "ValueError: unexpected"),
    "is refused": ("refused", "WorkloadError: the model has too many words, expected fewer"),
}  # fmt: skip


@pytest.fixture(scope="module")
def worker():
    worker = Worker(20.0, preload=())
    yield worker
    worker.close()


@pytest.mark.parametrize("what", EXPECTED)
def test_what_became_of_a_case(worker, what):
    outcome = worker.judge(Deed(what))
    assert (outcome.state, outcome.why) == EXPECTED[what]
    assert outcome.is_failure == (outcome.state in ("crash", "raw"))
    assert not outcome.is_failure or outcome.program == Deed(what)
    assert worker.judge(Deed("is right")).state == "right"


def test_words_of_tvm_are_no_refusal(worker):
    assert worker.judge(Deed("is refused in TVM's words")).state == "raw"


def test_what_hangs_ends():
    worker = Worker(1.0, preload=())
    worker.judge(Deed("is right"))  # a first answer may take longer
    assert worker.judge(Deed("hangs")).state == "hang"
    worker.close()
