"""Properties of the GPU model and space for random workloads, devices and points."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import anatune
from anatune.core.workload.nest import Workload
from anatune.templates.cuda.model.model import CudaModel
from anatune.templates.cuda.model.scoring import PARTS
from anatune.templates.cuda.times.batch import BOUND, MACRO_BOUND, PREDICT
from anatune.templates.gpu.model import SPLIT_PARTS
from anatune.templates.gpu.times.columns import Col
from anatune.templates.gpu.times.occupancy import resident_blocks_one
from tests.naive_gpu import DEVICES, Point, all_points, gpu, has_rounds, random_points, small_workloads, tiles_axis

SETTINGS = settings(
    derandomize=True, deadline=None, database=None, max_examples=75,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip
SLACK = 1 - 1e-12
names = st.sampled_from(DEVICES)
seeds = st.integers(0, 1000)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Small ones, and larger ones that spill, exceed limits and fill devices."""
    if draw(st.booleans()):
        return draw(small_workloads())
    size = st.sampled_from([1, 7, 32, 48, 64, 100, 128, 250, 256, 512, 1024])
    dtype = draw(st.sampled_from(["float32", "float16", "int8"]))
    kind = draw(st.sampled_from(["matmul", "conv", "reduction", "elementwise", "pool"]))
    if kind == "matmul":
        return anatune.matmul(draw(size), draw(size), draw(size), dtype=dtype, transpose_b=draw(st.booleans()))
    if kind == "conv":
        channels = st.sampled_from([3, 16, 32, 64, 128])
        plane = st.sampled_from([14, 28, 56])
        stride, layout = draw(st.integers(1, 2)), draw(st.sampled_from(["NCHW", "NHWC"]))
        return anatune.conv2d(
            draw(st.sampled_from([1, 4, 16])), draw(channels), draw(plane), draw(plane), draw(channels), 3, 3,
            stride=stride, padding=1, layout=layout, dtype=dtype,
        )  # fmt: skip
    if kind == "reduction":
        return anatune.reduction((draw(size), draw(size)), axes=(draw(st.integers(0, 1)),))
    if kind == "pool":
        return anatune.max_pool2d(4, draw(st.sampled_from([16, 64])), 56, 56, 3, 3, stride=2)
    return anatune.elementwise((draw(size), draw(size)))


@SETTINGS
@given(workloads(), names, seeds)
def test_bounds_are_admissible(workload: Workload, device: str, seed: int) -> None:
    """No completion of a macro choice is faster than its bounds."""
    model = CudaModel(workload, gpu(device))
    points = random_points(model, 1000, seed)
    # also many completions of few macro choices: only the other levels are drawn anew
    again = random_points(model, 1000, seed + 1)
    merged = with_macro_of(model, points[:5], again)
    for batch in (points, merged):
        macro_bounds, bounds, times = (model._run(batch, task)[1] for task in (MACRO_BOUND, BOUND, PREDICT))
        assert (macro_bounds * SLACK <= bounds).all()
        assert (bounds * SLACK <= times).all()
        assert (times > 0).all()
        if model.space.splits is not None:
            unsplit = batch.copy()
            unsplit[:, -3:] = (1, 0, 0)
            is_split = batch[:, -3] > 1
            assert (model.split_bounds(unsplit)[is_split] * SLACK <= times[is_split]).all()
    same = model._run(merged, MACRO_BOUND)[1].reshape(5, -1)
    assert (same == same[:, :1]).all()  # one bound a macro choice


