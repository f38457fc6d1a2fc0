"""Reading a file that a user named, and writing one as a whole: whatever goes wrong is an OSError.

A pipe would be waited for, a device has no end, a folder's error says little, and a path with a NUL is a ValueError
of Python's. What a command or a call reads by its path, it reads through here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from anatune.errors import AnatuneError

__all__ = [
    "MOST_BYTES",
    "no_scratch",
    "open_file",
    "read_file",
    "read_lines",
    "reason",
    "remove_scratch",
    "replace_file",
    "scratch_folder",
    "temporary_folder",
]

_scratch: set[str] = set()
"""Temporary files and folders of this process that may still be there."""

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
        while line := stream.readline(most_bytes):
            yield line.decode()


def replace_file(path: str | os.PathLike[str], content: bytes | Iterable[bytes]) -> None:
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
    import shutil

    for name in list(_scratch):
        with contextlib.suppress(OSError):
            os.unlink(name)
        shutil.rmtree(name, ignore_errors=True)


def no_scratch(error: OSError) -> str:
    """Return why temporary files cannot be written, and what to do, in one line."""
    import tempfile

    return f"{tempfile.gettempdir()}: {error.strerror or error}; free some space or set TMPDIR"


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
