"""Plans: best schedule, JSON, table; the message where nothing is legal."""

from __future__ import annotations

import dataclasses
import json

import pytest

import anatune
from anatune.api import model as model_of
from anatune.errors import SpaceError
from anatune.model.plan import Plan, prediction_row
from anatune.templates.base.model import Guarantee
from anatune.templates.cuda.model.scoring import PARTS, RESOURCES
from anatune.templates.gpu.model import FEATURES
from tests.naive_gpu import gpu, with_limits
from tests.wording import refuses

MATMUL = anatune.matmul(8, 12, 5)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return anatune.plan(MATMUL, gpu("rtx3090"), top_k=4)


def test_order_and_counts(plan: Plan) -> None:
    times = [prediction.time_s for prediction in plan.predictions]
    assert times == sorted(times)
    assert plan.best == plan.schedules[0]
    assert len(plan.schedules) == len(plan.predictions) == 4
    assert plan.space_size == plan.num_legal + sum(plan.rejected.values())
    assert set(plan.rejected) == {rule.id for rule in plan.rules}


def test_json(plan: Plan) -> None:
    read = json.loads(plan.to_json())
    answer = {"workload", "hardware", "template", "threads", "space", "guarantee", "num_alike_is_exact", "schedules"}
    assert set(read) == answer
    assert read["hardware"]["name"] == "rtx3090"
    assert read["space"]["size"] == plan.space_size
    assert read["guarantee"] == {
        "kind": "exhaustive", "gap": 0.0, "num_evaluated": plan.space_size, "num_bounded": 0, "text": "exhaustive",
    }  # fmt: skip
    first = read["schedules"][0]
    assert {axis: tuple(factors) for axis, factors in first["tiles"].items()} == plan.best.tiles
    assert first["prediction"]["time_s"] == plan.predictions[0].time_s
    assert set(first["prediction"]["features"]) == set(FEATURES)
    assert anatune.Workload.from_json(json.dumps(read["workload"])) == MATMUL


def test_frame(plan: Plan) -> None:
    frame = plan.to_frame()
    assert len(frame) == 4
    assert frame["schedule"].tolist() == [schedule.describe() for schedule in plan.schedules]
    assert frame["time_s"].tolist() == [prediction.time_s for prediction in plan.predictions]
    for name in (*PARTS, *FEATURES, *RESOURCES, "bound_by", "occupancy", "waves", "traffic_over_bound_dram", "legal"):
        assert name in frame.columns


def test_rows_are_flat(plan: Plan) -> None:
    row = prediction_row(plan.predictions[0])
    assert all(isinstance(value, float | str | bool) for value in row.values())
    assert row["legal"] is True
    assert row["rule"] == ""


def test_nothing_legal_is_explained() -> None:
    cramped = with_limits(gpu("rtx3090"), shared={"per_block_bytes": 8192})
    workload = anatune.einsum(
        "abcdefgh,abcdefgh->", dict(zip("abcdefgh", (2,) * 8, strict=True))
    )  # legal, as every reduction can be split
    assert anatune.plan(workload, cramped, top_k=1).best
    model = model_of(MATMUL, cramped)
    model._gpu = model._gpu._replace(shared_block_bytes=4)  # less than one element of each operand
    ranking = model.rank(3)
    assert (len(ranking.points), ranking.num_legal) == (0, 0)
    assert ranking.rejected["shared_bytes_per_block"] == model.space.size
    empty = dataclasses.replace(
        anatune.plan(MATMUL, cramped, 1), schedules=[], predictions=[], num_legal=0, rejected=ranking.rejected
    )
    with refuses(SpaceError):
        _ = empty.best
    assert json.loads(empty.to_json())["schedules"] == []
    assert len(empty.to_frame()) == 0


def test_guarantee_in_words() -> None:
    assert Guarantee("certified").describe() == "certified"
    assert Guarantee("best_found", 0.123).describe() == "best found, gap to the best possible time <= 12 %"
