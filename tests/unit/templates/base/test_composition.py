import pytest

import anatune
from anatune.templates import TEMPLATES, make_model
from anatune.templates.base.composition import NOT_HIDDEN, Composition, Lane

GPU = "rtx3090"
CPU = "xeon_gold_6230r"
TIMED = {
    "cuda": ("matmul 509x4099x1021", GPU),
    "pipelined": ("matmul 512x4096x1024", GPU),
    "thin": ("matmul 1x4096x4096", GPU),
    "triton": ("matmul 509x4099x1021 --dtype float16", "h100"),
    "cpu": ("conv2d 1x64x28x28 64x64x3x3 --padding 1", CPU),
    "scaled": ("scaled_matmul 9x768x2048 --dtype float32xint4 --group 32", CPU),
    "winograd": ("conv2d 1x64x28x28 64x64x3x3 --padding 1", CPU),
    "fp16_accumulation": ("matmul 64x256x256 --dtype float16", "xeon_8480"),
    "amx": ("matmul 64x256x256 --dtype bfloat16", "xeon_8480"),
}


def test_every_template_is_here():
    assert TIMED.keys() == TEMPLATES.keys()


@pytest.mark.parametrize("template", TEMPLATES)
def test_pieces_add_up_to_the_time(template):
    words, device = TIMED[template]
    model = make_model(anatune.parse_workload(words), anatune.hardware(device), template)
    composition = model.composition
    named = {name for lane in composition.lanes for name in (*lane.at_once, *lane.in_turn)} | {*composition.added}
    assert composition.lanes
    for prediction in model.predictions(model.space.sample_points(200, seed=0)):
        pieces = composition.pieces(prediction.parts, prediction.time_s)
        assert sum(seconds for _, seconds in pieces) == pytest.approx(prediction.time_s, rel=1e-6)
        assert all(seconds > 0.0 for _, seconds in pieces)
        assert {name for name, _ in pieces} <= named | {NOT_HIDDEN}
        assert prediction.parts.keys() - {"overhead_s"} <= named  # Winograd's is part of its products
        for lane in composition.lanes:  # what overlaps fits into the time; what waits may be hidden in part
            assert max([prediction.parts.get(name, 0.0) for name in lane.at_once], default=0.0) <= prediction.time_s
            assert lane.seconds(prediction.parts) <= 1.25 * prediction.time_s


def test_the_tail_of_a_split_of_leftovers_is_that_of_its_last_wave():
    """246 of 256 tiles fill the device once; 10 are split: the first 246 are no tail."""
    plan = anatune.plan(anatune.matmul(512, 4096, 1024), GPU, 1, template="cuda", correction="none")
    assert plan.best.options["whole"] > 0
    (prediction,) = plan.predictions
    assert prediction.bound_by == "issue"
    assert prediction.parts["tail_s"] < 0.1 * prediction.time_s


def test_lanes_pass_beside_each_other():
    composition = Composition((Lane(("a", "b"), ("wait",)), Lane(("memory",))), ("launch",))
    parts = {"a": 5.0, "b": 3.0, "wait": 1.0, "memory": 4.0, "launch": 2.0}
    assert composition.pieces(parts, 9.0) == [("a", 5.0), ("wait", 1.0), (NOT_HIDDEN, 1.0), ("launch", 2.0)]
    assert composition.pieces(parts | {"memory": 8.0}, 10.0) == [("memory", 8.0), ("launch", 2.0)]
    assert composition.pieces(parts, 7.5) == [("a", 5.0), ("wait", 0.5), ("launch", 2.0)]
    assert Composition().pieces({"a": 2.0, "b": 1.0}, 2.5) == [("a", 2.0), (NOT_HIDDEN, 0.5)]
