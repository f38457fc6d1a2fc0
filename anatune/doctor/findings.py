"""What a look at the installation found: one line each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

__all__ = ["LEVELS", "Finding", "Level", "can_plan", "verdict"]

Level = Literal["ok", "note", "missing", "warning", "broken", "error"]
LEVELS: dict[Level, str] = {
    "ok": "works",
    "note": "worth knowing, nothing to do",
    "missing": "not there; some commands need it",
    "warning": "works, but something is doubtful",
    "broken": "there, and does not work",
    "error": "anatune cannot plan",
}


class Finding(NamedTuple):
    """One thing that was looked at. Immutable."""

    section: str
    """Heading it stands under."""
    level: Level
    subject: str
    """What was looked at, in a word or two: a package's extra, "GPU"."""
    text: str
    """What was found, in one line."""
    serves: str = ""
    """What it is for: commands."""
    fix: str = ""
    """What to do, a command where there is one; "" where there is nothing to do."""


def can_plan(findings: Sequence[Finding]) -> bool:
    """Whether nothing was found that keeps anatune from planning."""
    return all(finding.level != "error" for finding in findings)


def verdict(findings: Sequence[Finding]) -> str:
    """Return what the findings come to, in one line."""
    if not can_plan(findings):
        return "anatune cannot plan here: see what is marked error"
    told = "anatune can plan"
    for level, words in (("broken", "broken"), ("missing", "missing for some commands")):
        subjects = [finding.subject for finding in findings if finding.level == level]
        told += f"; {words}: {', '.join(subjects)}" if subjects else ""
    return told
