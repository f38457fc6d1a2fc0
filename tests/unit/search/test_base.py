"""The registry of strategies."""

import sys

import pytest

import anatune
from anatune.api import model
from anatune.errors import SpaceError, UnknownNameError
from anatune.named import resolve
from anatune.search.base import STRATEGIES, check_strategy, make_strategy
from anatune.search.strategies.bayes import BayesStrategy
from tests.naive_gpu import gpu
from tests.wording import refuses

MODEL = model(anatune.matmul(8, 8, 8), gpu("rtx3090"))


def test_unknown_names_list_the_known_ones():
    with refuses(UnknownNameError):
        check_strategy("modle")


def test_strategies_are_imported_when_they_are_made():
    name = "anatune.search.strategies.grid"
    sys.modules.pop(name, None)
    check_strategy("grid")
    assert name not in sys.modules
    made = make_strategy("grid", model(anatune.matmul(4, 4, 4), anatune.hardware("xeon_gold_6230r")))
    assert type(made).__name__ == "GridStrategy"
    assert name in sys.modules


def test_the_registry_cannot_be_changed_by_accident():
    with pytest.raises(TypeError):
        STRATEGIES["mine"] = "mine:Mine"  # type: ignore[index]


def test_unknown_starts_list_the_known_ones():
    with refuses(UnknownNameError):
        make_strategy("dgd", MODEL, start="papers")


@pytest.mark.parametrize("name", STRATEGIES)
def test_spaces_of_gpus(name):
    made = model(anatune.matmul(32, 32, 32), gpu("rtx3090"))
    asked = make_strategy(name, made).ask(5)
    assert len({schedule.key for schedule in asked}) == len(asked) >= 1
    assert all(made.check(made.space.point_of(schedule)[None, :])[0] == 0 for schedule in asked)


def test_settings_are_part_of_the_name():
    strategy = make_strategy("bayes:acquisition=ei,eviction=lru,memory=500,kappa=0.01", MODEL, start="paper")
    assert (strategy.acquisition, strategy.eviction, strategy.memory, strategy.kappa) == ("ei", "lru", 500, 0.01)
    assert (strategy.selection, BayesStrategy.memory) == ("heap", 250)
    assert isinstance(strategy, BayesStrategy)


def test_the_same_settings_are_the_same_name():
    """A session is resumed by the name of its strategy."""
    assert check_strategy("bayes: memory=0500, eviction=lru") == "bayes:eviction=lru,memory=500"
    assert check_strategy("bayes:eviction=lru,memory=500") == "bayes:eviction=lru,memory=500"


def test_every_option_is_a_setting_of_its_class():
    for name, place in STRATEGIES.items():
        kind = resolve(place)
        for setting, values in getattr(kind, "options", {}).items():
            default = getattr(kind, setting)
            assert default in values if isinstance(default, str) else values[0] <= default <= values[1]
            assert check_strategy(f"{name}:{setting}={default}") == f"{name}:{setting}={default}"


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("bayes:", UnknownNameError, "setting of the strategy bayes is '', expected one of acquisition, eviction"),
        ("bayes:colour=red", UnknownNameError, "'colour', expected one of acquisition, eviction, selection"),
        ("bayes:acquisition=best", SpaceError, "strategy bayes: acquisition is 'best', expected one of ucb, ei, poi"),
        ("bayes:memory=7", SpaceError, "memory is '7', expected an integer from 64 to 2000"),
        ("bayes:memory=1e3", SpaceError, "memory is '1e3', expected an integer from 64 to 2000"),
        ("bayes:kappa=nan", SpaceError, "kappa is 'nan', expected a number from 0 to 100"),
        ("bayes:kappa", SpaceError, "kappa is '', expected a number"),
        ("random:seed=1", UnknownNameError, "random has no settings; write 'random'"),
        ("model:trees=1", UnknownNameError, "model has no settings; write 'model'"),
        ("bays:memory=100", UnknownNameError, "strategy is 'bays', expected one of model, dgd"),
        (3, UnknownNameError, "strategy is 3, expected one of model, dgd"),
    ],
)
def test_wrong_settings(name, error, words):
    for check in (check_strategy, lambda wrong: make_strategy(wrong, MODEL)):
        with refuses(error):
            check(name)


def test_a_setting_is_given_once():
    with refuses(SpaceError):
        check_strategy("bayes:kappa=1,kappa=2")
