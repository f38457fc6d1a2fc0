"""The frame of all pages in a real browser: tables, sliders, themes, and what people and files may have written."""

import pytest

from anatune.pages.page import Column, Facts, Figure, Page, Section, Slider, Sliders, Table
from anatune.plots.theme import graph_objects, new_figure
from tests.e2e.pages.looks import flaws

expect = pytest.importorskip("playwright.sync_api").expect

EVIL = "<script>document.title = 'taken'</script><img src='http://example.invalid/x.png' onerror='document.title=1'>"


def small_page():
    figure = new_figure("Time of some tiles", "tile (elements)", "time (us)")
    figure.add_trace(graph_objects().Scatter(x=[1, 2, 4], y=[30.0, 20.0, 25.0], mode="markers", name="tiles"))
    rows = [("first", 12.5, 3), (EVIL, 1.25, 20), ("third", None, 100), ("fourth", 9.0, 4)]
    table = Table((Column("name", True), Column("time (us)"), Column("blocks")), rows, "A table", marked=[1])
    sliders = Sliders(
        [
            Slider(
                name, ("half", "as it is", "twice"), 1, [Facts([("time", f"{name} {one}", "")]) for one in (2, 1, 3)]
            )
            for name in ("bandwidth", "cores")
        ]
    )
    return Page(
        f"A page of {EVIL}",
        [
            Section("Numbers", ["Words before them."], [Facts([("time", "12 us", "predicted"), ("peak", "80 %", "")])]),
            Section("Pictures", ["A figure."], [Figure(figure)], [EVIL, "another point"]),
            Section("Tables", [], [table]),
            Section("What if", [], [sliders]),
        ],
        ["What it is about."],
        "made by a test",
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "page.html"
    small_page().write(path)
    return path


def test_the_page_looks_right_and_what_others_wrote_is_text(open_page, path):
    page = open_page(path)
    assert page.title() == f"A page of {EVIL}"
    assert EVIL in page.locator("h1").inner_text()
    assert flaws(page) == []


def test_tables_sort_and_filter(open_page, path):
    page = open_page(path)
    first = page.locator("tbody tr td:first-child")
    title = page.locator("th", has_text="time (us)").locator(".dt-column-title")
    title.click()
    expect(first).to_have_text([EVIL, "fourth", "first", "third"])
    title.click()
    expect(first).to_have_text(["third", "first", "fourth", EVIL])
    page.get_by_role("searchbox").first.fill("four")
    expect(first).to_have_text(["fourth"])
    page.get_by_role("searchbox").first.fill("")
    page.locator("th", has_text="blocks").locator("button[aria-haspopup]").click()
    page.locator(".dtcc-dropdown select").select_option("greater")
    page.locator(".dtcc-dropdown input").fill("10")
    expect(first).to_have_text(["third", EVIL])


def test_one_slider_moves_at_a_time_and_the_theme_can_be_chosen(open_page, path):
    page = open_page(path)
    shown = page.locator(".answer:not([hidden]) dd")
    assert shown.all_inner_texts() == ["bandwidth 1"]
    page.get_by_label("bandwidth").fill("2")
    assert shown.all_inner_texts() == ["bandwidth 3"]
    page.get_by_label("cores").fill("0")
    assert shown.all_inner_texts() == ["cores 2"]
    assert page.locator(".stop:not([hidden])").all_inner_texts() == ["as it is", "half"]
    papers = [page.evaluate("getComputedStyle(document.body).backgroundColor")]
    for name in ("light", "dark"):
        page.locator("#theme").click()
        assert page.locator("#theme-name").inner_text() == name
        papers.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert papers[0] == papers[1] != papers[2]


@pytest.mark.slow
def test_scripts_and_addresses_of_others_are_refused(browser, path):
    page = browser.new_page()
    came = []
    page.on("response", lambda response: came.append(response.url))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready=yes]", state="attached")
    before, title = list(came), page.title()
    with page.expect_event("requestfailed") as failed:
        page.evaluate(
            """() => {
              const script = document.createElement("script");
              script.textContent = "document.title = 'taken'";
              const image = document.createElement("img");
              image.src = "http://example.invalid/x.png";
              document.body.append(script, image);
            }"""
        )
    assert failed.value.failure == "csp"
    assert page.evaluate("fetch('http://example.invalid/').then(() => 'came', () => 'refused')") == "refused"
    assert page.title() == title
    assert came == before
    page.close()
