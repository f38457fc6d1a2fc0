"""The certified ranking equals exhaustive enumeration, on hundreds of random small problems."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anatune.core.accuracy import error_of
from anatune.core.hardware.cpu_groups import CacheLevel, CpuCompute, CpuDram, DotInstruction
from anatune.core.hardware.spec import CpuSpec
from anatune.core.workload.nest import Workload
from anatune.core.workload.operators import batch_matmul, conv2d, depthwise_conv2d, matmul, max_pool2d, reduction
from anatune.templates.base.watch import Watch
from anatune.templates.cpu import dot as cpu_dot
from anatune.templates.cpu.model import points as cpu_points
from anatune.templates.cpu.model import ranking as cpu_ranking
from anatune.templates.cpu.model.model import CpuModel, HalfSumsModel
from anatune.templates.cpu.model.order import STEP
from tests.naive_cpu import ranked


@st.composite
def machines(draw: st.DrawFn) -> CpuSpec:
    """Small CPUs, so that small problems do not fit their caches."""
    cores = draw(st.sampled_from([1, 2, 3, 8]))
    bits = draw(st.sampled_from([32, 64, 128]))
    clock, fma = 1e9, draw(st.sampled_from([1.0, 2.0]))
    l1 = draw(st.sampled_from([1024, 2048]))
    l2, shared, rate = (draw(st.sampled_from(c)) for c in ([l1, 2 * l1], [1, cores], [1.0, 8.0]))
    isa = draw(st.sampled_from(["neon", "avx2", "avx512"]))
    pairs = msgspec.UNSET
    if isa == "avx512":
        rate, latency = draw(st.sampled_from([1.0, 2.0])), draw(st.sampled_from([2.0, 6.0]))
        pairs = DotInstruction(source="test", rate=rate, latency_cycles=latency)

    def cache(size: int, shared: int, bandwidth: float) -> CacheLevel:
        return CacheLevel(
            source="test", size_bytes=size, ways=draw(st.sampled_from([2, 4, 8])), shared_by_cores=shared,
            bandwidth_bytes_per_cycle=bandwidth, latency_cycles=5.0,
        )  # fmt: skip

    has_l3 = draw(st.booleans())
    return CpuSpec(
        schema_version=1, name="test", vendor="test", model="test", arch="test",
        compute=CpuCompute(
            source="test", num_cores=cores, clock_hz=clock, isa=isa, simd_bits=bits,
            fma_per_cycle=fma,
            fma_latency_cycles=draw(st.sampled_from([1.0, 4.0])), num_vector_registers=draw(st.sampled_from([4, 8])),
            loads_per_cycle=draw(st.sampled_from([1.0, 2.0])), stores_per_cycle=1.0, issue_width=2,
            fp32_peak_flop_per_s=2.0 * cores * clock * fma * bits / 32,
        ),
        l1=cache(l1, 1, 16.0),
        l2=cache(l2, shared, rate),
        l3=cache(8192, cores, 2.0) if has_l3 else None,
        dram=CpuDram(
            source="test", bandwidth_bytes_per_s=4e9, core_bandwidth_bytes_per_s=draw(st.sampled_from([1e9, 4e9])),
            latency_s=1e-7,
        ),
        vdpbf16ps=pairs,
    )  # fmt: skip


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    kind = draw(st.sampled_from(["matmul", "matmul", "batch", "conv", "depthwise", "pool", "reduction"]))
    small = st.integers(1, 9)
    dtype = draw(st.sampled_from(["float32", "bfloat16"]))
    if kind == "matmul":
        sizes = [draw(st.sampled_from([1, 2, 3, 5, 7, 8, 12, 16, 17, 30])) for _ in range(3)]
        return matmul(*sizes, transpose_a=draw(st.booleans()), transpose_b=draw(st.booleans()), dtype=dtype)
    if kind == "batch":
        return batch_matmul(draw(st.integers(1, 3)), draw(small), draw(small), draw(small), dtype=dtype)
    layout = draw(st.sampled_from(["NCHW", "NHWC"]))
    side = draw(st.integers(3, 6))
    if kind == "conv":
        return conv2d(
            1, draw(st.integers(1, 4)), side, draw(st.integers(3, 5)), draw(st.integers(1, 6)), 1,
            draw(st.integers(1, 3)), stride=draw(st.integers(1, 3)), padding=(0, draw(st.integers(0, 1))),
            layout=layout, dtype=dtype,
        )  # fmt: skip
    if kind == "depthwise":
        return depthwise_conv2d(1, draw(small), side, 4, 1, 3, layout=layout)
    if kind == "pool":
        return max_pool2d(1, draw(small), side, side, 2, 2, stride=2)
    return reduction((draw(small), draw(st.integers(8, 40))), axes=(draw(st.integers(0, 1)),))


@settings(max_examples=160, deadline=None, derandomize=True)
@given(
    workload=workloads(), hardware=machines(), top_k=st.sampled_from([1, 3, 10]), distinct=st.booleans(),
    batch=st.sampled_from([1, 64]),
)  # fmt: skip
def test_certified_equals_exhaustive(
    workload: Workload, hardware: CpuSpec, top_k: int, distinct: bool, batch: int
) -> None:
    model = CpuModel(workload, hardware)
    if model.space.size <= 150_000:
        check_certified(model, top_k, distinct=distinct, batch=batch)


@st.composite
def products_of_halves(draw: st.DrawFn) -> Workload:
    if draw(st.booleans()):
        sizes = [draw(st.sampled_from([1, 2, 5, 8, 12, 16])) for _ in range(2)]
        return matmul(*sizes, draw(st.sampled_from([4, 6, 15, 16, 24, 36])), dtype="float16")
    return conv2d(
        1, draw(st.sampled_from([2, 4, 6])), 4, 4, draw(st.integers(1, 5)), 2, 2, layout="NHWC", dtype="float16"
    )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    workload=products_of_halves(), hardware=machines().filter(lambda machine: machine.compute.isa == "avx512"),
    most=st.sampled_from([4, 16, 32]), top_k=st.sampled_from([1, 10]), distinct=st.booleans(),
)  # fmt: skip
def test_certified_equals_exhaustive_where_calls_are_short(
    workload: Workload, hardware: CpuSpec, most: int, top_k: int, distinct: bool
) -> None:
    machine = msgspec.structs.replace(hardware, vfmaddph=hardware.vdpbf16ps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_dot, "_MOST_TERMS", most)
        patch.setattr(cpu_dot, "_LEAST_TERMS", 1)
        if not cpu_dot.half_sums_apply(workload, machine):
            return
        model = HalfSumsModel(workload, machine)
        if model.space.size <= 150_000:
            found = check_certified(model, top_k, distinct=distinct, batch=64)
            assert all(0.0 < error_of(model.space.schedule_of(point).check()) < 0.05 for point in found)


def check_certified(model: CpuModel, top_k: int, *, distinct: bool, batch: int) -> np.ndarray:
    """Compare the search's ranking with that of all points, and return it."""
    expected = cpu_ranking.rank_exhaustively(model, top_k, distinct=distinct)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_ranking, "EXHAUSTIVE_LIMIT", 0)
        patch.setattr(cpu_points, "_BATCH", batch)  # small batches cut the points of a node
        patch.setattr(cpu_points, "_BATCH_SHARE", 0 if batch == 1 else 4)
        found = cpu_ranking.rank(model, top_k, distinct=distinct)
    assert found.guarantee.kind == "certified"
    assert found.num_legal == expected.num_legal
    assert found.rejected == expected.rejected
    assert msgspec.json.encode(expected.rejected)
    np.testing.assert_array_equal(found.points, expected.points)
    return found.points


