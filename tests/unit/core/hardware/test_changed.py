import pytest

import anatune
from anatune.core.hardware.changed import changes_of


@pytest.mark.parametrize("name", ["rtx3090", "a100_sxm", "xeon_gold_6230r"])
def test_changes_are_of_one_number_and_keep_the_spec_whole(name):
    hardware = anatune.hardware(name)
    changes = changes_of(hardware)
    assert len({change.name for change in changes}) == len(changes) == 4
    for change in changes:
        assert change.value > 0
        assert change.scaled(1.0) == hardware
        twice = change.scaled(2.0)
        assert twice not in (None, hardware)  # and its cross-field rules hold, or it would not exist


def test_peaks_follow_cores():
    gpu, cpu = anatune.hardware("a100_sxm"), anatune.hardware("xeon_gold_6230r")
    cores = changes_of(gpu)[-1].scaled(0.5)
    assert cores.compute.num_sms == 54
    assert cores.peak_flop_per_s("float32") == pytest.approx(gpu.peak_flop_per_s("float32") / 2)
    assert cores.tensor_flop_per_s("float16") == pytest.approx(gpu.tensor_flop_per_s("float16") / 2)
    assert cores.tensor_flop_per_s("int8") == pytest.approx(gpu.tensor_flop_per_s("int8") / 2)
    assert cores.tensor_flop_per_s("float8_e5m2") is None
    assert cores.l2 == gpu.l2
    more = changes_of(cpu)[-1].scaled(2.0)
    assert more.compute.num_cores == 2 * cpu.compute.num_cores
    assert more.compute.usable_cores == pytest.approx(2 * cpu.compute.usable_cores)
    assert more.dram == cpu.dram


def test_what_no_device_can_be_is_none():
    bandwidth = changes_of(anatune.hardware("rtx3090"))[0]
    assert bandwidth.scaled(1e9) is None
