import pytest

import anatune
from anatune.core.trial import Measurement, Outcome, Trial
from anatune.model.bound import TimeBound
from anatune.report.sessions import best_so_far, session_views
from anatune.tuning.result import TuningResult
from tests.unit.records.making import CPU, MATMUL, schedule
from tests.unit.report.recorded import ran, recorded, session_of, usual


def only(given):
    (view,) = session_views(given)
    return view


def test_records_are_a_session_with_its_comparison_and_its_seconds():
    view = only(usual())
    assert [trial.number for trial in view.trials] == list(range(8))
    assert view.ended_s == pytest.approx([2.0 * count for count in range(1, 9)])
    assert (view.plan_first.number, view.best.number, view.comparison.best) == (0, 2, 2)
    assert view.comparison.speedup == pytest.approx(4 / 3, rel=1e-2)
    assert view.best_s == pytest.approx(1.5e-3, rel=1e-2)
    assert (view.name, view.num_failed, view.shares) == ("aaaaaaaa model", 2, ())


def test_pauses_of_a_resumed_session_do_not_count():
    records = recorded(session_of(), [ran(1e-3)] * 3, every_s=2.0)
    late = recorded(session_of(), [ran(1e-3)] * 4, every_s=5000.0)
    view = only([*records, late[3]])
    assert view.ended_s == pytest.approx([2.0, 4.0, 6.0, 6.5])  # the trial itself took half a second


def test_what_was_imported_has_no_seconds():
    assert only(recorded(session_of(imported="log.json"), [ran(1e-3)])).ended_s is None


def test_sessions_of_one_list_are_told_apart():
    views = session_views([*usual("a"), *usual("b", "bayes")])
    assert [view.name for view in views] == ["aaaaaaaa model", "bbbbbbbb bayes"]
    assert [view.ended_s for view in session_views(views)] == [view.ended_s for view in views]


def test_a_result_has_the_seconds_of_its_trials():
    trials = [record.trial for record in usual()[:8]]
    result = TuningResult(MATMUL, CPU, 1, "model", 0, trials, trials[2], trials[0])
    view = only(result)
    assert view.ended_s[-1] == pytest.approx(6 * 0.5 + 2 * 0.2)
    assert view.comparison is None
    assert view.best_s == pytest.approx(trials[2].measurement.time_s, rel=1e-2)
    alone = only(trials)
    assert (alone.best.number, alone.plan_first.number) == (2, 0)


def test_nothing_and_failures_alone_are_sessions_too():
    assert session_views([]) == []
    lost = Trial(schedule(1), Measurement(Outcome.RUN_TIMEOUT, "too long"))
    view = only([lost])
    assert (view.best, view.best_s, view.comparison, view.num_failed) == (None, None, None, 1)
    assert best_so_far(view.trials) == [None]


def test_the_best_so_far_is_judged_beside_the_reference():
    slow_machine = ran(2e-3, reference_s=3e-4)
    trials = [Trial(schedule(1), ran(1e-3)), Trial(schedule(2), slow_machine, 1)]
    assert best_so_far(trials) == trials  # twice the time, but the machine took thrice its own
    view = only(trials)
    times = [trial.measurement.time_s for trial in best_so_far(view.trials)]
    assert times == pytest.approx([1e-3, 2e-3 / 3], rel=1e-2)  # as the page and the chart tell it
    assert view.references_s == (trials[0].measurement.reference_times_s, slow_machine.reference_times_s)


def test_the_bound_is_that_of_tuning():
    workload = anatune.matmul(1024, 1024, 1024)
    view = only(recorded(session_of(workload=workload), [ran(1e-3)]))
    assert view.bound.time_s == pytest.approx(workload.flop / CPU.with_threads(1).peak_flop_per_s("float32"))
    told = TimeBound(1e-9, "l2")
    assert only(TuningResult(MATMUL, CPU, 1, "model", 0, [], None, None, bound=told)).bound == told


def test_sessions_of_one_name_are_told_apart():
    view = only(usual())
    assert [one.name for one in session_views([view, view])] == ["aaaaaaaa model", "aaaaaaaa model (2)"]
