"""Turns, ratios, and what a sample asks of a device."""

import numpy as np
import pytest

from bench.gpu import timing


class StillClock:
    """A clock that counts what it is asked for."""

    def __init__(self, times):
        self.times, self.asked = times, []

    def sample(self, method, mode, seconds):
        self.asked.append((method, mode))
        return self.times[method] * (2.0 if mode == "flush" else 1.0)


def test_methods_take_turns():
    clock = StillClock({len: 1e-3, abs: 2e-3, max: 3e-3})
    found = timing.interleave({"a": len, "b": abs, "c": max}, clock, 4)
    assert found["warm"] == {"a": [1e-3] * 4, "b": [2e-3] * 4, "c": [3e-3] * 4}
    assert found["flush"]["b"] == [4e-3] * 4
    firsts = [clock.asked[3 + 6 * turn][0] for turn in range(4)]
    assert firsts == [len, abs, max, len]


def test_ratios_and_errors():
    assert timing.paired_ratio([1.0, 2.0, 10.0], [2.0, 4.0, 10.0]) == 2.0
    assert timing.geometric_mean([]) is None
    assert timing.geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert timing.relative_error([1.0, np.nan], [1.0, 1.0]) == float("inf")
    assert timing.relative_error([3.0, 4.0], [3.0, 4.0]) == 0.0


class CountingDevice:
    """What `timing.Clock` uses of a device."""

    attributes: dict[str, int] = {"L2_CACHE_SIZE": 1 << 20}  # noqa: RUF012

    def __init__(self):
        self.calls, self.filled = [], 0

    def activate(self):
        pass

    def allocate(self, num_bytes):
        assert num_bytes == 2 << 20
        return "buffer"

    def fill(self, buffer, byte=0):
        self.filled += 1

    def time_calls(self, call, *, samples=1, launches=1, before=None):
        for _ in range(samples):
            before()
        self.calls.append((samples, launches))
        return [1e-5] * samples


def test_the_clock_flushes_and_hides():
    device, spins = CountingDevice(), []
    clock = timing.Clock(device, lambda seconds: spins.append(seconds) or (lambda: None))
    assert clock.sample(print, "flush", 1e-5) == 1e-5
    assert device.calls == [(32, 1)]
    assert device.filled == 32
    assert clock.sample(print, "warm", 1e-5) == pytest.approx(1e-5)
    assert device.calls[1] == (3, 64)
    assert device.filled == 32
    assert spins[1] >= 64 * timing.HOST_S
    clock.sample(print, "warm", 1.0)
    assert device.calls[2] == (1, 2)
