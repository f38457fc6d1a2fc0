"""What schedules, which are below all templates and all code generation, ask of those: who is above puts it here."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from anatune.named import resolve


class LateTemplate(NamedTuple):
    """A template that is imported when it is asked for: the kind of its devices, and its ``module:object``."""

    kind: str
    name: str


class TemplateTable(UserDict[str, Any]):
    """Name -> `base.template.Template`, in the order of registering; names alone import none. Threads may share it."""

    def __getitem__(self, name: str) -> Any:
        """Return a template, which is imported with the modules of its rules."""
        entry = self.data[name]
        if isinstance(entry, LateTemplate):
            entry = self.data[name] = resolve(entry.name)
        return entry

    def register(self, entries: Mapping[str, LateTemplate]) -> None:
        """Add templates at once: another thread sees none or all of them."""
        self.data.update(entries)

    def of_kind(self, kind: str) -> tuple[str, ...]:
        """Return the names of the templates of a kind of device, its default first; imports none."""
        return tuple(name for name, entry in self.data.items() if entry.kind == kind)


REGISTERED = TemplateTable()
"""Every template; `anatune.templates` registers them."""
LATE: dict[str, Callable[..., Any]] = {}
"""What ``anatune/__init__.py`` names, and what is imported when it is asked for: "templates" registers them; "lower"
and "source" are functions of `codegen.devices`, "explain" is one of `report.explain`."""


REMOVED = {"tensorcore": "; triton serves matrix units"}
"""Name of a template of former versions -> what messages that refuse it end with. Records still hold such schedules."""


def note_removed(name: object) -> str:
    """Return what serves in the place of a template that former versions had; "" for all other names."""
    return REMOVED.get(name, "") if isinstance(name, str) else ""


def known_templates() -> TemplateTable:
    """Return every template by its name."""
    if not REGISTERED:
        LATE["templates"]()
    return REGISTERED
