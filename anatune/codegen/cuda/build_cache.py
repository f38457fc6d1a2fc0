"""Cubins on disk by the hash of what made them, so that nothing is compiled twice."""

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
"""Size that the folder is kept below: some 15,000 kernels."""
_FORMAT = "1"


def default_folder() -> Path | None:
    """Return the user's folder for cubins; None if there is no home."""
    folder = user_cache_folder()
    return None if folder is None else folder / "cubins"


def cache_key(source: str, arch: str, name: str) -> str:
    """Return the hash of all that a cubin depends on: source, architecture, flags, compiler and its version."""
    parts = (_FORMAT, source, arch, name, *FLAGS, compiler_version())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class BuildCache(DiskCache):
    """A folder of cubins: see `DiskCache`."""

    def __init__(self, folder: Path | None, most_bytes: int = MOST_BYTES) -> None:
        super().__init__(folder, ".cubin", most_bytes)

    def load(self, key: str) -> Cubin | None:
        """Return what was stored under `key`, None if that is nothing or damaged."""
        payload = self.read(key)
        try:
            return None if payload is None else from_message(payload, Cubin)
        except msgspec.DecodeError:
            return None

    def store(self, key: str, cubin: Cubin) -> None:
        """Keep a cubin under `key`; now and then remove the oldest ones."""
        self.write(key, msgspec.msgpack.encode(cubin))


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
