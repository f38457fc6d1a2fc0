"""The present machine as a place."""

import anatune
from anatune.errors import DeviceError
from anatune.tuning.places.local import LocalPlace
from tests.wording import refuses

HOST = anatune.hardware("xeon_gold_6230r")


def test_another_device_is_refused():
    with refuses(DeviceError):
        LocalPlace(HOST).check(anatune.hardware("cortex_a72"), {}, built=False)
    gpu = anatune.hardware("h200")
    assert LocalPlace(gpu).check(gpu, {"device": 0, "backend": None}, built=False) is gpu


def test_names_and_measurers_are_taken_as_they_are():
    place = LocalPlace(HOST)
    assert place.hardware("h200") == anatune.hardware("h200")
    assert place.measurer(dict) is dict
    assert place.provenance({}, None, ["cpu"]) == {}
    place.close()
