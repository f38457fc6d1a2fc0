"""The registry of strategies."""

import sys

import pytest

import anatune
from anatune.api import model
from anatune.errors import UnknownNameError
from anatune.search.base import STRATEGIES, check_strategy, make_strategy
from tests.naive_gpu import gpu

MODEL = model(anatune.matmul(8, 8, 8), gpu("rtx3090"))


def test_unknown_names_list_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"strategy is 'modle', expected one of model, dgd, .*grid"):
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
    with pytest.raises(UnknownNameError, match="start is 'papers', expected one of model, paper"):
        make_strategy("dgd", MODEL, start="papers")


@pytest.mark.parametrize("name", STRATEGIES)
def test_spaces_of_gpus(name):
    made = model(anatune.matmul(32, 32, 32), gpu("rtx3090"))
    asked = make_strategy(name, made).ask(5)
    assert len({schedule.key for schedule in asked}) == len(asked) >= 1
    assert all(made.check(made.space.point_of(schedule)[None, :])[0] == 0 for schedule in asked)
