"""Functions behind products cost what their instructions cost; cheap ones nearly nothing."""

import pytest

import anatune
from anatune.network.kernels.functions import add_functions, count_instructions
from anatune.templates import CPU, make_model

BOARD = anatune.hardware("raspberry_pi_5")


def test_instructions_are_those_of_the_code():
    assert count_instructions("bias") == 0
    assert count_instructions("relu") == 1
    assert 25 < count_instructions("silu") < count_instructions("gelu") < 80


@pytest.mark.parametrize("threads", [1, 4])
def test_time_grows_by_the_instructions_of_a_core(threads):
    cores = BOARD.with_threads(threads)
    plain = anatune.conv2d(1, 64, 14, 14, 64, 1, 1)
    model = make_model(plain, cores, CPU.name)
    before = model.predictions(model.rank(1).points)[0]
    assert add_functions(before, plain, cores) is before
    after = add_functions(before, anatune.conv2d(1, 64, 14, 14, 64, 1, 1, epilogue=("bias", "silu")), cores)
    busy = round(before.occupancy * threads)
    added_s = count_instructions("silu") * 64 * 14 * 14 / 4 / (2 * 2.4e9 * busy)
    assert after.time_s == pytest.approx(before.time_s + added_s)
    assert after.gflop_per_s * after.time_s == pytest.approx(before.gflop_per_s * before.time_s)
