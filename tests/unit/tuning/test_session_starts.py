"""Sessions with every strategy, started from the model's ranking or as published."""

import pytest

from anatune.errors import UnknownNameError
from anatune.search.base import STRATEGIES
from tests.unit.tuning.fakes import session
from tests.wording import refuses


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
    sources = [trial.source for trial in whole.trials]
    begins_with_plan = start == "model" or strategy == "model"
    assert sources == (["plan"] if begins_with_plan else [strategy]) + [strategy] * (len(sources) - 1)
    assert (whole.plan_first is whole.trials[0]) == begins_with_plan


def test_a_published_start_measures_nothing_else_first(tmp_path):
    """Neither the plan's choice nor what was recorded becomes the incumbent of a published search."""
    path = tmp_path / "tuning.sqlite"
    session(6, records=path).run()
    result = session(40, strategy="genetic", start="paper", records=path).run()
    assert {trial.source for trial in result.trials} == {"genetic"}
    assert result.num_reused == 0
    assert result.plan_first is None
    assert result.compare is not None
    assert result.compare.speedup is None
    assert result.best_trial in result.trials


@pytest.mark.parametrize(("strategy", "samples"), [("droplet", 3), ("dgd", 1)])
def test_a_strategy_says_how_many_samples_it_needs(strategy, samples):
    made = []
    session(2, made, strategy=strategy).run()
    assert [one.least_samples for one in made] == [samples]


def test_a_session_of_another_start_is_not_resumed(tmp_path):
    path = tmp_path / "tuning.sqlite"
    session(3, strategy="nose", records=path).run()
    other = session(3, strategy="nose", start="paper", records=path, resume=True).run()
    assert other.num_resumed == 0


def test_unknown_starts():
    with refuses(UnknownNameError):
        session(3, start="papers")
