import msgspec
import pytest

import anatune
from anatune.core.hardware.files import list_hardware, load_spec_file
from anatune.core.schedule import Schedule
from anatune.report import devices, plans, schedules
from anatune.report.text import join_lines
from anatune.templates.base.model import Guarantee
from tests.unit.report.plans import empty_plan, gpu_plan, prediction


def test_plan_fits_into_80_columns_and_says_everything():
    text = join_lines(plans.plan_lines(gpu_plan(), seconds=0.5))
    assert max(map(len, text.splitlines())) <= 80
    flat = " ".join(text.split())
    for part in (
        "matmul i=512 j=4096 k=1024, float32: 4.295 GFLOP",
        "NVIDIA GeForce RTX 3090 (rtx3090, sm_86): peak 35.58 TFLOP/s in float32, DRAM 936.0 GB/s",
        "guarantee: certified; 120,000 points evaluated, 4,000 partial points bounded, space of 1.000e7 points, "
        "7,500,000 legal; 500.0 ms",
        "1 188.2 us 22821 64% fma 67% regs 1.56 2.50 1.42 1.00 96",
        "1 axis block vthread thread reg_outer reg_inner i 8 2 16 2 1 j 32 2 16 4 1 axis k0 k1 k2 k 64 4 4 unroll 512, "
        "vector.A 4, vector.B 4",
    ):
        assert part in flat


def test_extreme_numbers_still_fit():
    wide = prediction(0.1234567, bound_by="overhead")
    wide = msgspec.structs.replace(
        wide,
        occupancy=1.0,
        waves=123456.0,
        traffic_over_bound={"shared": 999.9, "l2": 123.4, "dram": 99.9},
        resources={"registers_per_thread": 255.0, "spilled_registers": 120.0},
    )
    lines = plans.plan_lines(gpu_plan(predictions=[wide] * 10))
    assert max(len(line.text) for line in lines) <= 80
    assert any("255+120" in line.text for line in lines)
    assert "regs: registers of a thread + spilled ones" in " ".join(join_lines(lines).split())


def test_no_registers_no_traffic_no_count():
    bare = msgspec.structs.replace(prediction(), resources={}, traffic_over_bound={}, occupancy_limiter="")
    text = join_lines(plans.plan_lines(gpu_plan(predictions=[bare], num_legal=None)))
    assert "legal" not in text
    assert "67%  " in text


def test_nothing_legal_has_no_table():
    assert "bound by" not in join_lines(plans.plan_lines(empty_plan()))


def test_copies_are_rated_in_bytes():
    workload, hardware = anatune.elementwise((1024, 1024), op="copy"), anatune.hardware("rtx3090")
    plan = gpu_plan(predictions=[prediction(20e-6)])
    plan = type(plan)(
        workload,
        hardware,
        [Schedule(workload, hardware, "cuda", {"d0": (32, 1, 32, 1, 1), "d1": (8, 1, 128, 1, 1)})],
        plan.predictions,
        Guarantee("exhaustive", num_evaluated=5),
        5,
        5,
        {},
        (),
        "cuda",
    )
    text = join_lines(plans.plan_lines(plan))
    assert "GB/s" in text
    assert "GFLOP/s" not in text
    assert " 419 " in text


def test_options_are_readable():
    plan = gpu_plan()
    options = {"order.l2": ("i", "k", "j"), "packed": (), "pair.i": (1, 8, 1, 9), "parallel": True, "simd_lanes": 16}
    schedule = Schedule(plan.workload, plan.hardware, "cpu", {"i": (1, 1, 1, 1, 512)}, options=options)
    assert schedules.schedule_items(schedule) == [
        "i 1x1x1x1x512",
        "unroll 0",
        "order.l2 i-k-j",
        "packed none",
        "pair.i 1-8-1-9",
        "parallel yes",
        "simd_lanes 16",
    ]


def test_rejected_lines_give_limit_and_share():
    assert plans.rejected_lines(gpu_plan()) == [
        "threads_per_block (threads of a block; limit 1,024) rejected 2,000,000 points (20 %)",
        "shared_per_block (bytes of shared memory of a block; limit 101,376) rejected 500,000 points (5 %)",
    ]
    assert plans.rejected_lines(gpu_plan(rejected={"other": 3})) == ["other rejected 3 points (< 0.01 %)"]


def test_hardware_lines_name_every_device():
    specs = list_hardware()
    text = join_lines(devices.hardware_lines(specs))
    assert len(text.splitlines()) == len(specs) + 1
    assert all(spec.name in text and spec.model in text for spec in specs)


@pytest.mark.parametrize("name", ["rtx3090", "xeon_gold_6230r"])
def test_marked_toml_marks_and_reads_back(name, tmp_path):
    spec = anatune.hardware(name)
    text = devices.marked_toml(spec)
    assert text.count("# unverified") == len(devices.unverified_keys(spec)) > 0
    path = tmp_path / f"{spec.vendor}_{spec.name}.toml"
    path.write_text(text)
    assert load_spec_file(path) == spec


def test_compiling_the_model_is_no_part_of_the_planning():
    flat = " ".join(join_lines(plans.plan_lines(gpu_plan(), seconds=0.5, compiling_s=31.6)).split())
    assert "7,500,000 legal; 500.0 ms, after 31.60 s of compiling the model, which is done once" in flat
