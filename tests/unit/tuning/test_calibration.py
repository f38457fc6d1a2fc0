"""What a calibration learns: nests of a false CPU with a flaw that the model does not know are recorded and learned."""

import numpy as np
import pytest

pytest.importorskip("lightgbm")
pytest.importorskip("sklearn")

import msgspec

import anatune
from anatune.core.hardware.files import hardware
from anatune.core.trial import Measurement, Outcome
from anatune.measure.cpu.calibration.workloads import calibration_workloads, diverse_schedules
from anatune.model.learned.corrections import find_correction, user_correction_folder
from anatune.records.store import RecordStore
from anatune.report.devices import nest_lines
from anatune.templates.cpu.model.model import CpuModel
from anatune.tuning import calibration as module
from anatune.tuning.calibration import learn_from_nests
from anatune.tuning.places.local import LocalPlace
from anatune.tuning.settings import TuningSettings
from anatune.tuning.target import source_of_model, target_of


@pytest.fixture(scope="module")
def host():
    return msgspec.structs.replace(hardware("ryzen_7950x").with_threads(1), name="host", aliases=())


@pytest.fixture
def config(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def false_machine(flaw):
    """Return a `measure_nests` whose kernels take the model's time times what `flaw` says of their points."""

    def measure(hardware, workloads, *, threads, budget_s, progress, make):
        for workload in [anatune.matmul(24 * n, 96, 36) for n in range(1, 7)]:
            model = CpuModel(workload, hardware.with_threads(threads))
            points = np.unique(model.space.sample_points(300, 1), axis=0)
            points = points[np.argsort(model.times(points)[0])][:24]
            for number, (point, time_s) in enumerate(zip(points, model.times(points)[0], strict=True)):
                taken = Measurement(Outcome.OK, times_s=(float(time_s * flaw(model, point, number)),))
                yield workload, model.space.schedule_of(point), taken
        progress(1.0)

    return measure


def many_rows(model, point, _number):
    """A flaw: microkernels of many rows lose half their speed."""
    table = model.feature_table(point[None])
    return 2.0 if table.values[0, table.names.index("rows")] > 4 else 1.0


def test_a_flaw_is_learned_saved_and_used_by_plans_and_tuning(host, config, monkeypatch):
    monkeypatch.setattr(module, "measure_nests", false_machine(many_rows))
    learned = learn_from_nests(host, config / "nests.sqlite", budget_s=60.0)
    assert learned.measured == 6 * 24
    judgement = learned.judgement
    assert judgement.by_workload.spearman > judgement.plain.spearman
    assert judgement.by_workload.first_regret < judgement.plain.first_regret
    assert learned.saved == user_correction_folder() / "host_cpu_calibrated"
    assert any("plans use it" in line for line in nest_lines(learned))
    workload = anatune.matmul(24, 96, 36)
    plan = anatune.plan(workload, host, threads=1)
    assert plan.correction.name == "host_cpu_calibrated"
    assert anatune.plan(workload, host, threads=1, correction="none").correction is None
    source = source_of_model(target_of(workload, host, TuningSettings(threads=1), LocalPlace(host)), "model", 0)
    assert source.correction == "host_cpu_calibrated"
    assert source.first.key == anatune.plan(workload, host, 1, threads=1).schedules[0].key


def test_what_is_only_noise_is_not_kept_and_replaces_what_was_kept(host, config, monkeypatch):
    records = config / "nests.sqlite"
    monkeypatch.setattr(module, "measure_nests", false_machine(many_rows))
    assert learn_from_nests(host, records, budget_s=60.0).saved is not None
    records.unlink()
    exact = false_machine(lambda _model, _point, _number: 1.0)
    monkeypatch.setattr(module, "measure_nests", exact)
    learned = learn_from_nests(host, records, budget_s=60.0)
    assert learned.saved is None
    assert find_correction(host, "cpu") is None
    assert any("not kept" in line for line in nest_lines(learned))


def test_records_of_other_cpus_and_sessions_are_left_out(host, config, monkeypatch):
    other = msgspec.structs.replace(host, model="another one")
    monkeypatch.setattr(module, "measure_nests", false_machine(many_rows))
    records = config / "nests.sqlite"
    learn_from_nests(other, records, budget_s=60.0)
    with RecordStore(records) as store:
        assert len(store.trials()) == 6 * 24
    assert module.learn_from_records(host, records) == (None, None)
    assert module.learn_from_records(other, records)[1] is not None


def test_too_little_time_measures_nothing(host, config):
    learned = learn_from_nests(host, config / "nests.sqlite", budget_s=1.0)
    assert (learned.measured, learned.judgement, learned.saved) == (0, None, None)
    assert "too few generated kernels" in nest_lines(learned)[-1]


def test_schedules_to_learn_from_begin_with_the_first_choice_and_differ(host):
    workload = anatune.matmul(24, 96, 36)
    model = CpuModel(workload, host.with_threads(1))
    schedules = diverse_schedules(model, 12)
    points = np.array([model.space.point_of(schedule) for schedule in schedules])
    times, rules = model.times(points)
    assert not rules.any()
    assert len({model.program_key(point) for point in points}) == 12
    assert model.program_key(points[0]) == model.program_key(model.rank(1).points[0])
    assert times.max() <= 1.5 * times.min()
    values = model.feature_table(points).values
    closest = model.feature_table(model.rank(12).points).values
    assert np.ptp(values, axis=0).sum() > np.ptp(closest, axis=0).sum()


def test_workloads_are_small_and_of_many_kinds():
    workloads = calibration_workloads()
    assert len(set(workloads)) == len(workloads) >= 16
    assert all(workload.num_points <= 2e8 for workload in workloads)
