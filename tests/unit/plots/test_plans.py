import numpy as np
import pytest

import anatune
from anatune.plots.candidates import candidates_of, models_of, saved_work
from anatune.plots.plans import plot_footprints, plot_occupancy, plot_roofline, plot_times
from anatune.report.roofline import peak_flop_per_s


@pytest.fixture(scope="module", params=["rtx3090", "xeon_gold_6230r"])
def plan(request):
    return anatune.plan(anatune.matmul(64, 64, 64), request.param, 20, distinct=True, correction="none")


@pytest.fixture(scope="module")
def shown(plan):
    return candidates_of(plan)


def test_no_candidate_lies_above_the_roof(plan, shown):
    figure = plot_roofline(plan, shown)
    peak, known = peak_flop_per_s(plan.hardware, plan.workload.dtype, plan.template), plan.hardware.boundaries
    markers = [trace for trace in figure.data if trace.mode == "markers"]
    assert sum(len(trace.x) for trace in markers) == len(shown.levels) * len(list(shown))
    for trace in markers:
        assert (trace.y <= peak / 1e9 * 1.0001).all()
    outermost = [trace for trace in markers if trace.legendgroup == shown.levels[0]]
    for trace in outermost:  # nothing of this level is in a nearer cache before
        assert (trace.x <= plan.workload.flop / shown.io_bounds[shown.levels[0]] * 1.0001).all()
    names = [trace.name for trace in figure.data if trace.mode == "lines" and trace.showlegend is not False]
    assert [name.split(",")[0] for name in names[:-1]] == [known[level].name for level in shown.levels]


def test_thick_bars_add_up_to_the_time_and_thin_ones_end_before_it(plan):
    figure = plot_times(plan, 7)
    mark = figure.data[-1]
    assert mark.name == "predicted"
    assert len(mark.x) == 7
    scale = plan.predictions[0].time_s / mark.x[0]
    bars = [trace for trace in figure.data if trace.type == "bar"]
    for place, prediction in enumerate(plan.predictions[:7]):
        pieces = [(bar.name, base, x, y) for bar in bars for base, x, y in zip(bar.base, bar.x, bar.y, strict=True)]
        thick = [(base, x) for _, base, x, y in pieces if y == mark.y[place]]
        assert sum(x for _, x in thick) * scale == pytest.approx(prediction.time_s)
        assert max(base + x for base, x in thick) * scale == pytest.approx(prediction.time_s)
        thin = {name: x for name, _, x, y in pieces if place < y < place + 1 and y != mark.y[place]}
        assert thin
        for name, x in thin.items():
            assert x * scale == pytest.approx(prediction.parts[f"{name}_s"])
            assert x * scale <= prediction.time_s


def test_times_of_a_learned_correction_are_marked_beside_the_models():
    pytest.importorskip("lightgbm")
    plan = anatune.plan(anatune.parse_workload("conv2d 1x64x56x56 64x64x3x3 --padding 1"), "k80", 3)
    assert plan.corrections
    figure = plot_times(plan)
    bars = [trace for trace in figure.data if trace.type == "bar"]
    ends = [
        sum(x for bar in bars for x, y in zip(bar.x, bar.y, strict=True) if y == place) for place in figure.data[-1].y
    ]
    plain = anatune.plan(plan.workload, "k80", 3, correction="none")
    scale = plan.predictions[0].time_s / figure.data[-1].x[0]
    model = models_of(plain)[plain.template]
    for end, schedule in zip(ends, plan.schedules, strict=True):
        assert end * scale == pytest.approx(model.times(model.space.point_of(schedule)[None, :])[0][0])


def test_what_needs_fewer_operations_has_a_peak_of_its_own():
    plan = anatune.plan(
        anatune.parse_workload("conv2d 1x64x56x56 64x64x3x3 --padding 1"),
        "xeon_gold_6230r",
        5,
        distinct=True,
        threads=1,
    )
    assert saved_work(plan) == {"winograd": pytest.approx(2.25)}  # F(2x2, 3x3): what accuracy "standard" admits
    figure = plot_roofline(plan)
    peak = peak_flop_per_s(plan.hardware, "float32")
    effective = next(trace for trace in figure.data if (trace.name or "").startswith("effective peak of winograd"))
    assert effective.y[0] == pytest.approx(2.25 * peak / 1e9)
    markers = [trace for trace in figure.data if trace.mode == "markers"]
    above = [trace for trace in markers if (trace.y > 1.001 * peak / 1e9).any()]
    assert above
    assert all(trace.marker.symbol.endswith("-open") for trace in above)
    assert all((trace.y <= effective.y[0]).all() for trace in markers)


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
