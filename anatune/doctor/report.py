"""The findings as lines for people and as values for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from anatune.doctor.findings import LEVELS, Finding, can_plan, verdict
from anatune.report.text import Line, Style
from anatune.version import __version__

__all__ = ["lines", "tree"]

_STYLES: dict[str, Style] = {"ok": "green", "missing": "yellow", "warning": "yellow", "broken": "bold", "error": "bold"}
_LEVEL_WIDTH = max(map(len, LEVELS)) + 2


def lines(findings: Sequence[Finding]) -> list[Line]:
    """Return a line for each finding under its section's heading, and the verdict last."""
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
    """Return the findings as JSON's objects, with the version and whether anatune can plan."""
    return {
        "anatune": __version__,
        "can_plan": can_plan(findings),
        "findings": [finding._asdict() for finding in findings],
    }
