"""Locks of threads and of children of ``fork``, attributes that are computed once, functions that run one by one."""

import os
import re
import threading
import time
from pathlib import Path

import pytest

import anatune
from anatune.threads import LockedProperty, compile_in_turn, new_lock, run_in_turn
from tests.concurrency import at_once, is_true_in_child


class Counted:
    """How many threads are in a method at once, and how often a property was computed."""

    def __init__(self):
        self._lock, self.inside, self.most, self.computed = new_lock(), 0, 0, 0

    def enter(self):
        self.inside += 1
        self.most = max(self.most, self.inside)
        time.sleep(0.005)
        self.inside -= 1

    @LockedProperty
    def value(self):
        self.computed += 1
        self.enter()
        return object()

    @run_in_turn
    def first(self):
        self.enter()
        return self.second()

    @run_in_turn
    def second(self):
        self.enter()
        return self.value


def test_a_property_is_computed_once():
    own = Counted()
    values = at_once(lambda _: own.value)
    assert own.computed == 1
    assert len(set(map(id, values))) == 1
    assert isinstance(Counted.value, LockedProperty)


def test_methods_of_an_object_run_in_turn():
    own = Counted()
    at_once(lambda number: own.first() if number % 2 else own.second())
    assert own.most == 1


def test_functions_that_compile_run_one_by_one():
    own = Counted()
    first, second = compile_in_turn(own.enter), compile_in_turn(lambda: first())
    at_once(lambda number: first() if number % 2 else second())
    assert own.most == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_lock_that_another_thread_holds_is_free_in_a_child():
    lock, mine, is_held, may_go = new_lock(), new_lock(), threading.Event(), threading.Event()

    def hold():
        with lock:
            is_held.set()
            may_go.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait(30)
    with mine:
        assert is_true_in_child(lambda: lock.acquire(timeout=5) and mine._is_owned())
    assert not lock.acquire(timeout=0.01)
    may_go.set()
    thread.join(30)


def test_locks_of_the_process_come_from_new_lock():
    """A lock that a module makes when it is imported, and that a thread holds during ``fork``, would hang the child."""
    folder = Path(anatune.__file__).parent
    others = [
        f"{path.relative_to(folder)}: {line}"
        for path in folder.rglob("*.py")
        for line in path.read_text().splitlines()
        if re.match(r"\w.*= .*\bthreading\.R?Lock\(\)", line)
    ]
    assert others == []
