"""Findings of `anatune doctor`, as lines for people and as values for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Literal, NamedTuple

from anatune.report.text import Line, Style
from anatune.version import __version__

Level = Literal["ok", "note", "missing", "warning", "broken", "error"]
LEVELS: dict[Level, str] = {
    "ok": "works",
    "note": "information, nothing to do",
    "missing": "not installed; some commands need it",
    "warning": "works, but may cause problems",
    "broken": "installed, but does not work",
    "error": "anatune cannot plan",
}


class Finding(NamedTuple):
    """The result of one check. Immutable."""

    section: str
    """The heading in the report."""
    level: Level
    subject: str
    """The checked subject in a word or two, such as the name of an extra, or "GPU"."""
    text: str
    """The result, in one line."""
    serves: str = ""
    """The commands that need it."""
    fix: str = ""
    """The action to take, preferably a command; "" if there is nothing to do."""


def can_plan(findings: Sequence[Finding]) -> bool:
    """Return whether no finding prevents anatune from planning."""
    return all(finding.level != "error" for finding in findings)


def verdict(findings: Sequence[Finding]) -> str:
    """Return a summary of the findings in one line."""
    if not can_plan(findings):
        return "anatune cannot plan here: see the lines that begin with error"
    told = "anatune can plan"
    for level, words in (("broken", "broken"), ("missing", "missing for some commands")):
        subjects = [finding.subject for finding in findings if finding.level == level]
        told += f"; {words}: {', '.join(subjects)}" if subjects else ""
    return told


_STYLES: dict[str, Style] = {"ok": "green", "missing": "yellow", "warning": "yellow", "broken": "bold", "error": "bold"}
_LEVEL_WIDTH = max(map(len, LEVELS)) + 2


def lines(findings: Sequence[Finding]) -> list[Line]:
    """Return a line for each finding under the heading of its section, and the summary at the end."""
    told: list[Line] = []
    section = ""
    for finding in findings:
        if finding.section != section:
            section = finding.section
            told += [*([Line("")] if told else []), Line(section, "bold")]
        told.append(Line(f"{finding.level:{_LEVEL_WIDTH}}{_text(finding)}", _STYLES.get(finding.level, "")))
    return [*told, Line(""), *(Line(line, "bold") for line in textwrap.wrap(verdict(findings), 100))]


def _text(finding: Finding) -> str:
    serves = f" [{finding.serves}]" if finding.serves and finding.level != "ok" else ""
    fix = f"; {finding.fix}" if finding.fix else ""
    return f"{finding.subject}: {finding.text}{serves}{fix}"


def tree(findings: Sequence[Finding]) -> dict[str, object]:
    """Return the findings as plain values for JSON, with the version and whether anatune can plan."""
    return {
        "anatune": __version__,
        "can_plan": can_plan(findings),
        "findings": [finding._asdict() for finding in findings],
    }
