"""What schedules, which are below all templates and all code generation, ask of those: who is above puts it here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["LATE", "REGISTERED", "REMOVED", "known_templates", "note_removed"]

REGISTERED: dict[str, Any] = {}
"""Name -> `base.template.Template`, the default of each kind of device first; `anatune.templates` registers them."""
LATE: dict[str, Callable[..., Any]] = {}
"""What ``anatune/__init__.py`` names, and what is imported when it is asked for: "templates" registers them; "lower"
and "source" are functions of `codegen.devices`, "explain" is one of `report.explain`."""


REMOVED = {"tensorcore": "; triton serves matrix units"}
"""Name of a template of former versions -> what messages that refuse it end with. Records still hold such schedules."""


def note_removed(name: object) -> str:
    """Return what serves in the place of a template that former versions had; "" for all other names."""
    return REMOVED.get(name, "") if isinstance(name, str) else ""


def known_templates() -> dict[str, Any]:
    """Return every template by its name."""
    if not REGISTERED:
        LATE["templates"]()
    return REGISTERED
