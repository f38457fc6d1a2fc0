"""``anatune plan --html`` and ``anatune prune --html`` from the shell, and their pages in a real browser."""

import json
import re

import pytest

from anatune.pages.page import MOST_BYTES
from tests.e2e.pages.looks import SIZES, flaws

expect = pytest.importorskip("playwright.sync_api").expect

pytestmark = pytest.mark.slow

PLANS = {"gpu": "rtx3090", "cpu": "xeon_gold_6230r"}


@pytest.fixture(scope="module")
def pages(anatune, tmp_path_factory):
    """Return the files of pages, each made once: ``pages("gpu")``."""
    folder, made = tmp_path_factory.mktemp("pages"), {}

    def page(kind):
        if kind not in made:
            made[kind] = path = folder / f"{kind}.html"
            done = anatune("plan", "--hw", PLANS[kind], "matmul", "64x64x64", "--html", path)
            assert done.returncode == 0, done.stderr
            assert done.stderr.splitlines()[-1].startswith(f"page: {path}, ")  # behind lines of progress, if any
            assert path.stat().st_size <= MOST_BYTES
        return made[kind]

    return page


@pytest.mark.parametrize("kind", PLANS)
def test_a_plan_is_a_page_that_looks_right(open_page, pages, kind):
    page = open_page(pages(kind))
    assert page.locator("h1").inner_text() == f"matmul 64 x 64 x 64 float32 on {PLANS[kind]}"
    assert page.locator("figure").count() >= 7
    assert tallest_row(page) < 100
    assert flaws(page) == []


def tallest_row(page):
    """Return pixels: words that are broken into many short lines make rows tall."""
    return page.evaluate("Math.max(...Array.from(document.querySelectorAll('tbody tr'), (row) => row.offsetHeight))")


_SEEN = """(cell) => {
  const box = cell.getBoundingClientRect(), frame = cell.closest(".dt-layout-table").getBoundingClientRect();
  return [box.left - frame.left, box.right - frame.right];
}"""


@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize("size", SIZES)
def test_schedules_are_seen_without_scrolling_sideways(open_page, pages, kind, size):
    page = open_page(pages(kind))
    page.set_viewport_size(dict(zip(("width", "height"), SIZES[size], strict=True)))
    table = page.locator(".table", has=page.locator("th", has_text="bound by"))
    at = table.locator("th .dt-column-title").all_inner_texts().index("schedule") + 1
    cell = table.locator(f"tbody tr td:nth-child({at})").first
    assert "=" in cell.inner_text()
    left, right = cell.evaluate(_SEEN)
    assert left >= 0
    assert right <= 0
    if size == "wide":  # and so is all the rest, but for what "All columns" shows
        wide, within = table.locator("table").evaluate("node => [node.offsetWidth, node.parentElement.clientWidth]")
        assert wide <= within


_MEETS = """(figure) => {
  const bar = figure.querySelector(".modebar").getBoundingClientRect();
  const others = [figure.querySelector(".legend"), figure.querySelector("figcaption")].filter(Boolean);
  return others.filter((node) => {
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    return box.left < bar.right && bar.left < box.right && box.top < bar.bottom && bar.top < box.bottom;
  }).map((node) => node.textContent);
}"""


@pytest.mark.parametrize("kind", PLANS)
def test_toolbars_of_figures_lie_beside_legends(open_page, pages, kind):
    page = open_page(pages(kind))
    for figure in page.locator("figure").all():
        figure.scroll_into_view_if_needed()
        figure.hover()
        expect(figure.locator(".modebar")).to_be_visible()
        assert figure.evaluate(_MEETS) == []


def times(page):
    table = page.locator("table", has=page.locator("th", has_text="bound by"))
    return [float(text) for text in table.locator("tbody tr td:nth-child(3)").all_inner_texts()]


def test_a_plan_can_be_asked(open_page, pages):
    page = open_page(pages("gpu"))
    table = page.locator(".table", has=page.locator("th", has_text="bound by"))
    assert times(page) == sorted(times(page))
    title = table.locator("th", has_text="time (").locator(".dt-column-title")
    title.click()
    title.click()
    expect(table.locator("th", has_text="time (")).to_have_attribute("aria-sort", "descending")
    table.get_by_role("searchbox").fill("no such schedule")
    expect(table.locator("tbody")).to_contain_text("No matching records")
    table.get_by_role("searchbox").fill("")
    assert table.locator("th", has_text="threads").count() == 0
    table.get_by_role("button", name="All columns").click()
    table.locator("th", has_text="threads").locator("button[aria-haspopup]").click()
    page.locator(".dtcc-dropdown select").select_option("less")
    page.locator(".dtcc-dropdown input").fill("64")
    at = table.locator("th .dt-column-title").all_inner_texts().index("threads") + 1
    expect(table.locator(f"tbody tr td:nth-child({at})").first).to_have_text(re.compile(r"^(1|2|4|8|16|32)$"))
    # sliders
    answer = page.locator(".answer:not([hidden])")
    now = answer.inner_text()
    assert "unchanged" in now
    page.get_by_label("SMs").fill("0")
    expect(answer).to_contain_text("best time with SMs of 41")
    assert answer.inner_text() != now
    page.get_by_label("DRAM bandwidth").fill("5")
    expect(answer).to_contain_text("3.744 TB/s")
    assert page.get_by_label("SMs").input_value() == "2"
    # unverified numbers
    table = page.locator(".table", has=page.locator("th", has_text="verified"))
    marked = table.locator("tr.marked td:first-child").all_inner_texts()
    assert "l2.bandwidth_bytes_per_s" in marked
    assert set(table.locator("tr.marked td:nth-child(3)").all_inner_texts()) == {"unverified"}


def test_what_is_kept_is_a_page(anatune, open_page, tmp_path):
    path = tmp_path / "kept.html"
    words = ["prune", "--hw", "xeon_gold_6230r", "matmul", "64x64x64", "--keep", "50", "--json", "--html", path]
    done = anatune(*words)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["schedules"]) == 50
    page = open_page(path)
    assert flaws(page) == []
    expect(page.locator("body")).to_contain_text("50 of ")
    expect(page.locator(".table .dt-info")).to_contain_text("of 50 entries")
