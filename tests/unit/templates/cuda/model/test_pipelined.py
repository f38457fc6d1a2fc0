"""The template with staging pipelines: the same model where there is none, less waiting where there is one."""

import numpy as np
import pytest

import anatune
from anatune.errors import SpaceError
from anatune.templates.cuda.model.model import CudaModel
from anatune.templates.cuda.model.pipelined import PipelinedModel
from anatune.templates.cuda.pipelined_space import PipelinedSpace
from tests.wording import refuses

GPU = anatune.hardware("a100_sxm")
MATMUL = anatune.matmul(64, 128, 64)
TILES = {"i": (2, 1, 8, 1, 4), "j": (2, 1, 16, 1, 4), "k": (4, 2, 8)}


@pytest.fixture(scope="module")
def model():
    return PipelinedModel(MATMUL, GPU)


def test_points_without_a_pipeline_are_those_of_the_plain_template(model):
    plain = CudaModel(MATMUL, GPU)
    points = plain.space.sample_points(50, 0)
    extended = np.column_stack([points, np.tile((1, 0), (len(points), 1))])
    assert (model.times(extended)[0] == plain.times(points)[0]).all()
    assert [p.time_s for p in model.predictions(extended)] == [p.time_s for p in plain.predictions(points)]


def test_the_space_is_the_plain_one_times_its_pipelines(model):
    space = model.space
    assert isinstance(space, PipelinedSpace)
    assert space.size == anatune.space(MATMUL, GPU).size * 3 * 2
    points = space.sample_points(30, 1)
    assert (space.decode(space.encode(points)) == points).all()
    for point in points:
        schedule = anatune.Schedule.from_json(space.schedule_of(point).to_json())
        assert schedule.template == "pipelined"
        assert (space.point_of(schedule) == point).all()


def test_a_second_buffer_hides_waiting_and_costs_shared_memory(model):
    points = [model.space.point_of(model.space.schedule(TILES, 64, stages=stages)) for stages in (1, 2, 3)]
    single, two, three = model.predictions(np.array(points))
    assert two.time_s < single.time_s
    shared = [p.resources["shared_bytes_per_block"] for p in (single, two, three)]
    assert shared == [6144, 12288, 18432]


def test_gaps_between_rows_remove_bank_conflicts(model):
    tiles = {"i": (1, 1, 32, 1, 2), "j": (16, 1, 8, 1, 1), "k": (2, 32, 1)}
    points = [model.space.point_of(model.space.schedule(tiles, 64, stages=1, pad=pad)) for pad in (0, 4)]
    before, after = model.predictions(np.array(points))
    assert after.resources["bank_conflicts"] < before.resources["bank_conflicts"]
    # 64 rows of A and 32 rows of B; the last row of a tile has no gap
    assert after.resources["shared_bytes_per_block"] - before.resources["shared_bytes_per_block"] == 4 * 4 * (63 + 31)


def test_the_ranking_is_the_best_of_all_pipelines():
    workload = anatune.matmul(4, 4, 4)
    model = PipelinedModel(workload, GPU)
    space = model.space
    numbers = np.arange(space.size)
    points = space.decode(np.column_stack(np.unravel_index(numbers, space.radices)).astype(np.int64))
    times, rules = model.times(points)
    ranking = model.rank(20)
    assert ranking.guarantee.kind == "exhaustive"
    assert ranking.num_legal == (rules == 0).sum()
    best = np.sort(times[rules == 0])[:20]
    assert model.times(ranking.points)[0] == pytest.approx(best)
    distinct = model.times(model.rank(20, distinct=True).points)[0]
    assert (np.diff(distinct) > 0).all()


def test_devices_and_workloads_that_cannot_have_a_pipeline_are_refused():
    with refuses(SpaceError):
        anatune.space(MATMUL, anatune.hardware("mi50"), template="pipelined")
    with refuses(SpaceError):
        anatune.space(anatune.elementwise((8, 8)), GPU, template="pipelined")
    with refuses(SpaceError):
        anatune.space(MATMUL, GPU, template="pipelined").schedule(TILES, stages=7)


def test_only_devices_with_asynchronous_copies_have_three_buffers():
    assert anatune.space(MATMUL, anatune.hardware("v100_sxm2"), template="pipelined").stage_counts == (1, 2)
    half = anatune.matmul(64, 64, 64, dtype="float16")
    assert anatune.space(half, GPU, template="pipelined").stage_counts == (1, 2)
