import pytest

from anatune.servers.page import plot_blocks, plot_rows
from tests.unit.servers.written import choices


def named(figure):
    return {trace.name: trace for trace in figure.data}


def test_times_by_rows():
    traces = named(plot_rows(choices()))
    assert set(traces) == {"bound", "server's default, predicted", "chosen, predicted"}
    assert list(traces["chosen, predicted"].x) == [1, 8, 512]
    assert list(traces["chosen, predicted"].y) == pytest.approx([20.0, 40.0, 80.0])
    assert list(traces["server's default, predicted"].x) == [1, 512]
    assert all(low < time for low, time in zip(traces["bound"].y, traces["chosen, predicted"].y, strict=True))


def test_measured_times_are_marks():
    traces = named(plot_rows(choices(measured=True)))
    assert list(traces["chosen, measured"].y) == pytest.approx([19.0])
    assert list(traces["server's default, measured"].y) == pytest.approx([38.0])
    assert traces["chosen, measured"].mode == "markers"


def test_blocks_by_rows():
    figure = plot_blocks(choices())
    assert [list(trace.y) for trace in figure.data] == [[64] * 3, [128] * 3, [64] * 3]
    assert list(figure.layout.yaxis.tickvals) == [64, 128]
