"""Whether a file should be written."""

import msgspec

from anatune.servers.written import ShippedFile, reason_against
from tests.unit.servers.written import USUAL, choices


def test_an_entry_that_gains_5_percent_is_enough():
    assert reason_against(None, choices()) == ""
    assert "no entry has a predicted gain of 5 %" in reason_against(None, choices()[2:])
    assert reason_against(None, choices()[1:2]) == ""  # the default does not run


def test_tuned_tiles_give_way_to_measured_ones_alone():
    tuned = ShippedFile("vLLM 0.33.0", {1: USUAL})
    assert reason_against(tuned, choices()).startswith("vLLM 0.33.0 ships a file")
    assert reason_against(tuned, choices(measured=True)[:1]) == ""
    (even,) = (msgspec.structs.replace(one, default_measured_s=1.91e-5) for one in choices(measured=True)[:1])
    assert "no entry has a measured gain of 5 %" in reason_against(tuned, [even])
    assert reason_against(tuned, choices(measured=True)).startswith("vLLM 0.33.0 ships a file")  # some have not run
