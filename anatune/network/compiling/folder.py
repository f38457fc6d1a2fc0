"""Store compiled models in folders: a summary, the code, and the weights.

The names of the two large files contain the beginning of their digests, so that a path always has the same content:
the dynamic loader never loads a path twice. ``model.json`` names the files that belong together and is written last.
A folder therefore contains the complete previous model until it contains the new one.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import platform
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, NamedTuple, cast

import msgspec
import numpy as np

from anatune.arguments import quote
from anatune.decoding import from_json
from anatune.errors import RecordError, RunError
from anatune.files import OutputKind, check_folder, make_key_check, open_file, read_file, reason, replace_file
from anatune.measure.cpu.blocks import ArgumentBlock
from anatune.measure.cpu.features import lacking_features
from anatune.network.compiling.memory import Memory, map_file
from anatune.network.graph.summary import Division, ModelSummary

__all__ = ["FORMAT", "SavedModel", "check_place", "check_processor", "digest_of", "read", "stamp", "write"]

FORMAT = 3
"""Version of the folder's format; it grows with every change of the files' content."""
_SUMMARY = "model.json"
_FILE_NAMES = re.compile(
    r"model-[0-9a-f]{16}\.(so|gpu)|weights-[0-9a-f]{16}\.bin|part-[0-9a-f]{16}\.onnx|\.anatune-[0-9a-f]{16}\.part"
)
"""Files beside the summary: those of a model and its parts, and leftovers of a save that was killed."""
_KIND = OutputKind("one of a compiled model", make_key_check("format", "sha256", "contents"))
"""The kind of file that a summary is, which tells if a file may be replaced."""
_PIECE_BYTES = 4 << 20
"""Size of the pieces of a file, which are hashed on all cores."""
_ADVICE = "expected a folder that anatune compile wrote"

_Digest = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class _FolderFormat(msgspec.Struct, frozen=True):
    format: int


class _SummaryFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of ``model.json``; `sha256` is that of `contents` as written."""

    format: int
    sha256: _Digest
    contents: msgspec.Raw


class _CompiledPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A compiled part, and the digests (`digest_of`) of its two files."""

    library: _Digest
    weights: _Digest
    model: ModelSummary

    @property
    def names(self) -> tuple[str, str]:
        """Names of the library and of the file of weights."""
        return f"model-{self.library[:16]}.{'gpu' if self.model.launches else 'so'}", f"weights-{self.weights[:16]}.bin"


class _FolderContents(_CompiledPart, frozen=True, forbid_unknown_fields=True):
    """A model: its first compiled part, the other ones, and the parts that onnxruntime runs."""

    others: tuple[_CompiledPart, ...] = ()
    onnx: tuple[_Digest, ...] = ()
    division: Division | None = None


class SavedModel(NamedTuple):
    """A model, or one of its compiled parts, as a folder stores it.

    `code` is the content of the library's file. `weights_digest` is the weights' digest (`digest_of`), if it is known.
    """

    summary: ModelSummary
    library: Path
    code: Memory
    weights: Memory
    weights_digest: str | None = None


def write(
    path: Path, models: Sequence[SavedModel], onnx: Sequence[bytes] = (), division: Division | None = None
) -> None:
    """Write a model's folder. A model that is there already stays complete until the new one is.

    Several processes may save into one folder; they take turns.

    Parameters
    ----------
    models : sequence of SavedModel
        Its compiled parts, one or more; their libraries may be anywhere.
    onnx : sequence of bytes
        Its other parts.
    division : Division, optional
        The order of the parts; None for a model of one part.

    Raises
    ------
    RecordError
        The folder cannot be written, or contains something else.
    """
    path = Path(os.path.abspath(path))
    first, *others = [
        _CompiledPart(digest_of(one.code), one.weights_digest or digest_of(one.weights), one.summary) for one in models
    ]
    onnx_digests = tuple(digest_of(np.frombuffer(content, np.uint8)) for content in onnx)
    contents = _FolderContents(first.library, first.weights, first.model, tuple(others), onnx_digests, division)
    raw = msgspec.json.format(msgspec.json.encode(contents), indent=1)
    file = msgspec.json.encode(_SummaryFile(FORMAT, hashlib.sha256(raw).hexdigest(), msgspec.Raw(raw)))
    files: dict[str, bytes | memoryview] = dict(zip(map(_onnx_name, onnx_digests), onnx, strict=True))
    for (library, memory), model in zip([part.names for part in (first, *others)], models, strict=True):
        files |= {library: model.code.data, memory: model.weights.data}
    files[_SUMMARY] = file  # it has to be the last one
    check_place(path)
    try:
        is_new = not path.exists()
        path.mkdir(exist_ok=True)
        with _lock_folder(path):
            check_place(path)
            files_before, stamp_before = (_model_files(path, os.listdir(path)), stamp(path))  # later files are not ours
            try:
                for name, content in files.items():
                    replace_file(path / name, (content,))
            finally:  # keep one model: the previous one while the summary is still its own
                kept_files = files_before if stamp(path) == stamp_before else {*files}
                for name in (files_before | {*files}) - kept_files:
                    (path / name).unlink(missing_ok=True)
                if is_new and not kept_files:
                    path.rmdir()
    except OSError as error:
        raise RecordError(f"{path}: {reason(error)}; give a folder that can be written, with enough space") from None


def check_place(path: Path) -> None:
    """Raise RecordError if a model's folder cannot be written, or contains something else."""
    try:
        check_folder(path, _KIND.what, _model_files)
    except OSError as error:
        raise RecordError(f"{path}: {reason(error)}") from None


