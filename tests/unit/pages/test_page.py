"""What the file of a page holds; how it looks in a browser: tests/e2e/pages."""

import re

import pytest

from anatune.errors import MissingDependencyError
from anatune.pages.page import MOST_BYTES, Column, Facts, Figure, Page, Section, Table
from anatune.plots.theme import graph_objects, new_figure
from tests.wording import refuses


def a_page(text="words"):
    figure = new_figure(f"A figure of {text}")
    figure.add_trace(graph_objects().Bar(x=[1.0], y=[text], orientation="h"))
    table = Table([Column("name", True), Column("time (us)")], [(text, 1.5), ("none", None)])
    return Page(
        text, [Section(text, [text], [Figure(figure), table, Facts([(text, text, text)])], [text])], [text], text
    )


def test_every_text_is_escaped():
    evil = "</script><script>alert(1)</script><!--"
    text = a_page(evil).html()
    assert "alert(1)</script><!--" not in text
    assert text.count("&lt;script&gt;alert(1)") >= 8


def test_the_same_page_is_the_same_file():
    assert a_page().html() == a_page().html()


def test_a_page_names_no_address_to_fetch():
    text = a_page().html()
    head, scripts = text[: text.index("<script")], text.count("<script")
    assert re.findall(r"(?:src|href)=[^ >]*", re.sub(r"<script.*?</script>", "", text, flags=re.S)) == ['href="#s1"']
    assert "url(http" not in head
    assert "default-src 'none'" in head
    assert scripts - text.count("<script>") == text.count('<script type="application/json"') == 2


def test_a_page_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "page.html"
    a_page().write(path)
    assert 0 < path.stat().st_size <= MOST_BYTES
    with pytest.raises(OSError, match="No such file"):
        a_page().write(tmp_path / "none" / "page.html")
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]


def test_the_extra_is_named_where_a_package_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    with refuses(MissingDependencyError):
        a_page().html()


def test_cells_are_numbers_as_people_read_them():
    text = a_page().html()
    assert 'data-order="1.5">1.500</td>' in text
    assert 'data-order="1e300">–</td>' in text


def test_long_times_are_told_in_ms():
    columns = [Column("name", True), Column("predicted (us)"), Column("calls"), Column("bound (us)")]
    rows = [("a", 78070.0, 20000, 12.0), ("b", 1.5, 3, None), ("c", float("inf"), 3, 4)]
    table = Table(columns, rows)
    assert [column.name for column in table.columns] == ["name", "predicted (ms)", "calls", "bound (ms)"]
    assert table.rows == [("a", 78.07, 20000, 0.012), ("b", 0.0015, 3, None), ("c", float("inf"), 3, 0.004)]
    assert Table(columns, rows[1:]).rows == rows[1:]


def test_the_menu_of_lengths_has_the_tables_own():
    text = a_page().html()
    assert "new Set([10, 25, 100, Number(table.dataset.rows)])" in text
    assert 'data-rows="10"' in text
