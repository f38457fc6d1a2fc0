"""The library calls on GPUs: argument errors, tables, order."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

import anatune
from anatune.adapters.optuna import schedule_space
from anatune.core.hardware.files import spec_to_toml
from anatune.errors import SpaceError, UnknownNameError
from anatune.templates.cpu.space import CpuSpace
from anatune.templates.cuda.model.scoring import PARTS, RESOURCES
from anatune.templates.cuda.space import GpuSpace
from anatune.templates.gpu.model import FEATURES
from tests.naive_gpu import gpu
from tests.wording import refuses

MATMUL = anatune.matmul(64, 48, 32)


def test_space_by_hardware() -> None:
    assert isinstance(anatune.space(MATMUL, gpu("rtx3090")), GpuSpace)
    assert isinstance(anatune.space(MATMUL, anatune.hardware("ryzen_7950x")), CpuSpace)


def test_unknown_hardware_is_an_error() -> None:
    with refuses(UnknownNameError):
        anatune.hardware("rtx3091")


def test_hardware_by_name_path_or_spec(tmp_path: Path) -> None:
    spec = anatune.hardware("rtx3090")
    path = tmp_path / "mine.toml"
    path.write_text(spec_to_toml(spec))
    assert anatune.hardware(spec) is spec
    assert anatune.hardware(path) == anatune.hardware(str(path)) == spec
    wanted = anatune.plan(MATMUL, spec, 2).schedules
    for hw in ("rtx3090", path, str(path)):
        assert anatune.plan(MATMUL, hw, 2).schedules == wanted
        assert anatune.space(MATMUL, hw).hardware == spec
        assert anatune.predict(MATMUL, hw, wanted)["legal"].all()
        assert list(anatune.prune(MATMUL, hw, 1)) == wanted[:1]
        assert list(anatune.prune(MATMUL, hw, 1, candidates=wanted)) == wanted[:1]


@pytest.mark.parametrize(
    "call",
    [
        lambda **hw: anatune.plan(MATMUL, **hw),
        lambda **hw: anatune.space(MATMUL, **hw),
        lambda **hw: anatune.prune(MATMUL, **hw),
        lambda **hw: anatune.predict(MATMUL, schedules=[], **hw),
        lambda **hw: anatune.tune(MATMUL, **hw),
        lambda **hw: schedule_space(MATMUL, **hw),
    ],
)
def test_hardware_is_called_hw_and_wrong_one_is_told(call: Callable[..., object]) -> None:
    with refuses(UnknownNameError):
        call(hw="rtx3091")
    for hw in (5, None, MATMUL):
        with refuses(SpaceError):
            call(hw=hw)


@pytest.mark.parametrize("top_k", [0, -3, 1.0, True, "3", None])
def test_bad_top_k(top_k: object) -> None:
    with refuses(SpaceError):
        anatune.plan(MATMUL, gpu("rtx3090"), top_k)  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [0, -1.0, math.nan])
def test_bad_time_limit(limit: float) -> None:
    with refuses(SpaceError):
        anatune.plan(MATMUL, gpu("rtx3090"), time_limit_s=limit)


def test_predict_keeps_the_order() -> None:
    hardware = gpu("a100_sxm")
    schedules = anatune.space(MATMUL, hardware).sample(20, seed=3)
    table = anatune.predict(MATMUL, hardware, iter(schedules))
    assert len(table) == 20
    assert table.index.tolist() == list(range(20))
    one_by_one = [float(anatune.predict(MATMUL, hardware, [schedule])["time_s"].iloc[0]) for schedule in schedules]
    assert table["time_s"].tolist() == one_by_one
    assert table["legal"].all()
    assert (table["rule"] == "").all()


def test_predict_columns() -> None:
    hardware = gpu("a100_sxm")
    expected = {"time_s", "gflop_per_s", "bound_by", "occupancy", "occupancy_limiter", "waves", "legal", "rule"}
    expected |= {*PARTS, *FEATURES, *RESOURCES}
    expected |= {f"traffic_over_bound_{level}" for level in ("dram", "l2", "shared")}
    table = anatune.predict(MATMUL, hardware, anatune.space(MATMUL, hardware).sample(2))
    assert set(table.columns) == expected
    assert {"OI_Global_Mem", "OI_Shared_Mem", "Reg_Reuse_Factor", "ILP", "WLP"} <= set(table.columns)
    empty = anatune.predict(MATMUL, hardware, [])
    assert len(empty) == 0
    assert list(empty.columns) == list(table.columns)


def test_predict_illegal_points() -> None:
    hardware = gpu("tx2")
    schedule = anatune.space(MATMUL, hardware).schedule({"i": (1, 1, 64, 1, 1), "j": (1, 1, 48, 1, 1)})
    row = anatune.predict(MATMUL, hardware, [schedule]).iloc[0]
    assert not row["legal"]
    assert row["rule"] == "threads_per_block"
    assert math.isfinite(row["time_s"])


def test_predict_refuses_foreign_schedules() -> None:
    hardware = gpu("tx2")
    foreign = anatune.space(anatune.matmul(64, 48, 16), hardware).sample(1)
    with refuses(SpaceError):
        anatune.predict(MATMUL, hardware, foreign)


def test_schedules_of_other_gpus_are_scored() -> None:
    """A schedule is a way to compute; what it was chosen for does not matter."""
    schedules = anatune.space(MATMUL, gpu("k80")).sample(5)
    assert len(anatune.predict(MATMUL, gpu("rtx3090"), schedules)) == 5


def test_plan_agrees_with_predict() -> None:
    hardware = gpu("rtx4090")
    plan = anatune.plan(anatune.matmul(8, 12, 5), hardware, top_k=7)
    table = anatune.predict(plan.workload, hardware, plan.schedules)
    assert table["time_s"].tolist() == [prediction.time_s for prediction in plan.predictions]
    assert plan.guarantee.kind == "exhaustive"
    again = anatune.plan(anatune.matmul(8, 12, 5), hardware, top_k=7)
    assert again.schedules == plan.schedules


def test_threads_of_a_cpu() -> None:
    """A plan for one thread is the best for one thread; every call takes `threads` and means the same."""
    one, all_ = anatune.plan(MATMUL, "xeon_gold_6230r", 1, threads=1), anatune.plan(MATMUL, "xeon_gold_6230r", 1)
    assert (one.threads, all_.threads) == (1, 26)
    best = [one.best, all_.best]
    times = anatune.predict(MATMUL, "xeon_gold_6230r", best, threads=1)
    assert times["time_s"].iloc[0] == one.predictions[0].time_s
    assert not times["legal"].iloc[1] or times["time_s"].iloc[1] >= times["time_s"].iloc[0]
    assert next(iter(anatune.prune(MATMUL, "xeon_gold_6230r", 3, threads=1))) == one.best
    assert anatune.space(MATMUL, "xeon_gold_6230r", threads=2).hardware.compute.num_cores == 2
    assert anatune.plan(MATMUL, "xeon_gold_6230r", 1, threads=26).best == all_.best


@pytest.mark.parametrize(
    "call",
    [
        lambda **more: anatune.space(MATMUL, "rtx3090", **more),
        lambda **more: anatune.plan(MATMUL, "rtx3090", **more),
        lambda **more: anatune.prune(MATMUL, "rtx3090", **more),
        lambda **more: anatune.predict(MATMUL, "rtx3090", [], **more),
    ],
)
def test_threads_of_a_gpu_are_refused(call: Callable[..., object]) -> None:
    with refuses(SpaceError):
        call(threads=1)
