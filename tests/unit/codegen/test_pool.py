"""Who starts parallel loops: the main thread and one other, also in children of ``fork``."""

import os
import threading

import pytest

pytest.importorskip("tvm")

from anatune.codegen.pool import call_parallel, set_threads
from tests.concurrency import is_true_in_child
from tests.wording import refuses


@pytest.fixture(autouse=True)
def _two_threads():
    set_threads(2)


def in_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join(30)
    return found[0]


def test_the_main_thread_starts_loops_itself_and_one_thread_those_of_all_others():
    assert call_parallel(threading.get_ident) == threading.get_ident()
    others = {in_thread(lambda: call_parallel(threading.get_ident)) for _ in range(3)}
    assert len(others) == 1
    assert threading.get_ident() not in others


def test_errors_arrive_from_any_thread():
    def fails():
        raise KeyError("what the loop said")

    def caught():
        with refuses(KeyError):
            call_parallel(fails)
        return True

    assert caught()
    assert in_thread(caught)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_whose_parent_has_a_pool_starts_loops_in_a_new_thread():
    call_parallel(int)
    in_thread(lambda: call_parallel(int))
    ident = threading.get_ident()
    assert is_true_in_child(lambda: call_parallel(threading.get_ident) not in (ident, 0))
