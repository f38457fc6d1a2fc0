"""``python -m anatune``, and what the ``anatune`` script calls."""

import os
import signal
import sys
from types import FrameType

__all__ = ["run"]


def run() -> None:
    """Run the command line and exit. Ctrl-C while it is still being imported is one line, too."""
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # where it is ignored, it stays so
    if usual:
        signal.signal(signal.SIGINT, _stop)
    from anatune.cli.main import run as run_command

    if usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run_command()


def _stop(number: int, frame: FrameType | None) -> None:
    """End the process: nothing has begun, and an exception in the middle of an import may come out as another."""
    if sys.stderr is not None:
        os.write(2, b"error: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    run()
