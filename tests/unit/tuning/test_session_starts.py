"""Sessions with every strategy, started from the model's ranking or as published."""

import pytest

from anatune.errors import UnknownNameError
from anatune.search.base import STRATEGIES
from tests.unit.tuning.fakes import session


def keys(trials):
    return [trial.schedule.key for trial in trials]


@pytest.mark.parametrize("start", ["model", "paper"])
@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_resumed_session_goes_on_where_it_was(tmp_path, strategy, start):
    whole = session(12, ahead=1, strategy=strategy, start=start).run()
    path = tmp_path / "tuning.sqlite"
    session(5, ahead=1, strategy=strategy, start=start, records=path).run()
    resumed = session(12, ahead=1, strategy=strategy, start=start, records=path, resume=True).run()
    assert resumed.num_resumed == 5
    assert keys(resumed.trials) == keys(whole.trials)
    assert len(set(keys(whole.trials))) == len(whole.trials)
    assert {trial.source for trial in whole.trials[1:]} == {strategy}


def test_a_session_of_another_start_is_not_resumed(tmp_path):
    path = tmp_path / "tuning.sqlite"
    session(3, strategy="nose", records=path).run()
    other = session(3, strategy="nose", start="paper", records=path, resume=True).run()
    assert other.num_resumed == 0


def test_unknown_starts():
    with pytest.raises(UnknownNameError, match="start is 'papers', expected one of model, paper"):
        session(3, start="papers")
