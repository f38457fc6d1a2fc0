"""CPU model: the microkernel's order and cliff, bounds, rules, ranking of known layers."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

import anatune
from anatune.core.hardware.spec import CpuSpec
from anatune.templates.cpu.model.model import CpuModel
from anatune.templates.cpu.model.rules import count_rules
from anatune.templates.cpu.model.scoring import PARTS
from anatune.templates.cpu.times.microkernel import step_one

# (rows, vectors) -> per cent of peak, Xeon Gold 6230R, float32. Source: TTile's table (facts of the microkernel work).
FITTING = {(9, 3): 98.06, (6, 4): 97.86, (8, 3): 97.78, (5, 5): 97.59, (7, 3): 97.44, (13, 2): 97.42}
SPILLING = {(5, 6): 52.7, (15, 2): 45.1, (7, 4): 45.5, (8, 4): 42.7}


@pytest.fixture(scope="module")
def hardware() -> CpuSpec:
    spec = anatune.hardware("xeon_gold_6230r")
    assert isinstance(spec, CpuSpec)
    return spec


@pytest.fixture(scope="module")
def matmul(hardware: CpuSpec) -> CpuModel:
    return CpuModel(anatune.matmul(512, 1024, 1024), hardware)


def kernel_share(model: CpuModel, rows: int, vectors: int) -> float:
    """Share of the peak that a microkernel's step reaches with its operands in L1, eight steps an iteration."""
    held = float(vectors) if rows > 1 else 1.0
    core = model.machine.core
    step = step_one(core, float(rows * vectors), float(rows + vectors), held, float(rows), 0.0, 8.0, 1.0)[0]
    return rows * vectors / core.fma_per_cycle / step


def test_microkernel_cliff(matmul: CpuModel) -> None:
    fitting = {kernel: kernel_share(matmul, *kernel) for kernel in FITTING}
    spilling = {kernel: kernel_share(matmul, *kernel) for kernel in SPILLING}
    for kernel, share in fitting.items():
        assert share == pytest.approx(FITTING[kernel] / 100, abs=0.06)
    for kernel, share in spilling.items():
        assert share == pytest.approx(SPILLING[kernel] / 100, abs=0.1)
    assert min(fitting.values()) > 1.7 * max(spilling.values())
    assert kernel_share(matmul, 1, 4) < 0.55  # four accumulators do not hide the latency
    assert kernel_share(matmul, 4, 1) < kernel_share(matmul, 6, 4)


def test_sums_that_just_cover_the_latency_leave_slots_empty() -> None:
    """AVX2 on a Zen 4: 106 GFLOP/s with 4x2 tiles, whose 8 sums cover 4 cycles of 2 multiply-adds; 112 with 6x2."""
    model = CpuModel(anatune.matmul(196, 1024, 512), anatune.hardware("amd_epyc_7763"))
    assert kernel_share(model, 4, 2) / kernel_share(model, 6, 2) == pytest.approx(106 / 112, abs=0.02)


def evaluate(model: CpuModel, **arguments: object) -> float:
    schedule = model.space.schedule(**arguments)  # type: ignore[arg-type]
    return float(model.evaluate(model.space.point_of(schedule)[None]).time_s[0])


def core_seconds(model: CpuModel, **arguments: object) -> float:
    schedule = model.space.schedule(**arguments)  # type: ignore[arg-type]
    return float(model.evaluate(model.space.point_of(schedule)[None]).columns["core_s"][0])


def test_goto_blocking_beats_no_blocking(matmul: CpuModel) -> None:
    goto = {"i": (1, 2, 1, 32, 8), "j": (1, 1, 32, 1, 32), "k": (4, 1, 256, 1)}
    flat = {"i": (1, 1, 1, 64, 8), "j": (1, 1, 1, 32, 32), "k": (1, 1, 1024, 1)}
    assert evaluate(matmul, tiles=goto, packed=("A", "B")) < evaluate(matmul, tiles=flat, packed=())


def test_time_is_above_roofline_and_traffic_above_bounds(matmul: CpuModel, hardware: CpuSpec) -> None:
    for workload in (
        matmul.workload,
        anatune.conv2d(1, 32, 28, 28, 64, 3, 3, padding=1),
        anatune.depthwise_conv2d(1, 32, 28, 28, 3, 3, padding=1),
        anatune.max_pool2d(1, 16, 28, 28, 3, 3, stride=2),
        anatune.elementwise((64, 1000)),
    ):
        model = CpuModel(workload, hardware)
        evaluation = model.evaluate(model.space.sample_points(3000, seed=3))
        assert (evaluation.rule == 0).all()
        assert (evaluation.time_s >= workload.flop / hardware.compute.fp32_peak_flop_per_s).all()
        for name in ("l1", "l2", "l3"):
            assert evaluation.columns[f"{name}_over_bound"].min() >= 1.0
        assert set(PARTS) <= set(evaluation.columns)


