"""Taps that are left out are those outside the tensor, neither more nor fewer."""

import itertools

from anatune.templates.cpu.program.padding import Skip, first_tap, last_tap


def test_the_loop_of_a_window_runs_over_the_taps_inside():
    for stride, dilation, padding, size, taps in itertools.product((1, 2), (1, 2, 3), (0, 1, 2, 4), (3, 7), (1, 2, 5)):
        skip = Skip(0, size, "y", "ry", stride, dilation, -padding, is_static=False)
        for position in range(size):
            inside = [tap for tap in range(taps) if skip.is_inside(position, tap)]
            loop = range(first_tap(skip, position), last_tap(skip, position, taps))
            assert list(loop) == inside, (skip, position)
