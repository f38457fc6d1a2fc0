"""Pages of tuning sessions, of records and of compiled models in a real browser."""

import pytest

from anatune.network.pages.compiled import model_page
from anatune.pages.page import MOST_BYTES
from anatune.pages.session import records_page, session_page
from anatune.records.store import RecordStore
from tests.e2e.pages.looks import flaws
from tests.unit.records.making import CONV
from tests.unit.report.compiled import MEASURED, summary
from tests.unit.report.recorded import EVIL, ran, recorded, session_of, usual

expect = pytest.importorskip("playwright.sync_api").expect

pytestmark = pytest.mark.slow


def of_a_fleet():
    return recorded(session_of("c"), [ran(1e-3 + 1e-5 * at, worker=name) for at, name in enumerate(("a", EVIL, "a"))])


PAGES = {
    "session": lambda: session_page(usual()),
    "sessions": lambda: session_page([*usual("a"), *usual("b", "bayes"), *of_a_fleet()]),
    "records": lambda: records_page([*usual(), *recorded(session_of("d", workload=CONV), [ran(2e-5)])], source=EVIL),
    "model": lambda: model_page(summary(), MEASURED, name=EVIL),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Return the files of pages, each made once: ``pages("session")``."""
    folder = tmp_path_factory.mktemp("pages")

    def page(kind):
        path = folder / f"{kind}.html"
        if not path.exists():
            PAGES[kind]().write(path)
            assert path.stat().st_size <= MOST_BYTES
        return path

    return page


@pytest.mark.parametrize("kind", ["session", "sessions", "records", "model"])
def test_tables_need_no_scrolling_sideways_until_all_columns_are_asked_for(open_page, pages, kind):
    page = open_page(pages(kind))
    for table in page.locator("table.dataTable").all():
        wide, within = table.evaluate("node => [node.offsetWidth, node.parentElement.clientWidth]")
        assert wide <= within, table.inner_text()[:200]
    shown = page.locator("table.dataTable thead th").count()
    for button in page.locator("button.details").all():
        button.click()
    assert page.locator("table.dataTable thead th").count() > shown


@pytest.mark.parametrize("kind", ["sessions", "records", "model"])
def test_pages_look_right_and_what_others_wrote_is_text(open_page, pages, kind):
    page = open_page(pages(kind))
    assert page.title() != "taken"
    if kind == "model":
        assert EVIL in page.locator("h1").inner_text()
    assert flaws(page) == []


def test_trials_are_sorted_and_filtered(open_page, pages):
    page = open_page(pages("session"))
    table = page.locator(".table", has=page.locator("th", has_text="schedule or message"))
    first = table.locator("tbody tr td:first-child")
    table.locator("th", has_text="time (ms)").locator(".dt-column-title").click()
    expect(first).to_have_text(["2", "6", "4", "0", "1", "7", "3", "5"])  # failures last
    table.get_by_role("searchbox").fill("build_error")
    expect(first).to_have_text(["3", "5"])
    assert EVIL in table.locator("tbody td:nth-child(2)").first.inner_text()
    table.get_by_role("searchbox").fill("")
    table.locator("th", has_text="trial").first.locator("button[aria-haspopup]").click()
    page.locator(".dtcc-dropdown select").select_option("less")
    page.locator(".dtcc-dropdown input").fill("2")
    expect(first).to_have_text(["0", "1"])
    assert table.locator("tr.marked").count() == 0  # the winner is filtered away


def test_a_point_tells_its_trial(open_page, pages):
    page = open_page(pages("session"))
    figure = page.locator("figure").first
    figure.scroll_into_view_if_needed()
    figure.locator(".scatterlayer .trace").first.locator("path.point").nth(1).hover(force=True)
    expect(figure.locator(".hoverlayer")).to_contain_text("trial 1, proposed by model")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("records") / "tuning.sqlite"
    with RecordStore(path) as opened:
        opened.insert([*usual("a"), *usual("b", "bayes"), *recorded(session_of("d", workload=CONV), [ran(2e-5)])])
    return path


def test_records_are_reported_from_the_shell(anatune, open_page, store, tmp_path):
    path = tmp_path / "all.html"
    done = anatune("records", "report", store, "--html", path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"page: {path}, ")
    page = open_page(path)
    assert page.locator("h1").inner_text() == "Measurements"
    assert page.locator("h2").all_inner_texts()[1:] == [
        "matmul 64x48x32 on xeon_8124m, 1 thread", "conv2d 1x8x14x14 16x8x3x3 --padding 1 on xeon_8124m, 1 thread",
    ]  # fmt: skip
