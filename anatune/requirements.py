"""The packages that anatune and its extras require, read from its metadata, and the pip command for missing ones.

This module imports only the standard library and anatune, because it is used when packages are missing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Need(NamedTuple):
    """A package that anatune or one of its extras requires. Immutable."""

    name: str
    """Name of the distribution, in lower case with hyphens: "scikit-learn"."""
    specifier: str
    """Accepted versions: ">=0.60", "" for any."""
    extras: str = ""
    """Requested extras of that package, separated by commas: "binary"."""

    def __str__(self) -> str:
        """Return the requirement as pip reads it."""
        return f"{self.name}{f'[{self.extras}]' if self.extras else ''}{self.specifier}"


_EXTRA = r"""extra\s*==\s*['"]([\w.-]+)['"]"""
"""Regular expression for the extra in a requirement's marker."""


def pip_line(extra: str) -> str:
    """Return the command that installs the packages of one of anatune's extras.

    The command lists the packages themselves, so that it works for a clone, a wheel and a folder on the path. If
    neither metadata nor a checkout lists them, the command installs the extra from a clone.
    """
    packages = needs().get(extra)
    if not packages:
        return f"pip install '.[{extra}]' in a clone of anatune"
    return f"pip install {' '.join(shlex.quote(str(need)) for need in packages)}"


def needs() -> dict[str, list[Need]]:
    """Return the required packages of each extra; "" holds those that are always required.

    An extra that names other extras of anatune holds their packages, too. The result is empty if neither metadata nor a
    checkout lists them.
    """
    texts: dict[str, list[str]] = {}
    for extra, text in _list_applicable():
        texts.setdefault(extra, []).append(text)
    return {extra: list(dict.fromkeys(_expand_extra(extra, texts))) for extra in texts}


def read_project() -> dict[str, Any] | None:
    """Return the table ``[project]`` of the checkout's pyproject.toml, or None outside a checkout."""
    try:
        import tomllib

        text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
        project = tomllib.loads(text)["project"]
        assert project["name"] == "anatune"  # otherwise it belongs to a project that contains a copy of the package
        return dict(project)
    except (ImportError, OSError, ValueError, KeyError, AssertionError):
        return None


def _expand_extra(extra: str, texts: Mapping[str, list[str]]) -> Iterator[Need]:
    for text in texts.get(extra, ()):
        name, names, specifier = _split_requirement(text)
        if name == "anatune":
            for other in names:
                yield from _expand_extra(other, texts)
        else:
            yield Need(name, specifier, ",".join(names))


def _split_requirement(text: str) -> tuple[str, list[str], str]:
    """Return the name, the extras in brackets and the versions of a requirement without marker."""
    match = re.match(r"\s*([\w.-]+)\s*(?:\[([^\]]*)\])?\s*\(?([^;)]*)\)?", text)
    if match is None:
        return text.strip(), [], ""
    names = [name.strip() for name in (match[2] or "").split(",") if name.strip()]
    return re.sub(r"[-_.]+", "-", match[1]).lower(), names, match[3].replace(" ", "")


def _list_applicable() -> Iterator[tuple[str, str]]:
    """Yield (extra, requirement) for each requirement that applies to this interpreter and system."""
    for text in _read_requirements():
        requirement, _, marker = text.partition(";")
        extra = re.search(_EXTRA, marker)
        if _applies(marker, extra[1] if extra else ""):
            yield (extra[1] if extra else ""), requirement


def _read_requirements() -> list[str]:
    """Return the requirements that the checkout or else the installed metadata states."""
    project = read_project()
    if project is None:
        from importlib import metadata

        try:
            return metadata.requires("anatune") or []
        except metadata.PackageNotFoundError:
            return []
    stated = list(project["dependencies"])
    for extra, texts in project["optional-dependencies"].items():
        for text in texts:
            requirement, _, marker = text.partition(";")
            condition = f"({marker}) and " if marker.strip() else ""
            stated.append(f'{requirement}; {condition}extra == "{extra}"')
    return stated


def _applies(marker: str, extra: str) -> bool:
    """Return whether a marker applies here; without the package packaging only markers of an extra's name alone do."""
    if not marker.strip():
        return True
    try:
        from packaging.markers import Marker
    except Exception:  # noqa: BLE001 - a broken package may raise anything; it is reported where it is needed
        return re.fullmatch(rf"\s*{_EXTRA}\s*", marker) is not None
    return bool(Marker(marker).evaluate({"extra": extra}))
