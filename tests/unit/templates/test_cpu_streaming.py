"""Times of what only moves bytes."""

import msgspec
import pytest

from anatune import api
from anatune.templates.cpu import CPU

HARDWARE = api.hardware("epyc_7763").with_threads(1)
CLOCK = HARDWARE.compute.clock_hz


def seconds(*given):
    return CPU.streaming_s(msgspec.structs.replace(HARDWARE, launch=None), *given)


def test_bytes_come_from_the_smallest_cache_that_holds_them():
    for level in (HARDWARE.l2, HARDWARE.l3):
        num_bytes = level.size_bytes
        assert seconds(num_bytes) == pytest.approx(num_bytes / (level.bandwidth_bytes_per_cycle * CLOCK))
    num_bytes = 4 * HARDWARE.l3.size_bytes
    assert seconds(num_bytes) == pytest.approx(num_bytes / HARDWARE.dram.core_bandwidth_bytes_per_s)


def test_arithmetic_binds_where_there_is_much_of_it():
    peak = HARDWARE.compute.fp32_peak_flop_per_s * HARDWARE.compute.reachable_fraction
    assert seconds(64, 10**9) == pytest.approx(1e9 / peak)


def test_threads_share_the_work():
    both = msgspec.structs.replace(api.hardware("epyc_7763").with_threads(2), launch=None)
    assert CPU.streaming_s(both, 1 << 18) == pytest.approx(seconds(1 << 18) / 2)
