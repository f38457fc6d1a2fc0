import pytest

from anatune.network.pages.plots import plot_model, plot_model_parts
from tests.unit.report.compiled import MEASURED, gpu_summary, summary


def named(figure):
    return {trace.name: trace for trace in figure.data}


def test_kernels_have_their_times_in_rows():
    traces = named(plot_model(summary(), MEASURED))
    assert list(traces["predicted, NHWC"].x) == pytest.approx([45.0])
    assert list(traces["measured"].x) == pytest.approx([60.0, 4.0])
    assert list(traces["measured"].y) == [0, 1]
    assert all(bound < time for bound, time in zip(traces["lower bound"].x, (45.0, 3.0), strict=True))


def test_many_kernels_share_a_row():
    figure = plot_model(summary(), MEASURED, most=1)
    assert [note.text for note in figure.layout.annotations][1] == "1 more kernels in 1 calls"
    assert list(named(figure)["measured"].x) == pytest.approx([60.0, 4.0])


def test_a_gpu_need_not_be_here():
    traces = named(plot_model(gpu_summary()))
    assert set(traces) == {"predicted", "lower bound"}
    assert list(traces["predicted"].x) == pytest.approx([500.0])


def test_parts_have_rows():
    figure = plot_model_parts(summary(), MEASURED)
    names = [note.text for note in figure.layout.annotations]
    assert names == ["products, NHWC (3 calls)", "left to TVM (1 call)", "products (1 call)", "softmax (1 call)"]
    assert list(named(figure)["measured"].x) == pytest.approx([60.0, 5.0, 4.0, 2.0])
    assert plot_model_parts(summary(kernels=(), rows=(), operators=())).layout.title.text
