"""Text of others on its way to people: names and messages come out of files, and terminals obey control characters."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return text in which all that is no sign is escaped as in Python's source; ends of lines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() or sign in "\n\t" else sign.encode("unicode_escape").decode() for sign in text
    )
