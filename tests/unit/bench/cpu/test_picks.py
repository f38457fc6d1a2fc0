"""Picks of templates: which is the rival, when a pick is wrong, what the table sums up."""

import msgspec
import pytest

from bench.cpu.picks import Row, layers, lines, row_of
from bench.cpu.probes import Reading
from bench.cpu.quiet import Sample, Thresholds

LAYER = next(layer for layer in layers() if layer.name == "64-64x28")
FAST, SLOW = Reading(100e9, 100e9), Reading(50e9, 50e9)


def taken(*times_s, probe=FAST):
    return [Sample(at, time_s, probe, probe) for at, time_s in enumerate(times_s)]


def row(pick, direct, other_direct=9.0, template="winograd"):
    """Return a row with these seconds of the pick, and of two schedules of the other template."""
    other = "cpu" if template == "winograd" else "winograd"
    samples = [taken(*[time_s] * 4) for time_s in (pick, direct, other_direct, pick / 2)]
    return row_of(
        LAYER, [template, other, other, template], "abcd", [1.0, 1.5, 1.6, 1.1], samples, Thresholds.of(samples[0])
    )


def test_layers_are_of_many_sizes_and_none_is_too_large():
    names = [layer.name for layer in layers()]
    assert len(set(names)) == len(names) > 100
    assert {"3-64x136", "1024-1024x7", "64-64x56", "8-8x7"} <= set(names)
    assert all(layer.flop <= 8e9 and (layer.kernel, layer.stride) == (3, 1) for layer in layers())
    assert not layers(most_flop=1.0)


def test_the_rival_is_the_fastest_of_another_template():
    found = row(1.0, 1.4, 1.2)
    assert found.rival == 2
    assert found.speed == pytest.approx(1.2)
    assert found.predicted == pytest.approx(1.6)
    assert not found.is_wrong


@pytest.mark.parametrize(("direct", "wrong"), [(0.99, False), (0.975, False), (0.965, True), (0.5, True)])
def test_a_pick_is_wrong_where_another_template_is_faster_by_more_than_3_percent(direct, wrong):
    assert row(1.0, direct).is_wrong is wrong


def test_ratios_are_taken_within_a_round_and_of_quiet_ones():
    pick = [*taken(1.0, 2.0, 1.0, 1.0), Sample(4, 50.0, SLOW, SLOW)]
    direct = [*taken(1.5, 3.0, 1.5, 1.5), Sample(4, 1.0, SLOW, SLOW)]
    found = row_of(LAYER, ["winograd", "cpu"], "ab", [1.0, 1.0], [pick, direct], Thresholds.of(pick[:4]))
    assert found.speed == pytest.approx(1.5)
    assert found.candidates[0].time_s == pytest.approx(1.0)


def test_a_layer_that_one_template_takes_has_no_rival():
    found = row_of(LAYER, ["cpu", "cpu"], "ab", [1.0, 1.1], [taken(1.0), taken(0.5)], Thresholds(0.0, 0.0))
    assert (found.rival, found.speed, found.is_wrong) == (None, None, False)
    assert "picked" not in "\n".join(lines([found]))
    assert msgspec.json.decode(msgspec.json.encode(found), type=Row) == found
