"""Reading of typed JSON and MessagePack, safe for several threads.

msgspec (0.22) builds a description of a type when it first decodes that type, and is not safe for threads while it
does: a second thread that uses the unfinished description crashes the process. Decoders are therefore built behind a
lock, once for each type.
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
    """Decode JSON to an object of type `kind`; see `msgspec.json.decode`."""
    return _decoder(kind, msgspec.json.Decoder).decode(text)


def from_message(content: bytes, kind: type[_T]) -> _T:
    """Decode MessagePack to an object of type `kind`; see `msgspec.msgpack.decode`."""
    target: Any = kind
    value: _T = _decoder(target, msgspec.msgpack.Decoder).decode(content)
    return value


@overload
def convert(value: object, kind: type[_T]) -> _T: ...
@overload
def convert(value: object, kind: object) -> Any: ...
def convert(value: object, kind: object) -> Any:
    """Convert builtin objects to an object of type `kind` and check them; see `msgspec.convert`."""
    _decoder(kind, msgspec.json.Decoder)
    return msgspec.convert(value, kind)  # type: ignore[call-overload]
