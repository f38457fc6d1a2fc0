"""Escaping of control characters: names and messages may come from files, and terminals obey such characters."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return the text with unprintable characters escaped as in Python source; newlines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() or sign in "\n\t" else sign.encode("unicode_escape").decode() for sign in text
    )
