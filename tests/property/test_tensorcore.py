"""Any product or convolution: points, traffic and times keep their promises; generated kernels are right (slow)."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import anatune
from anatune.core.workload.nest import Workload
from anatune.errors import MissingDependencyError
from anatune.templates.tensorcore.model import TensorCoreModel
from anatune.templates.tensorcore.program.layout import TileLayout
from tests.naive_gpu import gpu

DTYPES = st.sampled_from(["float16", "bfloat16", "float32"])
EPILOGUES = st.sampled_from([(), ("bias",), ("bias", "relu"), ("add",), ("bias", "add", "relu")])
SIZES = st.one_of(st.integers(1, 70), st.integers(1, 9).map(lambda value: 8 * value))


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    dtype, epilogue = draw(DTYPES), draw(EPILOGUES)
    if draw(st.booleans()):
        flags = {"transpose_a": draw(st.booleans()), "transpose_b": draw(st.booleans())}
        sizes = [draw(SIZES) for _ in range(3)]
        sizes[0] += sizes[0] * sizes[1] == 1  # one result is no matrix product
        return anatune.matmul(*sizes, dtype=dtype, epilogue=epilogue, **flags)
    groups = draw(st.sampled_from([1, 1, 2]))
    channels, filters = (groups * draw(st.sampled_from([1, 3, 4, 8, 16])) for _ in range(2))
    return anatune.conv2d(
        draw(st.integers(1, 2)),
        channels,
        draw(st.integers(5, 12)),
        draw(st.integers(5, 12)),
        filters,
        draw(st.sampled_from([1, 3])),
        draw(st.sampled_from([1, 3])),
        stride=draw(st.integers(1, 2)),
        padding=draw(st.integers(0, 2)),
        dilation=draw(st.integers(1, 2)),
        groups=groups,
        layout=draw(st.sampled_from(["NCHW", "NHWC"])),
        dtype=dtype,
        epilogue=epilogue,
    )


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(workloads(), st.sampled_from(["a100", "rtx3090", "h200"]), st.integers(0, 1000))
def test_points(workload: Workload, device: str, seed: int) -> None:
    model = TensorCoreModel(workload, gpu(device))
    points = model.space.sample_points(8, seed)
    assert (model.check(points) == 0).all()
    for point, prediction in zip(points, model.predictions(points), strict=True):
        schedule = model.space.schedule_of(point)
        layout = TileLayout(schedule)
        assert prediction.resources["shared_bytes_per_block"] == layout.shared_bytes
        assert layout.shared_bytes <= model.hardware.shared_memory.per_block_bytes
        assert prediction.time_s >= model.floor_s
        assert math.isfinite(prediction.time_s)
        assert all(ratio >= 1 - 1e-9 for ratio in prediction.traffic_over_bound.values())
        assert model.space.point_of(schedule).tolist() == point.tolist()
        work = math.prod(layout.grid[axis] * layout.block[axis] for axis in "mnk")
        padded = prediction.resources["useful_share"] * work * layout.gemm.extents["batch"]
        assert padded == pytest.approx(workload.num_points)


@pytest.mark.slow
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(workloads(), st.integers(0, 1000))
def test_kernels_are_right(workload: Workload, seed: int) -> None:
    pytest.importorskip("tvm")
    from anatune.measure.emulate.emulator import compiler

    try:
        compiler()
    except MissingDependencyError as error:
        pytest.skip(str(error))
    model = TensorCoreModel(workload, gpu("a100"))
    for schedule in model.space.sample(30, seed):
        if TileLayout(schedule).num_threads <= 256:
            answer = anatune.verify(schedule, seed=seed)
            assert answer.ok, f"{schedule.describe()}: {answer.message}"
            return
