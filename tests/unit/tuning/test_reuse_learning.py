"""A session learns from what its record file holds of the device, other workloads included."""

import shutil

import numpy as np
import pytest

pytest.importorskip("lightgbm")
pytest.importorskip("sklearn")

import anatune
from anatune.core.trial import Measurement, Outcome
from anatune.errors import MissingDependencyError
from anatune.records.store import RecordStore
from anatune.report.tuning import result_lines
from anatune.templates import make_model
from anatune.tuning.places.local import LocalPlace
from anatune.tuning.reuse import LEARNED_UNTIL
from anatune.tuning.session import StandIns, TuningSession
from anatune.tuning.settings import TuningSettings
from tests.unit.tuning.fakes import FakeMeasurer
from tests.unit.tuning.test_training import fill

GPU = anatune.hardware("rtx3090")
WORKLOAD = anatune.matmul(384, 256, 512)
OTHERS = ((256, 256, 256), (512, 128, 256), (128, 512, 256), (256, 512, 128))
MODEL = make_model(WORKLOAD, GPU, "cuda")
UNROLL = list(MODEL.space.columns).index("unroll")


class Measurer(FakeMeasurer):
    """Longer than the model's times where little is unrolled, as the records of the other workloads."""

    def answer(self, schedule):
        point = MODEL.space.point_of(schedule)
        time_s = float(MODEL.times(point[None, :])[0][0]) * np.exp(0.8 * (point[UNROLL] < 512))
        return Measurement(Outcome.OK, times_s=(float(time_s),))


class Here(LocalPlace):
    """Where every device is."""

    def check(self, hardware, device, *, built):
        return hardware

    def provenance(self, device, built, templates):
        return {}


def session(trials=8, hw=GPU, **given):
    stand_ins = StandIns(
        measurer=lambda workload, hardware, **_: Measurer(workload, hardware, ahead=1),
        program_key=lambda schedule: schedule.key,
    )
    settings = TuningSettings(trials=trials, template="cuda", **given)
    return TuningSession(WORKLOAD, hw, settings, stand_ins=stand_ins, place=Here())


def keys(result):
    return [trial.schedule.key for trial in result.trials]


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    return fill(tmp_path_factory.mktemp("known") / "known.sqlite", shapes=OTHERS)


@pytest.fixture
def records(known, tmp_path):
    return shutil.copy(known, tmp_path / "tuning.sqlite")


def test_other_workloads_of_the_device_are_learned_from(records):
    plain = session(records=records, reuse=False).run()
    result = session(records=records).run()
    with RecordStore(records) as store:
        *_, one = store.sessions()
        recorded = [len(store.trials(session=other)) for other in store.sessions()[: len(OTHERS)]]
    assert LEARNED_UNTIL in one.settings
    assert (result.learned_trials, result.learned_workloads) == (sum(recorded), len(OTHERS))
    assert (plain.learned_trials, plain.learned_workloads) == (0, 0)
    assert keys(result)[0] == keys(plain)[0]  # the plan's own first choice
    assert keys(result) != keys(plain)
    assert result.trials[0].predicted_s == plain.trials[0].predicted_s
    unrolled = [
        [MODEL.space.point_of(trial.schedule)[UNROLL] >= 512 for trial in one.trials[1:4]] for one in (result, plain)
    ]
    assert all(unrolled[0])
    assert not all(unrolled[1])
    told = " ".join(line.text.strip() for line in result_lines(result))
    assert f"learned from {sum(recorded)} recorded trials of 4 workloads on this device" in told


def test_a_resumed_session_asks_the_same_whatever_was_recorded_since(records, tmp_path):
    whole = session(10, records=shutil.copy(records, tmp_path / "other.sqlite")).run()
    session(4, records=records).run()
    fill(records, shapes=((1024, 64, 64),), slow=-2.0)
    resumed = session(10, records=records, resume=True).run()
    assert resumed.num_resumed == 4
    assert resumed.learned_trials == whole.learned_trials > 0
    assert keys(resumed) == keys(whole)


def test_one_that_began_without_learning_goes_on_without(records):
    session(2, records=records, reuse=False).run()
    assert session(3, records=records, resume=True).run().learned_trials == 0


def test_nothing_is_learned_without_lightgbm(records, monkeypatch):
    def missing():
        raise MissingDependencyError("no lightgbm")

    plain = session(4, records=records, reuse=False).run()
    monkeypatch.setattr("anatune.model.learned.residual.import_lightgbm", missing)
    result = session(4, records=records).run()
    assert result.learned_trials == 0
    assert keys(result) == keys(plain)


@pytest.mark.parametrize(
    "given", [{"strategy": "random"}, {"start": "paper", "strategy": "genetic"}, {"hw": anatune.hardware("a100")}]
)
def test_nothing_is_learned_where_it_says_nothing(records, given):
    assert session(2, records=records, **given).run().learned_trials == 0


def test_errors_that_do_not_carry_over_are_not_learned(tmp_path):
    path = tmp_path / "tuning.sqlite"
    for number, shape in enumerate(OTHERS):
        fill(path, shapes=(shape,), slow=0.8 * (-1) ** number)
    assert session(2, records=path).run().learned_trials == 0


def test_plans_are_corrected_by_records_of_other_workloads(records, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    given = {"template": "cuda", "records": records, "top_k": 40, "distinct": True}
    corrected = anatune.plan(WORKLOAD, GPU, **given)
    plain = anatune.plan(WORKLOAD, GPU, correction="none", **given)
    assert plain.correction is None
    assert f"trials of {len(OTHERS)} workloads in {records}" in corrected.correction.name
    slow = [schedule.unroll < 512 for schedule in corrected.schedules]
    assert slow == sorted(slow)  # what the records say is slow comes last
    times = {schedule.key: one.time_s for schedule, one in zip(plain.schedules, plain.predictions, strict=True)}
    ratios = [
        one.time_s / times[schedule.key]
        for schedule, one in zip(corrected.schedules, corrected.predictions, strict=True)
        if schedule.key in times and schedule.unroll < 512
    ]
    assert all(ratio > 1.4 for ratio in ratios)  # they take exp(0.8) times as long


def test_plans_without_lightgbm_or_with_few_records_are_as_they_were(records, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    few = fill(tmp_path / "few.sqlite", shapes=OTHERS[:1])
    assert anatune.plan(WORKLOAD, GPU, template="cuda", records=few).correction is None

    def missing():
        raise MissingDependencyError("no lightgbm")

    monkeypatch.setattr("anatune.model.learned.residual.import_lightgbm", missing)
    assert anatune.plan(WORKLOAD, GPU, template="cuda", records=records).correction is None


def test_trials_tell_what_records_had_corrected_their_predictions_to(records):
    result = session(records=records).run()
    with RecordStore(records) as store:
        *_, one = store.sessions()
        recorded = [record.trial for record in store.trials(session=one) if record.trial.source != "compare"]
    assert [trial.corrected_s for trial in recorded] == [trial.corrected_s for trial in result.trials]
    for trial in result.trials:
        slow = trial.schedule.unroll < 512
        assert (trial.corrected_s / trial.predicted_s > 1.4) == slow
    assert session(records=records, reuse=False).run().trials[0].corrected_s is None
