"""Machine code of compiled functions: object files on disk, which LLVM loads. A damaged file is compiled again.

The name of a file contains a digest of the types of the arguments and of the processor. Each file ends with a digest of
its content, its folder and its name, so that code of another function, of older sources or for another processor is
not run. A file whose digest does not match is removed, compiled again, and reported once. If the folder cannot be
written, its files are still read, and all else is compiled in every process.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import NamedTuple

import llvmlite.binding as llvm

from anatune.files import reason, replace_file

__all__ = ["ENTRY", "MachineCode", "load_code", "store_code"]

ENTRY = "anatune_entry"
"""Symbol of the function in an object file: int32 status (const int64 arguments[], int64 results[])."""
_log = logging.getLogger(__name__)
_DIGEST_BYTES = hashlib.sha256().digest_size
_numbers = count()


class MachineCode(NamedTuple):
    """Machine code of a function for one combination of argument types."""

    results: str
    """The format of the results, as that of `struct`: "q" for each int64, "d" for each float64."""
    object_file: bytes


def load_code(folder: Path | None, name: str, types: str) -> Callable[[bytes], object] | None:
    """Return a function with its code from the disk; None if it is not there, damaged, or needs what is missing."""
    path = folder and _path(folder, name, types)
    content = path and _read(path)
    if not content:
        return None
    results, _, object_file = content.partition(b"\n")
    try:
        return _link(name, MachineCode(results.decode(), object_file))
    except RuntimeError:  # a symbol that the compiling process had
        return None


def store_code(folder: Path | None, name: str, types: str, code: MachineCode) -> Callable[[bytes], object]:
    """Return a function with new code. If it cannot be stored (full disk, read-only folder), warn."""
    if folder is not None:
        path = _path(folder, name, types)
        content = code.results.encode() + b"\n" + code.object_file
        try:
            folder.mkdir(parents=True, exist_ok=True)
            replace_file(path, content + _digest(path, content))
        except OSError as error:
            text = f"compiled code cannot be saved in %s ({reason(error)}): every run compiles it; set NUMBA_CACHE_DIR"
            _say_once(text, str(folder))
    return _link(name, code)


def _path(folder: Path, name: str, types: str) -> Path:
    key = hashlib.sha256("\0".join((types, _processor())).encode()).hexdigest()[:16]
    return folder / f"{name}-{key}.code"


@cache
def _processor() -> str:
    """Return the processor, and the variables that change what numba compiles for it."""
    variables = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("NUMBA_"))
    kept = [text for text in variables if not text.startswith("NUMBA_CACHE_DIR=")]
    features = llvm.get_host_cpu_features().flatten()
    return "\0".join((llvm.get_process_triple(), llvm.get_host_cpu_name(), features, *kept))


def _digest(path: Path, content: bytes) -> bytes:
    return hashlib.sha256("\0".join((*path.parts[-2:], "")).encode() + content).digest()


def _read(path: Path) -> bytes | None:
    """Return the content of a file without its digest; remove a damaged file."""
    try:
        whole = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        whole = b""
    content, digest = whole[:-_DIGEST_BYTES], whole[-_DIGEST_BYTES:]
    if _digest(path, content) == digest:
        return content
    _say_once("compiled code in %s was damaged; it is compiled again", str(path.parent))
    with suppress(OSError):
        path.unlink()
    return None


@cache
def _say_once(text: str, folder: str) -> None:
    _log.warning(text, folder)


@cache
def _linker() -> llvm.LLJIT:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.create_lljit_compiler()


def _link(name: str, code: MachineCode) -> Callable[[bytes], object]:
    """Return a function that takes the packed arguments.

    Raises
    ------
    RuntimeError
        The code calls a function that this process does not have.
    """
    builder = llvm.JITLibraryBuilder().add_object_img(code.object_file).add_current_process().export_symbol(ENTRY)
    loaded = builder.link(_linker(), f"{name}-{next(_numbers)}")
    run = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_char_p, ctypes.c_char_p)(loaded[ENTRY])
    results = struct.Struct(code.results)

    def call(arguments: bytes, _: object = loaded) -> object:  # the code lives as long as what was loaded
        out = ctypes.create_string_buffer(results.size)
        if run(arguments, ctypes.cast(out, ctypes.c_char_p)):
            raise RuntimeError(f"compiled code of {name} failed")
        numbers = results.unpack(out.raw) if results.size else (None,)
        return numbers[0] if len(numbers) == 1 else numbers

    return call
