"""Which trial is the best."""

from anatune.records.choice import Candidate, fastest


def one(number, key, times=(1.0,), references=(), ok=True):
    return Candidate(number, key, ok, times if ok else (), references)


def test_nothing():
    assert fastest([]) is None
    assert fastest([one(1, "a", ok=False)]) is None
    assert fastest([one(1, "a", times=())]) is None


def test_by_time_without_a_reference():
    assert fastest([one(1, "a", (3.0, 1.0, 3.0)), one(2, "b", (2.0, 2.0, 9.0)), one(3, "c", (2.5,))]) == 2


def test_by_the_reference_where_it_ran():
    slow_minute = one(1, "a", (4.0, 4.0), (4.0, 4.0))
    quiet_minute = one(2, "b", (3.0, 3.0), (2.0, 2.0))
    assert fastest([slow_minute, quiet_minute]) == 1


def test_a_lucky_first_measurement_does_not_win():
    lucky = [one(1, "a", (1.0,), (1.0,)), one(2, "a", (2.0,) * 9, (1.0,) * 9)]
    assert fastest([*lucky, one(3, "b", (1.5,) * 3, (1.0,) * 3)]) == 3


def test_the_trial_with_the_most_samples_stands_for_a_schedule():
    trials = [one(1, "a", (1.0,)), one(2, "a", (1.0,) * 5), one(3, "a", (1.0,) * 5), one(4, "a", (1.0,))]
    assert fastest(trials) == 3


def test_a_schedule_that_went_wrong_is_left_out_until_it_is_right_again():
    right, wrong = one(1, "a", (1.0,)), one(2, "a", ok=False)
    other = one(3, "b", (5.0,))
    assert fastest([right, wrong, other]) == 3
    assert fastest([right, wrong, other, one(4, "a", (1.0,))]) == 4


def test_with_and_without_reference():
    referred = [one(1, "a", (2.0,), (1.0,)), one(2, "b", (9.0,), (9.0,))]
    assert fastest([*referred, one(3, "c", (1.0,))]) == 3
    assert fastest([*referred, one(3, "c", (10.0,))]) == 2


def test_ties_go_to_the_earlier():
    assert fastest([one(1, "a"), one(2, "b")]) == 1
