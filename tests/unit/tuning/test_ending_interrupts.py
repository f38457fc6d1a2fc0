"""Ctrl-C at the wrong moment."""

import os
import signal
import threading

import pytest

from anatune.tuning.ending import SignalDelay


def press():
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.usefixtures("interruptible")
def test_put_off_until_the_block_is_done():
    done = []

    def work():
        with SignalDelay() as interrupts, interrupts.hold():
            press()
            done.append("recorded")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("interruptible")
def test_at_once_elsewhere():
    done = []

    def work():
        with SignalDelay():
            press()
            done.append("gone on")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert not done


def test_a_handler_of_the_program_stays():
    calls = []
    previous = signal.signal(signal.SIGINT, lambda *_: calls.append(1))
    try:
        with SignalDelay() as interrupts, interrupts.hold():
            press()
        assert calls == [1]
    finally:
        signal.signal(signal.SIGINT, previous)


def test_ignored_from_the_start_stays_ignored():
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as of `nohup anatune tune ... &`
    try:
        with SignalDelay() as interrupts, interrupts.hold():
            press()
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        press()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, previous)


@pytest.mark.usefixtures("interruptible")
def test_other_threads_leave_signals_alone():
    def work():
        with SignalDelay() as interrupts, interrupts.hold():
            pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
