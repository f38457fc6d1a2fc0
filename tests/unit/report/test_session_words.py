import dataclasses

from anatune.core.trial import Measurement, Outcome
from anatune.report.session_words import (
    comparison_sentences,
    drift_sentences,
    failure_sentences,
    place_text,
    report_lines,
    session_facts,
)
from anatune.report.sessions import session_views
from anatune.report.text import join_lines
from tests.unit.report.recorded import ran, recorded, session_of, usual


def view_of(records):
    (view,) = session_views(records)
    return view


def test_the_numbers_that_come_first():
    facts = {what: (value, remark) for what, value, remark in session_facts(view_of(usual()))}
    assert facts["best"][0].startswith("1.50")
    assert facts["best against the plan's first choice"][0].startswith("1.33")
    assert facts["predicted time of the best"] == ("900.0 us", "the measured time is 1.67 times that")
    assert facts["trials"] == ("8 in 16.00 s", "2 failed")
    lost = recorded(session_of(), [Measurement(Outcome.RUN_ERROR, "crash")])
    facts = session_facts(view_of(lost))
    assert facts[0] == ("best", "no trial ran successfully", "1 failed")


def test_the_end_in_words():
    text = " ".join(comparison_sentences(view_of(usual())))
    assert "trial 2 won with 1.5" in text
    assert "8 samples): trial 6." in text
    assert "Trial 0 (the plan's first choice) takes 1.33" in text
    assert "without a final comparison" in comparison_sentences(view_of(usual()[:8]))[0]


def test_drift_in_words():
    slower = [ran(1e-3, reference_s=1e-4 if at < 6 else 1.2e-4) for at in range(12)]
    text = " ".join(drift_sentences(view_of(recorded(session_of(), slower))))
    assert "ran 20 % slower than the first" in text
    bare = Measurement(Outcome.OK, times_s=(1e-3,))
    assert "No reference kernel" in drift_sentences(view_of(recorded(session_of(), [bare])))[0]


def test_failures_in_words():
    (text,) = failure_sentences(view_of(usual()))
    assert text.startswith("2 build_error: error: <script>")
    assert "more lines" not in text


def test_the_report_has_a_heading_for_each_place():
    views = session_views([*usual("a"), *usual("b", "bayes")])
    text = join_lines(report_lines(views))
    assert text.count(place_text(views[0])) == 1
    assert "session aaaaaaaa model, begun 2026-11-22 12:00:00 UTC" in text
    assert "session bbbbbbbb bayes" in text
    assert max(map(len, text.splitlines())) <= 80


def test_energy_is_told_where_it_was_counted():
    view = view_of(recorded(session_of(), [ran(1e-3, energy_j=0.05)]))
    assert ("energy of one run of the best", "50.00 mJ", "of the whole device") in session_facts(view)
    in_all = dataclasses.replace(view, energy_j=30.0, ended="interrupted")
    assert (
        "energy of one run of the best",
        "50.00 mJ",
        "of the whole device; 30.00 J for the session",
    ) in session_facts(in_all)
    assert session_facts(in_all)[-1][2] == "all of them ran; interrupted"
