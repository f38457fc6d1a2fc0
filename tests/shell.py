"""The command line inside the test's own process, kept apart from it as a process started by a shell would be."""

from __future__ import annotations

import io
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import NamedTuple
from unittest import mock

from anatune.cli.main import main

_PROGRESS = re.compile(r"(searching|planning|compiling|building|training|importing|merging): \d.*\n")


class Done(NamedTuple):
    """Exit status, and what was written to the two streams."""

    returncode: int
    stdout: str
    stderr: str


def anatune(*words: object, variables: Mapping[str, str]) -> Done:
    """Run ``anatune WORDS...`` under these environment variables only, with streams that are no terminals.

    What an exception leaves behind is a traceback in a shell: here it goes through to the test. Lines of progress are
    left out.
    """
    out, err = _stream(), _stream()
    with _settings(variables), redirect_stdout(out), redirect_stderr(err):
        status = main([str(word) for word in words])
    return Done(status, _text(out), without_progress(_text(err)))


def without_progress(text: str) -> str:
    """Return what was written to stderr without what a slow machine says of how far it is."""
    return "".join(line for line in text.splitlines(keepends=True) if not _PROGRESS.fullmatch(line))


@contextmanager
def _settings(variables: Mapping[str, str]) -> Iterator[None]:
    """Set the environment, an empty standard input, and warnings as a new process shows them."""
    with open(os.devnull) as nothing, mock.patch.dict(os.environ, variables, clear=True), warnings.catch_warnings():
        warnings.resetwarnings()
        for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", category)
        with mock.patch.object(sys, "stdin", nothing), mock.patch.object(warnings, "showwarning", _show):
            yield


def _show(message: Warning | str, category: type[Warning], filename: str, line: int, *_: object) -> None:
    sys.stderr.write(warnings.formatwarning(message, category, filename, line))


def _stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    written = stream.buffer
    assert isinstance(written, io.BytesIO)
    return written.getvalue().decode()
