"""Compiled models as folders: what they are, their code, their weights."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import platform
import secrets
import shutil
from pathlib import Path

import numpy as np

from anatune.arguments import shown
from anatune.compiling.memory import Memory
from anatune.errors import RecordError, RunError
from anatune.files import read_file, reason
from anatune.graph.summary import ModelSummary
from anatune.measure.cpu.blocks import Block
from anatune.measure.cpu.features import lacking_features

__all__ = ["read", "write"]

_SUMMARY, _LIBRARY, _WEIGHTS = "model.json", "model.so", "weights.bin"
_FILES = {_SUMMARY, _LIBRARY, _WEIGHTS}


def write(path: Path, summary: ModelSummary, library: Path, memory: Memory) -> None:
    """Write a model's folder, which appears whole or not at all.

    Raises
    ------
    RecordError
        It cannot be written, or something else lies there.
    """
    path = Path(os.path.abspath(path))
    _check_place(path)
    scratch = path.parent / f".anatune-{secrets.token_hex(8)}.part"
    try:
        scratch.mkdir()
        shutil.copyfile(library, scratch / _LIBRARY)
        memory.tofile(scratch / _WEIGHTS)
        (scratch / _SUMMARY).write_bytes(summary.to_json())
        for name in _FILES:
            _flush(scratch / name)
        if path.exists():
            old = path.parent / f".anatune-{secrets.token_hex(8)}.old"
            os.replace(path, old)
            os.replace(scratch, path)
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.replace(scratch, path)
    except OSError as error:
        raise RecordError(f"{path}: {reason(error)}; name a folder that can be written, with enough space") from None
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(scratch)


def read(path: Path, *, mapped: bool = True) -> tuple[ModelSummary, Path, Memory]:
    """Return what is in a model's folder.

    Parameters
    ----------
    mapped : bool
        The weights are mapped: their pages are read when they are first used, and shared by processes. Else they are
        read, into large pages where the system has them.

    Raises
    ------
    RecordError
        It is no such folder, or damaged.
    RunError
        It is for a processor with other instructions.
    """
    advice = "expected a folder that anatune compile wrote"
    try:
        summary = ModelSummary.from_json(read_file(path / _SUMMARY))
    except OSError as error:
        raise RecordError(f"{path}: {_SUMMARY} {reason(error)}, {advice}") from None
    except RecordError as error:
        raise RecordError(f"{path / _SUMMARY}: {error}") from None
    _check_processor(path, summary)
    library, weights = path / _LIBRARY, path / _WEIGHTS
    if not library.is_file():
        raise RecordError(f"{library} is missing, {advice}; compile it again")
    size = weights.stat().st_size if weights.is_file() else -1
    if size != summary.weight_bytes:
        found = "is missing" if size < 0 else f"has {size:,} bytes"
        raise RecordError(f"{weights} {found}, expected {summary.weight_bytes:,} bytes; compile it again")
    try:
        memory: Memory = np.empty(0, np.uint8)
        if size and mapped:
            memory = np.memmap(weights, np.uint8, "c")
        elif size:
            memory = Block("uint8", (size,)).array
            with weights.open("rb", buffering=0) as stream:
                _fill(stream, memory)
    except OSError as error:
        raise RecordError(f"{weights}: {reason(error)}") from None
    return summary, library, memory


def _check_place(path: Path) -> None:
    """Raise RecordError if something else than a compiled model lies there."""
    if path.is_dir() and not path.is_symlink():
        others = sorted(set(os.listdir(path)) - _FILES)
        if others:
            raise RecordError(f"{path} holds {shown(others[0])}, expected a new folder, or one of a compiled model")
    elif path.exists() or path.is_symlink():
        raise RecordError(f"{path} exists and is no folder, expected a new one; name another")


def _check_processor(path: Path, summary: ModelSummary) -> None:
    """Raise RunError if the present processor lacks instructions of the code."""
    lacking = lacking_features(summary.features)
    if lacking or platform.machine() != summary.machine:
        what = ", ".join(lacking) or f"{summary.machine}, not {platform.machine()}"
        raise RunError(
            f"{path} was compiled for {summary.hardware} ({summary.arch}), this processor lacks {what}; compile it "
            "with --hw host here"
        )


def _fill(stream: io.RawIOBase, memory: Memory) -> None:
    """Read into all of `memory`; a call of the system reads two gigabytes at most."""
    rest = memory.data
    while rest:
        count = stream.readinto(rest)
        if not count:
            raise OSError(errno.EIO, "ends too early")
        rest = rest[count:]


def _flush(path: Path) -> None:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
