"""The decorators of functions that are compiled. numba compiles them, and is imported only when code is missing.

The machine code of a function is kept on disk as an object file with one plain entry (`_machine_code`), which LLVM
alone loads. The folder is named after a digest of all sources, here and in ``times/`` of the templates, so that an edit
in a file whose functions a stored function calls is noticed.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import logging
import os
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from anatune.resources import user_cache_folder
from anatune.writable import can_write

if TYPE_CHECKING:
    from numba.core.dispatcher import Dispatcher

    from anatune.numerics._compiler import CompilationWatcher

_log = logging.getLogger(__name__)
TEMPLATES = "anatune.templates."
"""Package of the compiled functions; each template has them in its folder ``times``."""
_FIRST_S = {"cpu": 10.0, "cuda": 7.0, "thin": 2.0, "winograd": 1.0}
"""Folder of ``anatune/templates`` -> seconds to compile it. Source: CPU time of a first plan less that of a second one,
Zen 4, one of 2 virtual cores, 2026-11.
"""
_MOST_RECORDS = 32
"""Packed named tuples that a function keeps."""


watchers: list[CompilationWatcher] = []
"""Receivers of the names of functions that are compiled."""
_Function = TypeVar("_Function", bound=Callable[..., object])
_is_disabled = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("0", "")


def _digest() -> str:
    digest = hashlib.sha256(f"{sys.version_info[:2]}".encode())
    package = importlib.util.find_spec("numba")
    version = Path(package.origin).with_name("_version.py") if package and package.origin else None
    root = Path(__file__).parents[1]
    for path in sorted([*root.glob("numerics/*.py"), *root.glob("templates/*/times/*.py")]):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    if version and version.exists():
        digest.update(version.read_bytes())
    return digest.hexdigest()[:12]


def cache_folder() -> Path | None:
    """Return the folder of compiled code for the present sources, which need not exist; None if there is no home.

    NUMBA_CACHE_DIR is the base folder if it is set.
    """
    base = os.environ.get("NUMBA_CACHE_DIR")
    folder = Path(base) if base else user_cache_folder()
    return None if folder is None else folder / f"numerics-{_digest()}"


_FOLDER = cache_folder()


def has_cached_code(folder: str) -> bool:
    """Return whether an earlier process left compiled code of a folder of ``anatune/templates``, such as ``cpu``."""
    return _FOLDER is not None and any(_FOLDER.glob(f"{folder}.*.code"))


def first_compilation_s(folder: str) -> float:
    """Return about how many seconds the first use of a template compiles; 0 if an earlier process left its code."""
    return 0.0 if has_cached_code(folder) else _FIRST_S.get(folder, 0.0)


def folder_of(module: str) -> str:
    """Return the folder of ``anatune/templates`` that a module is in, "" if it is in none."""
    return module.removeprefix(TEMPLATES).partition(".")[0] if module.startswith(TEMPLATES) else ""


@functools.cache
def _say_compiling(folder: str) -> None:
    """Report, once for each template, that its model is compiled, when any command first uses it."""
    if folder in _FIRST_S:
        part, about = ("the rest of ", "") if has_cached_code(folder) else ("", f" (about {_FIRST_S[folder]:.0f} s)")
        _log.info("compiling %sthe model of %s kernels%s, %s", part, folder, about, _describe_storage())


def _describe_storage() -> str:
    """Return where compiled code is stored, or why it is not."""
    if _FOLDER is None:
        return "in every run: there is no home folder; set NUMBA_CACHE_DIR"
    existing = next((parent for parent in (_FOLDER, *_FOLDER.parents) if parent.exists()), Path("/"))
    if not can_write(existing):
        return f"in every run: {_FOLDER} is not writable; set NUMBA_CACHE_DIR"
    return f"once: the code is stored in {_FOLDER}"


class Helper:
    """A function that compiled functions call. If Python calls it, Python runs it."""

    def __init__(self, function: Callable[..., object], *, is_inlined: bool = False) -> None:
        functools.update_wrapper(self, function)
        self.function, self.is_inlined = function, is_inlined
        self.name = f"{function.__module__}.{function.__qualname__}"

    def __call__(self, *arguments: object) -> object:
        """Run the function."""
        return self.function(*arguments)

    @functools.cached_property
    def dispatcher(self) -> object:
        """The object by which numba compiles the function."""
        from anatune.numerics._compiler import make_dispatcher

        return make_dispatcher(self.function, is_inlined=self.is_inlined)

    @property
    def _numba_type_(self) -> object:
        """The type by which numba knows the function where compiled code calls it."""
        return self.dispatcher._numba_type_  # type: ignore[attr-defined]


class CompiledFunction(Helper):
    """A function that Python calls and machine code runs: one piece of code for each combination of argument types.

    It takes numbers, arrays, and named tuples of both, and returns numbers or nothing. The arrays that it fills are
    arguments: compiled code allocates no memory.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__(function)
        self._codes: dict[str, Callable[[bytes], object]] = {}
        self._records: dict[int, tuple[object, str, bytes]] = {}
        self._lock = threading.Lock()

    def __call__(self, *arguments: object) -> object:
        """Run the code for these arguments; load it from the disk or compile it before the first call."""
        packed = [self._pack(argument) for argument in arguments]
        types = ",".join([kind for kind, _ in packed])
        code = self._codes.get(types) or self._load(types, arguments)
        return code(b"".join([content for _, content in packed]))

    def _pack(self, argument: object) -> tuple[str, bytes]:
        """Return the type of an argument, and its content; those of the last named tuples are kept."""
        if not isinstance(argument, tuple):
            return _pack(argument)
        record = self._records.get(id(argument))
        if record is None or record[0] is not argument:
            if len(self._records) >= _MOST_RECORDS:
                self._records.clear()
            record = self._records[id(argument)] = (argument, *_pack(argument))
        return record[1:]

    def _load(self, types: str, arguments: tuple[object, ...]) -> Callable[[bytes], object]:
        from anatune.numerics._machine_code import load_code, store_code

        with self._lock:
            if types not in self._codes:
                name = self.name.removeprefix(TEMPLATES)
                code = load_code(_FOLDER, name, types)
                if code is None:
                    from anatune.numerics._compiler import compile_object

                    _say_compiling(folder_of(self.name))
                    dispatcher = cast("Dispatcher[Callable[..., object]]", self.dispatcher)
                    code = store_code(_FOLDER, name, types, compile_object(dispatcher, arguments, watchers))
                self._codes[types] = code
            return self._codes[types]


