"""Settings of strategies: one frozen struct each, read from what a caller gives."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from anatune.decoding import converted
from anatune.errors import SpaceError

__all__ = ["NoOptions", "read_options"]


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a strategy that has none."""


def read_options(kind: type[msgspec.Struct], given: msgspec.Struct | Mapping[str, object] | None) -> msgspec.Struct:
    """Return the settings of a strategy.

    Raises
    ------
    SpaceError
        There is no such setting, or its value is of another type or out of range.
    """
    if isinstance(given, kind):
        return given
    try:
        return converted(dict(given) if isinstance(given, Mapping) else given or {}, kind)
    except msgspec.ValidationError as error:
        names = ", ".join(kind.__struct_fields__) or "none at all"
        raise SpaceError(f"strategy settings: {error}; expected some of: {names}") from None
