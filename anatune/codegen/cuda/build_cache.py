"""Cubins on disk by the hash of what made them, so that nothing is compiled twice.

One file an entry: a digest, then the cubin with its facts. Files appear whole (they are renamed into their place), so
many processes may use one folder; an entry that is damaged all the same is as good as none. The folder is kept below a
size by removing what was used longest ago.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

import msgspec

from anatune.codegen.cuda.nvrtc import FLAGS, Cubin, compile_cuda, compiler_version
from anatune.decoding import from_message
from anatune.files import replace_file
from anatune.resources import user_cache_folder
from anatune.templates.gpu.kernel import CudaKernel

__all__ = ["BuildCache", "cache_key", "compile_kernel", "default_folder"]

MOST_BYTES = 256 << 20
"""Size that the folder is kept below: some 15,000 kernels."""
_KEPT_SHARE = 0.8
"""Share of the limit that is left after a cleaning, so that not every build has to clean."""
_CLEANED_EVERY = 256
"""Builds of one process between two looks at the folder's size; the first one looks."""
_DIGEST_BYTES = 32
_FORMAT = "1"


def default_folder() -> Path | None:
    """Return the user's folder for cubins; None if there is no home."""
    folder = user_cache_folder()
    return None if folder is None else folder / "cubins"


def cache_key(source: str, arch: str, name: str) -> str:
    """Return the hash of all that a cubin depends on: source, architecture, flags, compiler and its version."""
    parts = (_FORMAT, source, arch, name, *FLAGS, compiler_version())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class BuildCache:
    """A folder of cubins; safe for many processes, one object a thread.

    A folder that cannot be read or written to means that nothing is kept, not an error.

    Parameters
    ----------
    folder : Path or None
        Made when first needed; None keeps nothing.
    most_bytes : int
        Size that it is kept below.
    """

    def __init__(self, folder: Path | None, most_bytes: int = MOST_BYTES) -> None:
        self.folder = folder
        self.most_bytes = most_bytes
        self._stored = 0

    def _path(self, folder: Path, key: str) -> Path:
        return folder / key[:2] / f"{key}.cubin"

    def load(self, key: str) -> Cubin | None:
        """Return what was stored under `key`, None if that is nothing or damaged."""
        if self.folder is None:
            return None
        path = self._path(self.folder, key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        digest, payload = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(payload).digest() != digest:
            return None
        try:
            cubin = from_message(payload, Cubin)
        except msgspec.DecodeError:
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used now
        return cubin

    def store(self, key: str, cubin: Cubin) -> None:
        """Keep a cubin under `key`; now and then remove the oldest ones."""
        if self.folder is None:
            return
        payload = msgspec.msgpack.encode(cubin)
        path = self._path(self.folder, key)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, (hashlib.sha256(payload).digest(), payload))
        if self._stored % _CLEANED_EVERY == 0:
            self.clean()
        self._stored += 1

    def clean(self) -> None:
        """Remove what was used longest ago if the folder is too large; also what killed processes left behind."""
        files: list[tuple[float, int, Path]] = []
        for path in self.folder.glob("*/*") if self.folder is not None else ():
            with contextlib.suppress(OSError):  # another process may have removed it
                status = path.stat()
                files.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in files)
        if total <= self.most_bytes:
            return
        for _, size, path in sorted(files):
            if total <= _KEPT_SHARE * self.most_bytes:
                return
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size


def compile_kernel(kernel: CudaKernel, cache: BuildCache | None = None) -> Cubin:
    """Compile a kernel, or take its cubin from the cache.

    Parameters
    ----------
    kernel : CudaKernel
    cache : BuildCache, optional
        The user's own by default.

    Raises
    ------
    BuildError, MissingDependencyError
        As `compile_cuda`.
    """
    cache = BuildCache(default_folder()) if cache is None else cache
    key = cache_key(kernel.source, kernel.arch, kernel.name)
    cubin = cache.load(key)
    if cubin is None:
        cubin = compile_cuda(kernel.source, kernel.arch, name=kernel.name)
        cache.store(key, cubin)
    return cubin
