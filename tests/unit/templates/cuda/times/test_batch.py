"""Batches of points: the same bits as one by one, one compiled signature, no overflow."""

from __future__ import annotations

import numpy as np
import pytest

import anatune
from anatune.numerics.columns import CHUNK_SIZE
from anatune.templates.cuda.model.model import CudaModel
from anatune.templates.cuda.times.batch import BOUND, CHECK, MACRO_BOUND, PREDICT, run_points
from anatune.templates.cuda.times.search import list_macros
from anatune.templates.cuda.times.shared_memory import conflict_table
from anatune.templates.gpu.times.columns import Col
from tests.naive_gpu import WORKLOADS, gpu, random_points

KINDS = ("matmul", "conv2d_stride", "conv2d_nhwc", "depthwise", "max_pool", "row_sum", "elementwise", "matmul_int8")
RESULT = slice(int(Col.RULE), int(Col.SCRATCH))


@pytest.mark.parametrize("task", [PREDICT, BOUND, MACRO_BOUND])
@pytest.mark.parametrize("name", KINDS)
def test_a_batch_gives_the_same_bits_as_single_points(name: str, task: int) -> None:
    model = CudaModel(WORKLOADS[name], gpu("k80"))
    points = random_points(model, 2 * CHUNK_SIZE + 37, seed=1)
    rules, times, columns = model._run(points, task, full=True)
    for number in range(0, len(points), 1 if task == PREDICT else 19):
        rule, time, column = model._run(points[number], task, full=True)
        assert (rule[0], time[0]) == (rules[number], times[number])
        assert column[RESULT, 0].tobytes() == columns[RESULT, number].tobytes()


@pytest.mark.parametrize("name", KINDS)
def test_order_and_chunk_position_do_not_matter(name: str) -> None:
    model = CudaModel(WORKLOADS[name], gpu("rtx3090"))
    points = random_points(model, 3 * CHUNK_SIZE + 1, seed=2)
    rules, times, columns = model._run(points, PREDICT, full=True)
    for start in (1, CHUNK_SIZE - 1, CHUNK_SIZE, CHUNK_SIZE + 1):
        assert model.times(points[start:])[0].tobytes() == times[start:].tobytes()
    order = np.random.default_rng(3).permutation(len(points))
    shuffled = model._run(points[order], PREDICT, full=True)
    assert shuffled[0].tobytes() == rules[order].tobytes()
    assert shuffled[1].tobytes() == times[order].tobytes()
    assert shuffled[2][RESULT].tobytes() == np.ascontiguousarray(columns[:, order])[RESULT].tobytes()


def test_tasks_agree_on_rules() -> None:
    model = CudaModel(anatune.matmul(512, 512, 512), gpu("tx2"))
    points = random_points(model, 1000, seed=4)
    rules = [model._run(points, task)[0].tolist() for task in (CHECK, PREDICT, BOUND, MACRO_BOUND)]
    assert rules[0] == rules[1] == rules[2] == rules[3]
    assert len(set(rules[0])) >= 3


@pytest.mark.parametrize(
    "workload",
    [
        anatune.matmul(65536, 65536, 65536),
        anatune.matmul(65536, 65536, 65536, dtype="int8"),
        anatune.conv2d(8192, 512, 224, 224, 512, 7, 7, padding=3),
        anatune.conv3d(1024, 64, 64, 128, 128, 256, 3, 3, 3, padding=1),
        anatune.elementwise((65536, 65536, 64)),
        anatune.reduction((65536, 65536), axes=(0,)),
        anatune.max_pool2d(8192, 512, 512, 512, 2, 2, stride=2),
    ],
    ids=lambda workload: workload.describe(),
)
def test_absurdly_large_workloads_do_not_overflow(workload: anatune.Workload) -> None:
    for device in ("rtx3090", "mi50"):
        model = CudaModel(workload, gpu(device))
        axes = workload.axes
        tiles = [
            {axis.name: cyclic(axis.extent, 5 if axis.kind == "spatial" else 3, at) for axis in axes} for at in range(5)
        ]  # the whole extent at one level of every axis
        corners = np.array([model.space.point_of(model.space.schedule(tile)) for tile in tiles])
        points = np.concatenate([corners, random_points(model, 2000, seed=5)])
        for task in (PREDICT, BOUND, MACRO_BOUND):
            _, times, columns = model._run(points, task, full=True)
            assert np.isfinite(times).all()
            assert (times > 0).all()
            assert np.isfinite(columns[RESULT]).all()
            assert (columns[RESULT] >= 0).all()
            assert (times >= model.floor_s * (1 - 1e-12)).all()
        exact = [float(np.prod([float(v) for v in row[2 : 5 * len(workload.spatial_axes) : 5]])) for row in points]
        assert columns[Col.THREADS].tolist() == exact


def cyclic(extent: int, levels: int, number: int) -> tuple[int, ...]:
    return tuple(extent if level == number % levels else 1 for level in range(levels))


def test_one_compiled_signature() -> None:
    for name in ("matmul", "matmul_int8", "conv3d", "sum", "elementwise", "conv2d_nhwc", "einsum"):
        for device in ("rtx3090", "mi50"):
            model = CudaModel(WORKLOADS[name], gpu(device))
            model.evaluate(random_points(model, 3, seed=0))
            model.rank(1, 1e-9)
    for entry in (run_points, list_macros, conflict_table):
        assert len(getattr(entry, "signatures", [()]) or [()]) == 1, entry


@pytest.mark.parametrize("name", KINDS)
def test_a_compilers_own_numbers_change_nothing(name: str) -> None:
    model = CudaModel(WORKLOADS[name], gpu("rtx3090"))
    points = random_points(model, CHUNK_SIZE + 5, seed=6)
    _, times, columns = model._run(points, PREDICT, full=True)
    same = columns[[Col.REGISTERS, Col.SHARED_BYTES, Col.SPILLED]]
    _, again, repeated = model._run(points, PREDICT, full=True, compiled=same)
    assert again.tobytes() == times.tobytes()
    assert repeated[RESULT].tobytes() == columns[RESULT].tobytes()


def test_more_registers_lower_the_occupancy() -> None:
    model = CudaModel(WORKLOADS["matmul"], gpu("rtx3090"))
    points = random_points(model, 64, seed=7)
    _, _, columns = model._run(points, PREDICT, full=True)
    compiled = columns[[Col.REGISTERS, Col.SHARED_BYTES, Col.SPILLED]]
    compiled[0] = np.minimum(compiled[0] + 60, columns[Col.REGISTER_CAP])
    compiled[2] += 8
    _, times, changed = model._run(points, PREDICT, full=True, compiled=compiled)
    assert (changed[Col.RESIDENT] <= columns[Col.RESIDENT]).all()
    assert (changed[Col.RESIDENT] < columns[Col.RESIDENT]).any()
    assert changed[Col.REGISTERS].tolist() == compiled[0].tolist()
    assert (changed[Col.SPILL_S] >= columns[Col.SPILL_S]).all()
    assert np.isfinite(times).all()


def test_points_that_are_read_only_need_no_other_code() -> None:
    model = CudaModel(WORKLOADS["matmul"], gpu("rtx3090"))
    points = random_points(model, 3, seed=0)
    before = model.times(points)[0]
    compiled = len(getattr(run_points, "signatures", ()))
    points.setflags(write=False)
    assert (model.times(points)[0] == before).all()
    assert len(getattr(run_points, "signatures", ())) == compiled
