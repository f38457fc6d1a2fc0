import pytest

from anatune.fleet.cluster.station import _best_of_rounds


@pytest.mark.parametrize(
    ("rounds", "best", "asked"),
    [([1.0, 1.01, 9.9], 1.0, 2), ([2.0, 1.5, 1.0, 1.005, 9.9], 1.0, 4), ([1.0, 2.0, 3.0, 1.6, 1.3, 1.1, 9.9], 1.0, 6)],
)
def test_rounds_end_when_two_agree(rounds, best, asked):
    left = list(rounds)
    assert _best_of_rounds(lambda samples: left.pop(0)) == best
    assert len(rounds) - len(left) == asked
