import msgspec

from anatune.model.alternatives import Alternative
from anatune.report import explain
from anatune.report.text import join_lines
from anatune.templates.base.model import Guarantee
from tests.unit.report.plans import empty_plan, gpu_plan, prediction


def text_of(plan):
    return " ".join(explain.explanation(plan))


def test_everything_is_said_with_numbers():
    text = text_of(gpu_plan())
    for part in (
        "Certified: 120,000 of 1.000e7 points were evaluated",
        "nothing was measured",
        "bound by fma (the multiply-add units): 160.0 us, 85 % of its time",
        "fma 160.0 us, shared 120.0 us, dram 40.00 us, launch 2.500 us",
        "number 3 (i 8x2x16x2x1, j 32x2x16x4x1, k 64x4x4): 201.0 us, slower by 6.8 %, bound by shared",
        "needs more time for: shared 190.0 us against 120.0 us",
        "No schedule can take less than 120.7 us for the operations alone (4.295 GFLOP at 35.58 TFLOP/s",
        "A faster schedule needs less time for fma",
        "SHARED 2.50, L2 1.42, DRAM 1.00",
        "Rule threads_per_block (threads of a block; limit 1,024) rejected 2,000,000 points (20 %)",
        "Rules that rejected nothing: registers_per_thread",
        "Legal: 7,500,000 of 1.000e7 points (75 %)",
        "l2.bandwidth_bytes_per_s",
        "binding resource depends on compute.reachable_fraction",
    ):
        assert part in text


def test_numbers_of_other_dtypes_are_not_doubted():
    assert "fp16_rate" not in text_of(gpu_plan())


def test_runner_up_differs_materially():
    alike = [prediction(), prediction(188.3e-6)]
    assert explain.material_runner_up(gpu_plan(predictions=alike)) is None
    assert "next 1 schedules are nearly the same" in text_of(gpu_plan(predictions=alike))
    assert explain.material_runner_up(gpu_plan(predictions=[*alike, prediction(dram_s=60e-6)])) == 2
    assert explain.material_runner_up(gpu_plan(predictions=[*alike, prediction(bound_by="shared")])) == 2
    assert "only this schedule" in text_of(gpu_plan(predictions=alike[:1]))


def test_circumstances_of_the_runner_up():
    other = msgspec.structs.replace(
        prediction(210e-6),
        occupancy=1 / 3,
        waves=3.12,
        traffic_over_bound={"shared": 2.5, "l2": 2.84, "dram": 1.0},
        resources={"registers_per_thread": 168.0, "shared_bytes_per_block": 32768.0},
    )
    text = text_of(gpu_plan(predictions=[prediction(), other]))
    assert "occupancy 33 % (registers) against 67 % (registers)" in text
    assert "waves 3.12 against 1.56" in text
    assert "L2 traffic over its lower bound 2.84 against 1.42" in text
    assert "registers per thread 168 against 96" in text


def test_steps_are_told_with_their_reasons():
    steps = [
        Alternative("k", "a factor 2 of k in k0 instead of k1", prediction(400e-6, shared_s=380e-6)),
        Alternative("i", "a factor 2 of i in block instead of thread", prediction(200e-6, dram_s=80e-6)),
    ]
    text = " ".join(explain.explanation(gpu_plan(), steps))
    assert "a factor 2 of k in k0 instead of k1: 2.13 times as long (more shared 380.0 us against 120.0 us)" in text
    assert "in block instead of thread: slower by 6.3 % (more dram 80.00 us against 40.00 us)" in text


def test_each_guarantee_has_its_words():
    exhaustive = gpu_plan(guarantee=Guarantee("exhaustive", num_evaluated=10_000_000))
    assert "Exhaustive: all 1.000e7 points" in text_of(exhaustive)
    found = gpu_plan(guarantee=Guarantee("best_found", gap=0.03), num_legal=None)
    found = type(found)(**{**vars(found), "rejected": None})
    assert "at most 3 % more predicted time" in text_of(found)
    assert "illegal points" in text_of(found)


def test_unknown_parts_are_named_as_they_are():
    strange = prediction(bound_by="warp_drive", warp_drive_s=180e-6)
    assert "bound by warp_drive (the part 'warp_drive')" in text_of(gpu_plan(predictions=[strange]))


def test_nothing_legal_counts_rules_and_limits():
    text = explain.nothing_legal_text(empty_plan())
    assert "none of 1.000e7 schedules is legal" in text
    assert "threads_per_block (threads of a block; limit 1,024) rejected 9,000,000 points (90 %)" in text
    assert "\n" not in text
    assert explain.explanation(empty_plan()) == [text]
    stopped = type(empty_plan())(**{**vars(empty_plan(num_legal=None)), "rejected": None})
    assert "within the time limit" in explain.nothing_legal_text(stopped)


def test_lines_fit():
    lines = explain.explanation_lines(gpu_plan(), width=80)
    assert max(len(line.text) for line in lines) <= 80
    assert "- Certified" in join_lines(lines)
