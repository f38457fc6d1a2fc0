"""Progress of compilation: which functions of the models are compiled, and how long each took the last time.

The compiler reports the begin and end of each function. The seconds of each are stored beside the compiled code for
later compilations, also after an update of anatune. A function without stored seconds is estimated from its size.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from anatune.decoding import from_json
from anatune.files import read_file, replace_file
from anatune.numerics import _jit

CompilationProgress = Callable[[int, int, float | None], None]
"""Called with (functions compiled, functions to compile, share of the time that is done; None: not compiling)."""
_SECONDS_PER_BYTE = 1e-3
"""Estimated seconds for each byte of the bytecode of a function. Only used for shares. Source: the CUDA and CPU models,
5e-4 to 3e-3.
"""


@contextmanager
def report_compilation(progress: CompilationProgress) -> Iterator[None]:
    """Call `progress` whenever the block compiles a function of the models, in the thread that compiles it."""
    watcher = _Watcher(progress)
    _jit.watchers.append(watcher)
    try:
        yield
    finally:
        _jit.watchers.remove(watcher)
    watcher.store_seconds()


class CompilationClock:
    """A callback for compilation progress that counts the `seconds` of compilation."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began: float | None = None

    def __call__(self, _done: int, _total: int, share: float | None) -> None:
        """Take a progress report; `share` is None at the end of the outermost function."""
        now = time.perf_counter()
        self._began = now if self._began is None else self._began
        if share is None:
            self.seconds += now - self._began
            self._began = None


class _Watcher:
    """Receives the functions that one block compiles."""

    def __init__(self, progress: CompilationProgress) -> None:
        self._progress = progress
        self._open: list[tuple[str, float]] = []
        self._inside_s = [0.0]
        self._expected: dict[str, float] = {}
        self._last_s: dict[str, float] | None = None
        self._done: dict[str, float] = {}

    def on_start(self, name: str) -> None:
        """Take the begin of a function; they come from one thread at a time."""
        self._open.append((name, time.perf_counter()))
        self._inside_s.append(0.0)
        if len(self._open) == 1:
            self._expect()
            self._tell()

    def on_end(self) -> None:
        """Take the end of the function that began last."""
        name, began = self._open.pop()
        inside_s, whole_s = self._inside_s.pop(), time.perf_counter() - began
        self._inside_s[-1] += whole_s
        if _jit.folder_of(name):
            self._done[name] = self._done.get(name, 0.0) + whole_s - inside_s
        if not self._open:
            self._progress(len(self._done), len(self._done), None)
        else:
            self._tell()

    def _expect(self) -> None:
        """Add the functions of models that were imported in the meantime."""
        if self._last_s is None:
            self._last_s = _read_seconds()
        folders = {_jit.folder_of(name) for name, _ in self._open}
        for name, size in _find_functions(folders).items():
            if not self._last_s or name in self._last_s:
                self._expected[name] = self._last_s.get(name, size * _SECONDS_PER_BYTE)

    def _tell(self) -> None:
        expected = self._expected
        expected_s = sum(expected.values())
        done = sum(expected.get(name, 0.0) for name in self._done)
        total = max(len(expected), len(self._done))
        self._progress(len(self._done), total, min(0.99, done / expected_s) if expected_s else 0.0)

    def store_seconds(self) -> None:
        """Store how long the functions took."""
        path = _path()
        if self._done and path is not None:
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(path, msgspec.json.encode({**_read_seconds(), **self._done}))


def _find_functions(folders: set[str]) -> dict[str, int]:
    """Return function -> bytes of its bytecode, for the functions of some folders that are compiled."""
    sizes = {}
    for module_name, module in list(sys.modules.items()):
        if _jit.folder_of(module_name) in folders - {""}:
            for member in vars(module).values():
                if isinstance(member, _jit.Helper) and member.function.__module__ == module_name:
                    sizes[member.name] = len(member.function.__code__.co_code)
    return sizes


def _path() -> Path | None:
    folder = _jit.cache_folder()
    return None if folder is None else folder.parent / "compile-seconds.json"


def _read_seconds() -> dict[str, float]:
    """Return function -> seconds that its last compilation took."""
    path = _path()
    try:
        return {} if path is None else from_json(read_file(path), dict[str, float])
    except (OSError, msgspec.DecodeError):
        return {}
