"""The site of docs/ is built without a warning, and opens from a disk in a browser without a network."""

import os
import re
import subprocess
import sys

import pytest

from tests.documents import ROOT

pytestmark = pytest.mark.slow

MOST_BYTES = 8_000_000
"""Of a page with nothing left out."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install -e '.[dev]'")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_pages_open_without_a_network(site, browser):
    complaints = []
    context = browser.new_context(offline=True, viewport={"width": 375, "height": 800})
    page = context.new_page()
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda asked: complaints.append(asked.url) if is_outside(asked.url) else None)
    pages = sorted(set(site.rglob("*.html")) - {site / "404.html"})  # that one is for servers
    assert len(pages) > 30
    for path in pages:
        assert path.stat().st_size < MOST_BYTES
        assert "[[anatune." not in path.read_text(), f"{path}: a constant that is not there"
        page.goto(path.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 375, f"{path} is wider than a telephone"
    context.close()
    assert not complaints


def test_parameters_that_share_a_description_have_types_of_their_own(site):
    page = (site / "reference" / "python.html").read_text()

    def words(name):
        part = page[page.index(f'id="{name}"') :][:40_000]
        return " ".join(re.sub(r"<[^>]+>", " ", part).split())

    assert re.search(r"\bhw HardwareLike\b", words("anatune.plan"))
    assert re.search(r"\bcorrection str \| Path\b", words("anatune.predict"))
    text = re.sub(r"<[^>]+>", "", page[page.index('id="anatune.plan"') :][:40_000])
    assert re.search(r"plan\(\n +workload,\n +hw,\n", text)  # a formatter has broken the signature into lines


_CUT = """() => Array.from(document.querySelectorAll(".md-content pre > code"))
  .filter((code) => code.scrollWidth > code.clientWidth + 1)
  .map((code) => [code.closest(".highlight")?.className || "", getComputedStyle(code).overflowX, code.textContent])"""


@pytest.mark.parametrize("width", [1280, 375])
def test_code_and_drawings_are_not_cut(site, browser, width):
    """On a wide page every line is seen whole, on a narrow one lines go on below; drawings and output scroll there."""
    page = browser.new_page(viewport={"width": width, "height": 900})
    for path in sorted(site.rglob("*.html")):
        page.goto(path.as_uri())
        for kind, overflow, text in page.evaluate(_CUT):
            assert width < 1280, f"{path}: {text[:300]}"
            assert overflow == "auto", f"{path}: {text[:300]}"
            assert "language-text" in kind or "language-console" in kind, f"{path}: {text[:300]}"
    page.goto((site / "index.html").as_uri())  # what everybody sees first does not even scroll
    assert page.evaluate(_CUT) == []
    page.close()


def test_readers_do_not_see_what_tests_do(site):
    for path in site.rglob("*.html"):
        shown = re.sub(r"<!--.*?-->", "", path.read_text(), flags=re.DOTALL)
        assert not re.search(r"[Tt]ests (run this|only parse|have this)", shown), path


def test_the_search_finds(site, browser):
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    page.fill("input.md-search__input", "occupancy")
    page.wait_for_selector(".md-search-result__link", timeout=60_000)
    page.close()


def is_outside(url):
    return not url.startswith(("file:", "data:", "blob:", "about:"))
