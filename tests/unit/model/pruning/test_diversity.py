"""The choice of few points: the best predicted first, then what tells most beside it."""

import numpy as np

from anatune.model.pruning.diversity import ERROR_LENGTH, choose_diverse, common_error, leading_count


def test_a_copy_comes_after_something_else():
    time_s = np.array([1.0, 1.0, 1.0, 1.05])
    quantities = np.array([[0.0], [0.0], [0.0], [10.0]])
    assert choose_diverse(time_s, quantities, 2).tolist() == [0, 3]


def test_something_else_has_to_be_nearly_as_fast():
    time_s = np.array([1.0, 1.0, 1.0, 4.0])
    quantities = np.array([[0.0], [0.0], [0.0], [10.0]])
    assert 3 not in choose_diverse(time_s, quantities, 3)


def test_how_many_are_chosen():
    rng = np.random.default_rng(1)
    time_s, quantities = np.sort(rng.uniform(1.0, 1.3, 40)), rng.normal(size=(40, 3))
    for count in (0, 1, 5, 39, 40, 100):
        chosen = choose_diverse(time_s, quantities, count)
        assert len(set(chosen.tolist())) == min(count, 40)
        assert chosen.tolist() == choose_diverse(time_s, quantities, count).tolist()
        assert chosen[:1].tolist() == [0][:count]
    assert choose_diverse(time_s, quantities, 12)[:5].tolist() == choose_diverse(time_s, quantities, 5).tolist()


def test_the_beginning_is_among_them_also_where_it_is_all_copies():
    time_s = np.linspace(1.0, 1.001, 100)
    quantities = np.repeat([[0.0], [50.0]], [90, 10], axis=0)
    assert set(range(leading_count(49))) <= set(choose_diverse(time_s, quantities, 49).tolist())
    assert [leading_count(count) for count in (0, 1, 9, 16, 180, 256)] == [0, 1, 1, 1, 75, 128]


def test_the_expected_minimum_is_lower_than_that_of_the_first_ones():
    rng = np.random.default_rng(2)
    kinds = np.repeat(rng.normal(scale=4.0, size=(8, 2)), 10, axis=0)
    quantities = kinds + rng.normal(scale=0.1, size=kinds.shape)
    time_s = np.sort(rng.uniform(1.0, 1.2, 80))
    covariance = 0.15**2 * common_error(quantities, quantities) + 1e-6 * np.eye(80)
    truth = time_s[:, None] * np.exp(np.linalg.cholesky(covariance) @ rng.standard_normal((80, 500)))
    chosen = choose_diverse(time_s, quantities, 8)
    assert truth[chosen].min(axis=0).mean() < truth[:8].min(axis=0).mean()


def test_common_errors():
    points = np.array([[0.0, 0.0], [0.0, ERROR_LENGTH], [100.0, 0.0]])
    common = common_error(points, points)
    assert np.allclose(np.diag(common), 1.0)
    assert common[0, 1] == np.exp(-0.5)
    assert common[0, 2] < 1e-9
