"""The formats of ``anatune prune --for``: those of anatune's own, and those that other packages register.

To add one, write a function from a `PruneRequest` to lines, and name it in pyproject.toml under the entry points of
"anatune.formats".
"""

from __future__ import annotations

from anatune.arguments import shown
from anatune.errors import UnknownNameError
from anatune.listing.formats import Writer
from anatune.listing.lines import csv_lines, json_lines
from anatune.named import entries, load

__all__ = ["IGNORED", "OTHER_LINES", "known_formats", "writer"]

_OWN: dict[str, Writer] = {"json": json_lines, "csv": csv_lines}
OTHER_LINES = {"json": 2, "csv": 1, "triton": 3, "kernel-tuner": 2}
"""Name of a format -> lines that hold no schedule."""
IGNORED = {"triton": ("template", "accuracy", "time_limit", "distinct", "no_diverse", "correction", "plain", "html")}
"""Name of a format -> options of the command that do not apply to it: it ranks all of Triton's own tiles."""


def known_formats() -> tuple[str, ...]:
    """Return the names of all formats."""
    return (*_OWN, *entries("formats"))


def writer(name: str) -> Writer:
    """Return the writer of a format.

    Raises
    ------
    UnknownNameError
        There is no such format; the message lists them.
    """
    if name in _OWN:
        return _OWN[name]
    if name not in entries("formats"):
        raise UnknownNameError(f"format {shown(name)} is unknown, expected one of {', '.join(known_formats())}")
    writer: Writer = load("formats", name)
    return writer