@settings(max_examples=100, deadline=None, derandomize=True)
@given(workload=workloads(), hardware=machines(), top_k=st.sampled_from([1, 10, 100]), distinct=st.booleans())
def test_exhaustive_equals_plain(workload: Workload, hardware: CpuSpec, top_k: int, distinct: bool) -> None:
    model = CpuModel(workload, hardware)
    if model.space.size > 4_000:
        return
    found = cpu_ranking.rank_exhaustively(model, top_k, distinct=distinct).points
    assert [tuple(point) for point in found.tolist()] == ranked(model, distinct=distinct)[:top_k]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(workload=workloads(), hardware=machines(), looks=st.integers(0, 6), distinct=st.booleans())
def test_what_a_time_limit_leaves_is_within_its_gap(
    workload: Workload, hardware: CpuSpec, looks: int, distinct: bool
) -> None:
    class Ending(Watch):
        """Over after some looks at the clock."""

        left = looks

        @property
        def is_over(self) -> bool:
            Ending.left -= 1
            return Ending.left < 0

        def part(self, *shares: object) -> Watch:
            return self

    model = CpuModel(workload, hardware)
    if model.space.size > 150_000 or model.space.size < 100:
        return
    best_s = float(model.times(cpu_ranking.rank(model, 1).points)[0][0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_ranking, "EXHAUSTIVE_LIMIT", 0)
        found = cpu_ranking.rank(model, 10, Ending(), distinct=distinct)
    times, rules = model.times(found.points)
    assert not rules.any()
    assert len(times) > 0
    step = np.exp(STEP)  # times within a step are ties
    assert times[0] <= best_s * (1.0 + found.guarantee.gap) * step
    if found.guarantee.kind == "certified":
        assert times[0] <= best_s * step
