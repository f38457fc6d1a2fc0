"""Blocks on the SMs of a device, counted by hand."""

import pytest

from anatune.templates.gpu.times.waves import TAIL_OVERLAP, waves_one

STEPS, BUSY, ALONE, START, END = 5, 10.0, 15.0, 100.0, (3.0, 7.0)


def waves(blocks, resident):
    return waves_one(float(blocks), STEPS, BUSY, ALONE, START, END, resident, 2.0)


def test_a_block_alone_on_its_sm_waits_for_everything():
    each = STEPS * ALONE + 7.0 + START
    assert waves(6, 1) == pytest.approx((3 * each, 3.0, each))


def test_starts_pass_while_the_others_of_an_sm_compute():
    """Check that of four blocks on an SM one waits for its start while three compute."""
    each = STEPS * 4 * BUSY + 4 * 3.0 + START / 4
    assert waves(24, 4) == pytest.approx((3 * each, 3.0, each))


def test_the_first_wave_has_no_earlier_one_to_hide_its_starts():
    whole = STEPS * 4 * BUSY + 4 * 3.0 + START
    assert waves(8, 4) == pytest.approx((whole, 1.0, whole))
    last = STEPS * ALONE + 7.0 + START  # one block more: alone, and behind all others
    assert waves(9, 4).cycles == pytest.approx(whole + last)


def test_after_many_waves_the_last_one_overlaps():
    first = STEPS * 4 * BUSY + 4 * 3.0 + START
    last = (STEPS * ALONE + 7.0 + START) * (TAIL_OVERLAP + (1.0 - TAIL_OVERLAP) / 3)
    assert waves(25, 4).cycles == pytest.approx(3 * (first - 0.75 * START) + last)
