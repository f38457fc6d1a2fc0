"""The decorators that compile functions with numba; all numba options are here.

Compiled code is stored on disk in a folder named after a digest of all its sources, here and in ``times/`` of the
templates. numba itself does not notice an edit in another file whose functions a stored function calls, and an
installed package can be read-only.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import config, event

from anatune.numerics._code_cache import TEMPLATES, keep_code
from anatune.resources import user_cache_folder
from anatune.writable import can_write

_log = logging.getLogger(__name__)
_FIRST_S = {"cpu": 25.0, "cuda": 16.0, "thin": 5.0, "winograd": 2.0}
"""Folder of ``anatune/templates`` -> seconds to compile it. Source: user time of a first plan less that of a second
one, Granite Rapids, one of 2 virtual cores, 2026-11.
"""

_Function = TypeVar("_Function", bound=Callable[..., object])

_settings: Any = config  # its attributes are set at run time
_njit: Any = functools.partial(numba.njit, error_model="numpy", nogil=True, no_cfunc_wrapper=True)
# error_model="numpy": 1/0 is inf, not an exception, and loops vectorise. Without fastmath, scalar, batch and
# no-JIT runs agree to the last bit. nogil lets callers use threads.


def _digest() -> str:
    digest = hashlib.sha256(f"{sys.version_info[:2]} {numba.__version__}".encode())
    root = Path(__file__).parents[1]
    for path in sorted([*root.glob("numerics/*.py"), *root.glob("templates/*/times/*.py")]):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def cache_folder() -> Path | None:
    """Return the folder of compiled code for the present sources, which need not exist; None if there is no home.

    NUMBA_CACHE_DIR, which numba reads into its configuration, is the base folder if it is set.
    """
    base = Path(_settings.CACHE_DIR) if _settings.CACHE_DIR else user_cache_folder()
    return None if base is None else base / f"numerics-{_digest()}"


_FOLDER = cache_folder()


def has_cached_code(folder: str) -> bool:
    """Return whether an earlier process left compiled code of a folder of ``anatune/templates``, such as ``cpu``."""
    return _FOLDER is not None and any(_FOLDER.glob(f"{folder}.*.nbi"))


def first_compilation_s(folder: str) -> float:
    """Return about how many seconds the first use of a template compiles; 0 if an earlier process left its code."""
    return 0.0 if has_cached_code(folder) else _FIRST_S.get(folder, 0.0)


def folder_of(module: str) -> str:
    """Return the folder of ``anatune/templates`` that a module is in, "" if it is in none."""
    return module.removeprefix(TEMPLATES).partition(".")[0] if module.startswith(TEMPLATES) else ""


class _CompilationReporter(event.Listener):  # type: ignore[misc]
    """Reports, once for each template, that its model is compiled, when any command first uses it."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def on_start(self, event: event.Event) -> None:
        module = event.data["dispatcher"].py_func.__module__ or ""  # functions of other packages can have none
        folder = folder_of(module)
        if folder in _FIRST_S and folder not in self._said:
            self._said.add(folder)
            part, about = (
                ("the rest of ", "") if has_cached_code(folder) else ("", f" (about {_FIRST_S[folder]:.0f} s)")
            )
            _log.info("compiling %sthe model of %s kernels%s, %s", part, folder, about, _describe_storage())

    def on_end(self, event: event.Event) -> None:
        """Ignore the end of a compilation."""


def _describe_storage() -> str:
    """Return where compiled code is stored, or why it is not."""
    if _FOLDER is None:
        return "in every run: there is no home folder; set NUMBA_CACHE_DIR"
    existing = next((parent for parent in (_FOLDER, *_FOLDER.parents) if parent.exists()), Path("/"))
    if not can_write(existing):
        return f"in every run: {_FOLDER} is not writable; set NUMBA_CACHE_DIR"
    return f"once: the code is stored in {_FOLDER}"


event.register("numba:compile", _CompilationReporter())


def jit(function: _Function) -> _Function:
    """Compile `function` lazily and store its code on disk: for the batch functions that Python calls."""
    compiled = _njit()(function)
    if _FOLDER is not None and not _settings.DISABLE_JIT:
        keep_code(compiled, function, _FOLDER)
    return compiled  # type: ignore[no-any-return]


def jit_helper(function: _Function) -> _Function:
    """Compile a helper that only other compiled functions call (once for each chunk); its code is stored with theirs.

    It cannot be called from Python: without that entry, compilation takes a fifth less time.
    """
    return _njit(no_cpython_wrapper=True)(function)  # type: ignore[no-any-return]


def jit_sequence(function: _Function) -> _Function:
    """Compile a helper that mainly calls other helpers as a part of its caller, not as a function of its own.

    Its arguments become variables of the caller. As arguments of a function, arrays and tuples of arrays would cost a
    reference count at each call, and a loop with one is not vectorised (`cuda.times.time.fill_time` took 1.3 to 1.7
    times as long in parts).
    """
    return _njit(inline="always")(function)  # type: ignore[no-any-return]


def jit_inline(function: _Function) -> _Function:
    """Compile a scalar helper and inline it into its callers, so that their loops can be vectorised.

    Like `jit_helper`, it cannot be called from Python.
    """
    return _njit(forceinline=True, no_cpython_wrapper=True)(function)  # type: ignore[no-any-return]


def jit_scalar(function: _Function) -> _Function:
    """Compile a scalar helper like `jit_inline`, but let Python call it, too."""
    return _njit(forceinline=True)(function)  # type: ignore[no-any-return]
