"""What the bench of ranges chooses and says."""

import pytest

from bench.cpu import ranges
from bench.cpu.probes import Reading
from bench.cpu.quiet import Sample

QUIET = Reading(100e9, 90e9)


def samples(*seconds):
    return [Sample(number, one, QUIET, QUIET) for number, one in enumerate(seconds)]


def test_a_line_compares_within_rounds():
    line = ranges.line_of(7, (1.0, 1.1), samples(1.0, 2.0, 1.0), samples(1.25, 2.5, 1.5))
    assert (line.extent, line.plan_s, line.program_s, line.rounds) == (7, 1.0, 1.5, 3)
    assert line.ratio == pytest.approx(0.8)
    assert line.low <= line.ratio <= line.high


def test_extents_are_spread_over_octaves():
    assert ranges.spread_out(range(1, 513), 4) == [1, 8, 64, 512]
    assert ranges.spread_out([16, 32, 48, 64], 12) == [16, 32, 48, 64]
