"""Reading files that a user named, and writing files and folders as a whole; every problem is an OSError.

Reading refuses what is no regular file: opening a pipe would block, a device has no end. Whatever a command or a call
reads by a path, it reads with these functions. A file that a command writes because an option names it is an `Output`;
folders are written with `make_folder` and `replace_folder`. None of them overwrites files that anatune did not write.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from anatune.errors import AnatuneError, no_scratch
from anatune.writable import can_write

_scratch: set[str] = set()
"""Temporary files and folders of this process that may still exist."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_scratch.clear)

MOST_BYTES = 64 << 20
"""Default limit for the size of files that are read as a whole, bytes."""
_PIECE_BYTES = 1 << 20
"""Bytes that are written at once. Linux took 1.0 CPU s for 430 MB at once, 0.1 s in such pieces (ext4, 2026-11)."""
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_file(path: str | os.PathLike[str], most_bytes: int | None = MOST_BYTES) -> BinaryIO:
    """Open a regular file for reading; never block.

    Parameters
    ----------
    path : str or path
    most_bytes : int, optional
        Largest allowed size; None: no limit.

    Raises
    ------
    OSError
        The file does not exist, may not be read, is no regular file, or is too large; ``strerror`` says which.
    """
    name = os.fspath(path)
    try:
        _check_regular(os.stat(name), name, most_bytes)
        # The file may have changed since: open it without blocking and check it again.
        handle = os.open(name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except ValueError as error:  # a NUL, or a character that no file name can have
        raise OSError(errno.EINVAL, f"is not a valid path ({error})", name) from None
    stream = os.fdopen(handle, "rb")
    try:
        _check_regular(os.fstat(handle), name, most_bytes)
    except OSError:
        stream.close()
        raise
    return stream


def read_file(path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file; parameters and errors as in `open_file`."""
    with open_file(path, most_bytes) as stream:
        content = stream.read(most_bytes + 1)  # files of /proc claim to be empty
    if len(content) > most_bytes:
        raise _size_error(len(content), os.fspath(path), most_bytes)
    return content


def read_lines(path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> Iterator[str]:
    """Yield the lines of a regular file of any size as UTF-8 text, very long lines in pieces; errors as in `open_file`.

    Raises
    ------
    UnicodeDecodeError
        The file is not UTF-8 text.
    """
    with open_file(path, None) as stream:
        encoding = "utf-8-sig"  # Windows editors write a byte-order mark before the first line
        while line := stream.readline(most_bytes):
            yield line.decode(encoding)
            encoding = "utf-8"


def replace_file(path: str | os.PathLike[str], content: bytes | Iterable[bytes | memoryview]) -> None:
    """Write a file completely or not at all, from one or several pieces of content; an existing file is replaced.

    If several processes write the same file at once, one of them wins. No other file is left in the folder, even after
    an error.

    Raises
    ------
    OSError
        The folder does not exist or cannot be written to, or the disk is full.
    """
    name = os.fspath(path)
    scratch = os.path.join(os.path.dirname(name), f".anatune-{secrets.token_hex(8)}.part")
    _scratch.add(scratch)
    try:
        handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        with os.fdopen(handle, "wb") as stream:
            for piece in [content] if isinstance(content, bytes) else content:
                view = memoryview(piece)
                stream.writelines(view[first : first + _PIECE_BYTES] for first in range(0, len(view), _PIECE_BYTES))
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(scratch, name)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(scratch)
        raise
    finally:
        _scratch.discard(scratch)


class OutputKind(NamedTuple):
    """The kind of file that a command writes.

    Attributes
    ----------
    what : str
        Description for messages, behind "expected": "a page that anatune wrote".
    is_own : callable
        Function that tells whether a non-empty regular file was written by such a command; errors count as False.
    """

    what: str
    is_own: Callable[[Path], bool]

    def knows(self, path: Path) -> bool:
        """Return whether a regular file may be replaced."""
        try:
            return os.access(path, os.W_OK) and self.is_own(path)
        except Exception:  # noqa: BLE001 - the file may hold anything, and its reader may raise anything
            return False


def make_key_check(*keys: str) -> Callable[[Path], bool]:
    """Return a function that tells whether a file is a JSON object with these keys."""

    def has_keys(path: Path) -> bool:
        import json  # late: what only reads TOML needs none

        tree = json.loads(read_file(path))
        return isinstance(tree, dict) and set(keys) <= set(tree)

    return has_keys


class Output:
    """A file that a command was asked to write: checked before the work, written after it.

    A missing file, an empty one, or one of the command's own kind is written as a whole; symbolic links are followed.
    Character devices, and pipes that have a reader, receive the content directly. Anything else is an error and is not
    changed.

    Parameters
    ----------
    path : str or path
    kind : OutputKind
        The kind of file.

    Raises
    ------
    OSError
        The path may not or cannot be written; `write` raises it, too.
    """

    def __init__(self, path: str | os.PathLike[str], kind: OutputKind) -> None:
        self.path = Path(path)
        self._kind = kind
        self._pipe: BinaryIO | None = None
        self._regular()

    def write(self, content: bytes | Iterable[bytes]) -> None:
        """Write the content, whole or in pieces, and close the file."""
        pieces = [content] if isinstance(content, bytes) else content
        try:
            target = self._regular()
            if target is not None:
                replace_file(target, pieces)
                return
            with self._pipe or open(self.path, "wb") as stream:
                stream.writelines(pieces)
        except OSError as error:  # report the path, not that of the temporary file
            raise OSError(error.errno, error.strerror or str(error), str(self.path)) from None

    def _regular(self) -> str | None:
        """Return the path of the regular file to create or replace; None for a device or pipe."""
        name = os.fspath(self.path)
        try:
            status = os.stat(name)
        except FileNotFoundError:
            status = None
        except ValueError as error:  # a NUL, or a character that no file name can have
            raise OSError(errno.EINVAL, f"is not a valid path ({error})", name) from None
        if status is not None and not stat.S_ISREG(status.st_mode):
            self._check_stream(status.st_mode, name)
            return None
        target = os.path.realpath(name)
        _check_parent(target, name)
        if status is not None and status.st_size and not self._kind.knows(Path(target)):
            raise _make_occupied_error(name, f"a new file or {self._kind.what}")
        return target

    def _check_stream(self, mode: int, name: str) -> None:
        """Open a pipe without waiting for its reader; raise OSError if the path cannot receive content."""
        if stat.S_ISFIFO(mode) and self._pipe is None:
            try:
                handle = os.open(name, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    error.strerror = "is a pipe that nobody reads; start its reader first"
                raise
            os.set_blocking(handle, True)
            self._pipe = os.fdopen(handle, "wb")
        elif not stat.S_ISFIFO(mode) and not stat.S_ISCHR(mode):
            kind = _KINDS.get(stat.S_IFMT(mode), "no file")
            number = errno.EISDIR if kind == "a folder" else errno.EINVAL
            raise OSError(number, f"is {kind}, expected the name of a file", name)


def check_folder(
    path: str | os.PathLike[str], what: str, list_own_names: Callable[[Path, Collection[str]], Collection[str]]
) -> None:
    """Raise OSError if a folder cannot be written as a whole, or holds files that anatune did not write.

    Parameters
    ----------
    what : str
        Description for messages, behind "expected a new folder or": "one of a compiled model".
    list_own_names : callable
        ``(folder, names in it) -> names``: those that the command itself wrote.
    """
    name = os.fspath(path)
    folder = _resolve_path(name)
    if os.path.isdir(folder):
        names = set(os.listdir(folder))
        if others := sorted(names - set(list_own_names(Path(folder), names))) if names else []:
            raise _make_occupied_error(name, f"a new folder or {what}", f"holds {others[0]!r}")
        if not can_write(folder):
            raise PermissionError(errno.EACCES, "the folder cannot be written to; name another", name)
    elif os.path.lexists(folder):
        raise NotADirectoryError(errno.ENOTDIR, f"is not a folder, expected a new one or {what}; name another", name)
    _check_parent(folder, name)


@contextlib.contextmanager
def replace_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a new folder that replaces another one at the end of the block; an exception in the block removes it.

    Raises
    ------
    OSError
        The folder cannot be created, or cannot replace the other one.
    """
    target = os.path.realpath(path)
    with temporary_folder(os.path.dirname(target)) as scratch:
        new_folder = scratch / "made"
        new_folder.mkdir()
        yield new_folder
        if not os.path.lexists(target):
            os.replace(new_folder, target)
            return
        old = f"{scratch}.old"  # beside the scratch folder: if the process is killed here, one of the two survives
        os.replace(target, old)
        try:
            os.replace(new_folder, target)
        except OSError:
            os.replace(old, target)
            raise
    _remove_tree(old)


def make_folder(path: str | os.PathLike[str], mode: int = 0o777) -> None:
    """Create a folder that files will be written into, unless it exists.

    Parameters
    ----------
    mode : int
        Permissions of a new folder, less the process's umask.

    Raises
    ------
    OSError
        The folder cannot be created or written to, or something else has this name.
    """
    name = os.fspath(path)
    folder = _resolve_path(name)
    if os.path.isdir(folder):
        if not can_write(folder):
            raise PermissionError(errno.EACCES, "the folder cannot be written to; name another", name)
        return
    if os.path.lexists(folder):
        raise NotADirectoryError(errno.ENOTDIR, "is not a folder, expected a new or existing one; name another", name)
    _check_parent(folder, name)
    os.mkdir(folder, mode)


def _resolve_path(name: str) -> str:
    """Return the path that a name stands for, links followed; raise OSError for an impossible path."""
    try:
        return os.path.realpath(name)
    except ValueError as error:  # a NUL, or a character that no file name can have
        raise OSError(errno.EINVAL, f"is not a valid path ({error})", name) from None


def reason(error: OSError) -> str:
    """Return what is wrong with a file, in lower case, for the middle of a sentence."""
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]


def scratch_folder(error: type[AnatuneError], room_bytes: int = 0) -> Path:
    """Create a folder for temporary files and return its path; the caller removes it.

    Parameters
    ----------
    error : type
        Exception to raise if it cannot be created.
    room_bytes : int
        Size of a file that must fit, bytes: checked first for compilers that end the process on a full disk.
    """
    import shutil  # late: what only plans needs none
    import tempfile

    try:
        folder = Path(tempfile.mkdtemp(prefix="anatune-"))
    except OSError as failure:
        raise error(no_scratch(failure)) from None
    _scratch.add(str(folder))
    if room_bytes and hasattr(os, "posix_fallocate"):
        try:
            with open(folder / "room", "wb") as stream:
                os.posix_fallocate(stream.fileno(), 0, room_bytes)
            (folder / "room").unlink()
        except OSError as failure:
            shutil.rmtree(folder, ignore_errors=True)
            raise error(no_scratch(failure)) from None
    return folder


@contextlib.contextmanager
def temporary_folder(parent: str | os.PathLike[str] | None = None) -> Iterator[Path]:
    """Yield a folder that is removed at the end of the block, even if Ctrl-C ends the process in it.

    Parameters
    ----------
    parent : path, optional
        Parent folder; by default that of all temporary files.

    Raises
    ------
    OSError
        The folder cannot be created.
    """
    import tempfile

    prefix = "anatune-" if parent is None else ".anatune-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as name:
        _scratch.add(name)
        try:
            yield Path(name)
        finally:
            _scratch.discard(name)


def remove_scratch() -> None:
    """Remove the temporary files and folders that still exist, for a process that ends without unwinding."""
    for name in list(_scratch):
        with contextlib.suppress(OSError):
            os.unlink(name)
        _remove_tree(name)


def remove_folder_with(owner: object, folder: Path) -> None:
    """Remove a folder when `owner` is destroyed or this process ends; a child of ``fork`` leaves it to its parent."""
    weakref.finalize(owner, _remove_own, str(folder), os.getpid())


def _remove_own(name: str, process: int) -> None:
    if os.getpid() == process:
        _remove_tree(name)


def _remove_tree(name: str) -> None:
    import shutil  # late: what only plans needs none

    shutil.rmtree(name, ignore_errors=True)


def _check_parent(path: str, name: str) -> None:
    """Raise OSError if the parent folder of a path is missing or read-only; `name` is the path as the user wrote it."""
    parent = os.path.dirname(path)
    if not os.path.isdir(parent):
        raise FileNotFoundError(errno.ENOENT, f"the folder {parent} does not exist; make it", name)
    if not can_write(parent):
        raise PermissionError(errno.EACCES, f"the folder {parent} cannot be written to; name another", name)


def _make_occupied_error(name: str, expected: str, problem: str = "is something else") -> OSError:
    """Return the error for a path where the command did not write what exists."""
    return FileExistsError(errno.EEXIST, f"{problem}, expected {expected}; name another place, or remove it", name)


def _check_regular(status: os.stat_result, name: str, most_bytes: int | None) -> None:
    """Raise OSError unless the file is regular and small enough."""
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "no file")
        number = errno.EISDIR if kind == "a folder" else errno.EINVAL
        raise OSError(number, f"is {kind}, expected a regular file", name)
    if most_bytes is not None and status.st_size > most_bytes:
        raise _size_error(status.st_size, name, most_bytes)


def _size_error(size: int, name: str, most_bytes: int) -> OSError:
    return OSError(errno.EFBIG, f"has {size:,} bytes, expected at most {most_bytes:,}", name)
