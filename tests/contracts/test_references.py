"""Every source that a docstring or comment cites as ``Source: [Key]`` is in ``anatune/references.toml``."""

import re
from pathlib import Path

import msgspec

import anatune

PACKAGE = Path(anatune.__file__).parent
REFERENCES = msgspec.toml.decode((PACKAGE / "references.toml").read_text())
_SENTENCE = re.compile(r"Source: (.*?)(?:\"\"\"|\n\s*\n|\n\s*(?:Deviates|Notation|[A-Z]\w+\n\s*-{3,}))", re.DOTALL)
_KEY = re.compile(r"(?<![\w\[])\[([A-Za-z][\w-]*)\]")


def cited():
    """Return (key, file) of every citation."""
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        for sentence in _SENTENCE.findall(text):
            found |= {(key, path.relative_to(PACKAGE).as_posix()) for key in _KEY.findall(sentence)}
    return sorted(found)


def test_cited_sources_are_known():
    assert len(cited()) > 5
    unknown = [f"{place} cites [{key}]" for key, place in cited() if key not in REFERENCES]
    assert not unknown, "add them to anatune/references.toml"


def test_references_are_complete():
    for key, reference in REFERENCES.items():
        given = set(reference)
        assert {"title", "authors", "year"} <= given <= {"title", "authors", "year", "venue", "doi", "url", "note"}, key
        assert given & {"doi", "url", "note"}, key
