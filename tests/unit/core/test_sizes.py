"""Sizes that are known at run time."""

import math

import pytest

from anatune.core.sizes import Size, is_run_time, symbols_of
from tests.wording import refuses

BATCH, TOKENS = Size.symbol("batch", 5), Size.symbol("tokens", 23)
AT = {"batch": 3, "tokens": 17}


@pytest.mark.parametrize(
    ("size", "planned", "value"),
    [
        (BATCH * TOKENS, 115, 51),
        (TOKENS * 64 // 32, 46, 34),
        (7 - TOKENS, -16, -10),
        ((TOKENS + 1) // 2, 12, 9),
        (((TOKENS + 1) // 2 + 3) // 2, 7, 6),
        (TOKENS // 8 // 2, 1, 1),
        (-(-TOKENS // 8) * 8, 24, 24),
        (TOKENS % 8, 7, 1),
        (math.prod((BATCH, 12, TOKENS, 64)), 5 * 12 * 23 * 64, 3 * 12 * 17 * 64),
        (sum((TOKENS, BATCH, 3)), 31, 23),
        (BATCH * 12 * TOKENS // TOKENS, 60, 36),
    ],
)
def test_arithmetic_keeps_the_expression(size, planned, value):
    assert int(size) == planned
    assert size.at(AT) == value
    assert eval(str(size), {"batch": 3, "tokens": 17}) == value


def test_sizes_are_equal_to_the_same_expression_only():
    assert BATCH * TOKENS == TOKENS * BATCH
    assert hash(BATCH * TOKENS) == hash(TOKENS * BATCH)
    assert BATCH != 5
    assert TOKENS - TOKENS == 0
    assert not isinstance(TOKENS - TOKENS, Size)


def test_a_size_is_divided_by_its_factors_alone():
    with refuses(TypeError):
        (BATCH + 1) // TOKENS


def test_symbols_of_nested_sizes():
    assert symbols_of(((1, BATCH * TOKENS), 3)) == {"batch", "tokens"}
    assert is_run_time((1, (2, TOKENS)))
    assert not is_run_time((1, 2))
