"""Places of sessions."""

import anatune
from anatune.tuning.places.local import LocalPlace, place_of
from anatune.tuning.settings import TuningSettings


def test_this_machine_by_default():
    assert isinstance(place_of(TuningSettings()), LocalPlace)
    host = anatune.hardware("xeon_gold_6230r")
    assert place_of(TuningSettings(), host).check(host, {}, built=False) is host