def with_macro_of(model: CudaModel, few: np.ndarray, many: np.ndarray) -> np.ndarray:
    """Give `many` points the block, thread and stage sizes of `few` (equally many each), random in all else."""
    rng = np.random.default_rng(0)
    result = many.copy()
    for row, point in enumerate(result):
        source = few[row * len(few) // len(many)]
        at = 0
        for axis in model.workload.axes:
            if axis.kind == "spatial":
                rest = int(source[at + 1] * source[at + 3] * source[at + 4])
                vthread, outer, inner = split(rest, 3, rng)
                point[at : at + 5] = source[at], vthread, source[at + 2], outer, inner
                at += 5
            else:
                point[at : at + 3] = source[at], *split(int(source[at + 1] * source[at + 2]), 2, rng)
                at += 3
        if model.space.splits is not None:
            point[-3:] = source[-3:]
    return result


def split(extent: int, parts: int, rng: np.random.Generator) -> list[int]:
    factors = []
    for _ in range(parts - 1):
        choices = [d for d in range(1, extent + 1) if extent % d == 0]
        factors.append(int(rng.choice(choices)))
        extent //= factors[-1]
    return [*factors, extent]


@SETTINGS
@given(workloads(), names, seeds)
def test_classes_are_bounded(workload: Workload, device: str, seed: int) -> None:
    """A bound holds for all splits of reg_outer/reg_inner and k1/k2 and all unroll depths of a class."""
    model = CudaModel(workload, gpu(device))
    rng = np.random.default_rng(seed)
    representative = random_points(model, 1, seed)[0]
    members = np.tile(representative, (300, 1))
    unroll = list(model.space.columns).index("unroll")
    for point in members:
        at = 0
        for axis in workload.axes:
            if axis.kind == "spatial":
                point[at + 3 : at + 5] = split(int(point[at + 3] * point[at + 4]), 2, rng)
                at += 5
            else:
                point[at + 1 : at + 3] = split(int(point[at + 1] * point[at + 2]), 2, rng)
                at += 3
        point[unroll] = rng.choice(model.space.unroll_depths)
    bound = model.class_bounds(representative)[0]
    assert (model.class_bounds(members) == bound).all()
    assert (model.times(members)[0] >= bound * SLACK).all()


@SETTINGS
@given(workloads(), names, seeds)
def test_physical_limits(workload: Workload, device: str, seed: int) -> None:
    model = CudaModel(workload, gpu(device))
    points = random_points(model, 600, seed)
    rules, times, columns = model._run(points, PREDICT, full=True)
    assert np.isfinite(times).all()
    assert (times >= model.floor_s * SLACK).all()
    roofline = np.maximum(columns[Col.FMA_S], columns[Col.DRAM_S]) + model.hardware.launch.overhead_s
    assert (times >= roofline * (1 - 1e-9)).all()
    peak = workload.num_points / (model._gpu.fma_per_cycle * model._gpu.num_sms * model._gpu.clock_hz)
    assert (columns[Col.FMA_S] >= peak * (1 - 1e-9)).all()
    named = model.evaluate(points).columns
    assert all(np.isfinite(values).all() and (values >= 0).all() for values in named.values())
    legal = rules == 0
    for share in ("occupancy", "Estimated_Occupancy"):
        assert (named[share] > 0).all()
        assert (named[share][legal] <= 1).all()
    efficiency, rounds = named["Wave_Efficiency"], named["blocks"] / model.hardware.compute.num_sms
    assert ((efficiency > 0) & (efficiency <= 1)).all()
    assert ((efficiency == 1) == (rounds == np.ceil(rounds))).all()
    assert all((named[part] >= 0).all() for part in PARTS)


@SETTINGS
@given(workloads(), names, seeds)
def test_traffic_is_above_the_lower_bound(workload: Workload, device: str, seed: int) -> None:
    model = CudaModel(workload, gpu(device))
    predictions = model.predictions(model.space.sample_points(300, seed))
    for prediction in predictions:
        if prediction.resources["spilled_registers"] == 0:
            assert min(prediction.traffic_over_bound.values()) >= SLACK, prediction.traffic_over_bound


@SETTINGS
@given(small_workloads(), names, seeds)
def test_quantities_in_plain_python(workload: Workload, device: str, seed: int) -> None:
    model = CudaModel(workload, gpu(device))
    points = random_points(model, 4, seed)
    _, _, columns = model._run(points, PREDICT, full=True)
    for at, row in enumerate(points):
        if not has_rounds(model, row):
            assert columns[Col.RULE, at] > 0
            continue
        point = Point(workload, model.hardware, model.space.schedule_of(row))
        expected = point.macro()
        expected |= point.micro(int(expected["REGISTER_CAP"]))
        for name, value in expected.items():
            assert math.isclose(columns[Col[name], at], value, rel_tol=1e-12), name


@SETTINGS
@given(workloads(), names, seeds)
def test_points_round_trip(workload: Workload, device: str, seed: int) -> None:
    model = CudaModel(workload, gpu(device))
    space, points = model.space, random_points(model, 20, seed)
    at = 0
    for axis in workload.axes:
        width = len(space.levels[axis.name])
        assert all(tiles_axis(row, axis.extent) for row in points[:, at : at + width].tolist())
        at += width
    assert (space.decode(space.encode(points)) == points).all()
    for point in points[model.check(points) == 0][:3]:
        schedule = space.schedule_of(point)
        assert space.point_of(schedule).tolist() == point.tolist()
        assert anatune.Schedule.from_json(schedule.to_json()) == schedule


@settings(SETTINGS, max_examples=60)
@given(small_workloads(largest=8))
def test_the_size_is_exact(workload: Workload) -> None:
    model = CudaModel(workload, gpu("rtx3090"))
    if model.space.size <= 100_000:
        assert len(all_points(model)) == model.space.size
    assert model.space.size == math.prod(model.space.radices)


@SETTINGS
@given(names, st.integers(1, 1024), st.integers(1, 256), st.integers(0, 100_000), st.integers(0, 40))
def test_occupancy_never_rises_with_use(device: str, threads: int, registers: int, shared: int, more: int) -> None:
    packed = CudaModel(anatune.matmul(2, 2, 2), gpu(device))._gpu
    blocks, limiter = resident_blocks_one(threads, registers, shared, packed)
    warps = -(-threads // packed.warp_size)
    assert 0 <= blocks * warps <= packed.max_warps_sm
    assert blocks <= packed.max_blocks_sm
    assert limiter in (0, 1, 2, 3)
    assert resident_blocks_one(threads, registers + more, shared, packed)[0] <= blocks
    assert resident_blocks_one(threads, registers, shared + 100 * more, packed)[0] <= blocks


@settings(SETTINGS, max_examples=40)
@given(workloads(), names, seeds)
def test_order_and_company_do_not_matter(workload: Workload, device: str, seed: int) -> None:
    model = CudaModel(workload, gpu(device))
    points = random_points(model, 300, seed)
    times, rules = model.times(points)
    order = np.random.default_rng(seed).permutation(len(points))
    assert model.times(points[order])[0].tobytes() == times[order].tobytes()
    alone = [model.times(points[at])[0][0] for at in order[:10]]
    assert alone == times[order[:10]].tolist()
    fresh = CudaModel(workload, gpu(device))
    assert fresh.times(points)[0].tobytes() == times.tobytes()
    assert fresh.check(points).tolist() == rules.tolist()


@settings(SETTINGS, max_examples=40)
@given(workloads(), names, seeds)
def test_predictions_are_plain_values(workload: Workload, device: str, seed: int) -> None:
    model = CudaModel(workload, gpu(device))
    for prediction in model.predictions(random_points(model, 5, seed)):
        assert msgspec.json.decode(msgspec.json.encode(prediction), type=type(prediction)) == prediction
        assert prediction.bound_by in {part.removesuffix("_s") for part in (*PARTS, *SPLIT_PARTS)}
        assert prediction.legal == (prediction.rule == "")
