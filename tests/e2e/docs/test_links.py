"""Relative links of files beside the site lead somewhere; those inside it are checked when it is built."""

import re

import pytest

import anatune
from tests.documents import ROOT

_LINK = re.compile(r"\]\(([^)\s]+)\)")
FILES = [*sorted(ROOT.glob("*.md")), ROOT / "bench" / "README.md"]


def headings(path):
    """Return the anchors of a page, as GitHub and mkdocs make them."""
    found = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in found}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    for link in _LINK.findall(path.read_text()):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        target, _, anchor = link.partition("#")
        place = path.parent / target if target else path
        assert place.exists(), f"{path.name} links to {link}, which is not there"
        assert not anchor or anchor in headings(place), f"{path.name} links to {link}: no such heading"


def test_the_reference_has_every_public_name():
    listed = re.findall(
        r"^::: anatune\.(?:\w+\.)*(\w+)$", (ROOT / "docs/reference/python.md").read_text(), re.MULTILINE
    )
    assert set(anatune.__all__) - {"__version__"} <= set(listed)


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 185
