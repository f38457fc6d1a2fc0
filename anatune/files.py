"""Reading a file that a user named, and writing one as a whole: whatever goes wrong is an OSError.

A pipe would be waited for, a device has no end, a folder's error says little, and a path with a NUL is a ValueError
of Python's. What a command or a call reads by its path, it reads through here; what a command writes because an option
names it is an `Output`, or a folder of `make_folder` and `replaced_folder`: none of them takes the place of something
else.
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
"""Temporary files and folders of this process that may still be there."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_scratch.clear)

MOST_BYTES = 64 << 20
"""Largest file that is read whole, unless a caller says otherwise."""
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_file(path: str | os.PathLike[str], most_bytes: int | None = MOST_BYTES) -> BinaryIO:
    """Open a regular file for reading; never waits.

    Parameters
    ----------
    path : str or path
    most_bytes : int, optional
        Largest size; None: any.

    Raises
    ------
    OSError
        It is not there, may not be read, is no regular file, or is larger; ``strerror`` says which.
    """
    name = os.fspath(path)
    try:
        _check(os.stat(name), name, most_bytes)
        # What lies there may have changed since: opened without waiting, then looked at again.
        handle = os.open(name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except ValueError as error:  # a NUL, a character that no file's name can have
        raise OSError(errno.EINVAL, f"is no path ({error})", name) from None
    stream = os.fdopen(handle, "rb")
    try:
        _check(os.fstat(handle), name, most_bytes)
    except OSError:
        stream.close()
        raise
    return stream


def read_file(path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> bytes:
    """Return what is in a regular file; as `open_file`."""
    with open_file(path, most_bytes) as stream:
        content = stream.read(most_bytes + 1)  # files of /proc say that they are empty
    if len(content) > most_bytes:
        raise _too_large(len(content), os.fspath(path), most_bytes)
    return content


def read_lines(path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> Iterator[str]:
    """Yield the lines of a regular file of any size as UTF-8 text, longer ones in pieces; as `open_file`.

    Raises
    ------
    UnicodeDecodeError
        It is no UTF-8 text.
    """
    with open_file(path, None) as stream:
        encoding = "utf-8-sig"  # editors of Windows put a byte-order mark before the first line
        while line := stream.readline(most_bytes):
            yield line.decode(encoding)
            encoding = "utf-8"


def replace_file(path: str | os.PathLike[str], content: bytes | Iterable[bytes | memoryview]) -> None:
    """Write a file, given whole or in pieces, that appears as a whole or not at all; what was there is replaced.

    Several processes may write the same file at once: one of them wins. Nothing else is left in the folder, whatever
    is raised.

    Raises
    ------
    OSError
        The folder is missing or cannot be written to, the disk is full.
    """
    name = os.fspath(path)
    scratch = os.path.join(os.path.dirname(name), f".anatune-{secrets.token_hex(8)}.part")
    _scratch.add(scratch)
    try:
        handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        with os.fdopen(handle, "wb") as stream:
            stream.writelines([content] if isinstance(content, bytes) else content)
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
    """What a command writes to a file.

    Attributes
    ----------
    what : str
        In words, behind "expected": "a page that anatune wrote".
    is_own : callable
        Whether a regular file, which is not empty, holds what such a command wrote; what cannot be read does not.
    """

    what: str
    is_own: Callable[[Path], bool]

    def knows(self, path: Path) -> bool:
        """Whether a regular file may be replaced."""
        try:
            return os.access(path, os.W_OK) and self.is_own(path)
        except Exception:  # noqa: BLE001 - a file of anybody's: whatever its reader stumbles over, it is not ours
            return False


def json_with(*keys: str) -> Callable[[Path], bool]:
    """Return what says whether a file is a JSON object with these keys."""

    def has_keys(path: Path) -> bool:
        import json  # late: what only reads TOML needs none

        tree = json.loads(read_file(path))
        return isinstance(tree, dict) and set(keys) <= set(tree)

    return has_keys


class Output:
    """A file that a command was asked to write: looked at before the work, written after it.

    What is missing, empty or of the command's own kind is written, as a whole; a symbolic link is followed. A character
    device and a pipe that somebody reads get the content as it is. Anything else stays as it is and is an error.

    Parameters
    ----------
    path : str or path
    kind : OutputKind
        What will be written.

    Raises
    ------
    OSError
        Nothing may or can be written there; `write` raises it, too.
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
            place = self._regular()
            if place is not None:
                replace_file(place, pieces)
                return
            with self._pipe or open(self.path, "wb") as stream:
                stream.writelines(pieces)
        except OSError as error:  # of the file beside it that became this one
            raise OSError(error.errno, error.strerror or str(error), str(self.path)) from None

    def _regular(self) -> str | None:
        """Return the regular file to make or replace; None for what is written as it is."""
        name = os.fspath(self.path)
        try:
            status = os.stat(name)
        except FileNotFoundError:
            status = None
        except ValueError as error:  # a NUL, a character that no file's name can have
            raise OSError(errno.EINVAL, f"is no path ({error})", name) from None
        if status is not None and not stat.S_ISREG(status.st_mode):
            self._check_stream(status.st_mode, name)
            return None
        place = os.path.realpath(name)
        _check_parent(place, name)
        if status is not None and status.st_size and not self._kind.knows(Path(place)):
            raise _taken(name, f"a new file or {self._kind.what}")
        return place

    def _check_stream(self, mode: int, name: str) -> None:
        """Open a pipe, without waiting for its reader; raise OSError for what takes no content."""
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
    path: str | os.PathLike[str], what: str, own: Callable[[Path, Collection[str]], Collection[str]]
) -> None:
    """Raise OSError where a folder cannot be written as a whole, or something else lies there.

    Parameters
    ----------
    what : str
        What is going to be written, behind "expected a new folder or": "one of a compiled model".
    own : callable
        (folder, the names in it) -> those that the command itself wrote.
    """
    name = os.fspath(path)
    place = _real(name)
    if os.path.isdir(place):
        names = set(os.listdir(place))
        if others := sorted(names - set(own(Path(place), names))) if names else []:
            raise _taken(name, f"a new folder or {what}", f"holds {others[0]!r}")
        if not can_write(place):
            raise PermissionError(errno.EACCES, "the folder cannot be written to; name another", name)
    elif os.path.lexists(place):
        raise NotADirectoryError(errno.ENOTDIR, f"is no folder, expected a new one or {what}; name another", name)
    _check_parent(place, name)


@contextlib.contextmanager
def replaced_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a new folder that takes the place of another one at the end of the block, or is removed where that fails.

    Raises
    ------
    OSError
        It cannot be made, or not take its place.
    """
    place = os.path.realpath(path)
    with temporary_folder(os.path.dirname(place)) as scratch:
        made = scratch / "made"
        made.mkdir()
        yield made
        if not os.path.lexists(place):
            os.replace(made, place)
            return
        old = f"{scratch}.old"  # beside the scratch folder: whatever ends the process now, one of them is kept
        os.replace(place, old)
        try:
            os.replace(made, place)
        except OSError:
            os.replace(old, place)
            raise
    _remove_tree(old)


def make_folder(path: str | os.PathLike[str], mode: int = 0o777) -> None:
    """Make a folder, unless it is there: files are going to be written into it.

    Parameters
    ----------
    mode : int
        Of a new one, less the process's umask.

    Raises
    ------
    OSError
        It cannot be made or written to, or something else lies there.
    """
    name = os.fspath(path)
    place = _real(name)
    if os.path.isdir(place):
        if not can_write(place):
            raise PermissionError(errno.EACCES, "the folder cannot be written to; name another", name)
        return
    if os.path.lexists(place):
        raise NotADirectoryError(errno.ENOTDIR, "is no folder, expected a new or an existing one; name another", name)
    _check_parent(place, name)
    os.mkdir(place, mode)


def _real(name: str) -> str:
    """Return the path that a name stands for, links followed; raise OSError for what can be no path."""
    try:
        return os.path.realpath(name)
    except ValueError as error:  # a NUL, a character that no file's name can have
        raise OSError(errno.EINVAL, f"is no path ({error})", name) from None


def reason(error: OSError) -> str:
    """Return what is wrong with a file, in lower case, for the middle of a line."""
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]


def scratch_folder(error: type[AnatuneError], room_bytes: int = 0) -> Path:
    """Return a new folder for temporary files; the caller removes it.

    Parameters
    ----------
    error : type
        Raised where none can be made.
    room_bytes : int
        How large a file has to fit: asked for ahead by those whose compiler ends the process on a full disk.
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
def temporary_folder(place: str | os.PathLike[str] | None = None) -> Iterator[Path]:
    """Give a folder that is removed at the end of the block, also where Ctrl-C ends the process in it.

    Parameters
    ----------
    place : path, optional
        Where; by default with all temporary files.

    Raises
    ------
    OSError
        None can be made.
    """
    import tempfile

    prefix = "anatune-" if place is None else ".anatune-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=place, ignore_cleanup_errors=True) as name:
        _scratch.add(name)
        try:
            yield Path(name)
        finally:
            _scratch.discard(name)


def remove_scratch() -> None:
    """Remove what temporary files and folders of this process are still there: it ends without unwinding."""
    for name in list(_scratch):
        with contextlib.suppress(OSError):
            os.unlink(name)
        _remove_tree(name)


def remove_with(owner: object, folder: Path) -> None:
    """Remove a folder when `owner` goes, or this process ends; a child of ``fork`` leaves it to its parent."""
    weakref.finalize(owner, _remove_own, str(folder), os.getpid())


def _remove_own(name: str, process: int) -> None:
    if os.getpid() == process:
        _remove_tree(name)


def _remove_tree(name: str) -> None:
    import shutil  # late: what only plans needs none

    shutil.rmtree(name, ignore_errors=True)


def _check_parent(place: str, name: str) -> None:
    """Raise OSError where nothing can be written beside a place; `name` is what it was called."""
    parent = os.path.dirname(place)
    if not os.path.isdir(parent):
        raise FileNotFoundError(errno.ENOENT, f"the folder {parent} does not exist; make it", name)
    if not can_write(parent):
        raise PermissionError(errno.EACCES, f"the folder {parent} cannot be written to; name another", name)


def _taken(name: str, expected: str, found: str = "is something else") -> OSError:
    """Return the error of a place where something lies that the command did not write."""
    return FileExistsError(errno.EEXIST, f"{found}, expected {expected}; name another place, or remove it", name)


def _check(status: os.stat_result, name: str, most_bytes: int | None) -> None:
    """Raise OSError unless it is a regular file that is small enough."""
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "no file")
        number = errno.EISDIR if kind == "a folder" else errno.EINVAL
        raise OSError(number, f"is {kind}, expected a regular file", name)
    if most_bytes is not None and status.st_size > most_bytes:
        raise _too_large(status.st_size, name, most_bytes)


def _too_large(size: int, name: str, most_bytes: int) -> OSError:
    return OSError(errno.EFBIG, f"has {size:,} bytes, expected at most {most_bytes:,}", name)
