"""What schedules, which are below all templates and all code generation, ask of those: who is above puts it here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple

from anatune.named import resolve

__all__ = ["LATE", "REGISTERED", "REMOVED", "LateTemplate", "TemplateTable", "known_templates", "note_removed"]


class LateTemplate(NamedTuple):
    """A template that is imported when it is asked for: the kind of its devices, and its ``module:object``."""

    kind: str
    name: str


class TemplateTable(MutableMapping[str, Any]):
    """Name -> `base.template.Template`, in the order of registering; iterating over names imports none.

    Threads may read it while others do.
    """

    def __init__(self) -> None:
        self._entries: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        """Return a template, which is imported with the modules of its rules."""
        entry = self._entries[name]
        if isinstance(entry, LateTemplate):
            entry = self._entries[name] = resolve(entry.name)
        return entry

    def __setitem__(self, name: str, template: Any) -> None:
        self._entries[name] = template

    def __delitem__(self, name: str) -> None:
        del self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def register(self, entries: Mapping[str, LateTemplate]) -> None:
        """Add templates at once: another thread sees none or all of them."""
        self._entries.update(entries)

    def of_kind(self, kind: str) -> tuple[str, ...]:
        """Return the names of the templates of a kind of device, its default first; imports none."""
        return tuple(name for name, entry in self._entries.items() if entry.kind == kind)


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
