"""What was built, as it travels: how to call it and the bytes of its file, under their SHA-256."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from anatune.decoding import from_json
from anatune.errors import RunError
from anatune.files import MOST_BYTES, read_file, reason
from anatune.named import resolve

__all__ = ["DamagedError", "Packed", "pack", "unpack"]


class DamagedError(RunError):
    """What was built is not what arrived: whoever built it is to blame, of several the one at `part`."""

    part = 0


class _Kind(NamedTuple):
    """How artifacts of a kind of device are packed: their class, the field that names their file, its suffix."""

    artifact: str
    file: str
    suffix: str


_KINDS = {
    "cpu": _Kind("anatune.codegen.cpu.artifact:CpuArtifact", "library", ".so"),
    "gpu": _Kind("anatune.codegen.cuda.artifact:GpuArtifact", "image", ".cubin"),
}


class Packed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A built kernel. Immutable.

    Attributes
    ----------
    kind : {"cpu", "gpu"}
        Of the device that it is for.
    artifact : bytes
        JSON of the `CpuArtifact` or `GpuArtifact`, its file named by its digest.
    sha256 : str
        Of `content`, hexadecimal.
    content : bytes
        The shared library or the cubin.
    """

    kind: Literal["cpu", "gpu"]
    artifact: bytes
    sha256: str
    content: bytes


def pack(artifact: Any, kind: Literal["cpu", "gpu"]) -> Packed:
    """Return an artifact with the bytes of its file.

    Raises
    ------
    RunError
        The file cannot be read.
    """
    how = _KINDS[kind]
    path = getattr(artifact, how.file)
    try:
        content = read_file(path)
    except OSError as error:
        raise RunError(f"{path}: {reason(error)}") from None
    digest = hashlib.sha256(content).hexdigest()
    named = msgspec.structs.replace(artifact, **{how.file: digest})
    return Packed(kind, msgspec.json.encode(named), digest, content)


def unpack(packed: Packed, folder: Path, schedule_key: str) -> Any:
    """Write an artifact's file into `folder`, which exists, and return the artifact.

    Parameters
    ----------
    schedule_key : str
        Of the schedule that it has to be built from; "" for the reference kernel.

    Raises
    ------
    DamagedError
        It is not what was packed, or of another schedule.
    RunError
        It cannot be written.
    """
    how = _KINDS[packed.kind]
    if len(packed.content) > MOST_BYTES or hashlib.sha256(packed.content).hexdigest() != packed.sha256:
        raise DamagedError("a built kernel arrived damaged: its contents are not what was built")
    try:
        artifact = from_json(packed.artifact, resolve(how.artifact))
    except (msgspec.DecodeError, RecursionError) as error:
        raise DamagedError(f"a built kernel arrived damaged: {error}") from None
    if artifact.schedule_key != schedule_key or getattr(artifact, how.file) != packed.sha256:
        raise DamagedError(
            f"a built kernel of the schedule {artifact.schedule_key!r} arrived, expected {schedule_key!r}"
        )
    path = folder / f"{packed.sha256[:32]}{how.suffix}"
    try:
        path.write_bytes(packed.content)
    except OSError as error:
        raise RunError(f"{path}: {reason(error)}; free some space on the worker") from None
    return msgspec.structs.replace(artifact, **{how.file: str(path)})
