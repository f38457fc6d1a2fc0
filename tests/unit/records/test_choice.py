"""Which trial is the best."""

import statistics

from anatune.records.choice import RecordedTrial, choose_winner, fastest


def one(number, key, times=(1.0,), references=(), ok=True, session="s", **how):
    trial = RecordedTrial(number, key, session, ok, times_s=times if ok else (), reference_times_s=references, **how)
    return trial._replace(relative=statistics.median(trial.ratios) if trial.ratios else None)


def compared(number, key, ratio, session="s", **how):
    return one(number, key, (ratio,) * 6, (1.0,) * 6, session=session, compared=True, **how)


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


def test_a_session_has_the_winner_of_its_final_comparison():
    trials = [one(1, "a", (1.0,) * 9, (1.0,) * 9), one(2, "b", (1.2,) * 9, (1.0,) * 9)]
    assert fastest(trials) == 1
    assert fastest([*trials, compared(3, "a", 1.3), compared(4, "b", 1.1)]) in (2, 4)
    assert fastest([*trials, compared(3, "a", 1.1), compared(4, "b", 1.1)]) in (1, 3)
    to_the_end = compared(3, "a", 1.3)._replace(times_s=(1.2,) * 3 + (1.4,) * 3)
    early = compared(4, "b", 1.25, stopped_early=True)._replace(times_s=(1.25,) * 3)
    assert fastest([*trials, to_the_end, early]) in (1, 3)  # it was slower in the rounds that both ran


def test_the_winner_is_what_the_paired_test_says_not_the_median():
    first, other = (1.0, 1.0, 1.0, 1.0, 1.0), (0.99, 0.99, 0.99, 1.2, 1.2)
    assert choose_winner([other, first], [False, False]) == 1
    assert choose_winner([first, other[:3]], [False, True]) == 1  # dropped, though faster while it ran
    trials = [one(number, key, times, (1.0,) * 5) for number, key, times in ((1, "a", first), (2, "b", other))]
    ended = [one(3, "b", other, (1.0,) * 5, compared=True), one(4, "a", first, (1.0,) * 5, compared=True)]
    assert fastest([*trials, *ended]) in (1, 4)


def test_the_last_comparison_is_final_and_only_at_the_end():
    trials = [one(1, "a", (1.0,) * 9, (1.0,) * 9), one(2, "b", (1.2,) * 9, (1.0,) * 9)]
    first = [*trials, compared(3, "a", 1.3), compared(4, "b", 1.1)]
    assert fastest([*first, compared(5, "a", 1.1), compared(6, "b", 1.2)]) == 1  # most samples
    new = one(5, "c", (0.9,) * 3, (1.0,) * 3)
    assert fastest([*first, new]) == 5
    assert fastest([*first, new, compared(6, "c", 1.5), compared(7, "b", 1.4)]) == 2
    assert fastest([*first, new, compared(6, "c", 1.4), compared(7, "b", 1.5)]) == 6


def test_sessions_interleave_and_their_winners_are_judged_by_all_samples():
    trials = [
        one(1, "a", (1.0,), (1.0,)), one(2, "c", (1.1,), (1.0,), session="t"), one(3, "b", (1.2,), (1.0,)),
        compared(4, "a", 1.3), one(5, "d", (1.2,), (1.0,), session="t"), compared(6, "b", 1.2),
        compared(7, "c", 1.2, session="t"), compared(8, "d", 1.1, session="t"),
    ]  # fmt: skip
    assert fastest(trials) == 8  # d 1.1 against b 1.2
    assert fastest([*trials, compared(9, "b", 0.9), compared(10, "b", 0.8)]) == 10


def test_a_winner_that_is_wrong_elsewhere_leaves_the_place_to_the_next():
    trials = [compared(1, "a", 1.0), compared(2, "b", 1.1), compared(3, "c", 1.2)]
    assert fastest(trials) == 1
    assert fastest([*trials, one(4, "a", ok=False, session="t")]) == 2


def test_a_comparison_that_did_not_run_decides_nothing():
    trials = [one(1, "a", (2.0,)), one(2, "b", (1.0,))]
    assert fastest([*trials, one(3, "a", ok=False, compared=True), one(4, "b", ok=False, compared=True)]) is None
    assert fastest([*trials, one(3, "a", (), compared=True)]) == 2
