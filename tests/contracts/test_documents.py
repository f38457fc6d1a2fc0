"""Lines of code in README.md and docs/ fit the pages of the site; tests/e2e/pages/test_site.py sees it in a browser."""

import re

import pytest

from tests.documents import PAGES

MOST_CHARACTERS = 122
"""The longest line of code that a page 1280 pixels wide shows whole."""


def code_lines(text):
    """Yield number and text of each line in a fence, or indented by four spaces as Markdown's code is."""
    fence = ""
    for number, line in enumerate(text.splitlines(), start=1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
        elif fence:
            yield number, line
        elif line.startswith("    "):
            yield number, line[4:]


def too_long(text):
    """Return the numbers of lines of code that are wider than a page."""
    return [number for number, line in code_lines(text) if len(line) > MOST_CHARACTERS]


@pytest.mark.skipif(len(PAGES) < 2, reason="an installed package has no documents beside it")
def test_lines_of_code_fit_a_page():
    assert {path.name: too_long(path.read_text()) for path in PAGES if too_long(path.read_text())} == {}


def test_long_lines_are_seen_in_fences_and_indented_but_not_in_paragraphs():
    fits, long = "x" * MOST_CHARACTERS, "x" * (MOST_CHARACTERS + 1)
    page = f"{long}\n```sh\n{fits}\n{long}\n```\n    {fits}\n    {long}\n~~~~\n{long}\n```\n~~~~\n{long}\n"
    assert too_long(page) == [4, 7, 9]
