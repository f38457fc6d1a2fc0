from anatune.pages.page import Facts, Figure, Table
from anatune.servers.page import configs_page
from tests.unit.servers.written import REQUEST, written


def contents(page, number, kind):
    return [one for one in page.sections[number].content if isinstance(one, kind)]


def test_each_file_has_a_section():
    page = configs_page(REQUEST, written())
    assert page.title == "vLLM's configurations on h200"
    assert "nothing was measured" in page.lead[0]
    assert [one.heading for one in page.sections] == [
        "64 experts of 1024", "Product with weights 1536 x 7168", "How reliable these numbers are",
        "Where to put the files, and which kernels do not read them", "Where the numbers come from",
    ]  # fmt: skip
    (facts,) = contents(page, 0, Facts)
    assert ("gain over the default", "25 %", "median; 50 % at most") in facts.items
    (table,) = contents(page, 0, Table)
    assert [len(row) for row in table.rows] == [len(table.columns)] * 3
    assert "measured (us)" not in [column.name for column in table.columns]
    assert table.rows[1][4:7] == ("16×64×128", None, None)
    words = contents(page, 0, Figure)[0].words
    assert not any(one.words.endswith(".") for one in contents(page, 0, Figure))
    assert "launches (1 row); bytes that have to be read from DRAM (8 to 512 rows)" in words


def test_what_was_measured_and_what_failed():
    page = configs_page(REQUEST, written(measured=True))
    assert "were measured on it" in page.lead[0]
    (table,) = contents(page, 0, Table)
    assert [column.name for column in table.columns if "measured" in column.name] == [
        "measured (us)", "default measured (us)",
    ]  # fmt: skip
    assert table.marked == [1]
    assert page.sections[0].points == ["8 rows, not all tiles measured: build_error: ptxas says no"]
