"""An extension of griffe: parameters that share a description in a docstring have types of their own in the reference.

griffe gives all names of one line ("workload, hw") the type and the default of the first.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_SHARED = re.compile(r"^(\w+(?:, \w+)+)\n((?:[ ]{4}.*(?:\n|\Z)|\n(?=[ ]{4}))+)", re.MULTILINE)


def split_names(docstring: str) -> str:
    """Return a docstring in which each parameter without a type has an entry of its own, with the description."""
    return _SHARED.sub(lambda hit: "".join(f"{name}\n{hit[2].rstrip()}\n" for name in hit[1].split(", ")), docstring)


class OwnTypes(griffe.Extension):
    """Splits entries of docstrings before they are read."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Split the entries of a function's parameters."""
        if func.docstring is not None:
            func.docstring.value = split_names(func.docstring.value)
