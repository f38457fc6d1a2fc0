"""``anatune configs --html`` from the shell, and its page in a real browser."""

import pytest

from anatune.pages.page import MOST_BYTES
from tests.e2e.pages.looks import flaws

expect = pytest.importorskip("playwright.sync_api").expect

pytestmark = pytest.mark.slow

EXPERTS = ("--experts", 128, "--intermediate", 768, "--hidden", 2048, "--top-k", 8)


def test_files_are_a_page_that_looks_right(anatune, open_page, tmp_path):
    path = tmp_path / "page.html"
    words = ("configs", "sglang", "--hw", "h200", *EXPERTS, "--down", "--triton-version", "3.6.0")
    done = anatune(*words, "-o", tmp_path / "out", "--html", path)
    assert done.returncode == 0, done.stderr
    assert path.stat().st_size <= MOST_BYTES
    page = open_page(path)
    assert page.locator("h1").inner_text() == "SGLang's configurations on h200"
    assert page.locator("figure").count() == 4
    assert flaws(page) == []
    table = page.locator(".table", has=page.locator("th", has_text="bound (us)")).first
    assert table.locator("tbody tr").count() == 18
    rows = table.locator("tbody tr").all_inner_texts()
    assert rows[0].split()[0] == "1"
    assert rows[-1].split()[0] == "4096"
    expect(page.locator("body")).to_contain_text("How reliable these numbers are")
