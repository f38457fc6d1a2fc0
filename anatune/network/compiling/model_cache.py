"""Cache whole compiled models on disk, so that the same file is not compiled the same way again.

The key of an entry has all that the model depends on: the file and its weights, the sizes of example inputs, the
device, the options, the sources of this package, the compilers and the processor. Models that are not files, and models
whose kernels are measured, are not cached here; their plans and kernels are (`compiling.plan_cache`,
`network.relax.objects`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np

from anatune.core.hardware.spec import HardwareSpec
from anatune.decoding import from_json
from anatune.disk_cache import DiskCache, sources_of, versions_of
from anatune.errors import AnatuneError, BuildError
from anatune.files import open_file, replace_file, scratch_folder
from anatune.measure.cpu.features import lacking_features, processor_flags
from anatune.model.learned.corrections import digest_of_cards
from anatune.network.compiling.compiled import CompiledModel
from anatune.network.compiling.folder import digest_of
from anatune.network.compiling.memory import map_file
from anatune.network.compiling.request import CompileRequest
from anatune.network.compiling.targets import make_compiled_model
from anatune.network.graph.summary import ModelSummary
from anatune.network.graph.torch.arrays import array_of_torch
from anatune.resources import user_cache_folder
from anatune.tuning.machine import choose_threads

__all__ = ["MOST_BYTES", "ModelCache"]

MOST_BYTES = 2 << 30
"""Size limit of the cache folder: about twenty models of the size of ResNet-50."""
_COMPILERS = ("tvm", "tvm_ffi", "numpy", "scipy", "numba", "llvmlite", "onnx", "torch", "triton")
_PIECE_BYTES = 1 << 18
"""Size of the pieces that a file is read in; larger ones would allocate new memory each time."""
_LOCATION = b"location"
"""The key of the name of an external weights file in an ONNX file."""
_Stamp: TypeAlias = tuple[int, int, int, int]
_END = struct.Struct("<Q32s")
"""The end of an entry, behind the library and the summary: the library's size in bytes, and the weights' digest."""


class ModelCache:
    """The cache entry of one call of ``anatune.compile``.

    Parameters
    ----------
    model, example_inputs
        As `anatune.compile`.
    hardware : CpuSpec or GpuSpec
    request : CompileRequest
    others : sequence
        Other values that the model depends on: numbers, text, mappings of these.
    folder : Path, optional
        The cache folder; by default the user's.
    """

    def __init__(
        self,
        model: object,
        example_inputs: object,
        hardware: HardwareSpec,
        request: CompileRequest,
        others: Sequence[object] = (),
        folder: Path | None = None,
    ) -> None:
        base = folder or user_cache_folder()
        self._disk = DiskCache(None if base is None else base / "models", ".model", MOST_BYTES)
        is_measured = request.trials > 0 or request.records is not None or request.fallback is not None
        self._key = None
        if isinstance(model, str | Path) and self._disk.folder is not None and not is_measured:
            self._key, self._stamps = _key(Path(model), example_inputs, hardware, request, others)

    def read(self) -> CompiledModel | None:
        """Return the model that an equal call compiled; None if there is none, or if it is damaged."""
        content = None if self._key is None else self._disk.read(self._key)
        if content is None or len(content) < _END.size:
            return None
        code_size, digest = _END.unpack(content[-_END.size :])
        try:
            summary = from_json(content[code_size : -_END.size], ModelSummary)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        if lacking_features(summary.features):
            return None
        folder = scratch_folder(BuildError)
        try:
            weights_path = self._weights_path(digest.hex())
            with contextlib.suppress(OSError):
                os.utime(weights_path)  # marks it as used now
            memory = map_file(weights_path)
            if digest_of(memory) != digest.hex():
                raise OSError
            path = folder / "model.so"
            path.write_bytes(content[:code_size])
            model = make_compiled_model(summary, path, memory, folder, is_cached=True)
        except (OSError, AnatuneError):
            shutil.rmtree(folder, ignore_errors=True)
            return None
        model.weights_digest = digest.hex()
        return model

    def write(self, model: CompiledModel) -> None:
        """Store a compiled model, unless the model's file has changed in the meantime."""
        if self._key is None or any(_stamp_now(file) != stamp for file, stamp in self._stamps.items()):
            return
        if model.memory.size + model.code.size > self._disk.most_bytes:
            return
        digest, code = digest_of(model.memory), model.code.data
        model.weights_digest = digest
        weights_path = self._weights_path(digest)
        try:
            weights_path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(weights_path, (model.memory.data,))
        except OSError:
            return
        end = _END.pack(len(code), bytes.fromhex(digest))
        self._disk.write(self._key, code, msgspec.json.encode(model.summary), end)

    def _weights_path(self, digest: str) -> Path:
        """Return the path of weights with a digest; models of equal weights share the file."""
        assert self._disk.folder is not None
        return self._disk.folder / digest[:2] / f"{digest}.weights"


