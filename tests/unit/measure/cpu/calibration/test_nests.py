"""Nests of a calibration: built and timed by one set of processes, workload after workload, while there is time."""

import pytest

pytest.importorskip("tvm")

import anatune
from anatune.core.trial import Outcome
from anatune.errors import AnatuneError
from anatune.measure.cpu.calibration.nests import measure_nests
from anatune.measure.cpu.detect import detect_cpu


@pytest.fixture(scope="module")
def host():
    try:
        return detect_cpu()
    except AnatuneError as error:
        pytest.skip(f"the CPU is not detected: {error}")


def test_each_workload_gets_its_part_of_the_time_and_right_kernels(host, monkeypatch):
    monkeypatch.setattr("anatune.measure.cpu.calibration.nests._MOST_SCHEDULES", 3)
    workloads = [anatune.matmul(16, 32, 24), anatune.conv2d(1, 8, 6, 6, 16, 3, 3, padding=1, layout="NHWC")]
    shares = []
    found = list(measure_nests(host, workloads, threads=1, budget_s=240.0, progress=shares.append))
    assert [workload for workload, _, _ in found] == [workloads[0]] * 3 + [workloads[1]] * 3
    assert all(schedule.workload == workload for workload, schedule, _ in found)
    assert {measurement.outcome for _, _, measurement in found} == {Outcome.OK}  # checked against what each computes
    assert shares == [0.5, 1.0]


def test_no_time_means_no_nests(host):
    times = iter([0.0, 10.0])
    workloads = [anatune.matmul(16, 32, 24)]
    found = measure_nests(host, workloads, threads=1, budget_s=5.0, progress=print, clock=lambda: next(times))
    assert list(found) == []
    assert list(measure_nests(host, [], threads=1, budget_s=5.0, progress=print)) == []
