"""Immutable mappings, for the fields of immutable objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

import msgspec

K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(dict[K, V]):
    """A dict that refuses every change; ``dict(mapping)`` makes a copy that can be changed.

    In all other respects it is a dict: JSON, equality, ``|`` (which makes a plain dict) and iteration work as usual.
    """

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(
            "the mapping belongs to an immutable object; change a copy, dict(mapping), and make a new object with it, "
            "as msgspec.structs.replace(schedule, tiles=copy)"
        )

    __setitem__ = __delitem__ = __ior__ = _refuse  # type: ignore[assignment]
    clear = pop = popitem = setdefault = update = _refuse  # type: ignore[assignment]

    def __reduce__(self) -> tuple[object, ...]:
        return FrozenDict, (dict(self),)


EMPTY: FrozenDict[Any, Any] = FrozenDict()
"""The one empty mapping: a default that msgspec's ``omit_defaults`` recognises by identity."""


def freeze(owner: msgspec.Struct, *names: str) -> None:
    """Make the named mapping fields of a frozen struct immutable; to be called in its ``__post_init__``."""
    for name in names:
        value = getattr(owner, name)
        if isinstance(value, Mapping) and (type(value) is not FrozenDict or not value):
            # The object is frozen, but no other code has seen it yet.
            msgspec.structs.force_setattr(owner, name, FrozenDict(value) if value else EMPTY)
