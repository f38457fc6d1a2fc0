"""The table of templates, and functions of higher layers that schedules call; higher layers fill both at import."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from anatune.named import resolve


class LateTemplate(NamedTuple):
    """A template that is imported when it is first used: the kind of its devices and its ``module:object``."""

    kind: str
    name: str


class TemplateTable(UserDict[str, Any]):
    """Name -> `base.template.Template`, in the order of registration; listing names imports none. Safe for threads."""

    def __getitem__(self, name: str) -> Any:
        """Return a template; the first access imports its rules."""
        entry = self.data[name]
        if isinstance(entry, LateTemplate):
            entry = self.data[name] = resolve(entry.name)
        return entry

    def register(self, entries: Mapping[str, LateTemplate]) -> None:
        """Add templates at once, so that another thread sees all of them or none."""
        self.data.update(entries)

    def of_kind(self, kind: str) -> tuple[str, ...]:
        """Return the names of the templates for a kind of device, the default first; nothing is imported."""
        return tuple(name for name, entry in self.data.items() if entry.kind == kind)


REGISTERED = TemplateTable()
"""Table of all templates; `anatune.templates` fills it."""
LATE: dict[str, Callable[..., Any]] = {}
"""Functions that ``anatune/__init__.py`` sets and that import what they need: "templates" registers the templates;
"lower" and "source" are functions of `codegen.devices`, "explain" of `report.explain`."""


REMOVED = {"tensorcore": "; triton serves matrix units"}
"""Name of a template of former versions -> end of the messages that refuse it. Old records contain such schedules."""


def note_removed(name: object) -> str:
    """Return which template replaces one of a former version; "" for all other names."""
    return REMOVED.get(name, "") if isinstance(name, str) else ""


def all_templates() -> TemplateTable:
    """Return the table of all templates."""
    if not REGISTERED:
        LATE["templates"]()
    return REGISTERED
