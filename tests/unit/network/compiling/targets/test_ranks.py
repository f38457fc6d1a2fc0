"""One of several ranks: its share of linear layers, what it sends, and what no plan divides."""

import pytest

pytest.importorskip("tvm", reason="operators are written as loops by TVM")
pytest.importorskip("torch", reason="the models are PyTorch's")

import torch

import anatune
from anatune.errors import SpaceError
from anatune.network.compiling.targets.ranks import divide_module
from tests.unit.network.compiling.targets.gpu_models import Experts, LlamaLayers
from tests.wording import refuses

PLAN = {f"layers.*.{name}": "colwise" for name in ("q", "k", "v", "gate", "up")}
PLAN |= {"layers.*.o": "rowwise", "layers.*.down": "rowwise"}
ROWS, WIDTH = 3 * 40, 512


def layers():
    with torch.device("meta"):
        return LlamaLayers(2, WIDTH, heads=8, groups=4, inner=1024).eval(), torch.zeros(3, 40, WIDTH)


def compared(**more):
    model, inputs = layers()
    return anatune.compare(model, inputs, hw=["h100"], precision="bfloat16", **more)[0]


@pytest.mark.slow
def test_a_rank_has_a_share_of_the_weights_and_sends_sums():
    whole = compared()
    part = compared(ranks=4, rank_plan=PLAN, link_bytes_per_s=1e9)
    norms = 4 * WIDTH * 4
    assert part.weight_bytes - norms == pytest.approx((whole.weight_bytes - norms) / 4, rel=0.01)
    sent = part.rows[-1]
    assert sent.count == 4
    assert sent.name == f"{int(4 * 2 * 3 / 4 * ROWS * WIDTH * 2)} bytes sent to other ranks"
    assert sent.predicted_s == pytest.approx(4 * 1.5 * ROWS * WIDTH * 2 / 1e9)
    assert part.whole_s > sent.predicted_s
    assert compared(ranks=4, rank_plan=PLAN).rows[-1].predicted_s is None


@pytest.mark.slow
def test_a_rank_of_a_decoder_has_its_caches():
    with torch.device("meta"):
        model, x = LlamaLayers().eval(), torch.zeros(2, 7, 64)
        past = [torch.zeros(2, 1, 9, 16) for _ in range(4)]  # one of two heads
    count, held = torch.export.Dim("count", min=1, max=64), torch.export.Dim("held", min=0, max=20)
    given = {
        "dynamic_shapes": ({1: count}, tuple({2: held} for _ in past)), "ranks": 2, "rank_plan": PLAN,
        "state": {f"output{number + 1}": f"past_{number}" for number in range(4)},
    }  # fmt: skip
    (found,) = anatune.compare(model, (x, *past), hw="h100", precision="bfloat16", sizes={"x_1": 3}, **given)
    assert found.rows[-1].name == f"{4 * 2 * 3 * 64 * 2} bytes sent to other ranks"
    with refuses(SpaceError):
        anatune.compare(model, (x, *past), hw="h100", precision="bfloat16", **given)


def test_a_rank_has_a_share_of_each_expert():
    with torch.device("meta"):
        model, x = torch.nn.Sequential(Experts(experts=8, dim=64, inner=96)).eval(), torch.zeros(40, 64)
    plan = {"0": "moe_tp_experts", "0.up": "packed_colwise", "0.down": "rowwise"}
    made, sent = divide_module(model, x, 4, plan)
    assert made[0].up.shape == (8, 2 * 24, 64)
    assert made[0].down.shape == (8, 64, 24)
    assert tuple(sent) == (1, 2 * 3 / 4 * 40 * 48 * 2)
    (found,) = anatune.compare(model, x, hw="h100", precision="bfloat16", ranks=4, rank_plan=plan)
    assert "grouped_matmul 40x8x2x24x64 --activation" in {kernel.workload for kernel in found.kernels}
    with refuses(SpaceError):
        divide_module(model, x, 5, plan)


def test_a_part_of_the_outputs_goes_to_all():
    with torch.device("meta"):
        model, inputs = torch.nn.Sequential(torch.nn.Linear(32, 64)).eval(), torch.zeros(5, 32)
    model.tp_plan = {"0": "colwise_gather_output"}
    made, sent = divide_module(model, inputs, 4)
    assert made(inputs).shape == (5, 16)
    assert tuple(sent) == (1, 3 * 5 * 16 * 2)
    assert model(inputs).shape == (5, 64)


@pytest.mark.parametrize(
    "more",
    [
        {"ranks": 0},
        {"ranks": 2},
        {"ranks": 3, "rank_plan": PLAN},
        {"ranks": 2, "rank_plan": {"layers.*.q": "expert"}},
        {"ranks": 2, "rank_plan": {"others.*": "colwise"}},
        {"ranks": 2, "rank_plan": PLAN, "link_bytes_per_s": 0.0},
    ],
)
def test_what_cannot_be_divided(more):
    with refuses(SpaceError):
        compared(**more)


def test_weights_that_are_there_are_not_divided():
    with refuses(SpaceError):
        anatune.compare(torch.nn.Linear(8, 8).eval(), torch.zeros(2, 8), hw=["h100"], ranks=2)
