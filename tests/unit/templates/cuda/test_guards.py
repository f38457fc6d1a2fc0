"""The axes whose tiles need not divide their extents, and checks of such tilings."""

from __future__ import annotations

import pytest

from anatune import conv2d, matmul
from anatune.core.workload.operators import depthwise_conv2d, max_pool2d, reduction
from anatune.errors import SpaceError
from anatune.templates.cuda.guards import check_covering, covered_extents, guardable_axes
from tests.wording import refuses

LEVELS = ("block", "vthread", "thread", "reg_outer", "reg_inner")
DEEP = ("k0", "k1", "k2")


def test_all_axes_of_a_matmul_can_be_guarded() -> None:
    assert guardable_axes(matmul(7, 5, 3)) == {"i", "j", "k"}


def test_a_window_and_a_reduction_with_other_indices_divide() -> None:
    conv = conv2d(1, 16, 7, 7, 8, 3, 3, padding=1)
    windows = {term.axis for terms in conv.reads[0].indices if len(terms) > 1 for term in terms}
    reduced = {axis.name for axis in conv.reduction_axes}
    assert guardable_axes(conv) & reduced == reduced - windows  # the channels lie alone in both tensors
    pool = max_pool2d(1, 4, 9, 9, 3, 3)
    assert not guardable_axes(pool) & {axis.name for axis in pool.reduction_axes}
    assert {axis.name for axis in depthwise_conv2d(1, 8, 9, 9, 3, 3).spatial_axes} <= guardable_axes(
        depthwise_conv2d(1, 8, 9, 9, 3, 3)
    )


def test_a_plain_sum_can_be_guarded() -> None:
    total = reduction((13, 17), axes=(1,))
    assert guardable_axes(total) == {axis.name for axis in total.axes}


@pytest.mark.parametrize(
    "factors", [(17, 1, 1, 1, 1), (1, 1, 17, 1, 1), (3, 1, 4, 1, 2), (1, 2, 3, 3, 1), (1, 1, 1, 1, 18)]
)
def test_tilings_divide_or_just_cover(factors: tuple[int, ...]) -> None:
    check_covering(matmul(17, 5, 3), "i", factors, LEVELS)


@pytest.mark.parametrize("factors", [(4, 1, 4, 1, 2), (2, 1, 4, 1, 2), (2, 2, 3, 3, 1)])
def test_more_or_fewer_tiles_than_needed_are_refused(factors: tuple[int, ...]) -> None:
    with refuses(SpaceError):
        check_covering(matmul(17, 5, 3), "i", factors, LEVELS)


def test_what_would_count_behind_its_end_is_refused() -> None:
    conv = conv2d(1, 16, 8, 8, 8, 3, 3, padding=1)
    window = next(term.axis for terms in conv.reads[0].indices if len(terms) > 1 for term in terms[1:])
    with refuses(SpaceError):
        check_covering(conv, window, (2, 2, 1), DEEP)


def test_what_tiles_cover() -> None:
    tiles = {"i": (3, 1, 4, 1, 2), "j": (5, 1, 1, 1, 1), "k": (1, 3, 1)}
    assert covered_extents(tiles) == {"i": 24, "j": 5, "k": 3}
