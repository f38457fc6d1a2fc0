"""The time of what moves through a GPU once."""

import pytest

from anatune import api
from anatune.templates.gpu.streaming import streaming_s

GPU = api.hardware("rtx3090")


def test_bytes_come_from_the_cache_that_holds_them_or_from_memory():
    small, large = GPU.l2.size_bytes, 100 * GPU.l2.size_bytes
    launch = GPU.launch.overhead_s
    assert streaming_s(GPU, small) - launch == pytest.approx(small / GPU.l2.bandwidth_bytes_per_s)
    rate = GPU.dram.bandwidth_bytes_per_s * GPU.dram.reachable_fraction
    assert streaming_s(GPU, large) - launch == pytest.approx(large / rate)
    assert streaming_s(GPU, 0) == launch


def test_arithmetic_counts_where_it_takes_longer():
    compute = GPU.compute
    peak = compute.fp32_peak_flop_per_s * compute.reachable_fraction
    assert streaming_s(GPU, 4, 10**12) == pytest.approx(10**12 / peak + GPU.launch.overhead_s)
