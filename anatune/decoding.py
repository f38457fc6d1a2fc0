"""Typed JSON and MessagePack, read by several threads at once.

msgspec describes a type to itself the first time that it reads one, and is not safe for threads while it does: a second
thread that meets the half-made description ends the process (msgspec 0.22, structs within structs). Here that
happens behind a lock, once for each type.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar, overload

import msgspec

from anatune.threads import new_lock

_DESCRIBING = new_lock()
_T = TypeVar("_T")


@cache
def _decoder(kind: Any, decoder: Any) -> Any:
    with _DESCRIBING:
        return decoder(kind)


@overload
def from_json(text: bytes | str, kind: type[_T]) -> _T: ...
@overload
def from_json(text: bytes | str, kind: object) -> Any: ...
def from_json(text: bytes | str, kind: object) -> Any:
    """Return what JSON holds as a type; see `msgspec.json.decode`."""
    return _decoder(kind, msgspec.json.Decoder).decode(text)


def from_message(content: bytes, kind: type[_T]) -> _T:
    """Return what MessagePack holds as a type; see `msgspec.msgpack.decode`."""
    what: Any = kind
    value: _T = _decoder(what, msgspec.msgpack.Decoder).decode(content)
    return value


@overload
def converted(value: object, kind: type[_T]) -> _T: ...
@overload
def converted(value: object, kind: object) -> Any: ...
def converted(value: object, kind: object) -> Any:
    """Return builtin objects as a type, checked; see `msgspec.convert`."""
    _decoder(kind, msgspec.json.Decoder)
    return msgspec.convert(value, kind)  # type: ignore[call-overload]
