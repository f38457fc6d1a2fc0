"""Structured random search: good microkernels, evenly."""

import numpy as np
import pytest

import anatune
from anatune.api import model
from anatune.search.neighbours import Moves
from anatune.search.strategies.structured import StructuredStrategy
from tests.unit.search.worlds import GPU, RANKED

CPU = model(anatune.matmul(96, 512, 256), anatune.hardware("xeon_gold_6230r"))


def efficiencies(made, points):
    columns = made.evaluate(np.array(points)).columns
    slowest = np.max([columns[name] for name in ("fma_s", "issue_s", "load_s", "latency_s") if name in columns], axis=0)
    return columns["fma_s"] / slowest


@pytest.mark.parametrize("made", [CPU, GPU])
def test_only_good_microkernels(made):
    strategy = StructuredStrategy(made, start="paper")
    points = [made.space.point_of(schedule) for schedule in strategy.ask(60)]
    drawn = made.space.sample_points(60, 0)
    assert np.median(efficiencies(made, points)) > np.median(efficiencies(made, drawn))
    assert np.median(made.times(np.array(points))[0]) < np.median(made.times(drawn)[0])


def test_many_microkernels():
    asked = StructuredStrategy(CPU, start="paper").ask(40)
    points = np.array([CPU.space.point_of(schedule) for schedule in asked])
    assert len(set(Moves(CPU.space).kernel_ids(CPU.space.encode(points)).tolist())) >= 30


def test_the_model_chooses_tilings():
    both = {}
    for start in ("paper", "model"):
        strategy = StructuredStrategy(CPU, start=start, ranked=CPU.rank(4).points)
        both[start] = CPU.times(np.array([CPU.space.point_of(schedule) for schedule in strategy.ask(40)]))[0]
    assert np.median(both["model"]) < np.median(both["paper"])


def test_the_first_question_is_the_rankings_first_point():
    assert StructuredStrategy(GPU, ranked=RANKED).ask(1) == [GPU.space.schedule_of(RANKED[0])]
