"""Quotients and remainders of whole numbers by anything: none ends the process, zeros are an error of one line."""

import numpy as np
import pytest

pytest.importorskip("tvm")

from anatune.errors import DivisionError
from anatune.network.graph import building as b
from anatune.network.graph.passes.rows import check_divisors
from tests.unit.network.relax.rest.test_loops import run

DTYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
WANT = {
    "divide": lambda x, y: np.where((x % y != 0) & ((x < 0) != (y < 0)), x // y + 1, x // y).astype(x.dtype),
    "floor_divide": np.floor_divide,
    "floor_mod": np.mod,
    "mod": np.fmod,
}


def operands(dtype, *, has_zeros=False):
    """Return every pair of numbers at the ends of a dtype and around zero."""
    ends = np.iinfo(dtype)
    numbers = {ends.min, ends.min + 1, ends.max, ends.max - 1, 1, 2, 3, 7, 0, *((-1, -2, -3, -7) if ends.min else ())}
    x, y = np.meshgrid(*[np.array(sorted(numbers), dtype)] * 2)
    keep = (y != 0) | has_zeros
    return x[keep], y[keep]


@pytest.mark.parametrize("op", WANT)
@pytest.mark.parametrize("dtype", DTYPES)
def test_quotients_of_every_pair_of_limits(dtype, op):
    x, y = operands(dtype)
    with np.errstate(all="ignore"):
        want = WANT[op](x, y)
        for count in (len(x), 6):  # 6: a vector that no processor has
            made = run(lambda v, w: b.elementwise(op, v, w), x[-count:], y[-count:], passes=check_divisors)[0]
            np.testing.assert_array_equal(made, want[-count:])


@pytest.mark.parametrize("op", WANT)
@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_do_not_end_the_process_where_nothing_looks_for_them(dtype, op):
    x, y = operands(dtype, has_zeros=True)
    made = run(lambda v, w: b.elementwise("add", b.elementwise(op, v, w), v), x, y)[0]
    with np.errstate(all="ignore"):
        want = WANT[op](x, np.where(y == 0, 1, y).astype(dtype)) + x
    np.testing.assert_array_equal(made[y != 0], want[y != 0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_quotients_that_are_read_together(dtype):
    x, y = operands(dtype)
    ops = ("divide", "floor_divide")
    made = run(lambda v, w: b.elementwise("add", *(b.elementwise(op, v, w) for op in ops)), x, y)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(made[0], WANT[ops[0]](x, y) + WANT[ops[1]](x, y))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_zero_among_divisors_is_an_error_that_names_the_operator(dtype):
    """Each operator of each dtype with one shape of three in turn: each operator and each dtype meets all shapes."""
    for number, op in enumerate(WANT, start=DTYPES.index(dtype)):
        shape = ((), (1,), (3, 5))[number % 3]
        y = np.ones(shape, dtype)
        y[(-1,) * len(shape)] = 0
        with pytest.raises((RuntimeError, ZeroDivisionError), match=rf"^{op} of {dtype}: a divisor is zero$"):
            run(lambda v, w, op=op: b.elementwise(op, v, w), np.ones((3, 5), dtype), y, passes=check_divisors)


def test_errors_are_zero_division_errors_of_a_run():
    assert issubclass(DivisionError, ZeroDivisionError)
    assert issubclass(DivisionError, RuntimeError)
