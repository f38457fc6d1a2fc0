"""Products of few rows: what the shares mean, and that calls go from copy to copy."""

import pytest

from bench.cpu import decode


def test_shares_are_of_the_probe_in_the_same_round():
    line = decode.Line("1x8x8", 1000, (2e-6, 4e-6, 3e-6), (1e-6, 3e-6, 3e-6), "")
    assert line.rate == pytest.approx(1000 / 3e-6)
    assert line.share == pytest.approx(0.75)


def test_every_copy_is_called_once_a_round_between_two_probes(monkeypatch):
    log = []
    now = iter(range(1000))
    monkeypatch.setattr(decode.time, "perf_counter", lambda: float(next(now)))
    calls = [lambda number=number: log.append(number) for number in range(3)]
    taken = decode.measure(calls, lambda: log.append("probe"), rounds=2)
    assert log == [0, 1, 2, *(["probe", 0, 1, 2, "probe"] * 2)]
    assert taken == [(pytest.approx(1 / 3), 1.0)] * 2
