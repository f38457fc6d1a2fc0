"""A cache of cubins on disk, by a hash of everything that they depend on."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from anatune.codegen.cuda.nvrtc import FLAGS, Cubin, compile_cuda, compiler_version
from anatune.decoding import from_message
from anatune.disk_cache import DiskCache
from anatune.resources import user_cache_folder
from anatune.templates.gpu.kernel import CudaKernel

MOST_BYTES = 256 << 20
"""Largest size of the folder, bytes: about 15,000 kernels."""
_FORMAT = "1"


def default_folder() -> Path | None:
    """Return the user's folder for cubins; None if the home folder is unknown."""
    folder = user_cache_folder()
    return None if folder is None else folder / "cubins"


def cache_key(source: str, arch: str, name: str) -> str:
    """Return the hash of everything that a cubin depends on: source, architecture, flags, compiler and its version."""
    parts = (_FORMAT, source, arch, name, *FLAGS, compiler_version())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class BuildCache(DiskCache):
    """A folder of cubins, see `DiskCache`."""

    def __init__(self, folder: Path | None, most_bytes: int = MOST_BYTES) -> None:
        super().__init__(folder, ".cubin", most_bytes)

    def load(self, key: str) -> Cubin | None:
        """Return the cubin stored under `key`, or None if there is none or it is damaged."""
        payload = self.read(key)
        try:
            return None if payload is None else from_message(payload, Cubin)
        except msgspec.DecodeError:
            return None

    def store(self, key: str, cubin: Cubin) -> None:
        """Store a cubin under `key`; the oldest ones are removed from time to time."""
        self.write(key, msgspec.msgpack.encode(cubin))


def compile_kernel(kernel: CudaKernel, cache: BuildCache | None = None) -> Cubin:
    """Compile a kernel, or read its cubin from the cache.

    Parameters
    ----------
    kernel : CudaKernel
    cache : BuildCache, optional
        The cache; by default the user's own.

    Raises
    ------
    BuildError, MissingDependencyError
        As in `compile_cuda`.
    """
    cache = BuildCache(default_folder()) if cache is None else cache
    key = cache_key(kernel.source, kernel.arch, kernel.name)
    cubin = cache.load(key)
    if cubin is None:
        cubin = compile_cuda(kernel.source, kernel.arch, name=kernel.name)
        cache.store(key, cubin)
    return cubin
