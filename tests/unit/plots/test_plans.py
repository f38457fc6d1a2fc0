import numpy as np
import pytest

import anatune
from anatune.plots.candidates import candidates_of
from anatune.plots.plans import plot_footprints, plot_occupancy, plot_roofline, plot_times
from anatune.report.roofline import boundaries, peak_flop_per_s


@pytest.fixture(scope="module", params=["rtx3090", "xeon_gold_6230r"])
def plan(request):
    return anatune.plan(anatune.matmul(64, 64, 64), request.param, 20, distinct=True, correction="none")


@pytest.fixture(scope="module")
def shown(plan):
    return candidates_of(plan)


def test_no_candidate_lies_above_the_roof(plan, shown):
    figure = plot_roofline(plan, shown)
    peak, known = peak_flop_per_s(plan.hardware, plan.workload.dtype, plan.template), boundaries(plan.hardware)
    markers = [trace for trace in figure.data if trace.mode == "markers"]
    assert sum(len(trace.x) for trace in markers) == len(shown.levels) * len(list(shown))
    for trace in markers:
        assert (trace.y <= peak / 1e9 * 1.0001).all()
    outermost = [trace for trace in markers if trace.legendgroup == shown.levels[0]]
    for trace in outermost:  # nothing of this level is in a nearer cache before
        assert (trace.x <= plan.workload.flop / shown.io_bounds[shown.levels[0]] * 1.0001).all()
    names = [trace.name for trace in figure.data if trace.mode == "lines" and trace.showlegend is not False]
    assert [name.split(",")[0] for name in names[:-1]] == [known[level].name for level in shown.levels]


def test_bars_are_the_parts(plan):
    figure = plot_times(plan, 7)
    bars = {trace.name: trace.x for trace in figure.data if trace.type == "bar"}
    mark = figure.data[-1]
    best = plan.predictions[0]
    assert len(mark.x) == 7
    scale = best.time_s / mark.x[0]
    assert {name: x[0] * scale for name, x in bars.items()} == pytest.approx(
        {name.removesuffix("_s"): part for name, part in best.parts.items() if name.removesuffix("_s") in bars}
    )
    assert mark.name == "predicted"


def test_filling_shows_every_candidate_twice(plan, shown):
    figure = plot_occupancy(plan, shown)
    assert sum(len(trace.x) for trace in figure.data) == 2 * len(list(shown))
    upper = [value for trace in figure.data if trace.yaxis == "y" for value in trace.y]
    assert 0.0 < min(upper) <= max(upper) <= 100.0


def test_footprints_are_of_caches(plan, shown):
    figure = plot_footprints(plan, shown)
    if plan.hardware.kind == "gpu":
        assert figure is None
        return
    assert [trace.name.split(",")[0] for trace in figure.data] == ["L1", "L2", "L3"]
    best = shown.best[0].prediction.resources
    assert figure.data[1].x[0] == np.float32(best["l2_tile_bytes"] / plan.hardware.l2.size_bytes)


def test_work_without_arithmetic_has_a_roofline_too():
    plan = anatune.plan(anatune.parse_workload("copy 64x64"), "xeon_gold_6230r", 3)
    figure = plot_roofline(plan)
    assert figure.layout.xaxis.title.text == "intensity (element/byte)"
    assert not any("peak" in (trace.name or "") for trace in figure.data)
