"""Tables of measured programs: searches ask them, extend them, and meet the noise that a session would have met."""

from typing import ClassVar

import numpy as np
import pytest

import anatune
from anatune.core.trial import Measurement, Outcome
from anatune.search.base import make_strategy
from bench.experiments import measured
from bench.experiments.measured import MeasuredTable, Replay, replayed, search_all
from tests.wording import refuses

CPU = anatune.hardware("xeon_gold_6230r")
WORKLOAD = anatune.matmul(48, 64, 36)


class Machine:
    """Stands for a measurer: times are the model's, with noise; the first visit to one program looks fast."""

    visits: ClassVar[dict] = {}

    def __init__(self, workload, hardware, **_):
        self.table = MeasuredTable(measured.Path("none"), workload, hardware)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def measure(self, schedules):
        schedules = iter(schedules)
        return self.serve(lambda: next(schedules, None))

    def serve(self, ask):
        while (schedule := ask()) is not None:
            point = self.table.point_of(schedule)
            key = self.table.key(point)
            visit = self.visits[key] = self.visits.get(key, 0) + 1
            time_s = float(self.table.model.times(point[None, :])[0][0])
            factor = 0.2 if len(self.visits) == 5 and visit == 1 else 1.0
            rng = np.random.default_rng([visit, *point.tolist()])
            times = tuple(factor * time_s * np.exp(0.01 * rng.standard_normal(4)))
            yield schedule, Measurement(Outcome.OK, times_s=times, reference_times_s=(1e-6,) * 4)


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setattr(measured, "CpuMeasurer", Machine)
    monkeypatch.setattr(Machine, "visits", {})


def replays(trials=12):
    return [
        Replay(
            name, seed, trials, lambda model, name=name, seed=seed: make_strategy(name, model, seed=seed, start="paper")
        )
        for name in ("random", "droplet", "genetic")
        for seed in (0, 1)
    ]


def test_each_program_is_measured_once_and_a_second_run_measures_nothing(tmp_path, machine):
    table = MeasuredTable(tmp_path / "t.json.xz", WORKLOAD, CPU)
    first = replays()
    search_all(table, CPU, first)
    assert len(table) == len(Machine.visits) == len({key for one in first for key in one.keys})
    again = MeasuredTable(tmp_path / "t.json.xz", WORKLOAD, CPU)
    Machine.visits.clear()
    second = replays()
    search_all(again, CPU, second)
    assert Machine.visits == {}
    assert [one.keys for one in second] == [one.keys for one in first]
    assert [one.curve for one in second] == [one.curve for one in first]
    assert all(len(one.curve) == 12 for one in second)


def test_what_looks_best_is_measured_twice(tmp_path, machine):
    table = MeasuredTable(tmp_path / "t.json.xz", WORKLOAD, CPU)
    search_all(table, CPU, replays())
    assert table.doubtful(5) == []
    fastest = min(float(table.model.times(point[None, :])[0][0]) for point, _ in table.measured())
    assert table.best == pytest.approx(fastest / 1e-6, rel=0.03)


def test_a_table_of_another_device_is_refused(tmp_path, machine):
    table = MeasuredTable(tmp_path / "t.json.xz", WORKLOAD, CPU)
    search_all(table, CPU, replays(2))
    with refuses(SystemExit):
        MeasuredTable(tmp_path / "t.json.xz", WORKLOAD, anatune.hardware("epyc_7763"))


def test_slow_candidates_have_the_samples_of_a_session():
    whole = Measurement(Outcome.OK, times_s=(3.0, 3.1, 2.9, 3.0), reference_times_s=(1.0,) * 4)
    assert replayed(whole, None) == whole
    assert replayed(whole, 2.5) == whole
    for needed, count in ((1, 2), (3, 3)):
        stopped = replayed(whole, 2.0, needed)
        assert (len(stopped.times_s), stopped.stopped_early) == (count, True)
        assert len(stopped.reference_times_s) == count
