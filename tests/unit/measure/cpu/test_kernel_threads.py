"""Built kernels called by several threads, and in children of ``fork``."""

import copy
import os
import pickle

import numpy as np
import pytest

pytest.importorskip("tvm")

import anatune
from anatune.errors import RunError
from tests.concurrency import at_once, is_true_in_child
from tests.wording import refuses

ROWS, COLUMNS, DEPTH = 24, 40, 32


@pytest.fixture(scope="module", params=[1, 2])
def kernel(request):
    workload = anatune.matmul(ROWS, COLUMNS, DEPTH)
    return anatune.build(anatune.plan(workload, "host", threads=request.param).best, threads=request.param)


def is_right(kernel, seed):
    random = np.random.default_rng(seed)
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((ROWS, DEPTH), (DEPTH, COLUMNS)))
    return bool(np.abs(kernel(a, b) - a.astype(np.float64) @ b).max() < 1e-4)


def test_threads_with_constants_of_their_own_are_right(kernel):
    assert all(map(all, at_once(lambda number: [is_right(kernel, number * 100 + call) for call in range(100)])))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_of_fork_runs_kernels(kernel):
    call = kernel.random_call()
    assert is_right(kernel, 0)
    assert is_true_in_child(lambda: is_right(kernel, 1) and call() is None)
    assert all(at_once(lambda number: is_true_in_child(lambda: is_right(kernel, number)), 2))


def test_threads_that_build_wait_for_each_other():
    best = anatune.plan(anatune.matmul(8, 8, 8), "host", threads=1).best
    ones = np.ones((8, 8), np.float32)
    assert all((result == 8).all() for result in at_once(lambda _: anatune.build(best)(ones, ones)))


def test_kernels_are_shared_by_copies_and_not_pickled(kernel):
    assert copy.deepcopy(kernel) is kernel
    with refuses(RunError):
        pickle.dumps(kernel)