def _pack(value: object) -> tuple[str, bytes]:
    """Return the type of a value as a text, and the 8-byte numbers that compiled code reads: see `_compiler`."""
    if isinstance(value, np.ndarray):
        layout = "C" if value.flags.c_contiguous else "A"
        numbers = (value.ctypes.data, *value.shape, *value.strides)
        return f"{value.dtype.str}{value.ndim}{layout}", struct.pack(f"{len(numbers)}q", *numbers)
    if isinstance(value, tuple):
        packed = [_pack(part) for part in value]
        types = ",".join([kind for kind, _ in packed])
        return f"{type(value).__qualname__}({types})", b"".join([content for _, content in packed])
    if isinstance(value, bool | np.bool_):
        return "?", struct.pack("q", value)
    if isinstance(value, int | np.integer):
        return "q", struct.pack("q", value)
    return "d", struct.pack("d", value)


def jit(function: _Function) -> _Function:
    """Compile `function` when it is first called and store its code on disk: for functions that Python calls."""
    return function if _is_disabled else cast("_Function", CompiledFunction(function))


def jit_helper(function: _Function) -> _Function:
    """Compile `function` with the compiled functions that call it; they may inline it."""
    return function if _is_disabled else cast("_Function", Helper(function))


def jit_inline(function: _Function) -> _Function:
    """Compile `function` like a helper that is always inlined, so that loops of its callers can be vectorised."""
    return function if _is_disabled else cast("_Function", Helper(function, is_inlined=True))
