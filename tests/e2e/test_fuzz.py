"""A fixed part of `python -m bench.fuzz`: the same cases in every run, a minute of processor time in all."""

import pytest

pytest.importorskip("tvm")

from bench.fuzz.shrink import shrunk, signature
from bench.fuzz.worker import Worker, can_run, kind_module
from tests.tiers import slow_from

CASES = {"onnx": 64, "kernels": 48, "logs": 120, "torch": 16, "compile": 6}
"""Kind -> how many seeds, from 0 on."""
_PART = 8
PARTS = [
    part
    for kind, count in CASES.items()
    for part in slow_from(1, [(kind, first) for first in range(0, count, _PART if kind != "logs" else 60)])
]
"""The first part of each kind is in the fast tier."""


@pytest.fixture(scope="module")
def worker():
    worker = Worker(120.0)
    yield worker
    worker.close()


@pytest.mark.parametrize(("kind", "first"), PARTS)
def test_nothing_is_wrong_or_raw(worker, kind, first):
    if not can_run(kind):
        pytest.skip(f"what cases of {kind} need is not installed")
    failures = []
    for seed in range(first, min(first + (60 if kind == "logs" else _PART), CASES[kind])):
        program = worker.make(kind, seed)
        assert not hasattr(program, "is_failure"), f"{kind}:{seed} cannot be made: {program.why}"
        outcome = worker.judge(program)
        if outcome.is_failure and hasattr(program, "steps"):
            outcome = shrunk(outcome, worker.judge, lambda one: worker.call("recorded", one), limit_s=20)
        if outcome.is_failure:
            text = kind_module(kind).text(outcome.program)
            failures.append(f"{kind}:{seed} {signature(outcome)} {outcome.why}\n{text[:2000]}")
    assert not failures, "\n".join(failures)
