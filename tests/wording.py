"""Golden texts of messages: what errors and warnings say stands in ``tests/golden/messages``, and in no test.

A test says which error it expects, ``with refuses(SpaceError):``; the message is compared with the one that was written
down for this test. ``pytest FILE --update-golden`` writes them again, and a reviewer reads the difference. There is one
JSON file for each test file: a list of messages, in order, for each test.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "golden" / "messages"

_TEMPORARY = re.compile(
    rf"({re.escape(str(Path(tempfile.gettempdir()).resolve()))}|/tmp)(/pytest-of-[^/]+/pytest-\d+(/popen-gw\d+)?)?/[\w.+=@-]+"
)
"""A folder of the test, or another one for temporary files; what lies in it is compared."""
_CHANGING = (
    (re.compile(re.escape(str(ROOT))), "<root>"),  # before temporary folders, in which a clone may lie
    (_TEMPORARY, "<temporary>"),
    (re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d)?)?"), "<date>"),
    (re.compile(r"\b([0-9a-f]{64}|[0-9a-f]{40}|[0-9a-f]{32}|[0-9a-f]{16})\b"), "<digest>"),
    (re.compile(r"records_[0-9a-f]{8}\b"), "records_<digest>"),
    (re.compile(r"[\d.]+ % of the time"), "<share> of the time"),
    (re.compile(r"[\d.,]+ [KMG]iB of memory are free"), "<size> of memory are free"),
    (re.compile(r"this machine (is an? [\w-]+ with|has) \w+"), "this machine has <features>"),
    (re.compile(r"from 1 to \d+: host has \d+ cores?(, this process may use \d+ of them)?"), "from 1 to <cores>"),
    (re.compile(r"it has no [\w.+-]+, expected the vector"), "it has no <feature>, expected the vector"),
    (re.compile(r"is refused: it is .+ \([\w-]+, \w+\), expected"), "is refused: it is <host>, expected"),
    (re.compile(r"\bat 0x[0-9a-f]+"), "at <address>"),
    (re.compile(r"\b(port|process|pid) \d+"), r"\1 <number>"),
    (re.compile(r"(localhost|127\.0\.0\.1):\d+"), r"\1:<port>"),
)
"""What differs from run to run or machine to machine, and what is written for it."""


def normalise(text: str) -> str:
    """Return a text without what differs from run to run or machine to machine."""
    for changing, instead in _CHANGING:
        text = changing.sub(instead, text)
    return text


class _Messages:
    """The messages of this run: how many each test had, and those to write."""

    def __init__(self) -> None:
        self.update = False
        self.test = ""
        self.count = 0
        self.new: dict[Path, dict[str, list[str]]] = {}

    def check(self, text: str) -> None:
        """Compare a message with the next golden text of the running test, or keep it to be written."""
        test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0]
        if test != self.test:
            self.test, self.count = test, 0
        self.count += 1
        text = normalise(text)
        file, _, name = test.partition("::")
        path = golden_path(file)
        if self.update:
            messages = self.new.setdefault(path, {}).setdefault(name, [])
            del messages[self.count - 1 :]  # a test that runs again writes its messages again
            messages.append(text)
            return
        written = read(path).get(name, [])
        assert self.count <= len(written), f"no golden text for {text!r}; pytest {file} --update-golden writes it"
        advice = f"the message changed; pytest {file} --update-golden writes it again"
        assert text == normalise(written[self.count - 1]), advice

    def write(self) -> None:
        """Write the messages of this run; those of tests that did not run stay."""
        for path, tests in self.new.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(read(path) | tests, indent=1, sort_keys=True, ensure_ascii=False)
            path.write_text(text + "\n")


MESSAGES = _Messages()


def golden_path(file: str) -> Path:
    """Return the golden file of a test file, which is named relative to the root (``tests/unit/test_files.py``)."""
    return FOLDER / Path(file).relative_to("tests").with_suffix(".json")


def read(path: Path) -> dict[str, list[str]]:
    """Return the messages of each test in a golden file, none where it does not exist."""
    return json.loads(path.read_text()) if path.exists() else {}


def check_texts(texts: Iterable[str]) -> None:
    """Compare texts, such as reasons, with those that are written down for the test."""
    for text in texts:
        MESSAGES.check(text)


class refuses:  # a class: the frame of a generator would keep the error's traceback alive
    """Expect an error of this class, with the message that is written down for the test."""

    def __init__(self, kind: type[BaseException] | tuple[type[BaseException], ...]) -> None:
        self._raises = pytest.raises(kind)

    def __enter__(self) -> pytest.ExceptionInfo:
        return self._raises.__enter__()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        is_expected = self._raises.__exit__(kind, error, traceback)
        if is_expected:
            MESSAGES.check(str(error))
        return is_expected


@contextmanager
def warns(kind: type[Warning]) -> Iterator[pytest.WarningsRecorder]:
    """Expect a warning of this class, with the message that is written down for the test."""
    with pytest.warns(kind) as caught:
        yield caught
    MESSAGES.check(str(next(warning.message for warning in caught if issubclass(warning.category, kind))))
