"""How far the compilation of the models is: which functions are done, how long each took the last time.

numba tells when it begins and ends with a function. The seconds of each are kept beside the compiled code, for whoever
compiles next, also after an update of anatune; where none are known, the size of a function stands for them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from numba.core import event
from numba.core.dispatcher import Dispatcher

from anatune.decoding import from_json
from anatune.files import read_file, replace_file
from anatune.numerics import _jit

CompilationProgress = Callable[[int, int, float | None], None]
"""Called with functions compiled, functions to compile, and the share of the time that is done; None: not compiling."""
_KIND = "numba:compile"
_SECONDS_PER_BYTE = 1e-3
"""Of a function's bytecode: only shares are made of it. Source: the CUDA and CPU models, 5e-4 to 3e-3."""


@contextmanager
def told_compilation(progress: CompilationProgress) -> Iterator[None]:
    """Call `progress` whenever a function of the models is compiled in the block, in the thread that compiles it."""
    listener = _Listener(progress)
    with event.install_listener(_KIND, listener):
        yield
    listener.keep()


class CompilationClock:
    """Counts the `seconds` that functions took to compile: what `told_compilation` takes as its callback."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began: float | None = None

    def __call__(self, _done: int, _total: int, share: float | None) -> None:
        """Hear of the compilation; `share` is None at the end of the outermost function."""
        now = time.perf_counter()
        self._began = now if self._began is None else self._began
        if share is None:
            self.seconds += now - self._began
            self._began = None


class _Listener(event.Listener):  # type: ignore[misc]
    def __init__(self, progress: CompilationProgress) -> None:
        self._progress = progress
        self._open: list[tuple[str, float]] = []
        self._inside_s = [0.0]
        self._expected: dict[str, float] = {}
        self._known: dict[str, float] | None = None
        self._done: dict[str, float] = {}

    def on_start(self, event: event.Event) -> None:
        # numba compiles under a lock: events of one thread follow each other
        self._open.append((_name(event), time.perf_counter()))
        self._inside_s.append(0.0)
        if len(self._open) == 1:
            self._expect()
            self._tell()

    def on_end(self, event: event.Event) -> None:
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
        """Add the functions of models that were imported meanwhile."""
        if self._known is None:
            self._known = _read()
        folders = {_jit.folder_of(name) for name, _ in self._open}
        for name, size in _functions(folders).items():
            if not self._known or name in self._known:
                self._expected[name] = self._known.get(name, size * _SECONDS_PER_BYTE)

    def _tell(self) -> None:
        expected = self._expected
        whole = sum(expected.values())
        done = sum(expected.get(name, 0.0) for name in self._done)
        total = max(len(expected), len(self._done))
        self._progress(len(self._done), total, min(0.99, done / whole) if whole else 0.0)

    def keep(self) -> None:
        """Write how long the functions took."""
        path = _path()
        if self._done and path is not None:
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(path, msgspec.json.encode({**_read(), **self._done}))


def _name(event: event.Event) -> str:
    function = event.data["dispatcher"].py_func
    return f"{function.__module__}.{function.__qualname__}"


def _functions(folders: set[str]) -> dict[str, int]:
    """Return the functions of some folders that numba may compile -> bytes of their bytecode."""
    found = {}
    for module_name, module in list(sys.modules.items()):
        if _jit.folder_of(module_name) in folders - {""}:
            for one in vars(module).values():
                if isinstance(one, Dispatcher) and one.py_func.__module__ == module_name:
                    found[f"{module_name}.{one.py_func.__qualname__}"] = len(one.py_func.__code__.co_code)
    return found


def _path() -> Path | None:
    folder = _jit.cache_folder()
    return None if folder is None else folder.parent / "compile-seconds.json"


def _read() -> dict[str, float]:
    """Return function -> seconds that its compilation took the last time."""
    path = _path()
    try:
        return {} if path is None else from_json(read_file(path), dict[str, float])
    except (OSError, msgspec.DecodeError):
        return {}
