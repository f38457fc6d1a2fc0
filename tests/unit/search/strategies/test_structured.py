"""Structured random search: good microkernels, evenly."""

import numpy as np
import pytest
from msgspec.structs import replace

import anatune
from anatune.api import model
from anatune.core.hardware.cpu_groups import MicrokernelTable
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


def test_microkernels_with_idle_lanes_are_not_good():
    points = [CPU.space.point_of(schedule) for schedule in StructuredStrategy(CPU, start="paper").ask(60)]
    assert CPU.space.lane_shares(np.array(points)).min() >= StructuredStrategy.efficiency
    assert CPU.space.lane_shares(CPU.space.sample_points(60, 0)).min() < 0.5


def test_microkernels_that_spill_are_not_good():
    def shares(points):
        columns = CPU.evaluate(np.array(points)).columns
        return columns["fma_s"] / (columns["core_s"] - columns["overhead_s"])

    asked = StructuredStrategy(CPU, start="paper").ask(60)
    assert shares([CPU.space.point_of(schedule) for schedule in asked]).min() >= StructuredStrategy.efficiency
    assert shares(CPU.space.sample_points(200, 0)).min() < 0.5


def test_measured_microkernels_are_drawn_where_the_spec_has_them():
    tiles = tuple((rows, 2, steps, 0.9) for rows in range(8, 13) for steps in (1, 8))
    table = MicrokernelTable(depth=256, tiles=tiles, source="made up")
    measured = model(anatune.matmul(96, 512, 256), replace(anatune.hardware("xeon_gold_6230r"), microkernels=table))
    asked = StructuredStrategy(measured, start="paper").ask(40)
    points = np.array([measured.space.point_of(schedule) for schedule in asked])
    assert (measured.space.microkernel_shares(points) == 0.9).all()
    others = [CPU.space.point_of(schedule) for schedule in StructuredStrategy(CPU, start="paper").ask(40)]
    assert not measured.space.microkernel_shares(np.array(others)).all()


def test_a_workload_without_measured_microkernels_has_the_models():
    table = MicrokernelTable(depth=256, tiles=((12, 2, 1, 0.9),), source="made up")
    cpu = anatune.hardware("xeon_gold_6230r")
    made = [model(anatune.matmul(1, 512, 256), spec) for spec in (cpu, replace(cpu, microkernels=table))]
    tiles = [[one.tiles for one in StructuredStrategy(each, start="paper").ask(10)] for each in made]
    assert tiles[0] == tiles[1]


def test_the_model_chooses_tilings():
    both = {}
    for start in ("paper", "model"):
        strategy = StructuredStrategy(CPU, start=start, ranked=CPU.rank(4).points)
        both[start] = CPU.times(np.array([CPU.space.point_of(schedule) for schedule in strategy.ask(40)]))[0]
    assert np.median(both["model"]) < np.median(both["paper"])


def test_the_first_question_is_the_rankings_first_point():
    assert StructuredStrategy(GPU, ranked=RANKED).ask(1) == [GPU.space.schedule_of(RANKED[0])]
