"""The pure parts of the benchmark of MetaSchedule's CPU space: no TVM, no device."""

import numpy as np
import pytest

from bench.cpu import metaschedule_ranking as bench
from tests.unit.adapters.metaschedule.test_traces import CPU, MATMUL, trace


def test_a_report_judges_the_order_of_what_is_understood():
    rows = [{"time_s": 1e-3 * (1 + at)} for at in range(20)]
    workload = bench.WORKLOADS["matmul"]
    right = bench.report("matmul", workload, rows, [2e-3 * (1 + at) for at in range(20)])
    assert (right["spearman"], right["first_over_best"], right["first_8_over_best"]) == (1.0, 1.0, 1.0)
    assert right["median_measured_over_predicted"] == pytest.approx(0.5)
    assert right["random_8_over_best"] > 1.0
    wrong = bench.report("matmul", workload, rows, [1.0 - 1e-2 * at for at in range(19)] + [float("nan")])
    assert wrong["spearman"] == -1.0
    assert (wrong["candidates"], wrong["understood"]) == (20, 19)
    assert wrong["first_8_over_best"] == pytest.approx(12.0)
    assert bench.table_of([right, wrong]).row_count == 2


def test_axes_stand_in_the_order_of_the_result():
    ordered = bench.WORKLOADS["conv2d_nhwc"]
    assert [axis.name for axis in ordered.spatial_axes] == list(ordered.output_axes)


def test_recorded_traces_have_times_where_they_are_understood():
    strange = trace(more=[(["RFactor", ["l1"], [0], ["b5"]], None)])
    found = bench.predicted(MATMUL, CPU, [trace(), strange])
    assert found[0] > 0
    assert np.isnan(found[1])
