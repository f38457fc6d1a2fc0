"""Every source that a docstring or comment cites as ``Source: [Key]`` is in ``anatune/references.toml``."""

import re
from pathlib import Path

import msgspec
import pytest

import anatune

PACKAGE = Path(anatune.__file__).parent
REFERENCES = msgspec.toml.decode((PACKAGE / "references.toml").read_text())
_SENTENCE = re.compile(r"Source: (.*?)(?:\"\"\"|\n\s*\n|\n\s*(?:Deviates|Notation|[A-Z]\w+\n\s*-{3,}))", re.DOTALL)
_KEY = re.compile(r"\[([A-Za-z][\w-]*)\]")


def cited():
    """Return (key, file) of every citation."""
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        for sentence in _SENTENCE.findall(text):
            found |= {(key, path.relative_to(PACKAGE).as_posix()) for key in _KEY.findall(sentence)}
    return sorted(found)


@pytest.mark.parametrize(("key", "place"), cited())
def test_cited_source_is_known(key, place):
    assert key in REFERENCES, f"{place} cites [{key}]; add it to anatune/references.toml"


def test_something_is_cited():
    assert len(cited()) > 5


@pytest.mark.parametrize("key", REFERENCES)
def test_reference_is_complete(key):
    reference = REFERENCES[key]
    assert {"title", "authors", "year"} <= set(reference) <= {"title", "authors", "year", "venue", "doi", "url", "note"}
    assert "doi" in reference or "url" in reference or "note" in reference
    assert isinstance(reference["authors"], list)
    assert 1950 <= reference["year"] <= 2100
    assert all(value for value in reference.values())
