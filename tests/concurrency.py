"""Functions called in threads that begin together, and in children of ``fork``."""

import os
import signal
import threading
import time
import warnings


def at_once(function, count=4):
    """Call a function of a number in threads that begin together; return the results, or raise the first error."""
    barrier, found, errors = threading.Barrier(count), [None] * count, []

    def run(number):
        barrier.wait()
        try:
            found[number] = function(number)
        except BaseException as error:  # noqa: BLE001  whatever it is, the test's thread has it
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
    return found


def is_true_in_child(function, most_s=60):
    """Whether a function returns True in a child of ``fork``; False: it raises, dies, or takes too long."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads
        child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if function() is True else 1
        finally:
            os._exit(code)
    end = time.monotonic() + most_s
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False