def _key(
    path: Path, example_inputs: object, hardware: HardwareSpec, request: CompileRequest, others: Sequence[object]
) -> tuple[str | None, dict[Path, _Stamp]]:
    """Return a digest of all that a model depends on, and the stamps of its files.

    The digest is None for wrong options, which compiling reports.
    """
    listed = [dict(other) if isinstance(other, Mapping) else other for other in others]
    stamps: dict[Path, _Stamp] = {}
    try:
        digest = hashlib.sha256(_settings(hardware, request) + repr(listed).encode())
        for part in chain(_inputs(example_inputs), _file_pieces(path, stamps)):
            digest.update(hashlib.sha256(part).digest())
    except (OSError, TypeError, ValueError, AnatuneError):
        return None, stamps
    return digest.hexdigest(), stamps


def _stamp(status: os.stat_result) -> _Stamp:
    """Return numbers of a file's status that change when another content is written."""
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _stamp_now(path: Path) -> _Stamp | None:
    """Return the present stamp of a file; None if it is gone."""
    try:
        return _stamp(path.stat())
    except OSError:
        return None


def _settings(hardware: HardwareSpec, request: CompileRequest) -> bytes:
    """Return the device, the options and the versions that a model depends on, as JSON.

    Raises
    ------
    SpaceError
        The device has fewer threads.
    """
    request_fields = [choose_threads(hardware, request.threads), request.accuracy, request.check, request.precision]
    machine = [platform.machine(), sys.version, processor_flags()]
    parts = [hardware, request_fields, machine, sources_of(), digest_of_cards(), versions_of(*_COMPILERS)]
    return msgspec.json.encode(parts, order="sorted")


def _inputs(example_inputs: object) -> Iterator[bytes]:
    """Yield the parts of example inputs that a model depends on: sizes, and values of integers, which may be ids.

    Raises
    ------
    TypeError, ValueError
        They are not arrays.
    """
    listed = () if example_inputs is None else example_inputs
    for given in listed if isinstance(listed, tuple | list) else (listed,):
        array = array_of_torch(given) if hasattr(given, "detach") else np.asarray(given)
        if array.dtype.kind == "O":
            raise TypeError("arrays of objects contain addresses")
        yield f"{array.shape} {array.dtype}".encode()
        yield b"" if array.dtype.kind in "fcV" else array.tobytes()


def _file_pieces(path: Path, stamps: dict[Path, _Stamp]) -> Iterator[bytes]:
    """Yield the content of a model's file and of its files of weights, and fill in their stamps.

    Raises
    ------
    OSError, ValueError, AnatuneError
        A file cannot be read.
    """
    before, is_apart = b"", False
    for piece in _pieces(path, stamps):
        is_apart = is_apart or _LOCATION in before + piece[: len(_LOCATION)] or _LOCATION in piece
        before = piece[-len(_LOCATION) :]
        yield piece
    yield path.suffix.encode()
    if is_apart and path.suffix != ".pt2":
        from anatune.network.relax.onnx_files import weight_files

        for file in weight_files(path):
            yield file.name.encode()
            yield from _pieces(file, stamps)


def _pieces(path: Path, stamps: dict[Path, _Stamp]) -> Iterator[bytes]:
    with open_file(path, None) as stream:
        stamps[path] = _stamp(os.fstat(stream.fileno()))
        while piece := os.read(stream.fileno(), _PIECE_BYTES):
            yield piece
