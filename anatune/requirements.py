"""What anatune asks of other packages, by its metadata, and the line that installs what is missing of it.

Nothing is imported that anatune does not bring along: this is read where a package is missing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple


class Need(NamedTuple):
    """A package that anatune, or one of its extras, asks for. Immutable."""

    name: str
    """Of the distribution, in lower case with hyphens: "scikit-learn"."""
    specifier: str
    """Versions that do: ">=0.60", "" for any."""
    extras: str = ""
    """Of its own that are asked for, with commas: "binary"."""

    def __str__(self) -> str:
        """Return what pip reads."""
        return f"{self.name}{f'[{self.extras}]' if self.extras else ''}{self.specifier}"


_EXTRA = r"""extra\s*==\s*['"]([\w.-]+)['"]"""
"""Part of a requirement's marker."""


def pip_line(extra: str) -> str:
    """Return the command that installs what an extra of anatune asks for.

    It names the packages themselves, so that it works wherever anatune came from: a clone, a wheel, a folder on the
    path. Where neither metadata nor a checkout tell them, it is that of a clone.
    """
    wanted = needs().get(extra)
    if not wanted:
        return f"pip install '.[{extra}]' in a clone of anatune"
    return f"pip install {' '.join(shlex.quote(str(need)) for need in wanted)}"


def needs() -> dict[str, list[Need]]:
    """Return what anatune asks for, by extra; "" is what it always needs. {}: neither metadata nor a checkout tell.

    Extras that name others of anatune's hold what these hold.
    """
    texts: dict[str, list[str]] = {}
    for extra, text in _requirements():
        texts.setdefault(extra, []).append(text)
    return {extra: list(dict.fromkeys(_expanded(extra, texts))) for extra in texts}


def read_project() -> dict[str, Any] | None:
    """Return what the checkout's pyproject.toml says of the project; None where there is no checkout."""
    try:
        import tomllib

        text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
        project = tomllib.loads(text)["project"]
        assert project["name"] == "anatune"  # else it is the pyproject.toml of whoever copied the package
        return dict(project)
    except (ImportError, OSError, ValueError, KeyError, AssertionError):
        return None


def _expanded(extra: str, texts: Mapping[str, list[str]]) -> Iterator[Need]:
    for text in texts.get(extra, ()):
        name, names, specifier = _parts(text)
        if name == "anatune":
            for other in names:
                yield from _expanded(other, texts)
        else:
            yield Need(name, specifier, ",".join(names))


def _parts(text: str) -> tuple[str, list[str], str]:
    """Return the name, the extras in brackets and the versions of a requirement without its marker."""
    found = re.match(r"\s*([\w.-]+)\s*(?:\[([^\]]*)\])?\s*\(?([^;)]*)\)?", text)
    if found is None:
        return text.strip(), [], ""
    names = [name.strip() for name in (found[2] or "").split(",") if name.strip()]
    return re.sub(r"[-_.]+", "-", found[1]).lower(), names, found[3].replace(" ", "")


def _requirements() -> Iterator[tuple[str, str]]:
    """Yield (extra, requirement) of those that apply to this interpreter and system."""
    for text in _stated():
        requirement, _, marker = text.partition(";")
        extra = re.search(_EXTRA, marker)
        if _applies(marker, extra[1] if extra else ""):
            yield (extra[1] if extra else ""), requirement


def _stated() -> list[str]:
    """Return the requirements of the checkout around the package, else those of the installation's metadata."""
    project = read_project()
    if project is None:
        try:
            return metadata.requires("anatune") or []
        except metadata.PackageNotFoundError:
            return []
    stated = list(project["dependencies"])
    for extra, texts in project["optional-dependencies"].items():
        for text in texts:
            requirement, _, marker = text.partition(";")
            also = f"({marker}) and " if marker.strip() else ""
            stated.append(f'{requirement}; {also}extra == "{extra}"')
    return stated


def _applies(marker: str, extra: str) -> bool:
    """Whether a marker holds here; without the package packaging none but an extra's name is taken to."""
    if not marker.strip():
        return True
    try:
        from packaging.markers import Marker
    except Exception:  # noqa: BLE001 - a broken package may raise anything, and is told of where it is asked for
        return re.fullmatch(rf"\s*{_EXTRA}\s*", marker) is not None
    return bool(Marker(marker).evaluate({"extra": extra}))
