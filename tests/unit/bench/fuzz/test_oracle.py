"""What samples allow: exact results alone where nothing rounds, and as much as rounding does elsewhere."""

import numpy as np
import pytest

from bench.fuzz.oracle import EXACT, INNER, MOVE, NUM_SAMPLES, OUTER, Noise, fault, rounded

NOISES = [Noise(sample, 3) for sample in range(NUM_SAMPLES)]


def samples_of(array, how=OUTER, dtype="float32"):
    return [noise.result(np.asarray(array, np.float64), dtype, how) for noise in NOISES]


def wrong(samples, got, dtype="float32", *, exact=False, signs=False):
    return fault(samples, np.asarray(got, dtype), dtype, exact=exact, signs=signs)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("size", [0.01, 1.0, 300.0])
def test_units_in_the_last_place(dtype, size):
    unit = np.spacing(np.array(size, dtype)).astype(np.float64)
    samples = samples_of([size], dtype=dtype)
    assert not wrong(samples, [size + 3 * unit], dtype)
    assert wrong(samples, [size + 60 * unit], dtype)


@pytest.mark.parametrize(("got", "is_right"), [(0.0, True), (1e-6, False), (-1e-9, False)])
def test_zero_stays_zero(got, is_right):
    assert (not wrong(samples_of([0.0]), [got])) == is_right


def test_a_small_constant_counts():
    assert wrong(samples_of([1e-6], EXACT), [0.0], exact=True)
    assert wrong(samples_of([1e-6]), [0.0])


@pytest.mark.parametrize("how", [MOVE, EXACT])
def test_what_does_not_round_is_compared_exactly(how):
    numbers = np.array([0.1, -3.5, 1e30], "float32")
    assert not wrong(samples_of(numbers, how), numbers, exact=True)
    assert wrong(samples_of(numbers, how), np.nextafter(numbers, np.float32(0)), exact=True)


def test_signs_of_zeros_count_where_elements_are_moved():
    assert not wrong(samples_of([-0.0], MOVE), [-0.0], exact=True, signs=True)
    assert wrong(samples_of([-0.0], MOVE), [0.0], exact=True, signs=True)
    assert not wrong(samples_of([-0.0], MOVE), [0.0], exact=True)


@pytest.mark.parametrize("got", [np.nan, np.inf, -np.inf, 1.0])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 1.0])
def test_what_is_no_number_has_its_place(number, got):
    same = (number == got) or (np.isnan(number) and np.isnan(got))
    assert (not wrong(samples_of([number]), [got])) == same


def test_what_overflows_between_operators_may_be_infinite():
    square = [noise.result(noise.result(np.array([1e30]), "float32", OUTER) ** 2, "float32", OUTER) for noise in NOISES]
    root = [noise.result(np.sqrt(one), "float32", OUTER) for noise, one in zip(NOISES, square, strict=True)]
    assert not wrong(root, [np.inf])
    assert not wrong(root, [1e30])  # who computes it in one step is right, too
    assert wrong(root, [np.nan])


def test_an_infinite_sample_does_not_take_the_slack_of_the_others():
    samples = [np.array([one]) for one in (-136.90791, -136.90792, -136.90794, -np.inf)]
    assert not wrong(samples, [-136.90788])
    assert wrong(samples, [-136.9])
    assert wrong(samples, [np.inf])


def test_a_finite_sample_alone_has_its_noise():
    samples = [np.array([one]) for one in (np.nan, np.inf, -0.7 * (1 + 3 * 2.0**-23))]
    assert not wrong(samples, [-0.7 * (1 - 2.0**-23)])
    assert not wrong(samples, [-0.7 * (1 + 6 * 2.0**-23)])
    assert wrong(samples, [-0.7001])


def test_a_sum_that_cancels_may_be_zero_to_its_quotient():
    sums = [noise.inner(np.array([4e-5, 1.0]), 5e-5, "float32") for noise in NOISES]
    with np.errstate(divide="ignore"):
        quotients = [
            noise.result(np.trunc(3e-5 / one), "float32", INNER) for noise, one in zip(NOISES, sums, strict=True)
        ]
    assert not wrong(quotients, [np.inf, 0.0])
    assert wrong(quotients, [0.0, np.inf])


@pytest.mark.parametrize("got", [np.nan, np.inf, 0.0, 7.0])
def test_what_squares_that_overflow_are_divided_by_may_be_anything(got):
    wide, native = np.array([1.5, 0.5]), np.array([0.0, 0.5])
    samples = [noise.overflow(wide, native, is_of_squares=True) for noise in NOISES]
    assert not wrong(samples, [got, 0.5])
    assert wrong(samples, [1.5, got])
    assert wrong([noise.overflow(wide, native) for noise in NOISES], [got, 0.5])  # where none does it counts


def test_a_tie_that_rounding_breaks_excuses_both_answers():
    third = samples_of([1.0])  # which is not sure to be below or above 1
    floors = [np.floor(one).astype("int64") for one in third]
    for got in (0, 1):
        assert not fault(floors, np.array([got]), "int64", exact=False)
    assert fault(floors, np.array([2]), "int64", exact=False)
    assert fault([np.array([1])] * NUM_SAMPLES, np.array([0]), "int64", exact=False)  # no tie


def test_shape_and_dtype_count():
    assert "shape" in fault(samples_of([1.0]), np.zeros((1, 1), "float32"), "float32", exact=True)
    assert "float64" in fault(samples_of([1.0]), np.ones(1), "float32", exact=True)


def test_sums_are_allowed_what_their_terms_are_worth():
    terms = np.array([1e8, 1.0, -1e8])
    samples = [noise.result(noise.operand(terms, "float32").sum(keepdims=True), "float32", INNER) for noise in NOISES]
    assert not wrong(samples, [0.0])  # what float32 makes of it
    assert wrong(samples, [1e5])


def test_bfloat16_is_rounded():
    assert rounded(np.array([1.0 + 2.0**-9]), "bfloat16")[0] == 1.0


def test_what_a_processor_may_flush_has_no_error_of_its_operator():
    """The sign of a softmax that is denormal is 1, or 0 where it is flushed."""
    numbers = np.array([1e-40, 0.5])
    samples = [noise.inner(numbers, 1e-8, "float32") for noise in NOISES]
    assert samples[2][0] == 0
    assert all(one[0] != 0 and one[1] != 0 for one in samples[4:])
    assert all(one[0] != 0 for one in (noise.inner(numbers, 1e-42, "float64") for noise in NOISES))