def test_pair_costs_its_two_kernels(hardware: CpuSpec) -> None:
    model = CpuModel(anatune.matmul(17, 512, 512), hardware)
    shared = {"j": (1, 1, 1, 16, 32), "k": (1, 1, 64, 8)}
    pair = core_seconds(model, tiles={"i": (1, 1, 1, 1, 17), **shared}, calls={"i": 2})
    alone = core_seconds(model, tiles={"i": (1, 1, 1, 17, 1), **shared})
    spilled = core_seconds(model, tiles={"i": (1, 1, 1, 1, 17), **shared})
    assert pair < 0.6 * alone
    assert pair < 0.6 * spilled


def test_masked_vectors_cost_whole_ones(hardware: CpuSpec) -> None:
    narrow = CpuModel(anatune.matmul(64, 17, 256), hardware)
    wide = CpuModel(anatune.matmul(64, 32, 256), hardware)
    tiles = {"i": (1, 1, 1, 8, 8), "k": (1, 1, 256, 1)}
    masked = core_seconds(narrow, tiles={**tiles, "j": (1, 1, 1, 1, 17)})
    assert masked == core_seconds(wide, tiles={**tiles, "j": (1, 1, 1, 1, 32)})


def test_rules_and_counts(matmul: CpuModel) -> None:
    tiles = {"i": (1, 1, 1, 1, 512), "j": (32, 1, 1, 1, 32), "k": (1, 1, 1024, 1)}
    point = matmul.space.point_of(matmul.space.schedule(tiles=tiles))
    prediction = matmul.predictions(point[None])[0]
    assert not prediction.legal
    assert prediction.rule == "microkernel_registers"
    assert np.isfinite(prediction.time_s)
    sequential = matmul.space.schedule(tiles={"i": (1, 1, 1, 64, 8), "j": (1, 1, 1, 32, 32)}, parallel=True)
    assert matmul.predictions(matmul.space.point_of(sequential)[None])[0].rule == "parallel_cores"
    legal, rejected = count_rules(matmul)
    assert legal + sum(rejected.values()) == matmul.space.size
    points = matmul.space.sample_points(20000, seed=5, legal=False)
    codes = matmul.check(points)
    np.testing.assert_array_equal(codes, matmul.evaluate(points).rule)
    assert (codes == 0).mean() == pytest.approx(legal / matmul.space.size, abs=0.02)


def test_rank_is_certified_and_distinct(hardware: CpuSpec) -> None:
    model = CpuModel(anatune.matmul(512, 64, 1024), hardware)
    ranking = model.rank(10)
    assert ranking.guarantee.kind == "certified"
    assert len(ranking.points) == 10
    times = model.evaluate(ranking.points).time_s
    steps = np.floor(np.log(times) / np.log1p(1e-3))
    assert (np.diff(steps) >= 0).all()
    sampled = model.evaluate(model.space.sample_points(20000, seed=0)).time_s.min()
    assert times[0] <= sampled
    again = CpuModel(anatune.matmul(512, 64, 1024), hardware).rank(10)
    np.testing.assert_array_equal(again.points, ranking.points)


def test_time_limit_gives_a_gap(hardware: CpuSpec) -> None:
    model = CpuModel(anatune.matmul(512, 4096, 1024), hardware)
    ranking = model.rank(3, time_limit_s=0.0)
    assert ranking.guarantee.kind in ("best_found", "certified")
    assert len(ranking.points) == 3
    exact = model.evaluate(model.rank(1).points).time_s[0]
    best_s = model.evaluate(ranking.points).time_s[0]
    assert exact >= best_s / (1.0 + ranking.guarantee.gap) * (1.0 - 1.1e-3)


def test_threads_that_share_units_do_not_add_up(hardware: CpuSpec) -> None:
    workload = anatune.matmul(256, 256, 256)
    alone = CpuModel(workload, hardware.with_threads(1))
    separate, shared = (
        CpuModel(workload, msgspec.structs.replace(spec, compute=msgspec.structs.replace(spec.compute, **changes)))
        for spec, changes in ((hardware.with_threads(2), {}), (hardware.with_threads(2), {"parallel_speedup": 1.0}))
    )
    tiles = {"i": (4, 1, 1, 8, 8), "j": (1, 1, 1, 8, 32)}
    sequential = core_seconds(alone, tiles=tiles)
    assert core_seconds(separate, tiles=tiles, parallel=True) == pytest.approx(sequential / 2)
    assert core_seconds(shared, tiles=tiles, parallel=True) == pytest.approx(sequential)
    best = shared.rank(1).points[0]
    assert not shared.space.schedule_of(best).options["parallel"]  # a start for nothing
    assert separate.space.schedule_of(separate.rank(1).points[0]).options["parallel"]
    for model in (separate, shared):  # the search and the times of points go by the same rule
        times, rules = model.times(model.space.sample_points(4000, seed=0))
        assert model.times(model.rank(1).points)[0][0] <= times[rules == 0].min()
