import pytest

from anatune.core.trial import Measurement, Outcome
from anatune.errors import SpaceError
from anatune.plots.session import (
    plot_comparison,
    plot_convergence,
    plot_drift,
    plot_failures,
    plot_predictions,
    plot_workers,
)
from tests.unit.report.recorded import EVIL, ran, recorded, session_of, usual
from tests.wording import refuses

LOST = Measurement(Outcome.RUN_ERROR, "crash")


def named(figure):
    return {trace.name: trace for trace in figure.data}


def test_the_best_so_far_is_a_staircase():
    traces = named(plot_convergence(usual()))
    line = traces["best so far"]
    assert list(line.x) == [1, 3, 8]
    assert list(line.y) == pytest.approx([2.0, 1.5, 1.5], rel=0.01)  # ms
    assert list(traces["failed"].x) == [4, 6]
    assert list(traces["trials"].x) == [1, 2, 3, 5, 7, 8]
    assert list(traces["predicted for the plan's first choice"].y) == [1.0, 1.0]
    assert traces["lower bound"].y[0] < 1.0
    assert all(EVIL not in text for text in traces["failed"].text)


def test_seconds_are_those_of_the_records():
    figure = plot_convergence(usual(), against="seconds")
    assert list(named(figure)["best so far"].x) == pytest.approx([2.0, 6.0, 16.0])
    assert named(plot_convergence(recorded(session_of(imported="x"), [ran(1e-3)]), against="seconds")) == {}


def test_what_is_counted_is_one_of_two():
    with refuses(SpaceError):
        plot_convergence(usual(), against="hours")


def test_sessions_lie_over_each_other():
    figure = plot_convergence([*usual("a"), *usual("b", "bayes")])
    shown = [trace.name for trace in figure.data if trace.showlegend is not False]
    assert shown == ["aaaaaaaa model", "bbbbbbbb bayes", "predicted for the plan's first choice", "lower bound"]
    assert len({trace.line.color for trace in figure.data if trace.name in shown[:2]}) == 2


def test_predictions_stand_beside_the_diagonal():
    figure = plot_predictions(usual())
    traces = named(figure)
    points = {
        (round(x, 2), round(y, 2))
        for name in ("proposed by plan", "proposed by model")
        for x, y in zip(traces[name].x, traces[name].y, strict=True)
    }
    assert (0.9, 1.5) in points
    assert len(points) == 6
    assert traces["the best"].x == pytest.approx((0.9,))
    diagonal = traces["as predicted"]
    assert diagonal.x == diagonal.y
    assert (figure.layout.xaxis.type, figure.layout.yaxis.type) == ("log", "log")


def test_failures_are_stacked_by_message():
    late = Measurement(Outcome.RUN_TIMEOUT, "too long")
    figure = plot_failures([*usual(), *recorded(session_of("b"), [late, LOST, LOST, LOST])])
    assert [(bar.x[0], bar.y[0]) for bar in figure.data] == [(3, 0), (2, 1), (1, 2)]
    assert [note.text for note in figure.layout.annotations] == ["run_error", "build_error", "run_timeout"]
    assert all("<script>" not in bar.hovertemplate for bar in figure.data)


def test_each_machine_has_a_line():
    measurements = [
        ran(1e-3, reference_s=base, worker=name) for base, name in ((1e-4, "<b>"), (5e-4, "b"), (2e-4, "<b>"))
    ]
    figure = plot_drift(recorded(session_of(), measurements))
    traces = named(figure)
    assert set(traces) == {"&lt;b&gt;", "b"}
    assert list(traces["&lt;b&gt;"].x) == [1, 3]
    assert figure.layout.showlegend
    bars = named(plot_workers(recorded(session_of(), [*measurements, LOST])))
    assert list(bars["ran"].x) == [2, 1, 0]
    assert list(bars["failed"].x) == [0, 0, 1]


def test_contenders_have_intervals():
    figure = plot_comparison(usual())
    (points,) = figure.data
    assert points.x[0] == 1.0
    assert points.x[2] == pytest.approx(4 / 3, rel=0.01)
    assert points.error_x.array[0] == 0
    assert points.error_x.array[2] > 0
    names = [note.text for note in figure.layout.annotations]
    assert names == ["trial 2, the winner", "trial 6", "trial 0, the plan's first choice"]


@pytest.mark.parametrize(
    "plot", [plot_convergence, plot_predictions, plot_failures, plot_drift, plot_comparison, plot_workers]
)
@pytest.mark.parametrize(
    "records", [[], recorded(session_of(), [LOST]), recorded(session_of(), [ran(1e-3)])], ids=["none", "lost", "one"]
)
def test_anything_is_drawn(plot, records):
    assert plot(records).layout.title.text