def read(path: Path, *, mapped: bool = True) -> tuple[list[SavedModel], list[bytes], Division | None]:
    """Return the content of a model's folder, as `write` takes it, after comparing all files with their digests.

    Parameters
    ----------
    mapped : bool
        Map the weights, so that processes share their memory. With False they are read, into large pages if the system
        has them.

    Raises
    ------
    RecordError
        The folder contains no model, or is damaged.
    RunError
        The model needs instructions that this processor lacks.
    """
    path = Path(os.path.abspath(path))
    contents = _read_contents(path)
    saved = [_read_part(path, one, mapped=mapped) for one in (contents, *contents.others)]
    onnx = [_read_file(path / _onnx_name(digest), map_file, digest).tobytes() for digest in contents.onnx]
    return saved, onnx, contents.division


def _read_part(path: Path, compiled: _CompiledPart, *, mapped: bool) -> SavedModel:
    """Return a compiled part of a folder. Raises the errors of `read`."""
    summary = compiled.model
    check_processor(path, summary)
    library, weights = (path / name for name in compiled.names)
    code = _read_file(library, map_file, compiled.library)
    size = summary.weight_bytes
    memory = _read_file(weights, map_file if mapped else _read_into_memory, compiled.weights, size)
    return SavedModel(summary, library, code, memory)


def _read_file(file_path: Path, read_content: Callable[[Path], Memory], digest: str, size: int | None = None) -> Memory:
    """Return the content of a model's file; RecordError if it is missing or damaged."""
    try:
        content = read_content(file_path)
    except OSError as error:
        raise RecordError(f"{error.filename or file_path}: {reason(error)}; compile the model again") from None
    if size is not None and content.size != size:
        raise RecordError(f"{file_path} has {content.size:,} bytes, expected {size:,}; compile the model again")
    if digest_of(content) != digest:
        raise RecordError(f"{file_path} is damaged: its content has changed; compile the model again")
    return content


def _onnx_name(digest: str) -> str:
    return f"part-{digest[:16]}.onnx"


def stamp(path: Path) -> tuple[int, int] | None:
    """Return a value that changes when another model is saved into a folder; None if it has no model."""
    try:
        status = os.stat(path / _SUMMARY)
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_mtime_ns


def _read_contents(path: Path) -> _FolderContents:
    """Return the content of ``model.json``.

    Raises
    ------
    RecordError
        The file is missing, damaged, or of another version.
    """
    summary_path = path / _SUMMARY
    try:
        text = read_file(summary_path)
    except OSError as error:
        raise RecordError(f"{path}: {_SUMMARY} {reason(error)}, {_ADVICE}") from None
    try:
        number = from_json(text, _FolderFormat).format
        if number != FORMAT:
            raise RecordError(
                f"{summary_path}: the compiled model has format {quote(number)}, expected {FORMAT}: another "
                "version of anatune wrote it; compile it again"
            )
        file = from_json(text, _SummaryFile)
        if hashlib.sha256(file.contents).hexdigest() != file.sha256:
            raise RecordError(f"{summary_path} is damaged: its content has changed; compile the model again")
        return from_json(file.contents, _FolderContents)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"{summary_path}: no summary of a compiled model: {error!s:.200}; compile it again") from None


def digest_of(content: Memory) -> str:
    """Return the SHA-256 of the concatenated SHA-256 digests of all pieces."""
    pieces = [content[first : first + _PIECE_BYTES] for first in range(0, content.size, _PIECE_BYTES)]
    with ThreadPoolExecutor() as pool:
        return hashlib.sha256(b"".join(pool.map(lambda piece: hashlib.sha256(piece).digest(), pieces))).hexdigest()


@contextlib.contextmanager
def _lock_folder(path: Path) -> Iterator[None]:
    """Wait until no other process writes into a folder; does not wait on file systems without locks."""
    import fcntl  # late: systems without it can read folders

    handle = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _model_files(path: Path, names: Collection[str]) -> set[str]:
    """Return the names in a folder that belong to a compiled model."""
    model_files = {name for name in names if _FILE_NAMES.fullmatch(name)}
    return model_files | {_SUMMARY} if _KIND.knows(path / _SUMMARY) else model_files


def check_processor(path: Path | str, summary: ModelSummary) -> None:
    """Raise RunError if this processor lacks instructions that the code uses."""
    if summary.launches:  # all of its code runs on a GPU
        return
    lacking = lacking_features(summary.features)
    if lacking or platform.machine() != summary.machine:
        lacking_text = ", ".join(lacking) or f"the architecture {summary.machine}: it is {platform.machine()}"
        raise RunError(
            f"{path} was compiled for {summary.hardware} ({summary.arch}), and this processor lacks {lacking_text}; "
            "compile it with --hw host here"
        )


def _read_into_memory(path: Path) -> Memory:
    """Return the content of a file in memory of this process."""
    with open_file(path, None) as stream:
        memory: Memory = ArgumentBlock("uint8", (os.fstat(stream.fileno()).st_size,)).array
        unread = memory.data
        while unread:  # one system call reads at most two gigabytes
            count = cast(io.BufferedReader, stream).readinto(unread)
            if not count:
                raise OSError(errno.EIO, "ends too early", str(path))
            unread = unread[count:]
    return memory
