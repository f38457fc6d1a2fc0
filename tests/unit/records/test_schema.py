"""Rows and objects, both ways."""

import msgspec
import pytest

import anatune
from anatune.core.schedule import Schedule
from anatune.core.trial import Trial
from anatune.records.schema import content_key, digest, schedule_of, schedule_text, storable, trial_of, trial_text
from tests.unit.records.making import CPU, MATMUL, failed, ok, schedule, trial


@pytest.mark.parametrize("name", ["rtx3090", "xeon_8124m"])
def test_schedules_of_the_spaces(name):
    hardware = anatune.hardware(name)
    workload = anatune.conv2d(n=1, c=8, h=17, w=17, k=16, r=3, s=3, padding=1)
    for made in anatune.space(workload, hardware).sample(5, seed=3):
        again = schedule_of(schedule_text(made), workload, hardware)
        assert again == made
        assert again.key == made.key
        assert workload.key not in schedule_text(made)
        assert len(schedule_text(made)) < 1000


@pytest.mark.parametrize("measured", [ok(), ok(references=(1.0, 2.0, 3.0), stopped_early=True), failed()])
def test_trials(measured):
    made = trial(5, measured, predicted_s=None, threads=2)
    assert trial_of(trial_text(made), made.schedule) == made


def test_only_what_is_stored_elsewhere_is_left_out():
    assert set(msgspec.json.decode(schedule_text(schedule()))) == set(Schedule.__struct_fields__) - {
        "workload",
        "hardware",
    }
    assert set(msgspec.json.decode(trial_text(trial()))) == set(Trial.__struct_fields__) - {"schedule"}


@pytest.mark.parametrize(
    "text", ["", "{", "{}", '{"template":"cpu","tiles":{"i":["a"]}}', '{"template":"cpu","tiels":{}}']
)
def test_damaged_text(text):
    with pytest.raises(msgspec.DecodeError):
        schedule_of(text, MATMUL, CPU)
    with pytest.raises(msgspec.DecodeError):
        trial_of(text, schedule())


def test_keys_and_digests():
    assert content_key("workload", "{}") != content_key("hardware", "{}")
    assert digest(1, "ab") != digest(1, "b", "a")
    assert digest(1, "23") != digest(12, "3")
    assert len(digest()) == 16


def test_what_can_be_stored_stays_the_same_object():
    made = trial()
    assert storable(made) == made
