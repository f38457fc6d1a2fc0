"""Entry point of ``python -m anatune`` and of the ``anatune`` script."""

import gc
import os
import signal
import sys
from types import FrameType


def run() -> None:
    """Run the command line and exit; Ctrl-C during its imports prints one line, too."""
    gc.set_threshold(100_000)  # what imports allocate stays; looking through it for garbage takes a tenth of a plan
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # an ignored signal stays ignored
    if usual:
        signal.signal(signal.SIGINT, _stop)
    try:
        from anatune.cli.main import run as run_command
    except Exception as error:  # noqa: BLE001 - a damaged package may raise anything
        sys.exit(_without_command_line(error, sys.argv[1:]))
    run_command(interruptible=usual)  # handles Ctrl-C itself


def _without_command_line(error: Exception, words: list[str]) -> int:
    """Run ``doctor``, which needs no other package, or print why nothing else runs; return the exit status."""
    from anatune.doctor.__main__ import main as doctor

    if words[:1] == ["doctor"]:
        return doctor(words[1:])
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    sys.stderr.write(f"error: anatune cannot start ({reason}); run `anatune doctor`\n")
    return 1


def _stop(number: int, frame: FrameType | None) -> None:
    """End the process at once: an exception in the middle of an import may come out as another one."""
    if sys.stderr is not None:
        os.write(2, b"error: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    run()
