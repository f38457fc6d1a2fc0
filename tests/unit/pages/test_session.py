import msgspec

import anatune
from anatune.core.trial import Measurement, Outcome
from anatune.pages.page import MOST_BYTES, Table
from anatune.pages.session import MOST_TRIALS, records_page, session_page
from anatune.tuning.result import TuningResult
from tests.unit.records.making import CONV, CPU, MATMUL
from tests.unit.report.recorded import ran, recorded, session_of, usual


def headings(page):
    return [section.heading for section in page.sections]


def tables(page):
    return [one for section in page.sections for one in section.content if isinstance(one, Table)]


def test_a_session_has_all_its_sections():
    page = session_page(usual())
    assert headings(page) == [
        "Summary", "How the best was found", "Final comparison", "Predicted against measured",
        "Why the winner is the fastest",
        "Failures", "The machine", "All trials",
    ]  # fmt: skip
    assert page.title == "Tuning matmul 64x48x32 on xeon_8124m, 1 thread"
    trials = tables(page)[-1]
    assert [len(row) for row in trials.rows] == [len(trials.columns)] * 8
    assert list(trials.marked) == [2]
    assert trials.columns[3].name == "time (ms)"


def test_sections_without_content_are_left_out():
    lost = recorded(session_of(), [Measurement(Outcome.RUN_ERROR, "crash")] * 3)
    assert headings(session_page(lost)) == [
        "Summary", "How the best was found", "Predicted against measured", "Failures", "The machine", "All trials",
    ]  # fmt: skip
    assert "Failures" not in headings(session_page(recorded(session_of(), [ran(1e-3)])))
    assert session_page([]).sections == []
    at_once = TuningResult(MATMUL, CPU, 1, "model", 0, [], None, None, ended="interrupted")
    assert headings(session_page(at_once))[0] == "Summary"


def test_several_sessions_are_compared():
    page = session_page([*usual("a"), *usual("b", "bayes")])
    sessions, *_, trials = tables(page)
    assert [row[0] for row in sessions.rows] == ["aaaaaaaa model", "bbbbbbbb bayes"]
    assert len(trials.rows) == 16
    assert trials.columns[0].name == "session"


def test_who_measured_is_a_section():
    page = session_page(recorded(session_of(), [ran(1e-3, worker=name) for name in ("a", "b", "a")]))
    assert headings(page)[-2] == "Measuring machines"
    assert [row[:2] for row in tables(page)[0].rows] == [("a", 2), ("b", 1)]


def test_records_of_several_workloads_have_an_overview():
    other = recorded(session_of("b", workload=CONV), [ran(3e-5), ran(2e-5)])
    page = records_page([*usual(), *other], source="tuning.sqlite")
    overview = tables(page)[0]
    assert [row[2] for row in overview.rows] == [8, 2]
    assert headings(page)[1:] == [row[0] for row in overview.rows]
    assert records_page(usual(), source="x.sqlite").footer.endswith("Records: x.sqlite.")
    assert records_page([]).sections == []


def test_pages_of_many_trials_are_thinned(monkeypatch):
    monkeypatch.setattr("anatune.pages.session.MOST_TRIALS", 100)
    many = recorded(session_of(), [ran(1e-3 + 1e-6 * (at % 90)) for at in range(350)])
    page = session_page(many)
    assert 85 <= len(tables(page)[-1].rows) <= 110
    assert "of 350 trials" in page.sections[0].words[0]


def test_no_page_of_trials_is_too_large():
    sizes = []
    for num in (10, 210):
        records = recorded(session_of(), [ran(1e-3 + 1e-6 * at, worker="some.machine.lab") for at in range(num)])
        sizes.append(len(session_page([*records, *usual("b")]).html()))
    assert sizes[0] + MOST_TRIALS * (sizes[1] - sizes[0]) / 200 < 0.95 * MOST_BYTES


def test_enough_schedules_show_their_space(monkeypatch):
    monkeypatch.setattr("anatune.pages.session.FEWEST_MEASURED", 8)
    plan = anatune.plan(MATMUL, CPU, top_k=10, threads=1)
    records = [
        msgspec.structs.replace(one, trial=msgspec.structs.replace(one.trial, schedule=made))
        for one, made in zip(recorded(session_of(), [ran(2e-6)] * 10), plan.schedules, strict=True)
    ]
    page = records_page(records)
    assert headings(page)[-3:-1] == ["Legal points", "Distribution of times"]
    assert "10 schedules were measured" in " ".join(page.sections[-2].words)
    assert "Legal points" not in headings(records_page(records[:5]))
    assert "Legal points" not in headings(session_page(records))
