import math

import pytest

from anatune.report import units


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (1.5, "1.500 s"),
        (123.4, "123.4 s"),
        (0.999999, "1.000 s"),
        (1.8818e-4, "188.2 us"),
        (9.99999e-4, "1.000 ms"),
        (2.5e-9, "2.500 ns"),
        (2.5e-13, "0.00025 ns"),
        (math.inf, "unknown"),
    ],
)
def test_duration(seconds, text):
    assert units.duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 bytes"), (1, "1 bytes"), (1023, "1023 bytes"), (1024, "1 KiB"), (6291456, "6 MiB"), (2**41, "2 TiB")],
)
def test_size(number, text):
    assert units.size(number) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (999, "999"), (9_999_999, "9,999,999"), (10**7, "1.000e7"), (1.5e13, "1.500e13")]
)
def test_count(number, text):
    assert units.count(number) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0, "0 %"), (1e-6, "< 0.01 %"), (0.0123, "1.2 %"), (0.099, "9.9 %"), (0.0999, "10 %"), (1, "100 %")],
)
def test_percent(fraction, text):
    assert units.percent(fraction) == text


def test_rates_and_ratios():
    assert units.rate(936e9) == "936.0 GB/s"
    assert units.rate(4.8e12) == "4.800 TB/s"
    assert units.flop_rate(35.58144e12) == "35.58 TFLOP/s"
    assert units.flop(0) == "0 FLOP"
    assert [units.ratio(value) for value in (1, 9.996, 99.96, 12345.6)] == ["1.00", "10.0", "100", "12346"]
